//! An initiator's session, with a target that says and answers anything.
//!
//! The first octet of the input is a set of options: 1 no direct modes, 2 unmasked atomics, 4 the `HELLO_ACK` is the
//! next message of the input and not a fitting one, 8 completion records. The rest is a list of steps, an octet and what it takes: the
//! caller submits, posts, waits and gives up, the target answers, well or ill, and the stream ends what was posted.
//!
//! What must hold: each operation is reported once, no work touches a buffer whose operation has been reported, work
//! goes only where the session's terms say, and no more octets are asked for than the buffer has.

use kbtp_core::initiator::{
    Failure, Initiator, NEVER, OpId, Operation, Records, Request, Scratch, SessionError, Settings,
    Source, SubmitError,
};
use kbtp_fabric::{Atomics, LocalBuffer, RemoteBuffer, Time, WorkId, WorkOutcome, WorkRequest};
use kbtp_memory::{PageOptions, Region};
use kbtp_wire::{
    AtomicForm, BlockOffset, ByteLen, Completion, CompletionDescriptor, CompletionRecord,
    EntryFlags, Generation, Grant, Handle, Header, HelloAck, InitiatorId, KnownTlvs, Nonce,
    RequestFlags, RequestId, RingCounter, RingOrder, RingSlot, SessionCapabilities, Stag, Status,
    TableEntry, TaggedOffset, Ticket,
};
use std::collections::BTreeMap;

const NOW: Time = Time(1_000_000_000);
const BLOCK: u32 = 4096;
const SCRATCH: Stag = Stag(0x5c4a);
const RECORDS: Stag = Stag(0x4ec0);
const DIRECT: SessionCapabilities =
    SessionCapabilities::DIRECT_LOAD.union(SessionCapabilities::DIRECT_ALLOC);
/// Buffers of operations have this STag and those after it, one each.
const FIRST_BUFFER: u32 = 0x1_0000;
const PARTITION: u64 = 0x1_0000;
/// Steps of one input: each costs under a microsecond.
const MAX_STEPS: usize = 512;

pub(super) fn initiator_session(octets: &[u8]) {
    let mut input = Input(octets);
    let Some(options) = input.octet() else {
        return;
    };
    let Some(mut history) = History::open(options, &mut input) else {
        return;
    };
    for _ in 0..MAX_STEPS {
        if history.step(&mut input).is_none() {
            break;
        }
    }
    history.end();
}

/// What is left of the input.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn octet(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    /// Octets with their number in one before them, or fewer if there are no more.
    fn message(&mut self) -> Option<&'a [u8]> {
        let len = usize::from(self.octet()?).min(self.0.len());
        let (first, rest) = self.0.split_at(len);
        self.0 = rest;
        Some(first)
    }
}

/// Posted work that may end, and requests that may be answered.
#[derive(Clone, Copy, Debug)]
enum Open {
    Request(Header, Option<CompletionDescriptor>),
    Read(WorkId, LocalBuffer, Stag),
    Atomic(WorkId),
    Sent(WorkId),
}

/// An operation as the caller sees it.
#[derive(Clone, Copy, Debug)]
struct Submitted {
    op: OpId,
    request: Request,
    reported: bool,
}

struct History {
    initiator: Initiator,
    scratch: Region,
    records: Region,
    grant: Grant,
    now: Time,
    open: Vec<Open>,
    submitted: BTreeMap<u64, Submitted>,
    /// The target broke a rule, or time ran out: the session is over.
    over: bool,
}

fn fitting_grant(options: u8) -> Grant {
    let direct = options & 1 == 0;
    Grant {
        capabilities: SessionCapabilities::NONE
            .union(if direct {
                DIRECT
            } else {
                SessionCapabilities::NONE
            })
            .union(if options & 8 == 0 {
                SessionCapabilities::NONE
            } else {
                SessionCapabilities::RECORD_COMPLETION
            }),
        block_size: ByteLen(BLOCK),
        pool_blocks: 16,
        quota: 8,
        handle_base: Handle(100),
        handle_count: 16,
        table_base: Handle(96),
        table_count: 32,
        credits: 4,
        ring_order: RingOrder::new(3).unwrap_or_default(),
        atomic_form: if options & 2 == 0 {
            AtomicForm::Masked
        } else {
            AtomicForm::Unmasked
        },
        max_inline: ByteLen(64),
        ticket_timeout_ms: 1000,
        table_stag: Stag(if direct { 0x7ab1e } else { 0 }),
        table_offset: TaggedOffset(0x100),
        pool_stag: Stag(if direct { 0x9001 } else { 0 }),
        partition_stag: Stag(if direct { 0x9a47 } else { 0 }),
        partition_offset: TaggedOffset(PARTITION),
        partition_len: 8 * u64::from(BLOCK),
        ring_stag: Stag(if direct { 0x4146 } else { 0 }),
        counter_stag: Stag(if direct { 0xc047 } else { 0 }),
        ring_offset: TaggedOffset(0x200),
        head_offset: TaggedOffset(0x40),
        lease_ms: 60_000,
        ..Grant::default()
    }
}

