//! Setting streams up: private data, revisions, rejections, bounds, time-outs.

use super::{End, Pair, Patience, V4, V6, accept, accept_all, addr, listen, meet, same, watch};
use kbtp_fabric::{Event, LocalError, Stream as _, StreamError, WorkRequest};
use kbtp_iwarp::Handshake;
use kbtp_iwarp_tcp::{
    Answer, ConnectError, ConnectOptions, ListenOptions, Listener, Poller, Spin, StreamOptions,
    TcpRdmaStream, connect,
};
use kbtp_wire::mpa::RtrKinds;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

const MPA_REQUEST: &[u8; 16] = b"MPA ID Req Frame";

/// A plain TCP client whose reads do not wait for ever.
fn raw_client(to: &Listener) -> TcpStream {
    let client = TcpStream::connect(to.local_addr()).unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    client
}

/// Drives the listener until `done`.
fn drive(listener: &mut Listener, mut done: impl FnMut(&Listener) -> bool) {
    let patience = Patience::new();
    while !done(listener) {
        let now = patience.now();
        assert!(listener.progress(now, &mut accept_all).unwrap().is_none());
    }
}

/// Whether the peer ended or reset the connection.
fn is_closed(mut client: &TcpStream) -> bool {
    let mut octets = [0; 256];
    loop {
        match client.read(&mut octets) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// That messages pass both ways.
fn talk(a: TcpRdmaStream, b: TcpRdmaStream) {
    let mut pair = Pair::of(End::new(a, 4096), End::new(b, 4096));
    for (id, text) in [(1, b"there"), (2, b"again")] {
        let send = WorkRequest::Send {
            head: text,
            tail: None,
            solicited: false,
            invalidate: None,
        };
        pair.a.post(id, &send);
        pair.until(|_, b| !b.events.is_empty());
        assert_eq!(pair.b.messages(), [text]);
        pair.b.post(id, &send);
        pair.until(|a, _| a.events.iter().any(|e| matches!(e, Event::Received { .. })));
        assert_eq!(pair.a.messages(), [text]);
    }
}

#[test]
fn private_data_crosses_both_ways_in_every_handshake() {
    let rtr = |send, write, read| Handshake::PeerToPeer(RtrKinds { send, write, read });
    for handshake in [
        Handshake::Original,
        Handshake::Enhanced,
        rtr(true, false, false),
        rtr(false, true, false),
        rtr(false, false, true),
    ] {
        for at in [V4, V6] {
            let mut listener = listen(at, StreamOptions::default());
            let mut options = ConnectOptions::default();
            options.stream.rdma.handshake = handshake;
            let (here, there) = meet(&mut listener, options);
            assert_eq!(&*here.private_data, b"welcome");
            assert_eq!(&*there.request_data, b"hello");
            assert_eq!(&*there.reply_data, b"welcome");
            assert_eq!(there.stream.peer_addr(), here.stream.local_addr().unwrap());
            assert_eq!(here.stream.peer_addr(), listener.local_addr());
            assert_eq!(listener.counters().established, 1);
            assert_eq!(listener.half_open_now(), 0);
            talk(here.stream, there.stream);
        }
    }
}

/// What the kernel was told of both ends of an ordinary connection, whoever began it.
#[test]
fn a_connection_watches_for_peers_that_crashed_or_stall() {
    for at in [V4, V6] {
        let mut listener = listen(at, StreamOptions::default());
        let (here, there) = meet(&mut listener, ConnectOptions::default());
        for stream in [&here.stream, &there.stream] {
            let descriptor = stream.descriptor();
            let socket = socket2::SockRef::from(&descriptor);
            assert!(socket.keepalive().unwrap());
            let quiet = socket.tcp_keepalive_time().unwrap();
            assert_eq!(quiet, Duration::from_secs(10), "TCP_KEEPIDLE");
            let between = socket.tcp_keepalive_interval().unwrap();
            assert_eq!(between, Duration::from_secs(5), "TCP_KEEPINTVL");
            assert_eq!(socket.tcp_keepalive_retries().unwrap(), 3, "TCP_KEEPCNT");
            let stalled = socket.tcp_user_timeout().unwrap();
            assert_eq!(stalled, Some(Duration::from_secs(20)), "TCP_USER_TIMEOUT");
        }
    }
}

#[test]
fn read_depths_are_negotiated() {
    let mut server = StreamOptions::default();
    server.rdma.inbound_reads = 5;
    server.rdma.outbound_reads = 60;
    let mut listener = listen(V4, server);
    let mut client = StreamOptions::default();
    client.rdma.outbound_reads = 9;
    client.rdma.inbound_reads = 30;
    let (here, there) = meet(&mut listener, same(client));
    assert_eq!(here.stream.capabilities().outbound_reads, 5);
    assert_eq!(there.stream.capabilities().outbound_reads, 30);
}

#[test]
fn a_blocking_connect_needs_no_loop_of_ours() {
    let mut listener = listen(V4, StreamOptions::default());
    let to = listener.local_addr();
    std::thread::scope(|scope| {
        let client = scope.spawn(move || connect(to, ConnectOptions::default(), b"x", 30_000));
        let accepted = accept(&mut listener);
        assert_eq!(&*accepted.request_data, b"x");
        let connected = client.join().unwrap().unwrap();
        talk(connected.stream, accepted.stream);
    });
}

#[test]
fn an_accepted_stream_can_be_handed_to_another_thread() {
    const fn assert_send<T: Send>() {}
    assert_send::<TcpRdmaStream>();
    assert_send::<Listener>();
    let mut listener = listen(V4, StreamOptions::default());
    let (here, there) = meet(&mut listener, ConnectOptions::default());
    std::thread::scope(|scope| {
        scope.spawn(move || talk(here.stream, there.stream));
    });
}

#[test]
fn a_listener_is_watched_by_one_descriptor() {
    let mut poller = Poller::new(Spin::Auto).unwrap();
    let mut listener = listen(V4, StreamOptions::default());
    watch(&poller, &listener);
    let client = raw_client(&listener);
    let patience = Patience::new();
    poller.wait(Some(patience.end)).unwrap();
    assert_eq!(poller.ready().len(), 1);
    listener.progress(patience.now(), &mut accept_all).unwrap();
    assert_eq!(listener.half_open_now(), 1);
    // Nothing to do for it: not ready, but a time is set.
    poller.wait(Some(poller.clock().now())).unwrap();
    assert_eq!(poller.ready().len(), 0);
    assert!(listener.next_timeout().is_some());
    (&client).write_all(b"MPA").unwrap();
    poller.wait(Some(patience.end)).unwrap();
    assert_eq!(poller.ready().next().map(|ready| ready.token), Some(2));
}

#[test]
fn a_rejection_carries_its_private_data() {
    let mut listener = listen(V4, StreamOptions::default());
    let to = listener.local_addr();
    std::thread::scope(|scope| {
        let client = scope.spawn(move || connect(to, ConnectOptions::default(), b"me?", 30_000));
        let patience = Patience::new();
        while listener.counters().rejected == 0 {
            let mut reject = |request: &kbtp_iwarp_tcp::Request<'_>| {
                assert_eq!(request.private_data, b"me?");
                Answer::Reject {
                    private_data: b"not you".to_vec(),
                }
            };
            let accepted = listener.progress(patience.now(), &mut reject).unwrap();
            assert!(accepted.is_none());
        }
        let error = client.join().unwrap().unwrap_err();
        assert!(
            matches!(&error, ConnectError::Rejected { private_data } if **private_data == *b"not you"),
            "{error}"
        );
    });
    assert_eq!(listener.half_open_now(), 0);
}

#[test]
fn a_peer_of_revision_1_is_reached_by_falling_back() {
    for in_order in [false, true] {
        fall_back_from(in_order);
    }
}

/// `in_order`: the peer reads the request to its end, so that its closing is no reset.
fn fall_back_from(in_order: bool) {
    // It closes what it does not understand, then answers revision 1.
    let peer = TcpListener::bind(addr(V4)).unwrap();
    let to = peer.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut first, _) = peer.accept().unwrap();
            let mut frame = [0; 20];
            first.read_exact(&mut frame).unwrap();
            assert_eq!((&frame[..16], frame[17]), (&MPA_REQUEST[..], 2));
            if in_order {
                first.read_exact(&mut [0; 4 + 5]).unwrap();
            }
            drop(first);
            let (mut second, _) = peer.accept().unwrap();
            second.read_exact(&mut frame).unwrap();
            assert_eq!(
                (frame[16] & 0x10, frame[17]),
                (0, 1),
                "revision 1 without S"
            );
            let mut data = vec![0; usize::from(u16::from_be_bytes([frame[18], frame[19]]))];
            second.read_exact(&mut data).unwrap();
            assert_eq!(data, b"hello");
            second
                .write_all(b"MPA ID Rep Frame\x40\x01\x00\x03old")
                .unwrap();
            // Until the other end is done.
            assert!(is_closed(&second));
        });
        let options = ConnectOptions {
            fall_back_to_original: true,
            ..ConnectOptions::default()
        };
        let connected = connect(to, options, b"hello", 30_000).unwrap();
        assert_eq!(&*connected.private_data, b"old");
    });
}

