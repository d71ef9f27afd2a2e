//! Octets that are not what they should be.

use super::{End, Patience, V4, accept_all, addr, listen};
use kbtp_fabric::{StreamError, Time, WorkOutcome, WorkRequest};
use kbtp_iwarp_tcp::{ConnectOptions, Connector, StreamOptions};
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