fn encoded(request_id: RequestId, grant: Grant) -> Vec<u8> {
    let ack = HelloAck::Granted {
        request_id,
        grant,
        tlvs: KnownTlvs::default(),
    };
    let mut octets = vec![0; ack.encoded_len()];
    assert!(ack.encode_into(&mut octets).is_ok(), "there is room");
    octets
}

/// Scratch memory and that of records, zeroed: the same for each input of a thread, since to map it would cost more than all
/// the rest.
fn memory() -> Option<[Region; 2]> {
    thread_local! {
        static MEMORY: [Option<Region>; 2] = [Initiator::SCRATCH_LEN, Initiator::RECORDS_LEN]
            .map(|len| Region::anonymous(len, &PageOptions::default()).ok());
    }
    let [scratch, records] = MEMORY.with(Clone::clone);
    let both = [scratch?, records?];
    for region in &both {
        region.zero(0, region.len()).ok()?;
    }
    Some(both)
}

impl History {
    /// A session that is open, unless the input's `HELLO_ACK` was refused.
    fn open(options: u8, input: &mut Input<'_>) -> Option<Self> {
        let [scratch, records] = memory()?;
        let settings = Settings {
            capabilities: DIRECT.union(SessionCapabilities::RECORD_COMPLETION),
            max_inline: ByteLen(64),
            max_direct_loads: 2,
            ..Settings::new(InitiatorId([7; 16]))
        };
        let mut private = b"KBTP\x01\x00\x00\x00".to_vec();
        private.extend([0xc4; 32]);
        let lent = Scratch {
            region: scratch.clone(),
            stag: SCRATCH,
            base: TaggedOffset(0),
        };
        let atomics = if options & 2 == 0 {
            Atomics::Masked
        } else {
            Atomics::Unmasked
        };
        let mut initiator = Initiator::new(
            settings,
            &private,
            Nonce([9; 16]),
            atomics,
            Some(lent),
            Some(Records {
                region: records.clone(),
                stag: RECORDS,
                base: TaggedOffset(0),
            }),
            NOW.after_ms(100),
        )
        .ok()?;
        let WorkRequest::Send { head, .. } = initiator.work()?.request else {
            unreachable!("HELLO goes first");
        };
        let hello = Header::decode(head.first_chunk()?);
        initiator.posted(NOW);
        let message = if options & 4 == 0 {
            encoded(hello.request_id, fitting_grant(options))
        } else {
            input.message()?.to_vec()
        };
        let answer = initiator.handle_received(&message, None);
        let over = answer.is_err();
        assert_eq!(initiator.is_open(), !over);
        assert!(over || options & 4 != 0 || initiator.terms().is_some());
        let grant = initiator.terms().map(|terms| terms.grant);
        Some(Self {
            initiator,
            scratch,
            records,
            grant: grant.unwrap_or_default(),
            now: NOW,
            open: Vec::new(),
            submitted: BTreeMap::new(),
            over,
        })
    }

