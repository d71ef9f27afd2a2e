//! FPDUs that no honest stream sends, put between those of an honest one, and what the target must say of them.
//!
//! A forged FPDU has a right CRC and, unless that is what is wrong with it, the right Message Sequence Number: it is what
//! a peer with another stack could send. The stream must end with a Terminate of the cause that goes with it, and
//! nothing of it may be placed or delivered. Only on streams without Markers, whose place depends on all octets before.

use kbtp_memory::crc32c;
use kbtp_wire::ddp::{DDP_VERSION, DdpControl, Msn, QueueNumber, TaggedHeader, UntaggedHeader};
use kbtp_wire::mpa::{crc_to_wire, fpdu_len, pad_len};
use kbtp_wire::rdmap::{
    AtomicOperation, AtomicRequest, DdpTaggedCode, DdpUntaggedCode, OperationCode, ProtectionCode,
    RdmapControl, RdmapOpcode, ReadRequest, TerminateCause,
};
use kbtp_wire::{ByteLen, Stag, TaggedOffset};

/// Octets of an MPA startup frame before its Private Data.
const STARTUP_LEN: usize = 20;
/// Octets looked at of an FPDU: its length, the longer of the DDP headers, an RDMA Read Request.
const HEAD_LEN: usize = 2 + UntaggedHeader::LEN + ReadRequest::LEN;

/// Follows the FPDUs of one direction of a connection without Markers.
#[derive(Debug)]
pub struct Framer {
    /// The startup frame is behind us.
    running: bool,
    head: [u8; HEAD_LEN],
    have: usize,
    /// Octets of this frame that went by, those in `head` among them.
    passed: usize,
    /// FPDUs that went by.
    pub fpdus: u64,
    /// The next Message Sequence Number of each queue, as far as it is known.
    next: [Option<Msn>; 4],
    /// A Message Sequence Number wrapped.
    pub wrapped: bool,
    /// RDMA Reads asked for, and where the answer to the last one goes.
    pub reads: u64,
    /// See `reads`.
    pub sink: (Stag, TaggedOffset),
    /// RDMA Reads answered.
    pub answers: u64,
}

impl Default for Framer {
    fn default() -> Self {
        Self {
            running: false,
            head: [0; HEAD_LEN],
            have: 0,
            passed: 0,
            fpdus: 0,
            next: [None; 4],
            wrapped: false,
            reads: 0,
            sink: (Stag(0), TaggedOffset(0)),
            answers: 0,
        }
    }
}

impl Framer {
    /// Octets of the frame that is going by, as far as its head tells.
    fn len(&self) -> usize {
        let at = |at: usize| usize::from(self.head[at]) << 8 | usize::from(self.head[at + 1]);
        match self.running {
            false if self.have < STARTUP_LEN => STARTUP_LEN,
            false => STARTUP_LEN + at(18),
            true if self.have < 2 => 2,
            true => fpdu_len(u16::try_from(at(0)).unwrap_or(u16::MAX)),
        }
    }

    /// Whether the next octet begins an FPDU.
    #[must_use]
    pub const fn between(&self) -> bool {
        self.running && self.passed == 0
    }

    /// Octets up to where the next FPDU begins, or up to where that is known.
    #[must_use]
    pub fn until_next(&self) -> usize {
        (self.len() - self.passed).max(1)
    }

    /// These octets go by.
    pub fn pass(&mut self, mut octets: &[u8]) {
        while !octets.is_empty() {
            let wanted = if self.running { HEAD_LEN } else { STARTUP_LEN };
            let now = self.until_next().min(octets.len());
            for octet in &octets[..now] {
                if self.have < wanted {
                    self.head[self.have] = *octet;
                    self.have += 1;
                }
            }
            self.passed += now;
            octets = &octets[now..];
            let whole = if self.running {
                self.have >= 2
            } else {
                self.have >= STARTUP_LEN
            };
            if whole && self.passed == self.len() {
                if self.running {
                    self.end();
                }
                self.running = true;
                (self.have, self.passed) = (0, 0);
            }
        }
    }

