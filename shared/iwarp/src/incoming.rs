//! The octets that come in: runs of FPDU octets without their Markers, the CRC over them, and where payload goes.
//! Source: RFC 5044, sections 4.1 to 4.4 and 6.
//!
//! Octets are read either into a staging buffer or, when a header has named the place of the payload, straight into
//! it. What is staged is always taken up at once, so that staging is empty between two reads.

use crate::limits::{AHEAD_OF_LARGE, MAX_HEADERS_LEN};
use crate::plants::{Plant, planted};
use crate::slots::Slots;
use crate::stags::StagTable;
use crate::terminate::Fault;
use core::ops::Range;
use kbtp_memory::{ReadVec, crc32c};
use kbtp_wire::ddp::{DdpControl, TaggedHeader, UntaggedHeader};
use kbtp_wire::mpa::{CRC_LEN, LENGTH_LEN, Marker, MarkerClock, crc_from_wire, fpdu_len, pad_len};
use kbtp_wire::rdmap::{MpaCode, TerminateCause};

/// Where payload goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sink {
    /// Nowhere.
    Discard,
    /// A registered region.
    Region { entry: u16, at: u64 },
    /// A receive slot.
    Slot { slot: u32, at: u32 },
    /// The buffer of queue 1, 2 or 3.
    Control { queue: u8, at: u32 },
}

/// What comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Length and DDP header.
    Head,
    Payload,
    Pad,
    Crc,
}

/// Octets of a control message, at most: an Atomic Request, or a full Terminate.
pub(crate) const CONTROL_LEN: usize = 52;
const HEAD_LEN: usize = LENGTH_LEN + UntaggedHeader::LEN;

const _: () = assert!(MAX_HEADERS_LEN >= UntaggedHeader::LEN + CONTROL_LEN);

/// What is told when a CRC is wrong.
pub(crate) const CRC_FAULT: Fault = Fault::new(
    TerminateCause::Mpa(MpaCode::Crc),
    "the CRC of an FPDU is wrong",
);

//= rfc5040-5.4-terminate-buffer
/// The buffers of queues 1, 2 and 3.
#[derive(Debug)]
pub(crate) struct ControlBuffers([[u8; CONTROL_LEN]; 3]);

impl ControlBuffers {
    pub(crate) fn get(&self, queue: u8) -> &[u8; CONTROL_LEN] {
        let [one, two, three] = &self.0;
        match queue {
            1 => one,
            2 => two,
            _ => three,
        }
    }

    fn get_mut(&mut self, queue: u8) -> &mut [u8; CONTROL_LEN] {
        let [one, two, three] = &mut self.0;
        match queue {
            1 => one,
            2 => two,
            _ => three,
        }
    }
}

/// The receiving half of a connection.
#[derive(Debug)]
pub(crate) struct Incoming {
    staging: Box<[u8]>,
    staged: Range<usize>,
    /// Octets the last read was offered ahead of staging.
    direct: usize,
    /// Where staging ended for the last read.
    offered: usize,
    /// Octets of staging to offer.
    ahead: usize,
    pub(crate) phase: Phase,
    head: [u8; HEAD_LEN],
    head_have: usize,
    pub(crate) ulpdu_len: u16,
    pub(crate) payload_left: u32,
    pub(crate) sink: Sink,
    /// What is wrong with the FPDU, told once its CRC is found right.
    pub(crate) verdict: Option<Fault>,
    pub(crate) control: ControlBuffers,
    pad_left: usize,
    field: [u8; CRC_LEN],
    field_have: usize,
    crc_on: bool,
    crc: u32,
    /// The CRC of this FPDU was checked when it began.
    checked: bool,
    markers: Option<MarkerClock>,
    marker: [u8; Marker::LEN],
    marker_have: usize,
    /// Octets of the stream since the ULPDU Length field began.
    from_start: u32,
}

impl Incoming {
    pub(crate) fn new(staging_len: u32) -> Self {
        Self {
            staging: vec![0; usize::try_from(staging_len).unwrap_or(0)].into_boxed_slice(),
            staged: 0..0,
            direct: 0,
            offered: 0,
            ahead: usize::MAX,
            phase: Phase::Head,
            head: [0; HEAD_LEN],
            head_have: 0,
            ulpdu_len: 0,
            payload_left: 0,
            sink: Sink::Discard,
            verdict: None,
            control: ControlBuffers([[0; CONTROL_LEN]; 3]),
            pad_left: 0,
            field: [0; CRC_LEN],
            field_have: 0,
            crc_on: true,
            crc: 0,
            checked: false,
            markers: None,
            marker: [0; Marker::LEN],
            marker_have: 0,
            from_start: 0,
        }
    }