#[test]
fn without_leave_there_is_no_fall_back() {
    let peer = TcpListener::bind(addr(V4)).unwrap();
    let to = peer.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut first, _) = peer.accept().unwrap();
            first.read_exact(&mut [0; 20]).unwrap();
        });
        let error = connect(to, ConnectOptions::default(), b"hello", 30_000).unwrap_err();
        assert!(matches!(error, ConnectError::Startup(_)), "{error}");
    });
}

#[test]
fn nobody_there_is_an_error_of_the_system() {
    let gone = TcpListener::bind(addr(V4)).unwrap().local_addr().unwrap();
    let error = connect(gone, ConnectOptions::default(), b"", 30_000).unwrap_err();
    let ConnectError::Os { source, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(source.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn a_silent_peer_is_given_up() {
    let silent = TcpListener::bind(addr(V4)).unwrap();
    let to = silent.local_addr().unwrap();
    let error = connect(to, ConnectOptions::default(), b"", 20).unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut), "{error}");
    // And by the startup's own limit.
    let mut options = ConnectOptions::default();
    options.stream.rdma.startup_timeout_ms = 20;
    let error = connect(to, options, b"", 30_000).unwrap_err();
    assert!(matches!(error, ConnectError::Startup(_)), "{error}");
}

#[test]
fn options_out_of_bounds_and_long_private_data_are_errors_here() {
    let listener = listen(V4, StreamOptions::default());
    let to = listener.local_addr();
    let mut options = ConnectOptions::default();
    options.stream.rdma.max_ulpdu = 1;
    let error = connect(to, options, b"", 30_000).unwrap_err();
    assert!(
        matches!(error, ConnectError::Local(LocalError::Limit { .. })),
        "{error}"
    );
    let error = connect(to, ConnectOptions::default(), &[0; 600], 30_000).unwrap_err();
    assert!(matches!(error, ConnectError::Local(_)), "{error}");
}

#[test]
fn slow_starters_are_dropped_and_do_not_keep_others_out() {
    let mut options = StreamOptions::default();
    options.rdma.startup_timeout_ms = 100;
    let mut listener = listen(V4, options);
    let slow: Vec<TcpStream> = (0..8).map(|_| raw_client(&listener)).collect();
    for (client, len) in slow.iter().zip(0..) {
        let mut client = client;
        client.write_all(&MPA_REQUEST[..len]).unwrap();
    }
    drive(&mut listener, |l| l.half_open_now() == 8);
    let (here, there) = meet(&mut listener, ConnectOptions::default());
    talk(here.stream, there.stream);
    // One more octet is no reason to wait longer.
    for mut client in &slow {
        drop(client.write(b"M"));
    }
    drive(&mut listener, |l| l.half_open_now() == 0);
    assert_eq!(listener.counters().failed, 8);
    assert!(slow.iter().all(is_closed));
    assert_eq!(listener.next_timeout(), None);
}

#[test]
fn what_is_not_mpa_is_closed_at_once() {
    //= test rfc5044-7.1.2-malformed-closes
    let mut listener = listen(V4, StreamOptions::default());
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: kbtp\r\n\r\n"[..],
        b"MPA ID Rep Frame\x40\x02\x00\x00",
        b"MPA ID Req Frame\x40\x09\x00\x00",
        b"MPA ID Req Frame\x40\x02\xff\xff",
        b"MPA ID Req Frame\x50\x02\x00\x01x",
    ] {
        let mut client = raw_client(&listener);
        client.write_all(garbage).unwrap();
        let failed = listener.counters().failed;
        drive(&mut listener, |l| l.counters().failed == failed + 1);
        assert!(is_closed(&client));
    }
    assert_eq!(listener.half_open_now(), 0);
}

