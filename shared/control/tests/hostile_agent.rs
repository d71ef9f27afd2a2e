//! The target's end against an agent that breaks the rules: a named error each time, nothing mapped that could hurt,
//! and no descriptor left behind.

#[cfg(test)]
mod tests {
    use kbtp_control::limits::DETACH_TIMEOUT;
    use kbtp_control::{
        AgentConnection, AgentEvent, AgentLink, AgentListener, Arrival, ChannelOptions,
        ControlError, DrainReason, Frame, FrameError, FromAgent, HandOver, Incarnation, LinkCutter,
        ListenOptions, PageReport, PoolGeometry, Refusal, RegionGrant, RegionName, Role,
        TargetChannel, ToAgent, VERSION, Welcome,
    };
    use kbtp_fabric::Access;
    use kbtp_memory::{MapError, PageOptions, Region};
    use kbtp_wire::{Stag, TaggedOffset};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg};
    use std::io::IoSlice;
    use std::mem::MaybeUninit;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread::JoinHandle;
    use std::time::Duration;

    const INCARNATION: Incarnation = Incarnation([7; 16]);
    const POOL_LEN: u64 = 4 * 4096;

    fn readable(fd: BorrowedFd<'_>) {
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let wait = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        assert_eq!(poll(&mut fds, Some(&wait)), Ok(1), "nothing came");
    }

    /// The agent's side of one connection.
    struct Fake(AgentConnection);

    impl Fake {
        fn next(&self) -> Frame<ToAgent> {
            readable(self.0.as_fd());
            self.0.recv().unwrap().unwrap()
        }

        fn welcome(&self) {
            let hello = self.next();
            assert!(matches!(hello.message, ToAgent::Hello(_)));
            self.0.send(hello.id, welcome(VERSION), None).unwrap();
        }

        /// Answers the next request.
        fn answer(&self, message: FromAgent, fd: Option<BorrowedFd<'_>>) {
            let id = self.next().id;
            self.0.send(id, message, fd).unwrap();
        }

        fn raw(&self, octets: &[u8]) {
            send(self.0.as_fd(), octets, SendFlags::NOSIGNAL).unwrap();
        }

        /// Until the target is gone.
        fn until_closed(&self) {
            loop {
                readable(self.0.as_fd());
                match self.0.recv() {
                    Ok(_) => {}
                    Err(ControlError::Gone) => return,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    fn welcome(version: u16) -> FromAgent {
        FromAgent::Welcome(Welcome {
            version,
            incarnation: INCARNATION,
            geometry: PoolGeometry {
                block_size: 4096,
                blocks: 4,
            },
            pages: PageReport {
                page_size: 4096,
                huge: false,
                locked: 0,
                numa_node: None,
                shortfall: String::new(),
            },
        })
    }

    fn grant(len: u64) -> RegionGrant {
        RegionGrant {
            stag: Stag(1),
            base: TaggedOffset(1 << 40),
            len,
            access: Access::LOCAL,
            incarnation: INCARNATION,
        }
    }

    fn pool_grant(grant: RegionGrant) -> FromAgent {
        FromAgent::PoolGrant {
            grant: grant.into(),
            hand_over: HandOver::Memfd,
            fresh: true,
        }
    }

    fn memory(len: u64) -> Region {
        Region::memfd("fake", len, &PageOptions::default()).unwrap()
    }

    /// An agent that follows `script` with one caller, and how to call it.
    fn fake(script: impl FnOnce(&Fake) + Send + 'static) -> (ChannelOptions, JoinHandle<()>) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "kbtp-fake-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path: PathBuf = std::env::temp_dir().join(name);
        let listener = AgentListener::bind(&ListenOptions {
            path: path.clone(),
            allowed_uid: None,
        })
        .unwrap();
        let mut options = ChannelOptions::new(&path);
        options.timeout = Duration::from_secs(20);
        let thread = std::thread::Builder::new()
            .spawn(move || {
                readable(listener.as_fd());
                let Ok(Some(Arrival::Client(connection))) = listener.accept() else {
                    panic!("no caller");
                };
                script(&Fake(connection));
                let mut lock = listener.path().as_os_str().to_owned();
                lock.push(".lock");
                std::fs::remove_file(lock).unwrap();
            })
            .unwrap();
        (options, thread)
    }

    fn with<T>(
        script: impl FnOnce(&Fake) + Send + 'static,
        target: impl FnOnce(&mut TargetChannel) -> T,
    ) -> T {
        let (options, thread) = fake(|fake| {
            fake.welcome();
            script(fake);
            fake.until_closed();
        });
        let mut channel = TargetChannel::connect(&options, Role::Target).unwrap();
        let result = target(&mut channel);
        drop(channel);
        thread.join().unwrap();
        result
    }

    fn attach_error(message: FromAgent, fd: Option<OwnedFd>) -> ControlError {
        with(
            move |fake| fake.answer(message, fd.as_ref().map(AsFd::as_fd)),
            |target| target.attach_pool().unwrap_err(),
        )
    }

    fn fd_of(region: &Region) -> OwnedFd {
        region.fd().unwrap().try_clone_to_owned().unwrap()
    }

    #[test]
    fn a_good_grant_is_mapped() {
        let memory = memory(POOL_LEN);
        memory.write(0, b"agent's").unwrap();
        let fd = fd_of(&memory);
        let pool = with(
            move |fake| fake.answer(pool_grant(grant(POOL_LEN)), Some(fd.as_fd())),
            |target| target.attach_pool().unwrap(),
        );
        assert_eq!(pool.grant, grant(POOL_LEN));
        let mut octets = [0; 7];
        pool.region.read(0, &mut octets).unwrap();
        assert_eq!(&octets, b"agent's");
    }

    #[test]
    fn an_agent_that_hangs_is_left_and_a_cut_ends_the_wait() {
        let (give, take) = std::sync::mpsc::channel::<LinkCutter>();
        with(
            move |fake| {
                let cutter = take.recv().unwrap();
                assert_eq!(fake.next().message, ToAgent::Detach);
                assert_eq!(fake.next().message, ToAgent::Status);
                cutter.cut();
                cutter.cut();
                // Though the cutter holds the socket still.
                fake.until_closed();
            },
            |target| {
                give.send(target.cutter().unwrap().unwrap()).unwrap();
                let error = target.detach().unwrap_err();
                assert!(
                    matches!(error, ControlError::Deadline { after, .. } if after == DETACH_TIMEOUT),
                    "{error}"
                );
                let error = target.status().unwrap_err();
                assert!(matches!(error, ControlError::Gone), "{error}");
            },
        );
    }

    #[test]
    fn a_grant_must_come_with_its_memory() {
        let error = attach_error(pool_grant(grant(POOL_LEN)), None);
        let ControlError::Frame(FrameError::Descriptors {
            got: 0, wanted: 1, ..
        }) = error
        else {
            panic!("{error}");
        };
    }

    #[test]
    fn memory_that_could_shrink_is_not_mapped() {
        let open = memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&open, POOL_LEN).unwrap();
        let error = attach_error(pool_grant(grant(POOL_LEN)), Some(open));
        assert!(
            matches!(
                error,
                ControlError::Region {
                    source: MapError::NotSealed,
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn memory_shorter_than_its_grant_is_not_mapped() {
        let error = attach_error(pool_grant(grant(1 << 30)), Some(fd_of(&memory(POOL_LEN))));
        assert!(
            matches!(
                error,
                ControlError::Region {
                    source: MapError::FileTooShort { .. },
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn grants_that_cannot_be_are_named() {
        let other = RegionGrant {
            incarnation: Incarnation([8; 16]),
            ..grant(POOL_LEN)
        };
        let beyond = RegionGrant {
            base: TaggedOffset(u64::MAX - 4096),
            ..grant(POOL_LEN)
        };
        for (grant, says) in [
            (other, "incarnation"),
            (beyond, "address space"),
            (grant(4096), "do not hold"),
        ] {
            let fd = fd_of(&memory(POOL_LEN));
            let error = attach_error(pool_grant(grant), Some(fd)).to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_side_region_has_the_length_asked_for() {
        let fd = fd_of(&memory(8192));
        let name = RegionName::new("ring").unwrap();
        let error = with(
            move |fake| {
                let message = FromAgent::SideGrant {
                    grant: grant(8192).into(),
                    hand_over: HandOver::Memfd,
                    fresh: false,
                };
                fake.answer(message, Some(fd.as_fd()));
            },
            |target| target.attach_side(&name, 4096).unwrap_err().to_string(),
        );
        assert!(
            error.contains("asked for 4096") && error.contains("8192"),
            "{error}"
        );
    }

    #[test]
    fn another_answer_than_asked_for_is_an_error() {
        let error = attach_error(FromAgent::Pong, None);
        assert!(
            matches!(
                error,
                ControlError::WrongAnswer {
                    wanted: "AttachPool",
                    got: "Pong"
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn descriptors_beside_other_messages_are_closed_and_refused() {
        let (unread, other) = std::io::pipe().unwrap();
        let error = with(
            move |fake| {
                let id = fake.next().id;
                let message = FromAgent::Pong;
                let octets = Frame { id, message }.encode().unwrap();
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                let fds = [other.as_fd(); 4];
                assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
                let iov = [IoSlice::new(&octets)];
                sendmsg(fake.0.as_fd(), &iov, &mut control, SendFlags::NOSIGNAL).unwrap();
            },
            |target| target.ping().unwrap_err(),
        );
        assert!(
            matches!(error, ControlError::Frame(FrameError::Descriptors { .. })),
            "{error}"
        );
        // The pipe's last writer is gone: no copy of it stays here.
        readable(unread.as_fd());
    }

    #[test]
    fn octets_that_are_no_frame_are_an_error_for_calls_and_events() {
        for octets in [&b"nonsense, and more than a header"[..], &[0; 5000], &[1]] {
            let error = with(
                move |fake| fake.raw(octets),
                |target| {
                    readable(target.event_fd().unwrap());
                    target.next_event().unwrap_err()
                },
            );
            assert!(matches!(error, ControlError::Frame(_)), "{error}");
            let error = with(
                move |fake| fake.raw(octets),
                |target| target.ping().unwrap_err(),
            );
            assert!(matches!(error, ControlError::Frame(_)), "{error}");
        }
    }

    #[test]
    fn an_agent_of_another_version_is_named() {
        let (options, thread) = fake(|fake| fake.answer(welcome(VERSION + 1), None));
        let error = TargetChannel::connect(&options, Role::Target).unwrap_err();
        assert!(
            matches!(
                error,
                ControlError::Frame(FrameError::Version { got: 2, speaks: 1 })
            ),
            "{error}"
        );
        thread.join().unwrap();
    }

    #[test]
    fn a_refusal_said_on_the_way_out_is_heard() {
        // The agent closes with the Hello unread, as it does with a foreign user.
        let (options, thread) = fake(|fake| fake.0.refuse(0, Refusal::User { uid: 12 }));
        let error = TargetChannel::connect(&options, Role::Target).unwrap_err();
        assert!(
            matches!(error, ControlError::Refused(Refusal::User { uid: 12 })),
            "{error}"
        );
        thread.join().unwrap();
    }

    #[test]
    fn a_late_answer_is_not_taken_for_the_next() {
        let (options, thread) = fake(|fake| {
            fake.welcome();
            let late = fake.next();
            assert_eq!(late.message, ToAgent::Ping);
            let next = fake.next();
            assert_eq!(next.message, ToAgent::Detach);
            fake.0.send(late.id, FromAgent::Pong, None).unwrap();
            fake.0.send(next.id, FromAgent::Detached, None).unwrap();
            fake.until_closed();
        });
        let mut target = TargetChannel::connect(&options, Role::Target).unwrap();
        target.set_timeout(Duration::from_millis(1));
        let error = target.ping().unwrap_err();
        assert!(
            matches!(error, ControlError::Deadline { what: "Ping", .. }),
            "{error}"
        );
        target.set_timeout(options.timeout);
        target.detach().unwrap();
        drop(target);
        thread.join().unwrap();
    }

    #[test]
    fn a_drain_notice_before_an_answer_is_kept_and_late_answers_are_no_events() {
        with(
            |fake| {
                let id = fake.next().id;
                let drain = FromAgent::Drain(DrainReason::Stopping);
                fake.0.send(0, drain, None).unwrap();
                fake.0.send(id, FromAgent::Pong, None).unwrap();
                fake.0.send(id, FromAgent::Pong, None).unwrap();
            },
            |target| {
                target.ping().unwrap();
                let draining = AgentEvent::Draining(DrainReason::Stopping);
                assert_eq!(target.next_event().unwrap(), Some(draining));
                readable(target.event_fd().unwrap());
                assert_eq!(target.next_event().unwrap(), None);
            },
        );
    }

    #[test]
    fn an_agent_that_closes_in_the_middle_of_a_call_is_gone() {
        let (options, thread) = fake(|fake| {
            fake.welcome();
            fake.next();
        });
        let mut target = TargetChannel::connect(&options, Role::Target).unwrap();
        let error = target.ping().unwrap_err();
        assert!(matches!(error, ControlError::Gone), "{error}");
        assert_eq!(target.next_event().unwrap(), Some(AgentEvent::Gone));
        thread.join().unwrap();
    }

    #[test]
    fn unasked_messages_other_than_drain_are_an_error() {
        let error = with(
            |fake| fake.0.send(0, FromAgent::Pong, None).unwrap(),
            |target| {
                readable(target.event_fd().unwrap());
                target.next_event().unwrap_err()
            },
        );
        assert!(
            matches!(
                error,
                ControlError::WrongAnswer {
                    wanted: "nothing",
                    ..
                }
            ),
            "{error}"
        );
    }
}