    /// Begins Full Operation with the next octet.
    pub(crate) fn agree(&mut self, crc: bool, markers: bool) {
        self.crc_on = crc;
        self.markers = markers.then_some(MarkerClock::START);
    }

    /// Where the next octets go. `more` says that the message of the FPDU goes on after it.
    pub(crate) fn recv_vec<'a>(
        &'a mut self,
        stags: &'a StagTable,
        slots: &'a mut Slots,
        more: bool,
    ) -> ReadVec<'a> {
        let mut list = ReadVec::new();
        self.direct = 0;
        if self.staged.start == self.staged.end {
            self.staged = 0..0;
        }
        let mut ahead = self.ahead;
        // With Markers among the payload everything is staged.
        if self.phase == Phase::Payload && self.staged.is_empty() && self.markers.is_none() {
            let left = usize::try_from(self.payload_left).unwrap_or(0);
            let pushed = match self.sink {
                Sink::Region { entry, at } => stags
                    .region(entry)
                    .is_some_and(|region| list.push_region(region, at, left as u64).is_ok()),
                Sink::Slot { slot, at } => slots
                    .fill(slot, at)
                    .get_mut(..left)
                    .is_some_and(|octets| list.push_slice(octets).is_ok()),
                Sink::Discard | Sink::Control { .. } => false,
            };
            if pushed {
                self.direct = left;
                if more {
                    // A like segment follows: take no more of it than its header, its payload goes to its place.
                    ahead = pad_len(self.ulpdu_len) + CRC_LEN + LENGTH_LEN + TaggedHeader::LEN;
                }
            }
        }
        if let Some(room) = self.staging.get_mut(self.staged.end..) {
            let len = room.len().min(ahead);
            self.offered = self.staged.end + len;
            // A list of two never is full; were it, the next read would bring the rest.
            list.push_slice(room.split_at_mut(len).0).unwrap_or(());
        }
        list
    }

    /// `octets` came into what [`recv_vec`](Self::recv_vec) gave.
    pub(crate) fn handle_received(&mut self, octets: usize, stags: &StagTable, slots: &mut Slots) {
        let direct = octets.min(self.direct);
        self.direct = 0;
        if direct > 0 {
            self.placed(direct, stags, slots);
        }
        self.staged.end = self
            .staged
            .end
            .saturating_add(octets - direct)
            .min(self.staging.len());
        if self.staged.end == self.offered {
            // There was more than was asked for: small messages, or a large one, which will say so.
            self.ahead = usize::MAX;
        }
    }

    /// `octets` of payload are in their place.
    fn placed(&mut self, octets: usize, stags: &StagTable, slots: &mut Slots) {
        // `octets` is at most `payload_left`, by `recv_vec`.
        let count = u32::try_from(octets).unwrap_or(0).min(self.payload_left);
        match self.sink {
            Sink::Region { entry, at } => {
                if let Some(region) = stags.region(entry).filter(|_| self.sums()) {
                    self.crc = region
                        .crc32c(at, count.into(), self.crc)
                        .unwrap_or(self.crc);
                }
            }
            Sink::Slot { slot, at } => {
                if let Some(octets) = slots.fill(slot, at).get(..octets).filter(|_| self.sums()) {
                    self.crc = crc32c::update(self.crc, octets);
                }
            }
            Sink::Discard | Sink::Control { .. } => {}
        }
        self.advance_payload(count);
    }

    const fn sums(&self) -> bool {
        self.crc_on && !self.checked
    }

    fn advance_payload(&mut self, count: u32) {
        self.payload_left -= count;
        match &mut self.sink {
            Sink::Discard => {}
            Sink::Region { at, .. } => *at += u64::from(count),
            Sink::Slot { at, .. } | Sink::Control { at, .. } => *at += count,
        }
    }

    //= rfc5041-7.1-cease-placing
    //= rfc5044-8-nothing-after-error
    //= rfc5040-7-erroneous-stream
    /// Drops all that is staged, and places nothing more.
    pub(crate) fn discard(&mut self) {
        self.staged = 0..0;
        self.sink = Sink::Discard;
    }

    /// Takes up to `want` staged octets that are no FPDU: those of the startup.
    pub(crate) fn take_raw(&mut self, want: usize) -> &[u8] {
        let len = want.min(self.staged.len());
        let start = self.staged.start;
        self.staged.start += len;
        self.staging.get(start..start + len).unwrap_or_default()
    }

    /// Whether the stream stands between two FPDUs.
    pub(crate) const fn between_fpdus(&self) -> bool {
        matches!(self.phase, Phase::Head)
            && self.head_have == 0
            && self.marker_have == 0
            && self.staged.start == self.staged.end
    }

    //= rfc5044-4.3-markers-stripped
    /// The next run of staged octets between Markers, at most `want`. Markers ahead of it are taken and checked.
    fn next_run(&mut self, want: usize) -> Option<Range<usize>> {
        loop {
            let have = self.staged.len();
            if have == 0 || want == 0 {
                return None;
            }
            let mut len = have.min(want);
            if let Some(clock) = self.markers {
                if clock.due() {
                    self.take_marker();
                    continue;
                }
                len = len.min(usize::try_from(clock.until_due()).unwrap_or(0));
                // At most 508 octets.
                self.markers = Some(clock.advanced(u32::try_from(len).unwrap_or(0)));
            }
            let start = self.staged.start;
            self.staged.start += len;
            // An FPDU with its Markers has less than 2^17 octets.
            self.from_start = self
                .from_start
                .saturating_add(u32::try_from(len).unwrap_or(0));
            return Some(start..start + len);
        }
    }

    fn take_marker(&mut self) {
        let len = (Marker::LEN - self.marker_have).min(self.staged.len());
        let from = self.staged.start..self.staged.start + len;
        self.staged.start += len;
        let to = self.marker_have..self.marker_have + len;
        if let (Some(to), Some(from)) = (self.marker.get_mut(to), self.staging.get(from)) {
            to.copy_from_slice(from);
        }
        self.marker_have += len;
        if self.marker_have < Marker::LEN {
            return;
        }
        self.marker_have = 0;
        //= rfc5044-4.3-marker-between-in-crc
        if self.sums() {
            self.crc = crc32c::update(self.crc, &self.marker);
        }
        //= rfc5044-8-errors-detected
        let pointer = u32::from(Marker::decode(self.marker).fpdu_pointer);
        //= rfc5044-8-marker-mismatch
        if pointer != self.from_start & 0xFFFC {
            self.verdict.get_or_insert(Fault::new(
                TerminateCause::Mpa(MpaCode::MarkerMismatch),
                "a Marker and the ULPDU Lengths disagree on the start of an FPDU",
            ));
        }
        if self.from_start > 0 {
            self.from_start = self.from_start.saturating_add(4);
        }
        self.markers = self.markers.map(|clock| clock.advanced(4));
    }

    fn run(&self, run: Range<usize>) -> &[u8] {
        self.staging.get(run).unwrap_or_default()
    }

    /// Goes on with length and DDP header; `true` once both are here.
    ///
    /// A ULPDU too short for a DDP header ends early: see [`tagged`](Self::tagged).
    pub(crate) fn take_head(&mut self) -> bool {
        if self.head_have == 0 {
            self.check_ahead();
        }
        loop {
            let want = self.head_want();
            if self.head_have >= want {
                self.payload_left = self.payload_len();
                if usize::try_from(self.payload_left).is_ok_and(|len| len >= self.staging.len()) {
                    self.ahead = AHEAD_OF_LARGE;
                }
                return true;
            }
            let Some(run) = self.next_run(want - self.head_have) else {
                return false;
            };
            if self.sums() {
                self.crc = crc32c::update(self.crc, self.run(run.clone()));
            }
            let to = self.head_have..self.head_have + run.len();
            if let (Some(to), Some(from)) = (self.head.get_mut(to), self.staging.get(run.clone())) {
                to.copy_from_slice(from);
            }
            self.head_have += run.len();
            //= rfc5044-5.2-boundaries-by-length
            //= rfc5044-5.1-alignment-lost
            let [hi, lo, ..] = self.head;
            self.ulpdu_len = u16::from_be_bytes([hi, lo]);
        }
    }

    /// How many octets of head there are, as far as those that are here tell.
    fn head_want(&self) -> usize {
        let [_, _, control, ..] = self.head;
        if self.head_have < LENGTH_LEN {
            return LENGTH_LEN;
        }
        let header = if self.head_have == LENGTH_LEN || DdpControl::decode(control).tagged {
            TaggedHeader::LEN
        } else {
            UntaggedHeader::LEN
        };
        LENGTH_LEN + header.min(self.ulpdu_len.into())
    }

    /// Checks the CRC at once if the whole FPDU is staged: one pass, and nothing is placed before.
    fn check_ahead(&mut self) {
        if !self.crc_on || self.markers.is_some() {
            return;
        }
        let staged = self.run(self.staged.clone());
        let Some((length, _)) = staged.split_first_chunk() else {
            return;
        };
        let len = fpdu_len(u16::from_be_bytes(*length));
        let Some((body, field)) = staged
            .get(..len)
            .and_then(<[u8]>::split_last_chunk::<CRC_LEN>)
        else {
            return;
        };
        self.checked = planted(Plant::CrcIgnored) || crc32c::crc32c(body) == crc_from_wire(*field);
        if !self.checked {
            // The field is met again at the end of the FPDU; till then nothing is placed.
            self.verdict.get_or_insert(CRC_FAULT);
        }
    }

    /// The DDP header if it is tagged, or `Err` if it is not; `None` if the ULPDU is too short for one.
    pub(crate) fn header(&self) -> Option<Result<TaggedHeader, UntaggedHeader>> {
        let [_, _, ddp @ ..] = &self.head;
        match self.head_have.checked_sub(LENGTH_LEN)? {
            TaggedHeader::LEN if DdpControl::decode(*ddp.first()?).tagged => {
                Some(Ok(TaggedHeader::decode(ddp.first_chunk()?)))
            }
            UntaggedHeader::LEN => Some(Err(UntaggedHeader::decode(ddp))),
            _ => None,
        }
    }

    /// Octets of payload of the FPDU whose header is here.
    pub(crate) fn payload_len(&self) -> u32 {
        let header = self.head_have.saturating_sub(LENGTH_LEN);
        u32::from(self.ulpdu_len).saturating_sub(u32::try_from(header).unwrap_or(0))
    }

    /// The octets of the DDP header and how many they are.
    pub(crate) fn header_octets(&self) -> ([u8; UntaggedHeader::LEN], usize) {
        let [_, _, ddp @ ..] = self.head;
        (ddp, self.head_have.saturating_sub(LENGTH_LEN))
    }

    /// Goes on with the payload; `true` once it is all in its place.
    pub(crate) fn take_payload(&mut self, stags: &StagTable, slots: &mut Slots) -> bool {
        while self.payload_left > 0 {
            let want = usize::try_from(self.payload_left).unwrap_or(usize::MAX);
            let Some(run) = self.next_run(want) else {
                return false;
            };
            let octets = self.staging.get(run.clone()).unwrap_or_default();
            if self.crc_on && !self.checked {
                self.crc = crc32c::update(self.crc, octets);
            }
            match self.sink {
                Sink::Discard => {}
                Sink::Region { entry, at } => {
                    // The header was checked against the registration, which ends no sink unseen.
                    if let Some(region) = stags.region(entry) {
                        region.write(at, octets).unwrap_or(());
                    }
                }
                Sink::Slot { slot, at } => {
                    if let Some(to) = slots.fill(slot, at).get_mut(..octets.len()) {
                        to.copy_from_slice(octets);
                    }
                }
                Sink::Control { queue, at } => {
                    let at = usize::try_from(at).unwrap_or(usize::MAX);
                    let to = at..at.saturating_add(octets.len());
                    if let Some(to) = self.control.get_mut(queue).get_mut(to) {
                        to.copy_from_slice(octets);
                    }
                }
            }
            let count = u32::try_from(run.len()).unwrap_or(0);
            self.advance_payload(count);
        }
        self.pad_left = pad_len(self.ulpdu_len);
        true
    }

    /// Goes on with the pad; `true` once it is all here.
    pub(crate) fn take_pad(&mut self) -> bool {
        while self.pad_left > 0 {
            let Some(run) = self.next_run(self.pad_left) else {
                return false;
            };
            self.pad_left -= run.len();
            if self.sums() {
                self.crc = crc32c::update(self.crc, self.run(run));
            }
        }
        true
    }

    /// Goes on with the CRC field; once it is here, whether it is right.
    pub(crate) fn take_crc(&mut self) -> Option<bool> {
        while self.field_have < CRC_LEN {
            let run = self.next_run(CRC_LEN - self.field_have)?;
            let to = self.field_have..self.field_have + run.len();
            if let (Some(to), Some(from)) = (self.field.get_mut(to), self.staging.get(run.clone()))
            {
                to.copy_from_slice(from);
            }
            self.field_have += run.len();
        }
        //= rfc5044-4.4-crc-verified
        //= rfc5044-4.1-crc-not-checked
        let ignored = planted(Plant::CrcIgnored);
        Some(!self.sums() || ignored || crc_from_wire(self.field) == self.crc)
    }

    /// Makes ready for the next FPDU.
    pub(crate) fn next_fpdu(&mut self) {
        self.phase = Phase::Head;
        self.head_have = 0;
        self.field_have = 0;
        self.payload_left = 0;
        self.sink = Sink::Discard;
        self.crc = 0;
        self.checked = false;
        self.from_start = 0;
    }
}