#[test]
fn a_peer_that_leaves_in_its_startup_frees_its_place() {
    let mut listener = listen(V4, StreamOptions::default());
    let mut client = raw_client(&listener);
    client.write_all(&MPA_REQUEST[..]).unwrap();
    drive(&mut listener, |l| l.half_open_now() == 1);
    drop(client);
    drive(&mut listener, |l| l.half_open_now() == 0);
    assert_eq!(listener.counters().failed, 1);
}

#[test]
fn half_open_connections_are_bounded() {
    //= test rfc5042-3-resource-control
    let options = ListenOptions {
        half_open: 3,
        ..ListenOptions::default()
    };
    let mut listener = Listener::bind(addr(V4), options).unwrap();
    let clients: Vec<TcpStream> = (0..5).map(|_| raw_client(&listener)).collect();
    drive(&mut listener, |l| l.counters().connections == 5);
    assert_eq!(listener.half_open_now(), 3);
    assert_eq!(listener.counters().over_half_open, 2);
    assert!(clients[3..].iter().all(is_closed));
    // A place that becomes free is taken by the next.
    drop(clients);
    drive(&mut listener, |l| l.half_open_now() == 0);
    meet(&mut listener, ConnectOptions::default());
}

#[test]
fn one_source_cannot_take_all_places() {
    let options = ListenOptions {
        half_open: 8,
        half_open_per_source: 2,
        ..ListenOptions::default()
    };
    let mut listener = Listener::bind(addr(V4), options).unwrap();
    let from = |source: [u8; 4]| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.unwrap();
        let source = std::net::SocketAddr::from((source, 0));
        socket.bind(&source.into()).unwrap();
        socket.connect(&listener.local_addr().into()).unwrap();
        TcpStream::from(socket)
    };
    let greedy: Vec<TcpStream> = (0..4).map(|_| from([127, 0, 0, 2])).collect();
    let other = from([127, 0, 0, 3]);
    drive(&mut listener, |l| l.counters().connections == 5);
    assert_eq!(listener.counters().over_source, 2);
    assert_eq!(listener.half_open_now(), 3);
    assert!(greedy[2..].iter().all(is_closed));
    drop(other);
}

