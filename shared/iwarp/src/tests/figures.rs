//! The FPDUs of RFC 5044, Figures 5 and 6, as sent and as received.

use super::*;
use kbtp_fabric::{WorkId, WorkRequest};

/// The octets of a vector in `tests/vectors/mpa-frames.txt`.
fn vector(name: &str) -> Vec<u8> {
    let text = include_str!("../../../../tests/vectors/mpa-frames.txt");
    let mut octets = Vec::new();
    let lines = text.lines().map(|line| line.split('#').next().unwrap());
    let lines = lines.skip_while(|line| line.trim() != format!("[{name}]"));
    for line in lines.skip(1).take_while(|line| !line.starts_with('[')) {
        let digits: Vec<char> = line.chars().filter(|c| !c.is_whitespace()).collect();
        for pair in digits.chunks(2) {
            let pair: String = pair.iter().collect();
            octets.push(u8::from_str_radix(&pair, 16).unwrap());
        }
    }
    assert!(!octets.is_empty(), "{name}");
    octets
}

fn send(head: &[u8]) -> WorkRequest<'_> {
    WorkRequest::Send {
        head,
        tail: None,
        solicited: false,
        invalidate: None,
    }
}

/// An initiator that sends Markers to a responder that wants them.
fn marked() -> Pair {
    let wants = Config {
        markers: true,
        ..Config::default()
    };
    Pair::established(&Config::default(), &wants)
}

#[test]
fn figure_5_is_the_first_fpdu() {
    //= test rfc5044-4.3-first-marker
    //= test rfc5044-4.3-marker-between-in-crc
    //= test rfc5044-4.4-crc32c
    let mut pair = marked();
    pair.a.post(WorkId(1), &send(&[0; 24]), false).unwrap();
    let octets = pair.wire.pull(&mut pair.a, usize::MAX, pair.now);
    assert_eq!(octets, vector("fpdu-first"));
    // One octet at a time, too.
    for octet in &octets {
        pair.wire.push(&mut pair.b, &[*octet], pair.now);
    }
    let got = events(&mut pair.b);
    let [Event::Received { slot, .. }] = got[..] else {
        panic!("{got:?}");
    };
    assert_eq!(pair.b.message(slot), [0; 24]);
}

#[test]
fn figure_6_is_the_second_fpdu() {
    //= test rfc5044-4.3-fpduptr
    //= test rfc5044-4.3-marker-interval
    //= test rfc5044-4.2-marker-format
    //= test rfc5044-4.3-markers-on-demand
    //= test rfc5044-4.3-markers-stripped
    let mut pair = marked();
    // 4 of Marker, 2 of length, 18 of header, 464, 4 of CRC: 492.
    pair.a.post(WorkId(1), &send(&[7; 464]), false).unwrap();
    let octets = pair.wire.pull(&mut pair.a, usize::MAX, pair.now);
    assert_eq!(octets.len(), 492);
    pair.wire.push(&mut pair.b, &octets, pair.now);
    pair.a.post(WorkId(2), &send(&[0; 24]), false).unwrap();
    let octets = pair.wire.pull(&mut pair.a, usize::MAX, pair.now);
    assert_eq!(octets, vector("fpdu-second"));
    for octet in &octets {
        pair.wire.push(&mut pair.b, &[*octet], pair.now);
    }
    let got = events(&mut pair.b);
    let [
        Event::Received { slot: one, .. },
        Event::Received { slot: two, .. },
    ] = got[..]
    else {
        panic!("{got:?}");
    };
    assert_eq!(pair.b.message(one), [7; 464]);
    assert_eq!(pair.b.message(two), [0; 24]);
}

#[test]
fn a_marker_that_lies_before_the_crc_belongs_to_its_fpdu() {
    //= test rfc5044-4.4-crc32c
    let mut pair = marked();
    // 4 of Marker, 2 + 18 + 488 = 508: the next Marker stands between the payload and its CRC.
    pair.a.post(WorkId(1), &send(&[7; 488]), false).unwrap();
    let octets = pair.wire.pull(&mut pair.a, usize::MAX, pair.now);
    assert_eq!(octets.len(), 4 + 508 + 4 + 4);
    assert_eq!(octets[512..516], [0, 0, 0x01, 0xFC]);
    assert_eq!(octets[516..], crc_to_wire(crc32c::crc32c(&octets[..516])));
    pair.wire.push(&mut pair.b, &octets, pair.now);
    assert_eq!(events(&mut pair.b).len(), 1);
}

#[test]
fn no_markers_unless_they_are_asked_for() {
    //= test rfc5044-7.1.1-m-bit
    let mut pair = Pair::default();
    pair.a.post(WorkId(1), &send(&[0; 24]), false).unwrap();
    let octets = pair.wire.pull(&mut pair.a, usize::MAX, pair.now);
    assert_eq!(ulpdus(&octets), [vector("fpdu-first")[6..48].to_vec()]);
}
