//! A whole RDMAP Stream: octets from the peer in, in pieces of any size.
//!
//! The first octet of the input is a set of options, the second picks the sizes of the pieces. The rest is what the peer
//! sends once the stream is established: octets as they are, or (option 1) a list of ULPDUs, each with its length in
//! two octets before it, which are framed with right lengths, Markers and CRCs, so that mutations reach the layers
//! above. The letters `STAG` stand for the STag of the one region.

use kbtp_fabric::{
    Access, Event, LocalBuffer, RemoteBuffer, StreamError, Time, WorkId, WorkRequest,
};
use kbtp_iwarp::{Action, Config, Connection, Startup};
use kbtp_memory::crc32c::crc32c;
use kbtp_memory::{PageOptions, Region};
use kbtp_wire::mpa::{Marker, MarkerClock, crc_to_wire, pad_len};
use kbtp_wire::{ByteLen, Stag, TaggedOffset};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

const REGION_LEN: u64 = 16 << 10;
/// Where the region starts, for the peer and for this party.
const BASE: TaggedOffset = TaggedOffset(0x1000);
/// Stands for the STag in an input.
const PLACEHOLDER: &[u8; 4] = b"STAG";
const NOW: Time = Time(1);
/// No input is longer; what a stream holds (slots, inbound Reads) is enough for as many shortest messages.
const MAX_INPUT: usize = 4096;

/// What came of a stream, as far as it may not depend on where the octets were cut.
#[derive(PartialEq, Eq, Debug)]
struct Outcome {
    events: Vec<String>,
    error: Option<String>,
    /// The region's CRC32C, if nothing went wrong.
    memory: Option<u32>,
}

/// Fails unless the stream says the same of the octets in pieces as of the octets in one.
pub(super) fn rdmap_stream(octets: &[u8]) {
    let Some((&[options, cuts], rest)) = octets.split_first_chunk() else {
        return;
    };
    let rest = rest.get(..MAX_INPUT).unwrap_or(rest);
    let options = Options {
        framed: options & 1 != 0,
        crc: options & 2 != 0,
        markers: options & 4 != 0,
    };
    let whole = run(options, rest, &mut |len| len);
    let mut state = u32::from(cuts);
    let pieces = run(options, rest, &mut |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        usize::try_from(state >> 26).map_or(1, |piece| piece + 1)
    });
    assert_eq!(whole, pieces);
}

#[derive(Clone, Copy, Debug)]
struct Options {
    framed: bool,
    crc: bool,
    markers: bool,
}

fn run(options: Options, input: &[u8], piece: &mut dyn FnMut(usize) -> usize) -> Outcome {
    let Some(mut peer) = Peer::start(options) else {
        unreachable!("a stream is set up with these options");
    };
    let stag = peer.stag.0.to_be_bytes();
    let mut input = input.to_vec();
    while let Some(at) = input.windows(4).position(|octets| octets == PLACEHOLDER) {
        for (to, from) in input.iter_mut().skip(at).zip(stag) {
            *to = from;
        }
    }
    let mut octets = Vec::new();
    if options.framed {
        let mut rest = &input[..];
        while let Some((len, after)) = rest.split_first_chunk() {
            let len = usize::from(u16::from_be_bytes(*len)).min(after.len());
            let (ulpdu, after) = after.split_at(len);
            peer.framer.frame(ulpdu, &mut octets);
            rest = after;
        }
    } else {
        octets = input;
    }
    let mut rest = &octets[..];
    while !rest.is_empty() {
        let len = piece(rest.len()).clamp(1, rest.len());
        let (now, after) = rest.split_at(len);
        peer.send(now);
        rest = after;
    }
    peer.outcome()
}

/// Makes FPDUs as the peer does.
#[derive(Debug)]
struct Framer {
    crc: bool,
    markers: bool,
    position: u32,
}

