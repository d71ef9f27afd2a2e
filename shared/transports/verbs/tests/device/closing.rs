//! How streams end, and what both sides hear of it.

use super::pair::{Block, Deadline, Pair, SINK, addresses, listener, now, options, send, wait};
use kbtp_fabric::{
    Access, CloseReason, Event, Stream, StreamError, WorkId, WorkOutcome, WorkRequest,
};
use kbtp_verbs::{Answer, ConnectError, ConnectOptions, Connector, StreamOptions};
use std::os::fd::AsFd;

#[test]
fn an_end_in_order_lets_what_was_posted_arrive() {
    for address in addresses() {
        let mut pair = Pair::new(address, options());
        for number in 0..8_u8 {
            pair.there
                .post(WorkId(1), &send(&[number; 300]), true)
                .unwrap();
        }
        pair.there.close(CloseReason::Graceful);
        let (here, there) = pair.both_ended();
        assert!(matches!(here, StreamError::PeerClosed), "{here}");
        assert!(matches!(there, StreamError::ClosedHere), "{there}");
        let mut next = 0;
        for event in std::mem::take(&mut pair.at_here) {
            if let Event::Received { slot, len, .. } = event {
                assert_eq!(len.0, 300);
                assert_eq!(pair.here.message(slot), [next; 300]);
                next += 1;
            }
        }
        assert_eq!(next, 8);
        assert!(pair.here.post(WorkId(2), &send(b"x"), true).is_err());
        assert!(!pair.here.readiness().read);
    }
}

#[test]
fn an_abort_flushes_what_is_posted_and_the_peer_hears_of_it() {
    for address in addresses() {
        let mut pair = Pair::new(address, options());
        let local = Block::new(&mut pair.here, 1 << 20, Access::LOCAL);
        let sink = Block::new(&mut pair.there, 1 << 20, SINK);
        for id in 1..=10 {
            let write = WorkRequest::Write {
                local: local.local(0, 1 << 20),
                remote: sink.remote(0),
                immediate: None,
            };
            pair.here.post(WorkId(id), &write, true).unwrap();
        }
        pair.here.close(CloseReason::Abort);
        let mut ended = 0;
        while let Some(event) = pair.here.next_event() {
            // A device may have sent all of it by now.
            match event {
                Event::Done {
                    outcome: WorkOutcome::Flushed | WorkOutcome::Sent,
                    ..
                } => ended += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(ended, 10, "each is heard of once");
        let (here, there) = pair.both_ended();
        assert!(matches!(here, StreamError::ClosedHere), "{here}");
        assert!(!matches!(there, StreamError::ClosedHere), "{there}");
    }
}

#[test]
fn an_stag_that_is_gone_ends_the_stream_of_who_uses_it() {
    for address in addresses() {
        let mut pair = Pair::new(address, options());
        let local = Block::new(&mut pair.here, 4096, Access::LOCAL);
        let sink = Block::new(&mut pair.there, 4096, SINK);
        local.fill(9);
        pair.there.invalidate(sink.stag).unwrap();
        let write = WorkRequest::Write {
            local: local.local(0, 64),
            remote: sink.remote(0),
            immediate: None,
        };
        pair.here.post(WorkId(1), &write, true).unwrap();
        let (here, there) = pair.both_ended();
        println!("{address}: {here}; {there}");
        assert!(!matches!(here, StreamError::ClosedHere));
        assert_eq!(sink.octets(0, 64), [0; 64], "nothing was written");
    }
}

#[test]
fn the_keys_of_one_stream_are_worth_nothing_on_another() {
    for address in addresses() {
        let mut one = Pair::new(address, options());
        let mut other = Pair::new(address, options());
        let local = Block::new(&mut one.here, 4096, Access::LOCAL);
        local.fill(10);
        let sink = Block::new(&mut other.there, 4096, SINK);
        let write = WorkRequest::Write {
            local: local.local(0, 64),
            remote: sink.remote(0),
            immediate: None,
        };
        one.here.post(WorkId(1), &write, true).unwrap();
        one.both_ended();
        assert_eq!(sink.octets(0, 64), [0; 64]);
        other.here.post(WorkId(1), &send(b"alive"), true).unwrap();
        other.received_there();
    }
}

#[test]
fn a_message_longer_than_its_receive_ends_the_stream() {
    for address in addresses() {
        let mut pair = Pair::new(address, options());
        pair.here.post(WorkId(1), &send(&[1; 4097]), true).unwrap();
        let (here, there) = pair.both_ended();
        println!("{address}: {here}; {there}");
        assert!(!matches!(there, StreamError::ClosedHere));
    }
}

#[test]
fn a_quiet_stream_asks_for_signs_of_life_and_lives() {
    for address in addresses() {
        let quick = StreamOptions {
            keepalive_idle_ms: 50,
            ..options()
        };
        let mut pair = Pair::new(address, quick);
        let until = now().after_ms(600);
        while now() < until {
            pair.step();
            assert!(pair.ended.iter().all(Option::is_none), "{:?}", pair.ended);
        }
        pair.here
            .post(WorkId(1), &send(b"still here"), true)
            .unwrap();
        let (slot, _) = pair.received_there();
        assert_eq!(pair.there.message(slot), b"still here");
    }
}

#[test]
fn a_rejection_says_why() {
    for address in addresses() {
        let mut listener = listener(address, options());
        let to = listener.local_addr();
        let mut connector = Connector::start(to, ConnectOptions::default(), b"", now()).unwrap();
        let deadline = Deadline::new();
        let error = loop {
            deadline.check("a rejection");
            match connector.progress(now()) {
                Ok(None) => {}
                Ok(Some(_)) => panic!("it was rejected"),
                Err(error) => break error,
            }
            let mut answer = |_: &kbtp_verbs::Request<'_>| Answer::Reject {
                private_data: b"not today".to_vec(),
            };
            assert!(listener.progress(now(), &mut answer).unwrap().is_none());
            let mut fds = vec![listener.as_fd()];
            fds.extend(connector.descriptor());
            wait(&fds);
        };
        let ConnectError::Rejected { private_data, .. } = error else {
            panic!("{error}");
        };
        assert!(private_data.starts_with(b"not today"), "{private_data:?}");
        assert_eq!(listener.counters().rejected, 1);
    }
}

#[test]
fn nobody_listens() {
    for address in addresses() {
        let to = {
            let listener = listener(address, options());
            listener.local_addr()
        };
        let error = kbtp_verbs::connect(to, ConnectOptions::default(), b"", 5_000).unwrap_err();
        println!("{address}: {error}");
    }
}
