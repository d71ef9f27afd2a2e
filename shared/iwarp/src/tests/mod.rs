//! Two connections with the octets between them in the test's hands, and a peer that says whatever the test wants.

mod closing;
mod errors;
mod errors_rdmap;
mod figures;
mod flow;
mod handshake;
mod random;
mod wire_format;

use crate::{Action, Config, Connection, Startup};
use kbtp_fabric::{Access, Event, Time};
use kbtp_memory::{PageOptions, Region, crc32c};
use kbtp_wire::mpa::{crc_to_wire, pad_len};
use kbtp_wire::{Stag, TaggedOffset};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// A socket pair through which lists are read and written.
pub(super) struct Wire(UnixStream, UnixStream);

impl Wire {
    pub(super) fn new() -> Self {
        let (one, other) = UnixStream::pair().unwrap();
        one.set_nonblocking(true).unwrap();
        other.set_nonblocking(true).unwrap();
        Self(one, other)
    }

    /// Takes at most `max` octets that `from` sends.
    pub(super) fn pull(&mut self, from: &mut Connection, max: usize, now: Time) -> Vec<u8> {
        let list = from.send_vec(now);
        if list.is_empty() {
            return Vec::new();
        }
        let len = list.write_to(self.0.as_fd()).unwrap();
        let mut octets = vec![0; len];
        self.1.read_exact(&mut octets).unwrap();
        octets.truncate(max);
        from.handle_sent(octets.len(), now);
        octets
    }

    /// Lets `to` receive `octets`; gives how many it took.
    pub(super) fn push(&mut self, to: &mut Connection, octets: &[u8], now: Time) -> usize {
        let mut taken = 0;
        for part in octets.chunks(32 << 10) {
            self.0.write_all(part).unwrap();
            let mut left = part.len();
            while left > 0 {
                let mut list = to.recv_vec();
                if list.is_empty() {
                    self.1.read_exact(&mut vec![0; left]).unwrap();
                    return taken;
                }
                let len = list.read_from(self.1.as_fd()).unwrap();
                to.handle_received(len, now);
                left -= len;
                taken += len;
            }
        }
        taken
    }
}

/// Two connections.
pub(super) struct Pair {
    pub(super) a: Connection,
    pub(super) b: Connection,
    pub(super) wire: Wire,
    pub(super) now: Time,
}

impl Pair {
    /// An initiator and a responder, the request not yet sent.
    pub(super) fn new(a: &Config, b: &Config) -> Self {
        Self {
            a: Connection::initiator(a, [1; 32], b"from a", Time(0)).unwrap(),
            b: Connection::responder(b, [2; 32], Time(0)).unwrap(),
            wire: Wire::new(),
            now: Time(0),
        }
    }

    /// The two after an accepted handshake.
    pub(super) fn established(a: &Config, b: &Config) -> Self {
        let mut pair = Self::new(a, b);
        pair.settle();
        assert_eq!(pair.b.startup(), Startup::Request);
        pair.b.accept(b"from b", Time(0)).unwrap();
        pair.settle();
        assert_eq!(pair.a.startup(), Startup::Established);
        assert_eq!(pair.b.startup(), Startup::Established);
        pair
    }

    pub(super) fn default() -> Self {
        Self::established(&Config::default(), &Config::default())
    }

    /// Moves at most `max` octets each way; whether any moved.
    pub(super) fn step(&mut self, max: usize) -> bool {
        let to_b = self.wire.pull(&mut self.a, max, self.now);
        let taken = self.wire.push(&mut self.b, &to_b, self.now);
        assert!(taken == to_b.len() || self.b.is_ended());
        let to_a = self.wire.pull(&mut self.b, max, self.now);
        let taken = self.wire.push(&mut self.a, &to_a, self.now);
        assert!(taken == to_a.len() || self.a.is_ended());
        self.act();
        !(to_a.is_empty() && to_b.is_empty())
    }

    /// Carries ends of sending across, as TCP does.
    fn act(&mut self) {
        while let Some(_action) = self.a.next_action() {
            self.b.handle_end(self.now);
        }
        while let Some(_action) = self.b.next_action() {
            self.a.handle_end(self.now);
        }
    }

    /// Moves octets until none moves.
    pub(super) fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.step(usize::MAX) {
                return;
            }
        }
        panic!("the connections never come to rest");
    }
}

pub(super) fn events(of: &mut Connection) -> Vec<Event> {
    std::iter::from_fn(|| of.next_event()).collect()
}

pub(super) fn actions(of: &mut Connection) -> Vec<Action> {
    std::iter::from_fn(|| of.next_action()).collect()
}

pub(super) fn region(len: u64) -> Region {
    Region::anonymous(len, &PageOptions::default()).unwrap()
}

pub(super) const ALL_ACCESS: Access = Access {
    remote_read: true,
    remote_write: true,
    remote_atomic: true,
    remote_invalidate: true,
    local_write: true,
};

/// Registers all of `region` from Tagged Offset `base` on.
pub(super) fn register(at: &mut Connection, region: &Region, base: u64, access: Access) -> Stag {
    at.register(region, 0..region.len(), TaggedOffset(base), access)
        .unwrap()
}

/// An FPDU without Markers, its CRC right.
pub(super) fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let len = u16::try_from(ulpdu.len()).unwrap();
    let mut octets = len.to_be_bytes().to_vec();
    octets.extend_from_slice(ulpdu);
    octets.resize(octets.len() + pad_len(len), 0);
    let crc = crc32c::crc32c(&octets);
    octets.extend_from_slice(&crc_to_wire(crc));
    octets
}

/// The ULPDUs in FPDUs without Markers, their CRCs checked.
pub(super) fn ulpdus(mut octets: &[u8]) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    while !octets.is_empty() {
        let len = usize::from(u16::from_be_bytes(octets[..2].try_into().unwrap()));
        let one = fpdu(&octets[2..2 + len]);
        assert_eq!(one, octets[..one.len()], "an FPDU is as it should be");
        out.push(octets[2..2 + len].to_vec());
        octets = &octets[one.len()..];
    }
    out
}

/// A responder in Full Operation whose initiator is the test.
pub(super) struct Forged {
    pub(super) target: Connection,
    pub(super) wire: Wire,
}

impl Forged {
    pub(super) fn new(config: &Config) -> Self {
        let mut target = Connection::responder(config, [3; 32], Time(0)).unwrap();
        let mut wire = Wire::new();
        let mut request = b"MPA ID Req Frame".to_vec();
        // C, revision 2, S; IRD and ORD 4.
        request.extend_from_slice(&[0x50, 2, 0, 4, 0, 4, 0, 4]);
        wire.push(&mut target, &request, Time(0));
        target.accept(&[], Time(0)).unwrap();
        wire.pull(&mut target, usize::MAX, Time(0));
        Self { target, wire }
    }

    /// Says `ulpdu` in an FPDU.
    pub(super) fn say(&mut self, ulpdu: &[u8]) {
        self.wire.push(&mut self.target, &fpdu(ulpdu), Time(0));
    }

    /// The ULPDUs the responder sends.
    pub(super) fn hear(&mut self) -> Vec<Vec<u8>> {
        let octets = self.wire.pull(&mut self.target, usize::MAX, Time(0));
        ulpdus(&octets)
    }
}
