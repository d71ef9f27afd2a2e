//! The octets that go out: FPDUs as a queue of pieces, some in a ring, some where the payload lies.
//! Source: RFC 5044, sections 4.1 to 4.4.
//!
//! Headers, pads, CRCs and copied payload lie one behind the other in a ring; payload sent from where it lies is a
//! piece that names its place. A trailer and the header behind it are one piece, so that a run of large FPDUs takes
//! two entries of a gather list each. With Markers the whole FPDU is copied into the ring.

use crate::limits::{MAX_CHUNKS, MAX_FRAMED_AHEAD, MAX_HEADERS_LEN, TX_RING_LEN};
use crate::plants::{Plant, planted};
use crate::ring::ByteRing;
use crate::stags::StagTable;
use kbtp_memory::{Region, WriteVec, crc32c};
use kbtp_wire::mpa::{LENGTH_LEN, Marker, MarkerClock, crc_to_wire, pad_len};
use std::collections::VecDeque;

/// Where the octets of a piece are.
#[derive(Debug)]
enum Source {
    /// In the ring, behind those of the ring piece before.
    Ring,
    /// In a registered region.
    Region { entry: u16, at: u64 },
    /// Copied when the registration ended while they were still to be sent.
    Spilled { octets: Box<[u8]>, from: usize },
}

#[derive(Debug)]
struct Chunk {
    source: Source,
    len: usize,
}

/// Payload in a registered region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payload {
    pub(crate) entry: u16,
    pub(crate) at: u64,
    pub(crate) len: u16,
    /// Copy it before its CRC is computed.
    pub(crate) copy: bool,
}

/// One FPDU to frame: headers, then octets of this party, then payload of a region.
#[derive(Debug, Default)]
pub(crate) struct Fpdu<'a> {
    pub(crate) headers: &'a [u8],
    pub(crate) octets: (&'a [u8], &'a [u8]),
    pub(crate) payload: Option<Payload>,
}

/// Payload up to this long is copied anyway: a gather entry costs more.
const COPY_UP_TO: u16 = 256;

/// The queue.
#[derive(Debug)]
pub(crate) struct Outgoing {
    ring: ByteRing,
    chunks: VecDeque<Chunk>,
    /// Ring position of the first octet not sent.
    ring_sent: u64,
    /// Octets of the stream framed and sent, since the start.
    framed: u64,
    sent: u64,
    crc: bool,
    markers: Option<MarkerClock>,
}

impl Outgoing {
    pub(crate) fn new() -> Self {
        Self {
            ring: ByteRing::new(TX_RING_LEN),
            chunks: VecDeque::with_capacity(MAX_CHUNKS),
            ring_sent: 0,
            framed: 0,
            sent: 0,
            crc: true,
            markers: None,
        }
    }

    /// Begins Full Operation.
    pub(crate) fn agree(&mut self, crc: bool, markers: bool) {
        self.crc = crc;
        //= rfc5044-4.3-first-marker
        self.markers = markers.then_some(MarkerClock::START);
    }

    /// Octets of the stream up to which all is framed.
    pub(crate) const fn framed(&self) -> u64 {
        self.framed
    }

    /// Octets of the stream up to which all is sent.
    pub(crate) const fn sent(&self) -> u64 {
        self.sent
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.framed == self.sent
    }

    /// Whether one more FPDU of any size fits, and it is time for it.
    pub(crate) fn has_room(&self) -> bool {
        // The ring then holds at most MAX_FRAMED_AHEAD and one FPDU of any size; a Marker every 508 octets keeps that
        // one below 67,000. An FPDU takes up to three pieces.
        self.framed - self.sent < MAX_FRAMED_AHEAD
            && self.chunks.len() + 3 <= MAX_CHUNKS
            && self.ring.room() >= 67_000
    }

    /// Appends octets as they are: the startup frames.
    pub(crate) fn raw(&mut self, octets: &[u8]) {
        self.write(octets);
    }

    fn write(&mut self, octets: &[u8]) {
        self.ring.write(octets);
        self.grow_ring_chunk(octets.len());
    }

    fn grow_ring_chunk(&mut self, len: usize) {
        if len == 0 {
            return;
        }
        match self.chunks.back_mut() {
            Some(Chunk {
                source: Source::Ring,
                len: have,
            }) => *have += len,
            _ => self.chunks.push_back(Chunk {
                source: Source::Ring,
                len,
            }),
        }
        self.framed += len as u64;
    }