/// Whoever connects and says nothing keeps nobody out: the oldest makes room, of the source that has the most.
#[test]
fn silent_connections_make_room_for_new_ones() {
    //= test rfc5042-6.4.2-idle-reaped
    let options = ListenOptions {
        half_open: 4,
        half_open_per_source: 3,
        silent_grace_ms: 0,
        ..ListenOptions::default()
    };
    let mut listener = Listener::bind(addr(V4), options).unwrap();
    let from = |listener: &Listener, source: [u8; 4]| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.unwrap();
        let source = std::net::SocketAddr::from((source, 0));
        socket.bind(&source.into()).unwrap();
        socket.connect(&listener.local_addr().into()).unwrap();
        TcpStream::from(socket)
    };
    let come = |listener: &mut Listener, source| {
        let before = listener.counters().connections;
        let client = from(listener, source);
        drive(listener, |l| l.counters().connections > before);
        client
    };
    let greedy: Vec<_> = (0..3)
        .map(|_| come(&mut listener, [127, 0, 0, 2]))
        .collect();
    let other = come(&mut listener, [127, 0, 0, 3]);
    // All four places are taken: the oldest of the greedy goes, though the other is older than some.
    let third = come(&mut listener, [127, 0, 0, 4]);
    assert_eq!(listener.counters().made_room, 1);
    assert!(is_closed(&greedy[0]));
    let fourth = come(&mut listener, [127, 0, 0, 5]);
    assert!(is_closed(&greedy[1]));
    assert_eq!(listener.half_open_now(), 4);
    // A source that has all it may have throws out its own.
    let again: Vec<_> = (0..4)
        .map(|_| come(&mut listener, [127, 0, 0, 3]))
        .collect();
    let counters = listener.counters();
    assert_eq!((counters.over_source, counters.over_half_open), (0, 0));
    assert_eq!(listener.half_open_now(), 4);
    // Somebody who speaks gets through.
    meet(&mut listener, ConnectOptions::default());
    drop((other, third, fourth, again));
}

#[test]
fn a_port_that_was_just_used_can_be_bound_again() {
    let mut listener = listen(V4, StreamOptions::default());
    let at = listener.local_addr();
    let (here, there) = meet(&mut listener, ConnectOptions::default());
    // The server's end closes first, so that its port is the one that lingers.
    drop(there);
    drop(listener);
    let again = Listener::bind(at, ListenOptions::default()).unwrap();
    drop(here);
    assert_eq!(again.local_addr(), at);
    assert!(
        Listener::bind(at, ListenOptions::default()).is_err(),
        "two on one port"
    );
}

#[test]
fn a_reply_of_the_wrong_kind_ends_the_attempt() {
    //= test rfc5044-7.1.2-same-role
    let peer = TcpListener::bind(addr(V4)).unwrap();
    let to = peer.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = peer.accept().unwrap();
            stream.read_exact(&mut [0; 20]).unwrap();
            stream
                .write_all(b"MPA ID Req Frame\x40\x02\x00\x00")
                .unwrap();
            assert!(is_closed(&stream));
        });
        let error = connect(to, ConnectOptions::default(), b"", 30_000).unwrap_err();
        assert!(
            matches!(&error, ConnectError::Startup(StreamError::Protocol { .. })),
            "{error}"
        );
    });
}
