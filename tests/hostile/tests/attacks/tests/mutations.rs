//! Garbage: mutations of a valid session's octets, thousands of them, always the same ones.
//! `KBTP_HOSTILE_TIMES=50` looks longer, at others.

use super::{Dice, atomic_at, read_of, request};
use kbtp_harness::{
    Peer, Segment, Session, Setup, Start, Who, against, alloc_store, frame, load, pattern, store,
};
use kbtp_wire::rdmap::RdmapOpcode;
use kbtp_wire::{
    Bind, BlockOffset, ByteLen, Challenge, DataDescriptor, Grant, Handle, Operation, Source, Stag,
    TaggedOffset, Ticket,
};

/// Messages of a session that asks for everything once.
fn messages(who: &Who, grant: &Grant, data: &[u8]) -> Vec<Vec<u8>> {
    let buffer = DataDescriptor {
        stag: Stag(0x77),
        offset: TaggedOffset(0x1000),
        len: ByteLen(64),
    };
    let inline = Session::inline(data);
    let read = Source::Remote {
        buffer,
        invalidate: true,
    };
    let bind = Bind {
        ticket: Ticket(0),
        data_len: ByteLen(9),
        block: BlockOffset(grant.partition_offset.0),
    };
    let operations = [
        (0, alloc_store(inline, false)),
        (0, store(inline, true)),
        (0, load(buffer)),
        (1, Operation::Bind { bind, seal: true }),
        (2, alloc_store(read, true)),
        (0, Operation::Free),
    ];
    let hello = who.hello(&Challenge([0; 32]));
    let requests = operations.map(|(n, operation)| {
        let request = request(Handle(grant.handle_base.0 + n), operation);
        let mut octets = vec![0; request.encoded_len()];
        request.encode_into(&mut octets).unwrap();
        octets
    });
    std::iter::once(hello).chain(requests).collect()
}

/// The ULPDUs of a session that does everything once.
fn script(who: &Who, grant: &Grant) -> Vec<Vec<u8>> {
    let data = pattern(1, 300);
    let sends = (1..)
        .zip(messages(who, grant, &data))
        .map(|(msn, message)| Segment::untagged(RdmapOpcode::Send, msn, &message));
    let read = read_of(grant.table_stag, grant.table_offset.0, 64).encode();
    let atomic = atomic_at(grant.counter_stag, grant.head_offset.0).encode();
    let (partition, at) = (grant.partition_stag, grant.partition_offset.0);
    let others = [
        Segment::untagged(RdmapOpcode::ReadRequest, 1, &read),
        Segment::untagged(RdmapOpcode::AtomicRequest, 2, &atomic),
        Segment::tagged(RdmapOpcode::Write, partition, at, &data),
        Segment::tagged(RdmapOpcode::ReadResponse, Stag(1), 0, &data[..64]),
        Segment::untagged(RdmapOpcode::Terminate, 1, &[0; 4]),
    ];
    sends.chain(others).map(|segment| segment.ulpdu()).collect()
}

/// How many times as much is tried: `KBTP_HOSTILE_TIMES`, 1 if it is not set. Another number is another seed.
fn times() -> u64 {
    let times = std::env::var("KBTP_HOSTILE_TIMES");
    times.map_or(1, |times| {
        times.parse().expect("KBTP_HOSTILE_TIMES is a number")
    })
}

/// Octets that break parsers.
const NUMBERS: [u32; 8] = [0, 1, 0x7f, 0x80, 0xffff, 0x7fff_ffff, 0x8000_0000, u32::MAX];

fn mutate(dice: &mut Dice, octets: &mut Vec<u8>) {
    for _ in 0..=dice.below(3) {
        if octets.is_empty() {
            octets.push(0);
        }
        let at = dice.below(octets.len());
        match dice.below(6) {
            0 => octets[at] ^= 1 << dice.below(8),
            1 => octets[at] = u8::try_from(dice.below(256)).unwrap(),
            2 => octets.truncate(at),
            3 => {
                let end = at + dice.below(octets.len() - at);
                let piece = octets[at..end].to_vec();
                octets.splice(at..at, piece);
            }
            4 => {
                let number = NUMBERS[dice.below(NUMBERS.len())].to_be_bytes();
                let len = number.len().min(octets.len() - at);
                octets[at..at + len].copy_from_slice(&number[..len]);
            }
            _ => {
                octets.remove(at);
            }
        }
    }
    octets.truncate(0xffff);
}

