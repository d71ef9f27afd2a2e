//! In the steady state nothing is allocated, counted by the allocator itself.

#[cfg(test)]
mod tests {
    use kbtp_fabric::{
        Access, Event, LocalBuffer, RemoteBuffer, Stream, Time, WorkId, WorkOutcome, WorkRequest,
    };
    use kbtp_iwarp_tcp::{
        Answer, Clock, ConnectOptions, Connector, Interest, ListenOptions, Listener, Poller, Spin,
        TcpRdmaStream,
    };
    use kbtp_memory::{PageOptions, Region};
    use kbtp_wire::{ByteLen, Stag, TaggedOffset};
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    thread_local! {
        /// Allocations of this thread: other threads (of the test runner) do not disturb the count.
        static COUNT: Cell<u64> = const { Cell::new(0) };
    }

    struct Counting;

    // SAFETY: everything is passed on to the system's allocator; counting allocates nothing, as the cell is const
    // and has no destructor.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            COUNT.with(|count| count.set(count.get() + 1));
            // SAFETY: the caller's promise is passed on.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, octets: *mut u8, layout: Layout) {
            // SAFETY: the caller's promise is passed on.
            unsafe { System.dealloc(octets, layout) }
        }

        unsafe fn realloc(&self, octets: *mut u8, layout: Layout, len: usize) -> *mut u8 {
            COUNT.with(|count| count.set(count.get() + 1));
            // SAFETY: the caller's promise is passed on.
            unsafe { System.realloc(octets, layout, len) }
        }
    }

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    const LEN: u64 = 2 << 20;

    struct Side {
        stream: TcpRdmaStream,
        stag: Stag,
        received: u32,
        done: u32,
    }

    impl Side {
        fn new(mut stream: TcpRdmaStream) -> Self {
            let region = Region::anonymous(LEN, &PageOptions::default()).unwrap();
            let access = Access {
                remote_read: true,
                remote_write: true,
                remote_atomic: true,
                ..Access::LOCAL
            };
            let stag = stream
                .register(&region, 0..LEN, TaggedOffset(0), access)
                .unwrap();
            Self {
                stream,
                stag,
                received: 0,
                done: 0,
            }
        }

        fn progress(&mut self, now: Time) -> bool {
            let mut moved = self.stream.progress(now).unwrap();
            while let Some(event) = self.stream.next_event() {
                moved = true;
                match event {
                    Event::Received { slot, .. } => {
                        assert_eq!(self.stream.message(slot)[..4], *b"head");
                        self.stream.release(slot);
                        self.received += 1;
                    }
                    Event::Done { outcome, .. } => {
                        assert_ne!(outcome, WorkOutcome::Flushed);
                        self.done += 1;
                    }
                    Event::Immediate { .. } => {}
                }
            }
            moved
        }
    }

    /// One of everything, both ways.
    fn round(sides: &mut [Side; 2], poller: &mut Poller, end: Time) {
        let [a, b] = sides;
        let (of_a, of_b) = (a.stag, b.stag);
        for (side, peer) in [(&mut *a, of_b), (&mut *b, of_a)] {
            let local = |len| LocalBuffer {
                stag: side.stag,
                offset: TaggedOffset(0),
                len: ByteLen(len),
            };
            let remote = RemoteBuffer {
                stag: peer,
                offset: TaggedOffset(1 << 20),
            };
            let work = [
                WorkRequest::Write {
                    local: local(1 << 20),
                    remote,
                    immediate: None,
                },
                WorkRequest::Read {
                    local: local(100_000),
                    remote,
                },
                WorkRequest::FetchAdd {
                    remote,
                    add: 1,
                    mask: 0,
                },
                WorkRequest::Send {
                    head: b"head",
                    tail: Some(local(500)),
                    solicited: true,
                    invalidate: None,
                },
            ];
            for (id, work) in (0..).zip(&work) {
                side.stream.post(WorkId(id), work, true).unwrap();
            }
            (side.done, side.received) = (0, 0);
        }
        while sides.iter().any(|s| (s.done, s.received) != (4, 1)) {
            let now = poller.clock().now();
            assert!(now < end, "the round does not end");
            let [a, b] = &mut *sides;
            if !(a.progress(now) | b.progress(now)) {
                poller.wait(Some(end)).unwrap();
            }
        }
    }

    #[test]
    fn messages_cost_no_allocation() {
        let clock = Clock::new();
        let end = clock.now().after_ms(30_000);
        let mut listener =
            Listener::bind("127.0.0.1:0".parse().unwrap(), ListenOptions::default()).unwrap();
        let to = listener.local_addr();
        let mut connector = Connector::start(to, ConnectOptions::default(), b"").unwrap();
        let (mut here, mut there) = (None, None);
        while here.is_none() || there.is_none() {
            let now = clock.now();
            assert!(now < end, "the startup does not end");
            if here.is_none() {
                here = connector.progress(now).unwrap();
            }
            if there.is_none() {
                let mut answer = |_: &kbtp_iwarp_tcp::Request<'_>| Answer::Accept {
                    private_data: Vec::new(),
                };
                there = listener.progress(now, &mut answer).unwrap();
            }
        }
        let mut sides = [
            Side::new(here.unwrap().stream),
            Side::new(there.unwrap().stream),
        ];
        let mut poller = Poller::new(Spin::Auto).unwrap();
        for (token, side) in (0..).zip(&sides) {
            let both = Interest {
                read: true,
                write: false,
            };
            poller.add(side.stream.descriptor(), token, both).unwrap();
        }
        for _ in 0..3 {
            round(&mut sides, &mut poller, end);
        }
        let before = COUNT.with(Cell::get);
        assert!(before > 0, "the count counts");
        for _ in 0..20 {
            round(&mut sides, &mut poller, end);
        }
        assert_eq!(COUNT.with(Cell::get), before);
    }
}
