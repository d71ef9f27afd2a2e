//! Every operation at every kind of size between two ends of ours: one drives, the other answers. Over whatever stream,
//! so that the user-space iWARP, and the device's, meet.
//!
//! Each message of the driver is an order of 24 octets, big-endian: what (1), filler (3), length (4), STag (4), filler (4),
//! Tagged Offset (8); an echo has payload behind it.

use crate::party::{Heard, Party};
use kbtp_fabric::{Atomics, RemoteBuffer, Stream, StreamError, WorkOutcome, WorkRequest};
use kbtp_wire::{Stag, TaggedOffset};
use std::error::Error;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The driver names its buffer, and the other end its own.
const HELLO: u8 = 1;
/// The other end reads the driver's source, writes what it read to the driver's sink, and says so.
const TURN: u8 = 2;
/// The other end sends the message back.
const ECHO: u8 = 3;
/// The other end says which Immediate Data came.
const IMMEDIATE: u8 = 4;

/// Length of an order.
const ORDER: usize = 24;
/// Where things lie in each end's buffer: what goes out, what comes back, the peer's copy, a word for atomics.
const SOURCE: u64 = 0;
const SINK: u64 = (1 << 20) + 64;
const COPY: u64 = (2 << 20) + 128;
const WORD: u64 = (3 << 20) + 256;

/// Around pads, segments of several lengths, FPDUs, and blocks; the longest fits between two of the places.
const SIZES: [u32; 15] = [
    0, 1, 2, 3, 5, 64, 1024, 1025, 1460, 4096, 65_507, 65_536, 131_073, 524_288, 1_048_576,
];
/// Of messages: the shortest receive slots have 1024 octets.
const MESSAGES: [usize; 6] = [0, 1, 3, 40, 513, 1000 - ORDER];

fn order(what: u8, len: u32, place: RemoteBuffer) -> [u8; ORDER] {
    let mut octets = [0; ORDER];
    for (at, part) in [
        (0, &[what][..]),
        (4, &len.to_be_bytes()),
        (8, &place.stag.0.to_be_bytes()),
        (16, &place.offset.0.to_be_bytes()),
    ] {
        if let Some(to) = octets.get_mut(at..at + part.len()) {
            to.copy_from_slice(part);
        }
    }
    octets
}

fn understand(message: &[u8]) -> Outcome<(u8, u32, RemoteBuffer)> {
    let head = message.first_chunk::<ORDER>().ok_or("a short order")?;
    let [
        what,
        _,
        _,
        _,
        l0,
        l1,
        l2,
        l3,
        s0,
        s1,
        s2,
        s3,
        _,
        _,
        _,
        _,
        offset @ ..,
    ] = *head;
    let place = RemoteBuffer {
        stag: Stag(u32::from_be_bytes([s0, s1, s2, s3])),
        offset: TaggedOffset(u64::from_be_bytes(offset)),
    };
    Ok((what, u32::from_be_bytes([l0, l1, l2, l3]), place))
}

const fn beyond(place: RemoteBuffer, octets: u64) -> RemoteBuffer {
    RemoteBuffer {
        stag: place.stag,
        offset: TaggedOffset(place.offset.0 + octets),
    }
}

fn pattern(len: u32, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let octets = (0..len).map(|_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        let [octet, ..] = state.to_be_bytes();
        octet
    });
    octets.collect()
}

/// Drives: everything once that the stream offers. Atomics, Immediate Data and Reads of nothing only if the peer `has_all`,
/// which siw has not, and which iWARP does not tell. What was done, in words.
///
/// # Errors
/// The stream ends, or something is not what it should be.
pub fn drive<S: Stream>(party: &mut Party<S>, has_all: bool) -> Outcome<String> {
    party.send(&order(HELLO, 0, party.advertised(SOURCE)))?;
    let (_, _, peer) = understand(&party.receive()?)?;
    for (seed, len) in (1..).zip(SIZES) {
        if len == 0 && !has_all {
            // siw answers a Read of nothing out of what it sent last, if it is busy when the request comes.
            party.write(SOURCE, 0, beyond(peer, COPY))?;
            continue;
        }
        there_and_back(party, peer, len, seed).map_err(|e| format!("{len} octets: {e}"))?;
        turn(party, len, seed + 100).map_err(|e| format!("{len} octets, their turn: {e}"))?;
    }
    for len in MESSAGES {
        echo(party, len)?;
    }
    let offers = party.stream.capabilities();
    let mut done = format!("{} sizes, {} messages", SIZES.len(), MESSAGES.len());
    if has_all && offers.write_with_immediate {
        immediate(party, peer)?;
        done += ", Immediate Data";
    }
    if has_all && offers.atomics != Atomics::None {
        atomics(party, peer, offers.atomics)?;
        done += ", atomics";
    }
    Ok(done)
}

/// What is in the buffer from `at` on must be `data`, and behind it an octet as it was.
fn expect<S: Stream>(party: &Party<S>, at: u64, data: &[u8], what: &str) -> Outcome<()> {
    let mut found = vec![0; data.len() + 1];
    party.region.read(at, &mut found)?;
    match found.split_last() {
        Some((GUARD, found)) if found == data => Ok(()),
        Some((GUARD, _)) => Err(format!("{what}: other octets").into()),
        _ => Err(format!("{what}: an octet too many").into()),
    }
}

/// What nobody may touch.
const GUARD: &u8 = &0xee;