    /// An FPDU has gone by.
    fn end(&mut self) {
        self.fpdus += 1;
        let octets = &self.head[2..];
        let (Some(tagged), Some(untagged)) = (octets.first_chunk(), octets.first_chunk()) else {
            return;
        };
        if DdpControl::decode(octets[0]).tagged {
            let header = TaggedHeader::decode(tagged);
            let response = RdmapControl::decode(header.ulp).opcode == Ok(RdmapOpcode::ReadResponse);
            self.answers += u64::from(response && header.last);
            return;
        }
        if self.have < 2 + UntaggedHeader::LEN {
            return;
        }
        let header = UntaggedHeader::decode(untagged);
        if RdmapControl::decode(header.ulp).opcode == Ok(RdmapOpcode::ReadRequest)
            && let Some(request) = octets[UntaggedHeader::LEN..].first_chunk()
        {
            let request = ReadRequest::decode(request);
            self.reads += 1;
            self.sink = (request.sink_stag, request.sink_offset);
        }
        let queue = usize::try_from(header.queue.0).unwrap_or(usize::MAX);
        if let Some(next) = self.next.get_mut(queue) {
            let msn = if header.last {
                header.msn.next()
            } else {
                header.msn
            };
            self.wrapped |= msn.0 < header.msn.0;
            *next = header.last.then_some(msn);
        }
    }

    /// The next Message Sequence Number of a queue; `None` in the middle of a message, or before the first one.
    #[must_use]
    pub fn next_msn(&self, queue: QueueNumber) -> Option<Msn> {
        let queue = usize::try_from(queue.0).ok()?;
        self.next.get(queue).copied().flatten()
    }
}

/// What is forged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "see `causes`")]
pub enum Forgery {
    Write {
        stag: Stag,
        offset: TaggedOffset,
        wrong: Wrong,
    },
    Read {
        stag: Stag,
        offset: TaggedOffset,
        wrong: Wrong,
    },
    Atomic {
        stag: Stag,
        offset: TaggedOffset,
        wrong: Wrong,
    },
    TaggedVersion,
    UntaggedVersion,
    RdmapVersion,
    ReservedOpcode,
    Response,
    ResponseElsewhere {
        stag: Stag,
        offset: TaggedOffset,
    },
    NoSuchQueue,
    SequenceAhead,
    SequenceBehind,
    Offset,
    TooLong {
        octets: u16,
    },
    TooManyReads {
        reads: u16,
    },
    AtomicResponse,
    Invalidate {
        stag: Stag,
    },
    TooShort,
    WrongQueue,
    ShortRead,
    UnknownAtomic,
    Terminate,
}

/// What is wrong with a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are the RFC's")]
pub enum Wrong {
    Stag,
    Bounds,
    Wrap,
    Rights,
}

impl Forgery {
    /// The queue whose next Message Sequence Number it needs, if it needs one.
    #[must_use]
    pub const fn queue(self) -> Option<QueueNumber> {
        match self {
            Self::Write { .. }
            | Self::TaggedVersion
            | Self::ReservedOpcode
            | Self::RdmapVersion
            | Self::Response
            | Self::ResponseElsewhere { .. }
            | Self::NoSuchQueue
            | Self::TooShort
            | Self::UntaggedVersion
            | Self::AtomicResponse
            | Self::Terminate => None,
            Self::SequenceAhead
            | Self::SequenceBehind
            | Self::Offset
            | Self::TooLong { .. }
            | Self::Invalidate { .. } => Some(QueueNumber::SEND),
            Self::Read { .. }
            | Self::Atomic { .. }
            | Self::TooManyReads { .. }
            | Self::WrongQueue
            | Self::ShortRead
            | Self::UnknownAtomic => Some(QueueNumber::READ_REQUEST),
        }
    }

