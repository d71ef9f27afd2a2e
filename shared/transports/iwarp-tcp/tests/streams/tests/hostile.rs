//! Octets that are not what they should be.

use super::{End, Patience, V4, accept_all, addr, listen};
use kbtp_fabric::Stream as _;
use kbtp_fabric::{StreamError, Time, WorkOutcome, WorkRequest};
use kbtp_iwarp_tcp::{ConnectOptions, Connector, Interest, Poller, Spin, StreamOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

/// Passes octets on between two sockets, and changes one.
struct Wire {
    a: TcpStream,
    b: TcpStream,
    /// Octets from A yet to pass before the one that is changed.
    until_flip: usize,
}

impl Wire {
    fn pass(&mut self) {
        let mut octets = [0; 4096];
        if let Some(n) = take(&self.a, &mut octets) {
            if let Some(octet) = octets[..n].get_mut(self.until_flip) {
                *octet ^= 0x10;
                self.until_flip = usize::MAX;
            } else if self.until_flip != usize::MAX {
                self.until_flip -= n;
            }
            give(&self.b, &octets[..n]);
        }
        if let Some(n) = take(&self.b, &mut octets) {
            give(&self.a, &octets[..n]);
        }
    }
}

/// Octets from a socket; none is its end.
fn take(mut from: &TcpStream, octets: &mut [u8]) -> Option<usize> {
    match from.read(octets) {
        Ok(n) => Some(n),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            Some(0)
        }
    }
}

/// Passes octets on, or the end. A side that is gone takes neither, and need not.
fn give(mut to: &TcpStream, octets: &[u8]) {
    if octets.is_empty() {
        drop(to.shutdown(Shutdown::Write));
    } else {
        drop(to.write_all(octets));
    }
}

/// Two ends with a wire between them, after a first message: before it a responder could not tell what is wrong
/// (RFC 5044, section 7.1.2, rule 4).
fn connect_through() -> (End, End, Wire) {
    let mut listener = listen(V4, StreamOptions::default());
    let middle = TcpListener::bind(addr(V4)).unwrap();
    let to = middle.local_addr().unwrap();
    let mut connector = Connector::start(to, ConnectOptions::default(), b"").unwrap();
    let (a, _) = middle.accept().unwrap();
    let b = TcpStream::connect(listener.local_addr()).unwrap();
    for socket in [&a, &b] {
        socket.set_nonblocking(true).unwrap();
        socket.set_nodelay(true).unwrap();
    }
    let mut wire = Wire {
        a,
        b,
        until_flip: usize::MAX,
    };
    let patience = Patience::new();
    let (mut here, mut there) = (None, None);
    while here.is_none() || there.is_none() {
        let now = patience.now();
        if here.is_none() {
            here = connector.progress(now).unwrap();
        }
        if there.is_none() {
            there = listener.progress(now, &mut accept_all).unwrap();
        }
        wire.pass();
    }
    let mut a = End::new(here.unwrap().stream, 4096);
    let mut b = End::new(there.unwrap().stream, 4096);
    let send = WorkRequest::Send {
        head: b"first",
        tail: None,
        solicited: false,
        invalidate: None,
    };
    a.post(0, &send);
    while b.messages().is_empty() {
        step(&mut a, &mut b, &mut wire, patience.now());
    }
    (a, b, wire)
}

fn step(a: &mut End, b: &mut End, wire: &mut Wire, now: Time) {
    a.progress(now);
    wire.pass();
    b.progress(now);
    wire.pass();
}

#[test]
fn one_changed_octet_anywhere_in_an_fpdu_is_never_delivered() {
    // A Send of 12 octets: 2 of length, 18 of header, 12 of payload, no pad, 4 of CRC.
    for at in 0..36 {
        let (mut a, mut b, mut wire) = connect_through();
        wire.until_flip = at;
        let send = WorkRequest::Send {
            head: b"twelve octet",
            tail: None,
            solicited: false,
            invalidate: None,
        };
        // Where the length is changed the receiver waits for up to 4 KiB more: give it that.
        for id in 1..200 {
            a.post(id, &send);
        }
        let patience = Patience::new();
        while a.error.is_none() || b.error.is_none() {
            step(&mut a, &mut b, &mut wire, patience.now());
            assert!(b.messages().is_empty(), "delivered with octet {at} changed");
        }
        //= test rfc5044-4.4-crc-verified
        assert!(
            matches!(b.error, Some(StreamError::Protocol { .. })),
            "octet {at}: {:?}",
            b.error
        );
        //= test rfc5044-8-errors-detected
        assert!(
            matches!(a.error, Some(StreamError::PeerTerminated { .. })),
            "octet {at}: {:?}",
            a.error
        );
    }
}