/// A Write, and a Read of the same.
fn there_and_back<S: Stream>(
    party: &mut Party<S>,
    peer: RemoteBuffer,
    len: u32,
    seed: u32,
) -> Outcome<()> {
    let data = pattern(len, seed);
    party.region.write(SOURCE, &data)?;
    party.region.fill(SINK, u64::from(len) + 1, *GUARD)?;
    // Not aligned, and beside the peer's own places.
    let there = beyond(peer, COPY + u64::from(seed & 7));
    party.write(SOURCE, len, there)?;
    party.read(there, SINK, len)?;
    expect(party, SINK, &data, "a Write and a Read of it")
}

/// The same by the other end.
fn turn<S: Stream>(party: &mut Party<S>, len: u32, seed: u32) -> Outcome<()> {
    let data = pattern(len, seed);
    party.region.write(SOURCE, &data)?;
    party.region.fill(SINK, u64::from(len) + 1, *GUARD)?;
    party.send(&order(TURN, len, party.advertised(SOURCE)))?;
    party.receive()?;
    expect(party, SINK, &data, "their Read and Write")
}

fn echo<S: Stream>(party: &mut Party<S>, len: usize) -> Outcome<()> {
    let mut message = order(ECHO, 0, party.advertised(SOURCE)).to_vec();
    message.extend(pattern(u32::try_from(len)?, 77));
    party.send(&message)?;
    if party.receive()? == message {
        return Ok(());
    }
    Err(format!("a message of {len} octets came back changed").into())
}

fn immediate<S: Stream>(party: &mut Party<S>, peer: RemoteBuffer) -> Outcome<()> {
    let write = WorkRequest::Write {
        local: party.local(SOURCE, 64),
        remote: beyond(peer, COPY),
        immediate: Some(0xcafe_f00d),
    };
    party.work(&write, WorkOutcome::Sent)?;
    let (what, data, _) = understand(&party.receive()?)?;
    if (what, data) == (IMMEDIATE, 0xcafe_f00d) {
        return Ok(());
    }
    Err(format!("Immediate Data {data:#x}").into())
}

/// Adds and swaps on a word of the peer, and reads it.
fn atomics<S: Stream>(party: &mut Party<S>, peer: RemoteBuffer, kind: Atomics) -> Outcome<()> {
    let word = beyond(peer, WORD);
    // Whose octets come first in memory depends on the form; of this number it does not matter.
    let first = 0x0101_0101_0101_0101_u64;
    party.region.write(SOURCE, &first.to_be_bytes())?;
    party.write(SOURCE, 8, word)?;
    let add = WorkRequest::FetchAdd {
        remote: word,
        add: 7,
        mask: 0,
    };
    party.work(&add, WorkOutcome::Atomic(first))?;
    party.work(&add, WorkOutcome::Atomic(first + 7))?;
    if kind == Atomics::Masked {
        let swap = WorkRequest::CmpSwap {
            remote: word,
            compare: first + 14,
            compare_mask: u64::MAX,
            swap: 5,
            swap_mask: u64::MAX,
        };
        party.work(&swap, WorkOutcome::Atomic(first + 14))?;
        party.work(&swap, WorkOutcome::Atomic(5))?;
    }
    Ok(())
}

/// Answers a driver until it closes the stream. How many orders it gave.
///
/// # Errors
/// The stream ends in another way, or an order is none.
pub fn answer<S: Stream>(party: &mut Party<S>) -> Outcome<u32> {
    let mut orders = 0;
    loop {
        let message = match party.hear() {
            Ok(Heard::Message(message)) => message,
            Ok(Heard::Immediate(data)) => {
                party.send(&order(IMMEDIATE, data, party.advertised(SOURCE)))?;
                continue;
            }
            Err(error) => match error.downcast_ref::<StreamError>() {
                Some(StreamError::PeerClosed) => return Ok(orders),
                _ => return Err(error),
            },
        };
        orders += 1;
        let (what, len, place) = understand(&message)?;
        match what {
            HELLO => party.send(&order(HELLO, 0, party.advertised(SOURCE)))?,
            TURN => {
                party.read(place, SOURCE, len)?;
                party.write(SOURCE, len, beyond(place, SINK - SOURCE))?;
                party.send(&order(TURN, len, place))?;
            }
            ECHO => party.send(&message)?,
            other => return Err(format!("no order: {other}").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streams::{accept, connect};
    use kbtp_iwarp_tcp::{ListenOptions, Listener, StreamOptions};

    #[test]
    fn over_our_own_stack() {
        let mut listener =
            Listener::bind("127.0.0.1:0".parse().unwrap(), ListenOptions::default()).unwrap();
        let to = listener.local_addr();
        std::thread::scope(|scope| {
            let other = scope.spawn(move || {
                let mut party = Party::new(accept(&mut listener).unwrap()).unwrap();
                answer(&mut party).unwrap()
            });
            let mut party = Party::new(connect(to, &StreamOptions::default()).unwrap()).unwrap();
            let done = drive(&mut party, true).unwrap();
            assert!(done.ends_with("atomics"), "{done}");
            party.close().unwrap();
            assert_eq!(other.join().unwrap(), 1 + 15 + 6);
        });
    }

    #[test]
    fn orders_are_understood() {
        let place = RemoteBuffer {
            stag: Stag(0x0102_0304),
            offset: TaggedOffset(0x1122_3344_5566_7788),
        };
        let octets = order(TURN, 0x0a0b_0c0d, place);
        assert_eq!(octets[..12], [2, 0, 0, 0, 10, 11, 12, 13, 1, 2, 3, 4]);
        assert_eq!(understand(&octets).unwrap(), (TURN, 0x0a0b_0c0d, place));
        assert!(understand(&octets[1..]).is_err());
    }
}