    /// Frames `fpdu`; [`has_room`](Self::has_room) said yes. `false` if its payload is not registered any more: then
    /// nothing was framed.
    pub(crate) fn frame(&mut self, fpdu: &Fpdu<'_>, stags: &StagTable) -> bool {
        let region = match fpdu.payload {
            None => None,
            Some(payload) => match stags.region(payload.entry) {
                Some(region) if payload.at.saturating_add(payload.len.into()) <= region.len() => {
                    Some((region, payload))
                }
                _ => return false,
            },
        };
        let payload_len = region.map_or(0, |(_, payload)| usize::from(payload.len));
        let ulpdu_len =
            fpdu.headers.len() + fpdu.octets.0.len() + fpdu.octets.1.len() + payload_len;
        let Ok(ulpdu_len) = u16::try_from(ulpdu_len) else {
            return false;
        };
        //= rfc5044-3-one-ulpdu
        //= rfc5044-4.3-markers-on-demand
        //= rfc5044-4.3-marker-interval
        if let Some(clock) = self.markers {
            self.frame_marked(fpdu, region, ulpdu_len, clock);
        } else {
            self.frame_plain(fpdu, region, ulpdu_len);
        }
        true
    }

    fn frame_plain(&mut self, fpdu: &Fpdu<'_>, region: Option<(&Region, Payload)>, ulpdu_len: u16) {
        let mut lead = [0; LENGTH_LEN + MAX_HEADERS_LEN];
        let lead_len = LENGTH_LEN + fpdu.headers.len();
        if let Some((length, headers)) = lead.split_first_chunk_mut::<LENGTH_LEN>() {
            *length = ulpdu_len.to_be_bytes();
            if let Some(to) = headers.get_mut(..fpdu.headers.len()) {
                to.copy_from_slice(fpdu.headers);
            }
        }
        let lead = lead.split_at(lead_len).0;
        let mut crc = self.take_in(0, lead);
        crc = self.take_in(crc, fpdu.octets.0);
        crc = self.take_in(crc, fpdu.octets.1);
        if let Some((region, payload)) = region {
            crc = self.take_in_region(crc, region, payload);
        }
        //= rfc5044-4.1-pad-zero
        let pad = pad_len(ulpdu_len);
        crc = self.take_in(crc, [0; 3].split_at(pad).0);
        self.write(&crc_to_wire(if self.crc { crc } else { 0 }));
    }

    /// Writes `octets` and continues `crc` with them.
    fn take_in(&mut self, crc: u32, octets: &[u8]) -> u32 {
        if octets.is_empty() {
            return crc;
        }
        self.write(octets);
        self.checksum(crc, octets)
    }

    fn checksum(&self, crc: u32, octets: &[u8]) -> u32 {
        //= rfc5044-4.4-crc32c
        //= rfc5044-4.4-crc-implemented
        if self.crc {
            crc32c::update(crc, octets)
        } else {
            crc
        }
    }

    fn take_in_region(&mut self, crc: u32, region: &Region, payload: Payload) -> u32 {
        let len = usize::from(payload.len);
        if len == 0 {
            return crc;
        }
        if payload.copy || payload.len <= COPY_UP_TO {
            let crc_on = self.crc;
            let (first, second) = self.ring.reserve(len);
            let mut crc = crc;
            let mut at = payload.at;
            for part in [first, second] {
                // Both parts lie within the region: the caller has looked.
                if region.read(at, part).is_err() {
                    part.fill(0);
                }
                at += part.len() as u64;
                if crc_on {
                    crc = crc32c::update(crc, part);
                }
            }
            self.grow_ring_chunk(len);
            return crc;
        }
        self.chunks.push_back(Chunk {
            source: Source::Region {
                entry: payload.entry,
                at: payload.at,
            },
            len,
        });
        self.framed += u64::from(payload.len);
        if self.crc {
            region
                .crc32c(payload.at, payload.len.into(), crc)
                .unwrap_or(crc)
        } else {
            crc
        }
    }

