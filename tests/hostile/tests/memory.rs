//! What a target comes to in octets while it is attacked, beside what [`kbtp_target::MemoryBound`] says it may.
//!
//! The target is a process of its own (this binary, told by its environment what to be) with an allocator that counts, so
//! that nothing of the attackers is counted with it.

#[cfg(test)]
mod tests {
    use kbtp_harness::{
        Peer, Segment, Session, Start, Victim, Who, alloc_store, eventually, fetched, pattern,
        store,
    };
    use kbtp_target::{MemoryBound, SpinPolicy, Target, TargetConfig};
    use kbtp_wire::rdmap::{AtomicOperation, AtomicRequest, RdmapOpcode, ReadRequest};
    use kbtp_wire::{ByteLen, DataDescriptor, Request, RequestId, Stag, TaggedOffset};
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::SocketAddr;
    use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Duration;

    /// Octets of heap in use, and the most there were.
    static LIVE: AtomicU64 = AtomicU64::new(0);
    static PEAK: AtomicU64 = AtomicU64::new(0);

    struct Counting;

    impl Counting {
        fn more(octets: usize) {
            let octets = octets as u64;
            let live = LIVE.fetch_add(octets, Relaxed) + octets;
            PEAK.fetch_max(live, Relaxed);
        }

        fn less(octets: usize) {
            LIVE.fetch_sub(octets as u64, Relaxed);
        }
    }