fn play(peer: &mut Peer, octets: &[u8]) {
    peer.octets(octets);
    peer.finish_sending();
    let mut sink = [0; 4096];
    while peer.read_octets(&mut sink) > 0 {}
}

fn grant_of(ground: &kbtp_harness::Ground, who: &Who) -> Grant {
    let session = Session::open(&*ground.subject, who);
    let grant = session.grant;
    session.close();
    let _audit = ground.alone();
    grant
}

#[test]
fn mutations_of_the_messages() {
    // Framed anew, so that they get past the CRC.
    against(&Setup::small(), |ground| {
        let who = Who::new(0xbad).direct().quota(4);
        let grant = grant_of(ground, &who);
        let script = script(&who, &grant);
        let mut dice = Dice(0x6d75_7461 ^ (times() << 32));
        for _ in 0..1500 * times() {
            let mut ulpdus = script.clone();
            // Mostly a session that opens well and goes wrong later.
            let first = usize::from(dice.below(8) != 0);
            for _ in 0..=dice.below(2) {
                let which = first + dice.below(ulpdus.len() - first);
                match dice.below(8) {
                    0 => {
                        ulpdus.remove(which);
                    }
                    1 => {
                        let again = ulpdus[which].clone();
                        ulpdus.insert(which, again);
                    }
                    2 => {
                        let other = first + dice.below(ulpdus.len() - first);
                        ulpdus.swap(which, other);
                    }
                    _ => mutate(&mut dice, &mut ulpdus[which]),
                }
            }
            let mut peer = Peer::dial(ground.address());
            peer.octets(&Start::default().octets());
            let octets: Vec<_> = ulpdus.iter().flat_map(|ulpdu| frame(ulpdu)).collect();
            play(&mut peer, &octets);
        }
    });
}

#[test]
fn mutations_of_a_live_session() {
    // As above, with STags and handles that are those of the session itself.
    against(&Setup::small(), |ground| {
        let who = Who::new(0xbad).direct().quota(4);
        let mut dice = Dice(0x6c69_7665 ^ (times() << 32));
        for _ in 0..600 * times() {
            let (mut peer, grant) = Peer::open(ground.address(), &who);
            let mut ulpdus = script(&who, &grant);
            ulpdus.remove(0);
            // The MSNs are right as they stand: HELLO took the first.
            for _ in 0..=dice.below(3) {
                let which = dice.below(ulpdus.len());
                let ulpdu = &mut ulpdus[which];
                // The DDP header stays, the message goes wrong.
                let header = if ulpdu[0] & 0x80 == 0 { 18 } else { 14 };
                let mut payload = ulpdu.split_off(header);
                mutate(&mut dice, &mut payload);
                ulpdu.extend(payload);
                ulpdu.truncate(0xffff);
            }
            let octets: Vec<_> = ulpdus.iter().flat_map(|ulpdu| frame(ulpdu)).collect();
            play(&mut peer, &octets);
        }
    });
}

#[test]
fn mutations_of_the_octets() {
    against(&Setup::small(), |ground| {
        let who = Who::new(0xbad).direct().quota(4);
        let grant = grant_of(ground, &who);
        let mut octets = Start::default().octets();
        for ulpdu in script(&who, &grant) {
            octets.extend(frame(&ulpdu));
        }
        let mut dice = Dice(0x6f63_7465 ^ (times() << 32));
        for _ in 0..1000 * times() {
            let mut octets = octets.clone();
            mutate(&mut dice, &mut octets);
            let mut peer = Peer::dial(ground.address());
            play(&mut peer, &octets);
        }
    });
}

#[test]
fn noise() {
    against(&Setup::small(), |ground| {
        for seed in 0..200 * times() {
            let mut dice = Dice(seed);
            let len = 1 + dice.below(3000);
            let noise = pattern(seed + 1, len);
            let mut peer = Peer::dial(ground.address());
            if seed % 2 == 0 {
                peer.octets(&Start::default().octets());
            }
            play(&mut peer, &noise);
        }
    });
}
