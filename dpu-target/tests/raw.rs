//! A target in this process, and an initiator that does what no library would.

#[cfg(test)]
mod tests {
    use kbtp_fabric::{Event, RemoteBuffer, Stream, WorkId, WorkOutcome, WorkRequest};
    use kbtp_iwarp_tcp::{Clock, ConnectOptions, Interest, Poller, Spin, TcpRdmaStream};
    use kbtp_target::{SpinPolicy, Target, TargetConfig};
    use kbtp_wire::{
        Bind, ByteLen, Completion, Grant, Handle, Header, Hello, HelloAck, InitiatorId, KnownTlvs,
        Opcode, Operation, Request, RequestFlags, RequestId, RingCounter, SessionCapabilities,
        Status,
    };
    use std::net::{SocketAddr, TcpStream};
    use std::os::fd::AsFd;
    use std::time::Duration;

    fn config() -> TargetConfig {
        TargetConfig {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            admin: None,
            workers: Some(1),
            block_size: 4096,
            blocks: 16,
            default_quota: Some(4),
            credits: 4,
            max_inline: 64,
            spin: SpinPolicy::Off,
            ..TargetConfig::default()
        }
    }

    fn metric(target: &Target, series: &str) -> u64 {
        let text = target.metrics();
        text.lines()
            .find_map(|l| l.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
            .unwrap_or_else(|| panic!("no {series}"))
    }

    fn ended(target: &Target, reason: &str) -> u64 {
        metric(
            target,
            &format!("kbtp_session_ends_total{{reason=\"{reason}\"}}"),
        )
    }

    fn until(what: &str, mut holds: impl FnMut() -> bool) {
        let clock = Clock::new();
        let deadline = clock.now().after_ms(20_000);
        while !holds() {
            assert!(clock.now() < deadline, "{what}: not in time");
            std::thread::yield_now();
        }
    }

    /// An initiator without manners.
    struct Raw {
        stream: TcpRdmaStream,
        poller: Poller,
        next: u64,
    }

    impl Raw {
        fn connect(address: SocketAddr) -> Self {
            let connected =
                kbtp_iwarp_tcp::connect(address, ConnectOptions::default(), &[], 20_000).unwrap();
            let poller = Poller::new(Spin::Off).unwrap();
            let stream = connected.stream;
            let both = Interest {
                read: true,
                write: false,
            };
            poller.add(stream.descriptor().as_fd(), 0, both).unwrap();
            Self {
                stream,
                poller,
                next: 0,
            }
        }

        fn post(&mut self, work: &WorkRequest<'_>) {
            self.next += 1;
            self.stream.post(WorkId(self.next), work, true).unwrap();
        }

        fn send(&mut self, message: &[u8]) {
            self.post(&WorkRequest::Send {
                head: message,
                tail: None,
                solicited: false,
                invalidate: None,
            });
        }

        /// The next event but those of Sends; `None` if the stream has ended.
        fn event(&mut self) -> Option<Event> {
            let deadline = self.poller.clock().now().after_ms(20_000);
            loop {
                let now = self.poller.clock().now();
                assert!(now < deadline, "nothing comes");
                let progress = self.stream.progress(now);
                while let Some(event) = self.stream.next_event() {
                    let sent = matches!(
                        event,
                        Event::Done {
                            outcome: WorkOutcome::Sent | WorkOutcome::Flushed,
                            ..
                        }
                    );
                    if !sent {
                        return Some(event);
                    }
                }
                match progress {
                    Ok(true) => {}
                    Ok(false) => {
                        self.poller.wait(Some(deadline)).unwrap();
                    }
                    Err(_) => return None,
                }
            }
        }

        fn message(&mut self) -> Vec<u8> {
            match self.event() {
                Some(Event::Received { slot, .. }) => {
                    let message = self.stream.message(slot).to_vec();
                    self.stream.release(slot);
                    message
                }
                other => panic!("{other:?} where a message was due"),
            }
        }

        /// Waits until the stream has ended.
        fn end(&mut self) {
            while self.event().is_some() {}
        }

        fn open(address: SocketAddr, capabilities: SessionCapabilities) -> (Self, Grant) {
            let mut raw = Self::connect(address);
            raw.send(&hello(capabilities));
            let message = raw.message();
            match HelloAck::decode(&message).unwrap() {
                HelloAck::Granted { grant, .. } => (raw, grant),
                HelloAck::Refused { status, .. } => panic!("refused: {status}"),
            }
        }
    }

    fn hello(capabilities: SessionCapabilities) -> Vec<u8> {
        let hello = Hello {
            request_id: RequestId(1),
            min_version: 1,
            max_version: 1,
            credits: 0,
            capabilities,
            quota: 0,
            max_inline: ByteLen(64),
            handles: 0,
            initiator: InitiatorId([3; 16]),
            tlvs: KnownTlvs::default(),
        };
        let mut octets = vec![0; hello.encoded_len()];
        hello.encode_into(&mut octets).unwrap();
        octets
    }

    fn free(id: u64, handle: Handle) -> Vec<u8> {
        let none = RequestFlags::NONE;
        Header::request(Opcode::Free, none, RequestId(id), handle, None)
            .encode()
            .to_vec()
    }

    #[test]
    fn more_requests_than_credits_end_the_session() {
        let target = Target::start(config()).unwrap();
        let (mut raw, grant) = Raw::open(target.address().unwrap(), SessionCapabilities::NONE);
        for round in 0..100 {
            // One burst may be answered as fast as it comes; a stream of them is not.
            for id in 0..32 {
                if raw
                    .stream
                    .post(
                        WorkId(round * 32 + id),
                        &WorkRequest::Send {
                            head: &free(id, grant.handle_base),
                            tail: None,
                            solicited: false,
                            invalidate: None,
                        },
                        false,
                    )
                    .is_err()
                {
                    break;
                }
            }
            let now = raw.poller.clock().now();
            if raw.stream.progress(now).is_err() {
                break;
            }
            while let Some(event) = raw.stream.next_event() {
                if let Event::Received { slot, .. } = event {
                    raw.stream.release(slot);
                }
            }
        }
        until("the session ends", || {
            ended(&target, "protocol") + ended(&target, "transport_protocol") == 1
        });
        until("its quota is free", || {
            metric(&target, "kbtp_quota_granted_blocks") == 0
        });
        assert_eq!(metric(&target, "kbtp_sessions"), 0);
        assert_eq!(target.status().pool.blocks_free, 16);
    }

    #[test]
    fn a_second_hello_ends_the_session() {
        let target = Target::start(config()).unwrap();
        let none = SessionCapabilities::NONE;
        let (mut raw, _) = Raw::open(target.address().unwrap(), none);
        raw.send(&hello(none));
        raw.end();
        until("it is counted", || ended(&target, "protocol") == 1);
    }

    #[test]
    fn a_stream_that_never_says_hello_is_cut() {
        let mut config = config();
        config.limits.handshake_timeout = Duration::from_millis(100);
        let target = Target::start(config).unwrap();
        // One does not even begin MPA, one stops after it.
        let silent = TcpStream::connect(target.address().unwrap()).unwrap();
        let mut raw = Raw::connect(target.address().unwrap());
        raw.end();
        until("it is counted", || ended(&target, "handshake_timeout") == 1);
        assert_eq!(metric(&target, "kbtp_half_open"), 0);
        let mut silent = silent;
        let read = std::io::Read::read(&mut silent, &mut [0; 8]);
        assert!(matches!(read, Ok(0) | Err(_)), "it was closed");
    }

    #[test]
    fn half_open_streams_are_bounded() {
        let mut config = config();
        config.limits.half_open = 2;
        let target = Target::start(config).unwrap();
        let address = target.address().unwrap();
        let _waiting = [Raw::connect(address), Raw::connect(address)];
        until("both are known", || metric(&target, "kbtp_half_open") == 2);
        let mut third = Raw::connect(address);
        third.end();
        assert_eq!(metric(&target, "kbtp_streams_turned_away_total"), 1);
    }

    #[test]
    //= test kbtp-3.4-ticket-timeout
    //= test kbtp-3.4-late-bind-rejected
    fn a_ticket_that_is_not_bound_is_abandoned_by_itself() {
        let mut config = config();
        config.ticket_timeout = Duration::from_millis(50);
        let target = Target::start(config).unwrap();
        let alloc = SessionCapabilities::DIRECT_ALLOC;
        let (mut raw, grant) = Raw::open(target.address().unwrap(), alloc);
        assert_eq!(grant.capabilities, alloc);
        raw.post(&WorkRequest::FetchAdd {
            remote: RemoteBuffer {
                stag: grant.counter_stag,
                offset: grant.head_offset,
            },
            add: RingCounter::add_data(),
            mask: RingCounter::add_mask(grant.ring_order),
        });
        let event = raw.event().unwrap();
        let Event::Done {
            outcome: WorkOutcome::Atomic(head),
            ..
        } = event
        else {
            panic!("{event:?}");
        };
        until("the ticket is seen and abandoned", || {
            metric(&target, "kbtp_tickets_abandoned_total") == 1
        });
        // The gauge follows at the end of the turn.
        until("it is open no more", || {
            metric(&target, "kbtp_tickets_outstanding") == 0
        });
        // Its BIND comes too late, and the session goes on without direct allocation.
        let bind = Bind {
            ticket: RingCounter(head).ticket(),
            data_len: ByteLen(1),
            block: kbtp_wire::BlockOffset(grant.partition_offset.0),
        };
        let request = Request {
            request_id: RequestId(9),
            handle: grant.handle_base,
            generation: None,
            record: None,
            operation: Operation::Bind { bind, seal: true },
        };
        let mut octets = vec![0; request.encoded_len()];
        request.encode_into(&mut octets).unwrap();
        raw.send(&octets);
        let answer = Completion::decode_message(&raw.message()).unwrap();
        assert_eq!(answer.status, Status::TicketAbandoned);
    }
}