    /// One step of the input; `None` at its end.
    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        match input.octet()? % 16 {
            0..3 => {
                let kind = input.octet()?;
                let how = input.octet()?;
                self.submit(kind, how);
            }
            3..6 => self.post(),
            6 | 7 => {
                let (which, how) = (input.octet()?, input.octet()?);
                self.answer(which, how, input)?;
            }
            8 | 9 => {
                let (which, how) = (input.octet()?, input.octet()?);
                self.end_work(which, how, input)?;
            }
            10 => {
                let message = input.message()?;
                let result = self.initiator.handle_received(message, None);
                self.judge(result);
            }
            11 => {
                let which = usize::from(input.octet()?);
                let op = self.submitted.values().nth(which).map(|one| one.op);
                if let Some(op) = op {
                    self.initiator.give_up(op);
                }
            }
            12 => {
                let ms = u64::from(input.octet()?) * 8;
                self.now = self.now.after_ms(ms);
                let result = self.initiator.handle_timeout(self.now);
                self.judge(result);
            }
            13 | 14 => self.take_reports(),
            _ => {
                let data = u32::from(input.octet()?);
                if data == 0 {
                    // No Request ID has a low half of zero.
                    let over = !self.initiator.is_open();
                    let result = self.initiator.handle_immediate(data);
                    assert!(over || result.is_err());
                    self.judge(result);
                }
            }
        }
        self.standing();
        Some(())
    }

    /// What holds at any time.
    fn standing(&self) {
        let limit = self.initiator.terms().map_or(0, |terms| terms.requests);
        let held = u32::from(limit) - self.initiator.free_credits();
        assert!(usize::try_from(held).is_ok_and(|held| held <= self.initiator.in_flight()));
        assert!(!self.over || !self.initiator.is_open());
    }

    fn submit(&mut self, kind: u8, how: u8) {
        let token = u64::try_from(self.submitted.len()).unwrap_or(0);
        let stag = Stag(FIRST_BUFFER.wrapping_add(u32::try_from(token).unwrap_or(0)));
        let len = match how & 3 {
            0 => 8,
            1 => 0,
            2 => 64,
            _ => BLOCK,
        };
        let buffer = LocalBuffer {
            stag,
            offset: TaggedOffset(0x1000),
            len: ByteLen(len),
        };
        let handle = Handle(100 + u64::from(how >> 2 & 7));
        let generation = Generation::new(u16::from(how >> 5 & 1));
        let (seal, invalidate) = (how & 0x40 != 0, how & 0x80 != 0);
        let from = if kind & 0x80 == 0 {
            Source::Inline(buffer)
        } else {
            Source::Read {
                from: buffer,
                invalidate,
            }
        };
        let request = match kind & 7 {
            0 => Request::Load {
                handle,
                generation,
                into: buffer,
                allow_unsealed: seal,
                invalidate,
            },
            1 => Request::Store {
                handle,
                generation,
                from,
                seal,
            },
            2 | 3 => Request::AllocStore { handle, from, seal },
            4 => Request::Free { handle, generation },
            5 => Request::LoadDirect {
                handle,
                generation,
                into: buffer,
            },
            _ => Request::AllocDirect {
                handle,
                from: buffer,
                seal,
            },
        };
        let deadline = if kind & 0x40 == 0 {
            NEVER
        } else {
            self.now.after_ms(200)
        };
        match self.initiator.submit(request, token, deadline) {
            Ok(op) => {
                assert!(!self.over);
                let one = Submitted {
                    op,
                    request,
                    reported: false,
                };
                self.submitted.insert(token, one);
            }
            Err(error) => assert!(!self.over || error == SubmitError::NotOpen),
        }
    }

    /// Posts one piece of work, if it may.
    fn post(&mut self) {
        let Some(work) = self.initiator.work() else {
            return;
        };
        assert!(!self.over, "work for a session that is over");
        let (id, request) = (work.id, work.request);
        let mut opened = Vec::new();
        match request {
            WorkRequest::Send {
                head,
                tail,
                invalidate: None,
                solicited: false,
            } => {
                let Some((octets, _)) = head.split_first_chunk() else {
                    unreachable!("a message has a header");
                };
                let (header, last) = (Header::decode(octets), head.last_chunk().copied());
                opened.push(Open::Request(header, self.record_of(&header, last)));
                if let Some(tail) = tail {
                    self.is_lent(tail);
                    opened.push(Open::Sent(id));
                }
            }
            WorkRequest::Write {
                local,
                remote,
                immediate: None,
            } => {
                self.is_lent(local);
                let grant = &self.grant;
                assert_eq!(remote.stag, grant.partition_stag);
                let room = grant.partition_len.saturating_sub(u64::from(local.len.0));
                let at = remote.offset.0.checked_sub(grant.partition_offset.0);
                assert!(at.is_some_and(|at| at <= room), "a Write out of its place");
                opened.push(Open::Sent(id));
            }
            WorkRequest::Read { local, remote } => {
                self.may_read(local, remote);
                opened.push(Open::Read(id, local, remote.stag));
            }
            WorkRequest::FetchAdd { remote, .. } => {
                assert_eq!(remote.stag, self.grant.counter_stag);
                assert_eq!(remote.offset, self.grant.head_offset);
                opened.push(Open::Atomic(id));
            }
            other => unreachable!("no initiator posts {other:?}"),
        }
        self.open.extend(opened);
        self.initiator.posted(self.now);
    }

    /// Where the record of a request goes, within the memory of records; none if it was not granted.
    fn record_of(&self, header: &Header, last: Option<[u8; 16]>) -> Option<CompletionDescriptor> {
        let wanted = header.flags.contains(RequestFlags::RECORD);
        let granted = SessionCapabilities::RECORD_COMPLETION;
        assert!(!wanted || self.grant.capabilities.contains(granted));
        let octets = last.filter(|_| wanted)?;
        let Ok(record) = CompletionDescriptor::decode(&octets) else {
            unreachable!("a Completion Descriptor is well formed");
        };
        assert_eq!(record.stag, RECORDS);
        let room = self.records.len() - CompletionRecord::LEN as u64;
        assert!(record.offset.0 <= room, "a record out of its place");
        Some(record)
    }

    /// A Read goes to the table or the ring for 16 octets of scratch memory, or to the pool for a buffer that is lent.
    fn may_read(&self, local: LocalBuffer, remote: RemoteBuffer) {
        if local.stag == SCRATCH {
            assert_eq!(local.len, ByteLen(16));
            assert!(local.offset.0 + 16 <= self.scratch.len());
            let grant = &self.grant;
            let (base, len) = if remote.stag == grant.ring_stag && remote.stag != grant.table_stag {
                (grant.ring_offset.0, grant.ring_order.ring_len())
            } else {
                assert_eq!(remote.stag, grant.table_stag);
                (grant.table_offset.0, grant.table_count.saturating_mul(16))
            };
            // The two may be one STag.
            let inside = |base: u64, len: u64| {
                let at = remote.offset.0.checked_sub(base);
                at.is_some_and(|at| at.saturating_add(16) <= len)
            };
            let table = inside(grant.table_offset.0, grant.table_count.saturating_mul(16));
            assert!(inside(base, len) || table, "a Read out of its place");
        } else {
            assert_eq!(remote.stag, self.grant.pool_stag);
            self.is_lent(local);
        }
    }

    /// A buffer is the initiator's from submission to report, and no longer than it was.
    fn is_lent(&self, buffer: LocalBuffer) {
        let token = u64::from(buffer.stag.0.wrapping_sub(FIRST_BUFFER));
        let Some(one) = self.submitted.get(&token) else {
            unreachable!("{buffer:?} is nobody's");
        };
        assert!(!one.reported, "{:?} was reported, and is used", one.request);
        let (Request::Load { into: whole, .. }
        | Request::LoadDirect { into: whole, .. }
        | Request::AllocDirect { from: whole, .. }) = one.request
        else {
            return;
        };
        assert_eq!(buffer.offset, whole.offset);
        assert!(buffer.len <= whole.len, "more than the buffer has");
    }

    /// The target answers a request, as it should or not quite.
    fn answer(&mut self, which: u8, how: u8, input: &mut Input<'_>) -> Option<()> {
        let requests: Vec<usize> = (0..self.open.len())
            .filter(|at| matches!(self.open.get(*at), Some(Open::Request(..))))
            .collect();
        let at = *requests.get(usize::from(which).checked_rem(requests.len())?)?;
        let Some(&Open::Request(header, record)) = self.open.get(at) else {
            return Some(());
        };
        // An answer may come twice.
        if how & 0x10 == 0 {
            self.open.remove(at);
        }
        let status = Status::from_wire(u16::from(how & 15)).unwrap_or(Status::Ok);
        let mut completion = Completion {
            request_id: header.request_id,
            handle: header.handle,
            generation: Generation::new(1),
            status,
            data_len: ByteLen(0),
            block: BlockOffset(PARTITION),
        };
        if status == Status::Ok {
            completion.data_len = ByteLen(8);
        } else {
            completion.block = BlockOffset(0);
        }
        let mut invalidated = None;
        if how & 0x20 != 0 {
            let change = input.octet()?;
            let value = u64::from_be_bytes(input.array()?);
            let [.., a, b, c, d, high, low] = value.to_be_bytes();
            let (word, half) = (
                u32::from_be_bytes([c, d, high, low]),
                u16::from_be_bytes([high, low]),
            );
            match change % 6 {
                0 => completion.request_id = RequestId(header.request_id.0 ^ value),
                1 => completion.handle = Handle(value),
                2 => completion.generation = Generation::new(half),
                3 => completion.data_len = ByteLen(word),
                4 => completion.block = BlockOffset(value),
                _ => invalidated = Some(Stag(u32::from_be_bytes([a, b, high, low]))),
            }
        }
        if how & 0x40 != 0 {
            // The STag of the last operation on that handle: the one the request asked to have invalidated, or another.
            let named = self
                .submitted
                .values()
                .rfind(|one| one.request.handle() == header.handle && !one.reported);
            invalidated = named.and_then(|one| match one.request {
                Request::Load { into, .. } => Some(into.stag),
                Request::Store { from, .. } | Request::AllocStore { from, .. } => {
                    Some(from.buffer().stag)
                }
                _ => None,
            });
        }
        let result = match record {
            // Or a message all the same.
            Some(to) if how & 0x80 == 0 => {
                let octets = CompletionRecord::of(&completion).encode();
                let written = self.records.write(to.offset.0, &octets);
                assert!(written.is_ok(), "there is room");
                let immediate = CompletionRecord::immediate(header.request_id);
                self.initiator.handle_immediate(immediate)
            }
            _ => self
                .initiator
                .handle_received(&completion.encode(), invalidated),
        };
        self.judge(result);
        Some(())
    }

    /// Posted work ends, with what the target put into memory, or as it never should.
    fn end_work(&mut self, which: u8, how: u8, input: &mut Input<'_>) -> Option<()> {
        let works: Vec<usize> = (0..self.open.len())
            .filter(|at| !matches!(self.open.get(*at), Some(Open::Request(..)) | None))
            .collect();
        let at = *works.get(usize::from(which).checked_rem(works.len())?)?;
        let (id, outcome) = match self.open.remove(at) {
            Open::Request(..) => return Some(()),
            Open::Sent(id) => (id, WorkOutcome::Sent),
            Open::Atomic(id) => {
                let head = if how & 1 == 0 {
                    let ticket = Ticket(u32::from(input.octet()?));
                    match self.grant.atomic_form {
                        AtomicForm::Masked => RingCounter::at(ticket, self.grant.ring_order).0,
                        AtomicForm::Unmasked => RingCounter::at_unmasked(ticket).0,
                    }
                } else {
                    u64::from_be_bytes(input.array()?)
                };
                (id, WorkOutcome::Atomic(head))
            }
            Open::Read(id, local, stag) => {
                let octets = self.seen(how, stag, input)?;
                if local.stag == SCRATCH {
                    let written = self.scratch.write(local.offset.0, &octets);
                    assert!(written.is_ok(), "it is in the scratch memory");
                }
                (id, WorkOutcome::Read)
            }
        };
        let outcome = match how >> 4 {
            14 => WorkOutcome::Flushed,
            15 => WorkOutcome::Atomic(0),
            _ => outcome,
        };
        let result = self.initiator.handle_done(self.now, id, outcome);
        self.judge(result);
        Some(())
    }

    /// What a Read of a table entry or a ring slot brings.
    fn seen(&self, how: u8, stag: Stag, input: &mut Input<'_>) -> Option<[u8; 16]> {
        if how & 1 != 0 {
            return input.array();
        }
        let value = input.octet()?;
        Some(if stag == self.grant.table_stag {
            TableEntry {
                flags: EntryFlags(u16::from(how >> 1 & 3)),
                generation: Generation::new(u16::from(value & 3)),
                data_len: ByteLen(8),
                block: BlockOffset(PARTITION),
            }
            .encode()
        } else {
            RingSlot {
                sequence: Ticket(u32::from(value)),
                block: BlockOffset(PARTITION + u64::from(value & 7) * u64::from(BLOCK)),
            }
            .encode()
        })
    }

    fn judge(&mut self, result: Result<(), SessionError>) {
        if let Err(error) = result {
            assert!(!error.to_string().is_empty());
            self.over = true;
        }
    }

    fn take_reports(&mut self) {
        while let Some(finished) = self.initiator.poll_finished() {
            let Some(one) = self.submitted.get_mut(&finished.token) else {
                unreachable!("a report of nothing: {finished:?}");
            };
            assert!(!one.reported, "reported twice: {finished:?}");
            one.reported = true;
            assert_eq!(
                (finished.op, finished.operation),
                (one.op, one.request.operation())
            );
            match finished.result {
                Ok(done) => {
                    if let Request::Load { into, .. } | Request::LoadDirect { into, .. } =
                        one.request
                    {
                        assert!(done.len <= into.len, "more than the buffer has");
                    }
                }
                Err(Failure::TicketTimeout { .. }) => {
                    assert_eq!(finished.operation, Operation::AllocDirect);
                }
                Err(_) => {}
            }
        }
        while self.initiator.poll_released().is_some() {}
    }

    fn end(mut self) {
        self.initiator.handle_closed();
        self.take_reports();
        assert!(self.submitted.values().all(|one| one.reported));
        assert_eq!(self.initiator.in_flight(), 0);
        assert_eq!(self.initiator.usage().pending, 0);
        assert!(self.initiator.work().is_none() && self.initiator.timeout().is_none());
    }
}