impl Framer {
    fn frame(&mut self, ulpdu: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        let Ok(len) = u16::try_from(ulpdu.len()) else {
            return;
        };
        // Where the length field is, counted in octets of the stream.
        let mut length_field = None;
        let pad = [0; 3];
        let pad = pad.get(..pad_len(len)).unwrap_or_default();
        for octet in len.to_be_bytes().iter().chain(ulpdu).chain(pad) {
            self.marker(length_field, out);
            length_field.get_or_insert(self.position);
            out.push(*octet);
            self.position = self.position.wrapping_add(1);
        }
        self.marker(length_field, out);
        let crc = if self.crc {
            crc32c(out.get(start..).unwrap_or_default())
        } else {
            0
        };
        out.extend(crc_to_wire(crc));
        self.position = self.position.wrapping_add(4);
    }

    fn marker(&mut self, length_field: Option<u32>, out: &mut Vec<u8>) {
        if self.markers && MarkerClock::at(self.position).due() {
            let back = length_field.map_or(0, |at| self.position.wrapping_sub(at));
            let marker = Marker {
                fpdu_pointer: u16::try_from(back).unwrap_or(0),
            };
            out.extend(marker.encode());
            self.position = self.position.wrapping_add(4);
        }
    }
}

/// The stream under test, and the peer's end of its socket.
#[derive(Debug)]
struct Peer {
    connection: Connection,
    region: Region,
    stag: Stag,
    framer: Framer,
    near: UnixStream,
    far: UnixStream,
    outcome: Vec<String>,
}