    fn frame_marked(
        &mut self,
        fpdu: &Fpdu<'_>,
        region: Option<(&Region, Payload)>,
        ulpdu_len: u16,
        clock: MarkerClock,
    ) {
        let mut writer = MarkedWriter {
            out: self,
            clock,
            from_start: 0,
            started: false,
            crc: 0,
        };
        writer.put(&ulpdu_len.to_be_bytes());
        writer.put(fpdu.headers);
        writer.put(fpdu.octets.0);
        writer.put(fpdu.octets.1);
        if let Some((region, payload)) = region {
            let mut piece = [0; 508];
            let mut at = payload.at;
            let mut left = usize::from(payload.len);
            while left > 0 {
                let piece = piece.split_at_mut(left.min(508)).0;
                if region.read(at, piece).is_err() {
                    piece.fill(0);
                }
                writer.put(piece);
                at += piece.len() as u64;
                left -= piece.len();
            }
        }
        writer.put([0; 3].split_at(pad_len(ulpdu_len)).0);
        writer.marker_if_due();
        let (crc, clock) = (writer.crc, writer.clock);
        self.write(&crc_to_wire(if self.crc { crc } else { 0 }));
        self.markers = Some(clock.advanced(4));
    }

    /// Adds what is to be sent to `list`, as much as fits.
    pub(crate) fn gather<'a>(&'a self, list: &mut WriteVec<'a>, stags: &'a StagTable) {
        let mut position = self.ring_sent;
        for chunk in &self.chunks {
            if list.room() < 2 {
                return;
            }
            let pushed = match &chunk.source {
                Source::Ring => {
                    let (first, second) = self.ring.read(position, chunk.len);
                    position += chunk.len as u64;
                    list.push_slice(first)
                        .and_then(|()| list.push_slice(second))
                }
                Source::Region { entry, at } => match stags.region(*entry) {
                    Some(region) => list.push_region(region, *at, chunk.len as u64),
                    None => return,
                },
                Source::Spilled { octets, from } => {
                    list.push_slice(octets.get(*from..).unwrap_or_default())
                }
            };
            if pushed.is_err() {
                return;
            }
        }
    }

    /// The first `octets` of what was gathered are sent.
    pub(crate) fn handle_sent(&mut self, octets: usize) {
        let mut left = octets;
        while left > 0 {
            let Some(chunk) = self.chunks.front_mut() else {
                return;
            };
            let taken = left.min(chunk.len);
            left -= taken;
            chunk.len -= taken;
            self.sent += taken as u64;
            match &mut chunk.source {
                Source::Ring => {
                    self.ring_sent += taken as u64;
                    self.ring.release_to(self.ring_sent);
                }
                Source::Region { at, .. } => *at += taken as u64,
                Source::Spilled { from, .. } => *from += taken,
            }
            if chunk.len == 0 {
                self.chunks.pop_front();
            }
        }
    }

    /// Copies what is still to be sent from an entry of the table whose registration ends. This allocates; it is the
    /// price of ending a registration under what it sends, and bounded by what is framed ahead.
    pub(crate) fn spill(&mut self, entry: u16, region: &Region) {
        for chunk in &mut self.chunks {
            if planted(Plant::SpillForgotten) {
                return;
            }
            if let Source::Region { entry: mine, at } = chunk.source
                && mine == entry
            {
                let mut octets = vec![0; chunk.len].into_boxed_slice();
                if region.read(at, &mut octets).is_err() {
                    octets.fill(0);
                }
                chunk.source = Source::Spilled { octets, from: 0 };
            }
        }
    }
}

/// Writes one FPDU with its Markers.
struct MarkedWriter<'a> {
    out: &'a mut Outgoing,
    clock: MarkerClock,
    /// Octets of the stream since the ULPDU Length field began.
    from_start: u16,
    started: bool,
    crc: u32,
}

impl MarkedWriter<'_> {
    fn marker_if_due(&mut self) {
        if !self.clock.due() {
            return;
        }
        //= rfc5044-4.3-fpduptr
        // Ahead of the length the pointer is zero, and the Marker is this FPDU's.
        let marker = Marker {
            fpdu_pointer: self.from_start,
        }
        .encode();
        self.crc = self.out.take_in(self.crc, &marker);
        self.clock = self.clock.advanced(4);
        if self.started {
            // MAX_MULPDU keeps every FPDU within 16 bits.
            self.from_start = self.from_start.saturating_add(4);
        }
    }

    fn put(&mut self, mut octets: &[u8]) {
        while !octets.is_empty() {
            self.marker_if_due();
            self.started = true;
            let until = self.clock.until_due();
            let run = usize::try_from(until).unwrap_or(0).min(octets.len());
            let (now, rest) = octets.split_at(run);
            self.crc = self.out.take_in(self.crc, now);
            // At most 508 octets.
            let count = u16::try_from(run).unwrap_or(0);
            self.clock = self.clock.advanced(count.into());
            self.from_start = self.from_start.saturating_add(count);
            octets = rest;
        }
    }
}