    /// What the target's Terminate may say; empty if it must not send one.
    #[must_use]
    pub fn causes(self) -> Vec<TerminateCause> {
        let tagged = |wrong| match wrong {
            Wrong::Stag => TerminateCause::DdpTagged(DdpTaggedCode::InvalidStag),
            Wrong::Bounds => TerminateCause::DdpTagged(DdpTaggedCode::BaseOrBounds),
            Wrong::Wrap => TerminateCause::DdpTagged(DdpTaggedCode::OffsetWrap),
            Wrong::Rights => TerminateCause::Protection(ProtectionCode::AccessRights),
        };
        let source = |wrong| {
            TerminateCause::Protection(match wrong {
                Wrong::Stag => ProtectionCode::InvalidStag,
                Wrong::Bounds => ProtectionCode::BaseOrBounds,
                Wrong::Wrap => ProtectionCode::OffsetWrap,
                Wrong::Rights => ProtectionCode::AccessRights,
            })
        };
        let untagged = |code| vec![TerminateCause::DdpUntagged(code)];
        let operation = |code| vec![TerminateCause::Operation(code)];
        match self {
            // The STag may be revoked while it is on its way.
            Self::Write { wrong, .. } => vec![tagged(wrong), tagged(Wrong::Stag)],
            // And as many requests may be out as may be.
            Self::Read { wrong, .. } | Self::Atomic { wrong, .. } => vec![
                source(wrong),
                source(Wrong::Stag),
                TerminateCause::DdpUntagged(DdpUntaggedCode::NoBuffer),
            ],
            Self::TaggedVersion => {
                vec![TerminateCause::DdpTagged(DdpTaggedCode::InvalidVersion)]
            }
            Self::UntaggedVersion => untagged(DdpUntaggedCode::InvalidVersion),
            Self::RdmapVersion => operation(OperationCode::InvalidVersion),
            Self::ReservedOpcode => operation(OperationCode::UnexpectedOpcode),
            Self::WrongQueue | Self::UnknownAtomic => vec![
                TerminateCause::Operation(OperationCode::UnexpectedOpcode),
                TerminateCause::DdpUntagged(DdpUntaggedCode::NoBuffer),
            ],
            // While a Read is out, an answer of no octets is too short for it.
            Self::Response => vec![
                TerminateCause::Operation(OperationCode::UnexpectedOpcode),
                TerminateCause::Operation(OperationCode::Unspecified),
            ],
            // While none is out it is not one that was asked for.
            Self::ResponseElsewhere { .. } => vec![
                tagged(Wrong::Bounds),
                TerminateCause::Operation(OperationCode::UnexpectedOpcode),
            ],
            Self::NoSuchQueue => untagged(DdpUntaggedCode::InvalidQueue),
            Self::SequenceAhead | Self::SequenceBehind => untagged(DdpUntaggedCode::MsnRange),
            Self::Offset => untagged(DdpUntaggedCode::InvalidMessageOffset),
            Self::TooLong { .. } => untagged(DdpUntaggedCode::MessageTooLong),
            // The number of the next answer is not known here.
            Self::AtomicResponse => vec![
                TerminateCause::DdpUntagged(DdpUntaggedCode::NoBuffer),
                TerminateCause::DdpUntagged(DdpUntaggedCode::MsnRange),
            ],
            Self::TooManyReads { .. } => untagged(DdpUntaggedCode::NoBuffer),
            Self::Invalidate { .. } => vec![TerminateCause::Protection(
                ProtectionCode::StagCannotBeInvalidated,
            )],
            Self::TooShort => operation(OperationCode::CatastrophicStream),
            Self::ShortRead => vec![
                TerminateCause::Operation(OperationCode::Unspecified),
                TerminateCause::DdpUntagged(DdpUntaggedCode::NoBuffer),
            ],
            Self::Terminate => Vec::new(),
        }
    }