#[test]
fn a_write_with_a_changed_octet_completes_nothing() {
    // 2 of length, 14 of header, then the payload.
    let (mut a, mut b, mut wire) = connect_through();
    wire.until_flip = 16 + 1000;
    let data = super::pattern(5, 2000);
    a.region.write(0, &data).unwrap();
    let write = WorkRequest::Write {
        local: a.local(0, 2000),
        remote: b.remote(0),
        immediate: None,
    };
    a.post(1, &write);
    let read = WorkRequest::Read {
        local: a.local(2000, 8),
        remote: b.remote(0),
    };
    a.post(2, &read);
    let patience = Patience::new();
    while a.error.is_none() || b.error.is_none() {
        step(&mut a, &mut b, &mut wire, patience.now());
    }
    assert!(b.events.is_empty());
    assert_eq!(a.outcome(2), Some(WorkOutcome::Flushed));
}

#[test]
fn octets_come_in_any_pieces() {
    // One octet at a time, by a wire that reads so.
    let (mut a, mut b, wire) = connect_through();
    let data = super::pattern(6, 700);
    a.region.write(100, &data).unwrap();
    let write = WorkRequest::Write {
        local: a.local(100, 700),
        remote: b.remote(1000),
        immediate: None,
    };
    a.post(1, &write);
    let send = WorkRequest::Send {
        head: b"piecemeal",
        tail: None,
        solicited: true,
        invalidate: None,
    };
    a.post(2, &send);
    let patience = Patience::new();
    let mut octet = [0];
    let mut got = Vec::new();
    while got.is_empty() {
        let now = patience.now();
        a.progress(now);
        if let Ok(1) = (&wire.a).read(&mut octet) {
            (&wire.b).write_all(&octet).unwrap();
        }
        b.progress(now);
        got = b.messages();
    }
    assert_eq!(got, [b"piecemeal"]);
    assert!(super::octets(&b.region, 1000, 700) == data);
}

/// A zero-length RDMA Write: the shortest FPDU of a peer that has nothing to say.
fn empty_write() -> Vec<u8> {
    let mut fpdu = vec![0, 14, 0xC1, 0x40];
    fpdu.resize(16, 0);
    let crc = kbtp_memory::crc32c::crc32c(&fpdu);
    fpdu.extend(crc.to_le_bytes());
    fpdu
}

#[test]
fn a_peer_that_breaks_the_rules_and_takes_no_terminate_keeps_nobody_busy() {
    let mut options = StreamOptions::default();
    options.rdma.close_timeout_ms = 300;
    let mut listener = listen(V4, options);
    let mut peer = TcpStream::connect(listener.local_addr()).unwrap();
    peer.write_all(b"MPA ID Req Frame\x50\x02\x00\x04\x00\x08\x00\x08")
        .unwrap();
    let mut b = End::new(super::accept(&mut listener).stream, 32 << 20);
    peer.write_all(&empty_write()).unwrap();
    let write = WorkRequest::Write {
        local: b.local(0, 32 << 20),
        remote: b.remote(0),
        immediate: None,
    };
    b.post(1, &write);
    // More than the sockets hold, and the peer takes none of it.
    let patience = Patience::new();
    let mut quiet = 0;
    while quiet < 1000 || b.stream.traffic().sent_octets < 1000 {
        quiet = if b.progress(patience.now()) {
            0
        } else {
            quiet + 1
        };
    }
    let mut wrong = empty_write();
    wrong[19] ^= 1;
    peer.write_all(&wrong).unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    let mut poller = Poller::new(Spin::Off).unwrap();
    poller
        .add(b.stream.descriptor(), 1, Interest::READ)
        .unwrap();
    let mut waits = 0;
    while b.error.is_none() {
        let readiness = b.stream.readiness();
        poller
            .modify(b.stream.descriptor(), 1, readiness.into())
            .unwrap();
        let until = readiness.at.unwrap_or(patience.end);
        let now = poller.wait(Some(until)).unwrap();
        assert!(now < patience.end);
        b.progress(now);
        waits += 1;
    }
    assert!(
        matches!(b.error, Some(StreamError::Protocol { .. })),
        "{:?}",
        b.error
    );
    assert_eq!(b.outcome(1), Some(WorkOutcome::Flushed));
    assert!(waits < 20, "woken {waits} times for nothing");
}