impl Peer {
    /// A stream that is established, has a Read and a FetchAdd outstanding, and has got one Send.
    fn start(options: Options) -> Option<Self> {
        let config = Config {
            receive_slots: 512,
            max_receive: 1024,
            inbound_reads: 512,
            crc: options.crc,
            markers: options.markers,
            ..Config::default()
        };
        let mut connection = Connection::responder(&config, [7; 32], NOW).ok()?;
        let region = Region::anonymous(REGION_LEN, &PageOptions::default()).ok()?;
        let all = Access {
            remote_read: true,
            remote_write: true,
            remote_atomic: true,
            remote_invalidate: false,
            local_write: true,
        };
        let stag = connection
            .register(&region, 0..REGION_LEN, BASE, all)
            .ok()?;
        let (near, far) = UnixStream::pair().ok()?;
        near.set_nonblocking(true).ok()?;
        far.set_nonblocking(true).ok()?;
        let framer = Framer {
            crc: options.crc,
            markers: options.markers,
            position: 0,
        };
        let mut peer = Self {
            connection,
            region,
            stag,
            framer,
            near,
            far,
            outcome: Vec::new(),
        };
        let mut request = b"MPA ID Req Frame".to_vec();
        request.extend([if options.crc { 0x40 } else { 0 }, 1, 0, 0]);
        peer.send(&request);
        peer.connection.accept(b"", NOW).ok()?;
        peer.post()?;
        // A Send of no octets: the responder may speak once it is here.
        let mut first = Vec::new();
        let header = [0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        peer.framer.frame(&header, &mut first);
        peer.send(&first);
        (peer.connection.startup() == Startup::Established).then_some(peer)
    }

    fn post(&mut self) -> Option<()> {
        let local = LocalBuffer {
            stag: self.stag,
            offset: BASE,
            len: ByteLen(256),
        };
        let remote = RemoteBuffer {
            stag: Stag(9),
            offset: TaggedOffset(0),
        };
        let read = WorkRequest::Read { local, remote };
        self.connection.post(WorkId(1), &read, true).ok()?;
        let add = WorkRequest::FetchAdd {
            remote,
            add: 1,
            mask: 0,
        };
        self.connection.post(WorkId(2), &add, true).ok()
    }

    /// Gives the stream some octets and lets it answer.
    fn send(&mut self, octets: &[u8]) {
        let written = self.far.write(octets);
        assert_eq!(
            written.ok(),
            Some(octets.len()),
            "the socket holds one piece"
        );
        let mut left = octets.len();
        while left > 0 {
            let mut list = self.connection.recv_vec();
            if list.is_empty() {
                // The stream has ended, and takes no more.
                let mut dropped = vec![0; left];
                assert_eq!((&self.near).read(&mut dropped).ok(), Some(left));
                break;
            }
            let room = list.octets();
            let read = list.read_from(self.near.as_fd()).unwrap_or(0);
            assert!(
                read > 0 && read <= left.min(room),
                "{read} of {left} octets, room {room}"
            );
            left -= read;
            self.connection.handle_received(read, NOW);
            self.events();
            self.answer();
        }
    }

    /// Takes what the stream sends.
    fn answer(&mut self) {
        loop {
            let len = self.connection.send_vec(NOW).octets();
            if len == 0 {
                break;
            }
            self.connection.handle_sent(len, NOW);
        }
        while let Some(action) = self.connection.next_action() {
            if action == Action::Close {
                break;
            }
        }
    }

    fn events(&mut self) {
        while let Some(event) = self.connection.next_event() {
            let mut line = format!("{event:?}");
            if let Event::Received {
                slot,
                len,
                solicited,
                invalidated,
            } = event
            {
                let message = self.connection.message(slot);
                assert_eq!(u64::try_from(message.len()).ok(), Some(len.get()));
                line = format!("received {message:?} {solicited} {invalidated:?}");
                self.connection.release(slot);
            }
            self.outcome.push(line);
        }
    }

    fn outcome(mut self) -> Outcome {
        // The peer ends its sending, and the stream says how it ended.
        self.connection.handle_end(NOW);
        self.answer();
        let error = self.connection.take_error();
        self.events();
        let memory = match error {
            Some(StreamError::PeerClosed) => self.region.crc32c(0, REGION_LEN, 0).ok(),
            _ => None,
        };
        Outcome {
            events: self.outcome,
            error: error.map(|error| error.to_string()),
            memory,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(name: &str) -> Outcome {
        let path = format!("{}/corpus/rdmap_stream/{name}", env!("CARGO_MANIFEST_DIR"));
        let octets = std::fs::read(path).unwrap();
        let options = Options {
            framed: octets[0] & 1 != 0,
            crc: octets[0] & 2 != 0,
            markers: octets[0] & 4 != 0,
        };
        run(options, &octets[2..], &mut |len| len)
    }

    /// The corpus gets through to every layer: else its mutations would test little.
    #[test]
    fn the_corpus_reaches_every_layer() {
        for (name, events, ending) in [
            ("send-3", 2, "closed the stream"),
            ("many-sends-7", 41, "closed the stream"),
            ("write-then-send-7", 2, "closed the stream"),
            ("immediate-3", 3, "closed the stream"),
            ("read-response-3", 3, "closed the stream"),
            ("raw-crc-wrong", 1, "CRC"),
            ("atomic-misaligned-3", 1, "not aligned"),
            ("read-out-of-range-3", 1, "bounds"),
            ("write-out-of-range-3", 1, "bounds"),
            ("wrong-msn-3", 1, "MSN"),
            ("too-long-3", 1, "longer than its buffer"),
            ("terminate-3", 1, "terminated"),
        ] {
            let outcome = outcome(name);
            let flushed = |event: &&String| !event.contains("Flushed");
            assert_eq!(
                outcome.events.iter().filter(flushed).count(),
                events,
                "{name} {outcome:?}"
            );
            assert!(
                outcome.error.as_ref().unwrap().contains(ending),
                "{name} {outcome:?}"
            );
        }
        let written = outcome("write-then-send-3").memory;
        assert_eq!(written, outcome("write-then-send-1").memory);
        assert_ne!(written, outcome("send-3").memory);
        assert_ne!(outcome("atomics-3").memory, outcome("send-3").memory);
    }
}