    /// Its octets, behind what has gone by; `None` if they cannot be made now.
    #[must_use]
    #[expect(clippy::too_many_lines, reason = "a table of messages")]
    pub fn octets(self, behind: &Framer, crc: bool) -> Option<Vec<u8>> {
        let msn = match self.queue() {
            Some(queue) => behind.next_msn(queue)?,
            None => Msn::FIRST,
        };
        let mut out = Vec::new();
        let plain = RdmapControl::encode(RdmapOpcode::Send);
        let request = RdmapControl::encode(RdmapOpcode::ReadRequest);
        let sends = |msn, ulp, version| untagged(version, ulp, QueueNumber::SEND, msn);
        let reads = |msn, ulp| untagged(DDP_VERSION, ulp, QueueNumber::READ_REQUEST, msn);
        let zeros = |header: UntaggedHeader, len: usize| {
            let mut ulpdu = header.encode().to_vec();
            ulpdu.resize(UntaggedHeader::LEN + len, 0);
            ulpdu
        };
        let ulpdu = match self {
            Self::Write { stag, offset, .. } => tagged(stag, offset, RdmapOpcode::Write, 8),
            Self::TaggedVersion => {
                let mut ulpdu = tagged(Stag(0), TaggedOffset(0), RdmapOpcode::Write, 0);
                ulpdu[0] ^= DDP_VERSION ^ 2;
                ulpdu
            }
            Self::RdmapVersion => {
                let mut ulpdu = tagged(Stag(0), TaggedOffset(0), RdmapOpcode::Write, 0);
                ulpdu[1] = RdmapOpcode::Write.number();
                ulpdu
            }
            Self::ReservedOpcode => {
                let mut ulpdu = tagged(Stag(0), TaggedOffset(0), RdmapOpcode::Write, 0);
                ulpdu[1] |= 0x0F;
                ulpdu
            }
            Self::Response => tagged(Stag(0), TaggedOffset(0), RdmapOpcode::ReadResponse, 0),
            Self::ResponseElsewhere { stag, offset } => {
                let mut ulpdu = tagged(stag, offset, RdmapOpcode::ReadResponse, 8);
                // There is more to come.
                ulpdu[0] &= !0x40;
                ulpdu
            }
            Self::UntaggedVersion => zeros(sends(msn, plain, 3), 4),
            Self::NoSuchQueue => zeros(
                UntaggedHeader {
                    queue: QueueNumber(9),
                    ..sends(msn, plain, DDP_VERSION)
                },
                4,
            ),
            Self::SequenceAhead => zeros(sends(Msn(msn.0.wrapping_add(3)), plain, DDP_VERSION), 30),
            Self::SequenceBehind => {
                zeros(sends(Msn(msn.0.wrapping_sub(1)), plain, DDP_VERSION), 30)
            }
            Self::Offset => zeros(
                UntaggedHeader {
                    message_offset: 8,
                    ..sends(msn, plain, DDP_VERSION)
                },
                30,
            ),
            Self::TooLong { octets } => zeros(sends(msn, plain, DDP_VERSION), usize::from(octets)),
            Self::Invalidate { stag } => zeros(
                UntaggedHeader {
                    ulp_word: stag.0,
                    ..sends(
                        msn,
                        RdmapControl::encode(RdmapOpcode::SendInvalidate),
                        DDP_VERSION,
                    )
                },
                30,
            ),
            Self::WrongQueue => zeros(reads(msn, plain), 28),
            Self::ShortRead => zeros(reads(msn, request), 27),
            Self::Read { stag, offset, .. } => read(reads(msn, request), stag, offset, 8),
            Self::TooManyReads { reads: many } => {
                for n in 0..u32::from(many) {
                    let msn = Msn(msn.0.wrapping_add(n));
                    let one = read(reads(msn, request), Stag(0), TaggedOffset(0), 0);
                    frame(&mut out, &one, crc);
                }
                return Some(out);
            }
            Self::Atomic { stag, offset, .. } => atomic(msn, stag, offset, 0),
            Self::UnknownAtomic => atomic(msn, Stag(0), TaggedOffset(0), 7),
            Self::AtomicResponse => zeros(
                untagged(
                    DDP_VERSION,
                    RdmapControl::encode(RdmapOpcode::AtomicResponse),
                    QueueNumber::ATOMIC_RESPONSE,
                    msn,
                ),
                12,
            ),
            Self::Terminate => {
                let ulp = RdmapControl::encode(RdmapOpcode::Terminate);
                let header = untagged(DDP_VERSION, ulp, QueueNumber::TERMINATE, Msn::FIRST);
                zeros(header, 4)
            }
            Self::TooShort => vec![0xC1, 0x40, 1],
        };
        frame(&mut out, &ulpdu, crc);
        Some(out)
    }
}

