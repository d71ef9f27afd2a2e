//! Clients that break the rules: each is told, or closed, and nobody else notices.

use crate::common::{Running, Scratch, name, readable};
use kbtp_control::limits::{MAX_CLIENTS, MAX_FRAME_LEN};
use kbtp_control::{
    AgentLink, ControlError, Frame, FromAgent, HandOver, Hello, MAGIC, Refusal, Role, ToAgent,
    VERSION,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recv, send, sendmsg, socket_with,
};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

/// A client that writes what it likes.
pub(crate) struct Raw(OwnedFd);

impl Raw {
    pub(crate) fn new(scratch: &Scratch) -> Self {
        let fd = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        connect(&fd, &SocketAddrUnix::new(scratch.socket()).unwrap()).unwrap();
        Self(fd)
    }

    pub(crate) fn send(&self, octets: &[u8]) {
        assert_eq!(send(&self.0, octets, SendFlags::NOSIGNAL), Ok(octets.len()));
    }

    pub(crate) fn ask(&self, id: u32, message: ToAgent) {
        self.send(&Frame { id, message }.encode().unwrap());
    }

    pub(crate) fn hello(self, role: Role) -> Self {
        self.ask(
            1,
            ToAgent::Hello(Hello {
                version: VERSION,
                role,
                pid: 1,
            }),
        );
        assert!(matches!(self.answer(), Some(FromAgent::Welcome(_))));
        self
    }

    /// The next answer; `None` at the end.
    pub(crate) fn answer(&self) -> Option<FromAgent> {
        let mut octets = [0; MAX_FRAME_LEN];
        loop {
            readable(self.0.as_fd());
            match recv(&self.0, &mut octets, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return None,
                Ok((len, _)) => {
                    return Some(Frame::<FromAgent>::decode(&octets[..len]).unwrap().message);
                }
                // What was not read when the agent closed; what it sent still comes.
                Err(Errno::CONNRESET) => {}
                Err(e) => panic!("{e}"),
            }
        }
    }

    pub(crate) fn refusal(&self) -> Refusal {
        match self.answer() {
            Some(FromAgent::Refused(refusal)) => refusal,
            other => panic!("{other:?}"),
        }
    }
}

/// An agent with a target at work, which must not notice what `attack` does.
fn undisturbed(attack: impl FnOnce(&Scratch, &Running)) {
    let scratch = Scratch::new();
    let agent = Running::start(&scratch.config());
    let mut target = agent.target();
    let ring = target.attach_side(&name("ring"), 4096).unwrap();
    ring.region.write(0, b"mine").unwrap();
    attack(&scratch, &agent);
    target.ping().unwrap();
    let again = target.attach_side(&name("ring"), 4096).unwrap();
    assert_eq!(crate::common::octets(&again.region, 0, 4), b"mine");
    assert_eq!(target.next_event().unwrap(), None);
}

fn malformed(scratch: &Scratch, octets: &[u8], says: &str) {
    for greeted in [false, true] {
        let mut client = Raw::new(scratch);
        if greeted {
            client = client.hello(Role::Observer);
        }
        client.send(octets);
        match client.refusal() {
            Refusal::Malformed { reason } => assert!(reason.contains(says), "{reason}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(client.answer(), None);
    }
}

#[test]
fn octets_that_are_no_frame_end_their_client_alone() {
    undisturbed(|scratch, _| {
        malformed(
            scratch,
            b"GET / HTTP/1.1\r\n\r\n",
            "not a KBTP control frame",
        );
        malformed(scratch, b"KBTA", "shorter than its header");
        malformed(scratch, &[0x55; MAX_FRAME_LEN + 1], "over the limit");
        malformed(scratch, &vec![0x55; 60_000], "over the limit");
        let mut frame = Frame {
            id: 1,
            message: ToAgent::Ping,
        }
        .encode()
        .unwrap();
        frame[16] = 200;
        malformed(scratch, &frame, "no message of this version");
        frame[8..12].fill(0);
        frame[16] = 4;
        malformed(scratch, &frame, "ID 0");
    });
}

#[test]
fn another_version_is_told_ours() {
    undisturbed(|scratch, _| {
        let mut frame = MAGIC.to_be_bytes().to_vec();
        frame.extend_from_slice(&[0, 9, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
        let client = Raw::new(scratch);
        client.send(&frame);
        let refusal = client.refusal();
        let want = Refusal::Version {
            speaks: VERSION,
            got: 9,
        };
        assert_eq!(refusal, want);
        assert_eq!(client.answer(), None);
    });
}

#[test]
fn nothing_comes_before_hello() {
    undisturbed(|scratch, _| {
        for request in [
            ToAgent::Ping,
            ToAgent::Status,
            ToAgent::Detach,
            ToAgent::AttachPool {
                hand_over: HandOver::Memfd,
            },
        ] {
            let client = Raw::new(scratch);
            client.ask(1, request);
            assert!(matches!(client.refusal(), Refusal::Unexpected { .. }));
            assert_eq!(client.answer(), None);
        }
    });
}

#[test]
fn descriptors_nobody_asked_for_are_refused() {
    undisturbed(|scratch, _| {
        let client = Raw::new(scratch).hello(Role::Observer);
        let frame = Frame {
            id: 2,
            message: ToAgent::Ping,
        };
        let octets = frame.encode().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [client.0.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(
            &client.0,
            &[IoSlice::new(&octets)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
        .unwrap();
        assert!(matches!(client.refusal(), Refusal::Malformed { .. }));
        assert_eq!(client.answer(), None);
    });
}

#[test]
fn who_asks_and_never_reads_is_closed() {
    undisturbed(|scratch, _| {
        let client = Raw::new(scratch).hello(Role::Observer);
        let frame = Frame {
            id: 2,
            message: ToAgent::Status,
        };
        let octets = frame.encode().unwrap();
        // The socket holds some hundred answers; the send waits while the agent is behind.
        let closed = (0..100_000)
            .find_map(|_| send(&client.0, &octets, SendFlags::NOSIGNAL).err())
            .unwrap();
        assert!(matches!(closed, Errno::PIPE | Errno::CONNRESET), "{closed}");
    });
}

#[test]
fn who_says_nothing_is_closed_in_time() {
    undisturbed(|scratch, _| {
        let client = Raw::new(scratch);
        assert_eq!(client.answer(), None);
    });
}

#[test]
fn clients_are_bounded_and_their_places_come_back() {
    undisturbed(|scratch, agent| {
        // The target has one place.
        let mut observers: Vec<_> = (1..MAX_CLIENTS)
            .map(|_| Raw::new(scratch).hello(Role::Observer))
            .collect();
        let refused = agent.connect(Role::Observer).unwrap_err();
        assert!(
            matches!(
                refused,
                ControlError::Refused(Refusal::Clients { limit: 32 })
            ),
            "{refused}"
        );
        // Answered after the end of the one before it was seen: the agent takes them in turn.
        drop(observers.pop());
        let last = observers.last().unwrap();
        last.ask(2, ToAgent::Ping);
        assert_eq!(last.answer(), Some(FromAgent::Pong));
        let mut late = agent.connect(Role::Observer).unwrap();
        late.ping().unwrap();
    });
}