    // SAFETY: everything is passed on to the system's allocator; counting allocates nothing.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            Self::more(layout.size());
            // SAFETY: the caller's promise is passed on.
            unsafe { System.alloc(layout) }
        }

        unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
            Self::more(layout.size());
            // SAFETY: the caller's promise is passed on.
            unsafe { System.alloc_zeroed(layout) }
        }

        unsafe fn dealloc(&self, octets: *mut u8, layout: Layout) {
            Self::less(layout.size());
            // SAFETY: the caller's promise is passed on.
            unsafe { System.dealloc(octets, layout) }
        }

        unsafe fn realloc(&self, octets: *mut u8, layout: Layout, len: usize) -> *mut u8 {
            Self::more(len);
            Self::less(layout.size());
            // SAFETY: the caller's promise is passed on.
            unsafe { System.realloc(octets, layout, len) }
        }
    }

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    const CHILD: &str = "KBTP_TEST_TARGET";
    const MARK: &str = "target says: ";

    const SESSIONS: u32 = 48;
    const HALF_OPEN: u32 = 16;
    const WORKERS: u16 = 2;
    const BLOCK: u32 = 64 << 10;
    const BLOCKS: u32 = 1024;
    /// Quota of an attacker. However the victim's blocks lie among partitions of so many blocks, a run of so many is left for the
    /// next one: 47 of 8 leave 644 blocks, in 52 gaps at most, which are not all shorter than 8.
    const QUOTA: u32 = 8;

    fn config() -> TargetConfig {
        let mut config = TargetConfig {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            admin: None,
            workers: Some(WORKERS),
            block_size: BLOCK.into(),
            blocks: BLOCKS.into(),
            handles: Some(64 * 1024),
            lease: kbtp_target::Lease::For(Duration::ZERO),
            ticket_timeout: Duration::from_mins(10),
            spin: SpinPolicy::Off,
            ..TargetConfig::default()
        };
        config.limits.sessions = SESSIONS;
        config.limits.half_open = HALF_OPEN;
        config.limits.handshake_timeout = Duration::from_mins(10);
        config
    }

    /// The target's process. As a test of its own it does nothing.
    #[test]
    #[ignore = "run by the other test in a process of its own"]
    fn child() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        let target = Target::start(config()).unwrap();
        let say = |text: String| {
            let mut out = std::io::stdout().lock();
            writeln!(out, "\n{MARK}{text}").unwrap();
            out.flush().unwrap();
        };
        say(target.address().unwrap().to_string());
        for line in std::io::stdin().lock().lines() {
            line.unwrap();
            let (live, peak) = (LIVE.load(Relaxed), PEAK.load(Relaxed));
            let overview = target.status();
            let in_flight: u64 = overview.sessions.iter().map(|s| s.in_flight).sum();
            let half_open = target
                .metrics()
                .lines()
                .find_map(|line| line.strip_prefix("kbtp_half_open ").map(str::to_owned))
                .unwrap();
            let sessions = overview.sessions.len();
            say(format!("{live} {peak} {sessions} {half_open} {in_flight}"));
        }
        target.shutdown_handle().kill();
        target.join().unwrap();
    }

    /// What it says of itself.
    #[derive(Clone, Copy, Debug)]
    struct Report {
        /// Octets of heap now.
        live: u64,
        /// The most there were.
        peak: u64,
        sessions: u64,
        half_open: u64,
        in_flight: u64,
        /// Resident octets of its process that are not of a file.
        resident: u64,
    }

    struct Process {
        child: Child,
        to: Option<ChildStdin>,
        from: BufReader<ChildStdout>,
    }

    impl Process {
        fn start() -> (Self, SocketAddr) {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["tests::child", "--exact", "--ignored", "--nocapture"])
                .env(CHILD, "1")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let to = child.stdin.take();
            let from = BufReader::new(child.stdout.take().unwrap());
            let mut process = Self { child, to, from };
            let address = process.says().parse().unwrap();
            (process, address)
        }

        fn says(&mut self) -> String {
            loop {
                let mut line = String::new();
                assert_ne!(self.from.read_line(&mut line).unwrap(), 0, "it ended");
                // The test harness writes to the same pipe, and not always a whole line.
                if let Some((_, text)) = line.split_once(MARK) {
                    return text.trim_end().to_owned();
                }
            }
        }

        fn report(&mut self) -> Report {
            writeln!(self.to.as_mut().unwrap()).unwrap();
            let numbers: Vec<u64> = self
                .says()
                .split(' ')
                .map(|number| number.parse().unwrap())
                .collect();
            let [live, peak, sessions, half_open, in_flight] = numbers[..] else {
                panic!("{numbers:?}")
            };
            let path = format!("/proc/{}/smaps_rollup", self.child.id());
            let text = std::fs::read_to_string(path).unwrap();
            let found = text.lines().find_map(|l| l.strip_prefix("Anonymous:"));
            let kib = found.unwrap().trim().trim_end_matches("kB").trim();
            Report {
                live,
                peak,
                sessions,
                half_open,
                in_flight,
                resident: kib.parse::<u64>().unwrap() * 1024,
            }
        }

        fn end(mut self) {
            drop(self.to.take());
            assert!(self.child.wait().unwrap().success());
        }
    }

    impl Drop for Process {
        fn drop(&mut self) {
            // It fails only if the child has ended.
            let _ended = self.child.kill();
            let _reaped = self.child.wait();
        }
    }

    const BUFFER: DataDescriptor = DataDescriptor {
        stag: Stag(5),
        offset: TaggedOffset(0),
        len: ByteLen(BLOCK),
    };

    /// A session that takes all it can have: its Reads are not taken, its tickets not bound, its requests wait one behind
    /// the other, with inline data, for one whose data never comes.
    fn greedy(address: SocketAddr, n: u64) -> Peer {
        let who = Who::new(1000 + n).direct().quota(QUOTA);
        // Those who were there before may not have left their places yet.
        let (mut peer, grant) = eventually("a place", || {
            let mut peer = Peer::dial(address);
            peer.octets(&Start::default().octets());
            peer.try_reply()?;
            let grant = peer.try_hello(&who)?.unwrap();
            Some((peer, grant))
        });
        let order = u64::from(grant.ring_order.get());
        for _ in 0..QUOTA / 2 {
            peer.atomic(&AtomicRequest {
                request_id: 1,
                stag: grant.counter_stag,
                offset: grant.head_offset,
                operation: AtomicOperation::FetchAdd {
                    add: 0x0000_0001_0000_0010,
                    mask: 1 << 63 | 1 << 31 | 1 << (order + 3),
                },
            });
            assert!(peer.receive().is_some());
        }
        let data = pattern(n, usize::try_from(grant.max_inline.0).unwrap());
        for n in 0..grant.credits {
            let operation = if n == 0 {
                alloc_store(fetched(BUFFER), false)
            } else {
                store(Session::inline(&data), false)
            };
            peer.request(&Request {
                request_id: RequestId(n.into()),
                handle: grant.handle_base,
                generation: None,
                record: None,
                operation,
            });
        }
        for _ in 0..8 {
            peer.read(&ReadRequest {
                sink_stag: Stag(1),
                sink_offset: TaggedOffset(0),
                len: ByteLen(QUOTA * BLOCK),
                source_stag: grant.pool_stag,
                source_offset: grant.partition_offset,
            });
        }
        peer
    }

    /// Streams that are refused are no failure here.
    fn silent(address: SocketAddr, said: &[u8]) -> Vec<Peer> {
        let say = |_| {
            let mut peer = Peer::dial(address);
            peer.octets(said);
            peer
        };
        (0..4 * HALF_OPEN).map(say).collect()
    }

    /// An MPA startup and a HELLO as long as one can be, but for its end.
    fn nearly_hello() -> Vec<u8> {
        let mut octets = Start::default().octets();
        let mut segment = Segment::untagged(RdmapOpcode::Send, 1, &[0; 1024]).fpdu();
        segment.truncate(1000);
        octets.extend(segment);
        octets
    }

    //= test rfc5042-3-resource-control
    #[test]
    fn a_target_under_attack_stays_within_its_formula() {
        let bound = MemoryBound::of(&config(), WORKERS);
        let (mut process, address) = Process::start();
        let victim = Victim::start(address, Who::new(1).quota(4));
        victim.works(1);
        let calm = process.report();
        // The pool's pages are resident from the start, or as they are touched.
        let pool = u64::from(BLOCK) * u64::from(BLOCKS);
        let mut within = |what: &str, seen: &dyn Fn(&Report) -> bool| {
            let report = eventually(what, || {
                let report = process.report();
                seen(&report).then_some(report)
            });
            let total = bound.total();
            assert!(report.peak <= total, "{what}: {report:?} over {total}");
            let grown = report.resident.saturating_sub(calm.resident);
            assert!(grown <= total + pool, "{what}: {report:?}, {calm:?}");
            victim.works(1);
            report
        };

        // Half-open in the MPA startup, and with HELLOs that do not end.
        for said in [&[][..], b"MPA ID Req", &nearly_hello()] {
            let streams = silent(address, said);
            within("half-open streams", &|r| {
                r.half_open <= u64::from(HALF_OPEN)
            });
            drop(streams);
        }
        within("they are gone", &|r| r.half_open == 0);

        let greedy: Vec<_> = (0..u64::from(SESSIONS) - 1)
            .map(|n| greedy(address, n))
            .collect();
        let credits = u64::from(config().credits);
        let all = (u64::from(SESSIONS) - 1) * credits;
        let full = within("greedy sessions", &|r| {
            r.sessions == u64::from(SESSIONS) && r.in_flight >= all
        });
        // One stream more is refused, however it comes.
        let more = silent(address, &nearly_hello());
        within("more streams than sessions", &|r| {
            r.sessions == u64::from(SESSIONS)
        });
        // The formula is no flight of fancy: a third of it is seen, and of what streams and sessions may have half.
        let sessions = bound.streams * bound.each_stream + bound.sessions * bound.each_session;
        let seen = full.live - calm.live;
        assert!(full.peak * 3 > bound.total(), "{full:?}, {bound:?}");
        assert!(seen * 2 > sessions, "{seen} of {sessions}");

        drop((greedy, more));
        // Lists have grown and stay so; no stream's memory stays.
        within("they are gone, and their memory", &|r| {
            let left = r.live.saturating_sub(calm.live);
            r.sessions == 1 && r.half_open == 0 && left < bound.each_stream
        });
        victim.finish();
        process.end();
    }

    /// As many rounds of coming and going leave nothing behind.
    #[test]
    fn coming_and_going_leaves_nothing() {
        let (mut process, address) = Process::start();
        let mut round = |n: u64| {
            let peers: Vec<_> = (0..12).map(|k| greedy(address, 12 * n + k)).collect();
            drop(peers);
            eventually("they are gone", || {
                let report = process.report();
                (report.sessions == 0 && report.half_open == 0).then_some(report.live)
            })
        };
        // Lists grow to what they need. A session is counted no more a little before its memory is gone: the least counts.
        round(0);
        let before = (1..4).map(&mut round).min().unwrap_or(0);
        for n in 4..25 {
            round(n);
        }
        eventually("what they had is given back", || {
            let grown = process.report().live.saturating_sub(before);
            (grown < 64 << 10).then_some(())
        });
        process.end();
    }
}