const fn untagged(version: u8, ulp: u8, queue: QueueNumber, msn: Msn) -> UntaggedHeader {
    UntaggedHeader {
        last: true,
        version,
        ulp,
        ulp_word: 0,
        queue,
        msn,
        message_offset: 0,
    }
}

/// A tagged segment with `len` octets that nobody should ever find anywhere.
fn tagged(stag: Stag, offset: TaggedOffset, opcode: RdmapOpcode, len: usize) -> Vec<u8> {
    let header = TaggedHeader {
        last: true,
        version: DDP_VERSION,
        ulp: RdmapControl::encode(opcode),
        stag,
        offset,
    };
    let mut ulpdu = header.encode().to_vec();
    ulpdu.resize(TaggedHeader::LEN + len, 0xDB);
    ulpdu
}

fn read(header: UntaggedHeader, stag: Stag, offset: TaggedOffset, len: u32) -> Vec<u8> {
    let request = ReadRequest {
        sink_stag: Stag(0),
        sink_offset: TaggedOffset(0),
        len: ByteLen(len),
        source_stag: stag,
        source_offset: offset,
    };
    let mut ulpdu = header.encode().to_vec();
    ulpdu.extend_from_slice(&request.encode());
    ulpdu
}

fn atomic(msn: Msn, stag: Stag, offset: TaggedOffset, code: u8) -> Vec<u8> {
    let ulp = RdmapControl::encode(RdmapOpcode::AtomicRequest);
    let request = AtomicRequest {
        request_id: msn.0,
        stag,
        offset,
        operation: AtomicOperation::FetchAdd { add: 0x77, mask: 0 },
    };
    let header = untagged(DDP_VERSION, ulp, QueueNumber::READ_REQUEST, msn);
    let mut ulpdu = header.encode().to_vec();
    ulpdu.extend_from_slice(&request.encode());
    ulpdu[UntaggedHeader::LEN + 3] |= code;
    ulpdu
}

/// Appends an FPDU.
fn frame(out: &mut Vec<u8>, ulpdu: &[u8], crc: bool) {
    let start = out.len();
    let len = u16::try_from(ulpdu.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(ulpdu);
    out.extend_from_slice(&[0; 3][..pad_len(len)]);
    let sum = if crc {
        crc32c::crc32c(&out[start..])
    } else {
        0
    };
    out.extend_from_slice(&crc_to_wire(sum));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_framer_follows_whatever_the_cuts() {
        let mut stream = vec![0; STARTUP_LEN + 7];
        stream[19] = 7;
        let mut starts = vec![stream.len()];
        for n in 1..20 {
            let header = untagged(DDP_VERSION, 0x43, QueueNumber::SEND, Msn(n));
            let mut ulpdu = header.encode().to_vec();
            ulpdu.resize(18 + n as usize * 7, 9);
            frame(&mut stream, &ulpdu, true);
            starts.push(stream.len());
        }
        for cut in [1, 2, 3, 19, 64, 1000] {
            let mut framer = Framer::default();
            let mut at = 0;
            for piece in stream.chunks(cut) {
                framer.pass(piece);
                at += piece.len();
                assert_eq!(framer.between(), starts.contains(&at), "at {at}, cut {cut}");
            }
            assert_eq!(framer.fpdus, 19);
            assert_eq!(framer.next_msn(QueueNumber::SEND), Some(Msn(20)));
            assert!(!framer.wrapped);
        }
    }
}
