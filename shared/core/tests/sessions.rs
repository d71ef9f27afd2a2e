//! Sessions as a program uses them: on several threads over one pool, and without allocating once they are open.

#[cfg(test)]
mod tests {
    use core::ops::Range;
    use kbtp_core::{
        Admission, AuthMode, Contents, Directory, DirectoryConfig, Exposer, Geometry, Intake, Pool,
        SessionConfig, SessionId, Shared, TargetSession,
    };
    use kbtp_fabric::{
        Access, Atomics, Capabilities, LocalError, Time, WorkId, WorkOutcome, WorkRequest,
    };
    use kbtp_memory::{PageOptions, Region};
    use kbtp_wire::{
        BlockOffset, ByteLen, Completion, DataDescriptor, Handle, Hello, InitiatorId, KnownTlvs,
        Operation, Request, RequestId, SessionCapabilities, Source, Stag, Status, TaggedOffset,
    };
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;
    use std::sync::Mutex;

    thread_local! {
        /// Allocations of this thread: other threads (of the test runner) do not disturb the count.
        static COUNT: Cell<u64> = const { Cell::new(0) };
        /// Octets allocated and not freed by this thread.
        static OCTETS: Cell<usize> = const { Cell::new(0) };
    }

    struct Counting;

    // SAFETY: everything is passed on to the system's allocator; counting allocates nothing, as the cell is const
    // and has no destructor.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            COUNT.with(|count| count.set(count.get() + 1));
            OCTETS.with(|octets| octets.set(octets.get().wrapping_add(layout.size())));
            // SAFETY: the caller's promise is passed on.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, octets: *mut u8, layout: Layout) {
            OCTETS.with(|octets| octets.set(octets.get().wrapping_sub(layout.size())));
            // SAFETY: the caller's promise is passed on.
            unsafe { System.dealloc(octets, layout) }
        }
    }

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    const BLOCK: u32 = 4096;
    const TABLE_BASE: u64 = 500;

    fn pool(blocks: u32) -> Pool {
        let geometry = Geometry {
            block_size: BLOCK,
            blocks,
            handles: 1024,
            table_base_handle: Handle(TABLE_BASE),
            pool_base: BlockOffset(1 << 30),
        };
        let options = PageOptions::default();
        let meta = Region::anonymous(geometry.meta_len(), &options).unwrap();
        let data = Region::anonymous(geometry.pool_len(), &options).unwrap();
        Pool::format(meta, data, geometry, [1; 16], Contents::Zeroed).unwrap()
    }

    /// No direct modes here.
    struct Nothing;

    impl Exposer for Nothing {
        fn expose(
            &mut self,
            _: &Region,
            _: Range<u64>,
            _: TaggedOffset,
            _: Access,
        ) -> Result<Stag, LocalError> {
            Err(LocalError::Limit {
                what: "registrations",
                limit: 0,
            })
        }

        fn revoke(&mut self, stag: Stag) -> Result<(), LocalError> {
            Err(LocalError::UnknownStag { stag })
        }
    }

    /// A session and its initiator, whose buffer is one block.
    struct Party {
        session: TargetSession,
        memory: Region,
        /// Work whose end must be told.
        ends: Vec<(WorkId, WorkOutcome)>,
        completions: Vec<Completion>,
        message: Vec<u8>,
        next: u64,
        handle: u64,
    }

    impl Party {
        fn open(shared: &Shared, directory: &Mutex<Directory>, number: u8, quota: u32) -> Self {
            let session = TargetSession::new(SessionConfig {
                id: SessionId(number.into()),
                auth: AuthMode::None,
                challenge: [0; 32],
                pool_stag: Stag(1),
                capabilities: Capabilities {
                    atomics: Atomics::None,
                    write_with_immediate: false,
                    send_with_invalidate: true,
                    outbound_reads: 16,
                    inbound_reads: 0,
                    max_receive: ByteLen(1 << 16),
                    max_message: ByteLen(u32::MAX),
                },
            });
            let mut party = Self {
                session,
                memory: Region::anonymous(BLOCK.into(), &PageOptions::default()).unwrap(),
                ends: Vec::with_capacity(64),
                completions: Vec::with_capacity(64),
                message: vec![0; 1024],
                next: 0,
                handle: 0,
            };
            let hello = Hello {
                request_id: RequestId(0),
                min_version: 1,
                max_version: 1,
                credits: 16,
                capabilities: SessionCapabilities::NONE,
                quota,
                max_inline: ByteLen(512),
                handles: 64,
                initiator: InitiatorId([number; 16]),
                tlvs: KnownTlvs::default(),
            };
            let len = hello.encode_into(&mut party.message).unwrap();
            let intake = party
                .session
                .handle_message(Time(0), shared, &party.message[..len]);
            assert_eq!(intake, Ok(Intake::Admit));
            let mut directory = directory.lock().unwrap();
            let answer = party
                .session
                .admit(Time(0), shared, &mut directory, &mut Nothing);
            assert_eq!(answer, Ok(Admission::Answered));
            party.handle = party.session.grant().unwrap().handle_base.0;
            assert!(party.session.next_work().is_some());
            party.session.work_posted();
            party
        }

        fn send(&mut self, shared: &Shared, handle: u64, operation: Operation<'_>) {
            self.next += 1;
            let request = Request {
                request_id: RequestId(self.next),
                handle: Handle(handle),
                generation: None,
                record: None,
                operation,
            };
            let len = request.encode_into(&mut self.message).unwrap();
            let intake = self
                .session
                .handle_message(Time(0), shared, &self.message[..len]);
            assert_eq!(intake, Ok(Intake::Taken));
        }

        fn post(&mut self, shared: &Shared) {
            let base = shared.pool.geometry().pool_base.0;
            let blocks = shared.pool.block_region();
            while let Some(work) = self.session.next_work() {
                let outcome = match work.request {
                    WorkRequest::Send { head, .. } => {
                        self.completions
                            .push(Completion::decode_message(head).unwrap());
                        WorkOutcome::Sent
                    }
                    WorkRequest::Write { local, remote, .. } => {
                        let (from, to) = (local.offset.0 - base, remote.offset.0);
                        self.memory
                            .copy_from(blocks, from, to, local.len.get())
                            .unwrap();
                        WorkOutcome::Sent
                    }
                    WorkRequest::Read { local, remote } => {
                        let (from, to) = (remote.offset.0, local.offset.0 - base);
                        blocks
                            .copy_from(&self.memory, from, to, local.len.get())
                            .unwrap();
                        WorkOutcome::Read
                    }
                    other => panic!("{other:?}"),
                };
                if work.signaled {
                    self.ends.push((work.id, outcome));
                }
                self.session.work_posted();
            }
        }

        fn end(&mut self, shared: &Shared) {
            while let Some((id, outcome)) = self.ends.pop() {
                self.session
                    .handle_done(Time(0), shared, id, outcome)
                    .unwrap();
            }
        }

        /// Until every request is answered; a block that is still being sent by others is waited for.
        fn run(&mut self, shared: &Shared) {
            loop {
                self.post(shared);
                self.end(shared);
                if self.session.next_work().is_none() && self.session.under_way() == 0 {
                    return;
                }
                self.session
                    .handle_timeout(Time(0), shared, &mut Nothing)
                    .unwrap();
                std::thread::yield_now();
            }
        }

        fn statuses(&mut self) -> impl Iterator<Item = Status> + '_ {
            self.completions
                .drain(..)
                .map(|completion| completion.status)
        }
    }

    const BUFFER: DataDescriptor = DataDescriptor {
        stag: Stag(9),
        offset: TaggedOffset(0),
        len: ByteLen(BLOCK),
    };
    const LOAD: Operation<'static> = Operation::Load {
        sink: BUFFER,
        invalidate: false,
        allow_unsealed: true,
    };

    fn store(len: u32) -> Source<'static> {
        let buffer = DataDescriptor {
            len: ByteLen(len),
            ..BUFFER
        };
        Source::Remote {
            buffer,
            invalidate: false,
        }
    }

    fn target(blocks: u32) -> (Shared, Mutex<Directory>) {
        let pool = pool(blocks);
        let directory = Directory::new(DirectoryConfig::default(), &pool).unwrap();
        (Shared::new(pool), Mutex::new(directory))
    }

    /// Of four workers each stores and frees its own handle and loads its neighbours'. With a quota of one each and
    /// no block to spare, every block goes round among all of them.
    //= test kbtp-3.3-no-block-lost-or-twice
    //= test kbtp-6.4-entry-before-return
    #[test]
    fn workers_share_a_pool_without_a_lock() {
        let (shared, directory) = target(4);
        let parties: Vec<_> = (1..=4)
            .map(|number| Party::open(&shared, &directory, number, 1))
            .collect();
        let handles: Vec<u64> = parties.iter().map(|party| party.handle).collect();
        let stamp_of = |handle: u64| u8::try_from((handle - TABLE_BASE) / 64 + 1).unwrap();
        let loads: u64 = std::thread::scope(|scope| {
            let workers: Vec<_> = parties
                .into_iter()
                .map(|mut party| {
                    let (shared, directory, handles) = (&shared, &directory, &handles);
                    scope.spawn(move || {
                        let own = party.handle;
                        let mut loads = 0;
                        for round in 0..1500_usize {
                            party.memory.fill(0, BLOCK.into(), stamp_of(own)).unwrap();
                            let seal = round % 2 == 0;
                            let source = store(BLOCK);
                            party.send(shared, own, Operation::AllocStore { source, seal });
                            party.run(shared);
                            assert!(party.statuses().all(|status| status == Status::Ok));
                            let victim = handles[round % handles.len()];
                            party.send(shared, victim, LOAD);
                            party.run(shared);
                            for status in party.statuses().collect::<Vec<_>>() {
                                if status == Status::Ok {
                                    let mut found = vec![0; BLOCK as usize];
                                    party.memory.read(0, &mut found).unwrap();
                                    let expected = stamp_of(victim);
                                    assert!(found.iter().all(|octet| *octet == expected));
                                    loads += 1;
                                } else {
                                    assert_eq!(status, Status::NotValid);
                                }
                            }
                            party.send(shared, own, Operation::Free);
                            party.run(shared);
                            assert!(party.statuses().all(|status| status == Status::Ok));
                        }
                        party
                            .session
                            .finish(Time(0), shared, &mut directory.lock().unwrap());
                        loads
                    })
                })
                .collect();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap())
                .sum()
        });
        assert!(
            loads >= 1500,
            "a quarter of the loads are of the worker's own block"
        );
        directory.lock().unwrap().poll(Time(0), &shared);
        let audit = shared.pool.audit();
        assert_eq!(audit.faults, Vec::<String>::new());
        assert_eq!(
            (
                audit.in_rings,
                audit.deferred,
                audit.awaited,
                audit.elsewhere
            ),
            (4, 0, 0, 0)
        );
        assert_eq!(shared.pool.usage().free, 4);
    }

    #[test]
    fn a_session_has_no_more_memory_than_its_limit_says() {
        let (shared, directory) = target(32);
        // The directory's own nodes come with the first session.
        Party::open(&shared, &directory, 1, 4);
        let before = OCTETS.with(Cell::get);
        let party = Party::open(&shared, &directory, 2, 4);
        let grant = party.session.grant().unwrap();
        let limit = kbtp_core::limits::session_memory(grant.credits, grant.max_inline);
        // The party beside its session: message, ends, completions.
        let party_own = 1024 + 64 * (size_of::<(WorkId, WorkOutcome)>() + size_of::<Completion>());
        let used = OCTETS
            .with(Cell::get)
            .wrapping_sub(before)
            .saturating_sub(party_own);
        assert!(used as u64 <= limit, "{used} over {limit}");
        assert!(used as u64 * 2 > limit, "{limit} is more than twice {used}");
    }

    #[test]
    fn an_open_session_allocates_nothing() {
        let (shared, directory) = target(32);
        let mut party = Party::open(&shared, &directory, 1, 16);
        let handle = party.handle;
        let inline = [7; 500];
        let inline = || Source::Inline {
            declared: ByteLen(500),
            octets: &inline,
        };
        let before = COUNT.with(Cell::get);
        for _ in 0..50 {
            for n in 0..3 {
                // On each handle five requests, which have to wait for each other.
                let at = handle + n;
                let alloc = Operation::AllocStore {
                    source: store(BLOCK),
                    seal: false,
                };
                party.send(&shared, at, alloc);
                party.send(
                    &shared,
                    at,
                    Operation::Store {
                        source: inline(),
                        seal: true,
                    },
                );
                party.send(&shared, at, LOAD);
                party.send(&shared, at, LOAD);
                party.send(&shared, at, Operation::Free);
            }
            // Refused ones too.
            party.send(&shared, 0, Operation::Free);
            party.run(&shared);
            let refused = party
                .statuses()
                .filter(|status| *status != Status::Ok)
                .count();
            assert_eq!(refused, 1);
        }
        assert_eq!(COUNT.with(Cell::get) - before, 0);
        assert_eq!(shared.pool.usage().free, 32);
    }
}
