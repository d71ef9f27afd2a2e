//! HELLO_ACK: the target's answer to HELLO; 168 octets and then TLVs, or the common header alone.
//! Source: KBTP profile, P6.
//! Octets after the common header, if its Status is OK:
//! 0..4 Capabilities granted, 4..8 Block Size, 8..12 Pool Blocks F, 12..16 Allocation Quota, 16..24 Handle Base,
//! 24..32 Handle Count, 32..40 Table Base Handle, 40..48 Table Handle Count, 48..50 Request Credits, 50 Ring Order n,
//! 51 Atomic Form, 52..56 Max Inline, 56..60 Ticket Timeout (ms), 60..64 Table STag, 64..72 Table Offset,
//! 72..76 Pool STag, 76..80 Partition STag, 80..88 Partition Offset, 88..96 Partition Length, 96..100 Ring STag,
//! 100..104 Counter STag, 104..112 Ring Offset, 112..120 Head Offset, 120..136 Target Instance ID, 136..140 Lease (ms),
//! 140..144 Reserved (zero), 144.. TLVs.
//! Not checked here: that ranges lie within each other, and that STags go with the capabilities.

use super::tlv::KnownTlvs;
use super::{Header, Opcode, RequestFlags, SessionCapabilities, Status, VERSION};
use crate::fixed::{be16, be32, be64, get, put, put16, put32, put64};
use crate::{ByteLen, DecodeError, Handle, RequestId, RingOrder, Stag, TaggedOffset};

/// How a target's counters add (P6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum AtomicForm {
    /// FetchAdd with the Add Mask (draft, section 3.3).
    #[default]
    Masked = 0,
    /// Fetch and Add without a mask (draft, section 9.2).
    Unmasked = 1,
}

/// Target Instance ID: changes whenever bound blocks may have been lost (P6).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct InstanceId(pub [u8; 16]);

/// What a session got.
//= kbtp-p6-hello-ack-layout
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Grant {
    /// Capabilities granted.
    pub capabilities: SessionCapabilities,
    /// Block Size, in octets.
    pub block_size: ByteLen,
    /// Pool Blocks F.
    pub pool_blocks: u32,
    /// Allocation Quota, in blocks.
    pub quota: u32,
    /// First handle of the initiator's range.
    pub handle_base: Handle,
    /// Handles in the initiator's range.
    pub handle_count: u64,
    /// First handle of the table.
    pub table_base: Handle,
    /// Handles in the table.
    pub table_count: u64,
    /// Requests the initiator may have outstanding.
    pub credits: u16,
    /// Order of the initiator's ring.
    pub ring_order: RingOrder,
    /// How the counters add.
    pub atomic_form: AtomicForm,
    /// Longest inline data.
    pub max_inline: ByteLen,
    /// Ticket Timeout, in milliseconds.
    pub ticket_timeout_ms: u32,
    /// Table STag; 0 without `DIRECT_LOAD`.
    pub table_stag: Stag,
    /// Tagged Offset of the table's first entry.
    pub table_offset: TaggedOffset,
    /// Pool STag; 0 without `DIRECT_LOAD`.
    pub pool_stag: Stag,
    /// Partition STag; 0 without `DIRECT_ALLOC`.
    pub partition_stag: Stag,
    /// First octet of the partition.
    pub partition_offset: TaggedOffset,
    /// Octets of the partition.
    pub partition_len: u64,
    /// Ring STag, read only.
    pub ring_stag: Stag,
    /// Counter STag, atomics only.
    pub counter_stag: Stag,
    /// Tagged Offset of slot 0.
    pub ring_offset: TaggedOffset,
    /// Tagged Offset of Head.
    pub head_offset: TaggedOffset,
    /// Which run of the target this is.
    pub instance: InstanceId,
    /// Lease, in milliseconds; `u32::MAX`: for ever (P8).
    pub lease_ms: u32,
}

/// Octets of the body.
const BODY: usize = 144;

impl Grant {
    fn decode(body: &[u8; BODY]) -> Result<Self, DecodeError> {
        let unknown = |field, value: u8| DecodeError::Unknown {
            field,
            value: u64::from(value),
        };
        let reserved = be32::<140, _>(body);
        if reserved != 0 {
            return Err(DecodeError::NotZero {
                field: "HELLO_ACK, Reserved",
                value: u64::from(reserved),
            });
        }
        Ok(Self {
            capabilities: SessionCapabilities(be32::<0, _>(body)),
            block_size: ByteLen(be32::<4, _>(body)),
            pool_blocks: be32::<8, _>(body),
            quota: be32::<12, _>(body),
            handle_base: Handle(be64::<16, _>(body)),
            handle_count: be64::<24, _>(body),
            table_base: Handle(be64::<32, _>(body)),
            table_count: be64::<40, _>(body),
            credits: be16::<48, _>(body),
            ring_order: RingOrder::new(body[50]).ok_or_else(|| unknown("Ring Order", body[50]))?,
            atomic_form: match body[51] {
                0 => AtomicForm::Masked,
                1 => AtomicForm::Unmasked,
                form => return Err(unknown("Atomic Form", form)),
            },
            max_inline: ByteLen(be32::<52, _>(body)),
            ticket_timeout_ms: be32::<56, _>(body),
            table_stag: Stag(be32::<60, _>(body)),
            table_offset: TaggedOffset(be64::<64, _>(body)),
            pool_stag: Stag(be32::<72, _>(body)),
            partition_stag: Stag(be32::<76, _>(body)),
            partition_offset: TaggedOffset(be64::<80, _>(body)),
            partition_len: be64::<88, _>(body),
            ring_stag: Stag(be32::<96, _>(body)),
            counter_stag: Stag(be32::<100, _>(body)),
            ring_offset: TaggedOffset(be64::<104, _>(body)),
            head_offset: TaggedOffset(be64::<112, _>(body)),
            instance: InstanceId(get::<120, 16, _>(body)),
            lease_ms: be32::<136, _>(body),
        })
    }

    fn encode(&self) -> [u8; BODY] {
        let mut body = [0; BODY];
        put32::<0, _>(&mut body, self.capabilities.0);
        put32::<4, _>(&mut body, self.block_size.0);
        put32::<8, _>(&mut body, self.pool_blocks);
        put32::<12, _>(&mut body, self.quota);
        put64::<16, _>(&mut body, self.handle_base.0);
        put64::<24, _>(&mut body, self.handle_count);
        put64::<32, _>(&mut body, self.table_base.0);
        put64::<40, _>(&mut body, self.table_count);
        put16::<48, _>(&mut body, self.credits);
        body[50] = self.ring_order.get();
        body[51] = self.atomic_form as u8;
        put32::<52, _>(&mut body, self.max_inline.0);
        put32::<56, _>(&mut body, self.ticket_timeout_ms);
        put32::<60, _>(&mut body, self.table_stag.0);
        put64::<64, _>(&mut body, self.table_offset.0);
        put32::<72, _>(&mut body, self.pool_stag.0);
        put32::<76, _>(&mut body, self.partition_stag.0);
        put64::<80, _>(&mut body, self.partition_offset.0);
        put64::<88, _>(&mut body, self.partition_len);
        put32::<96, _>(&mut body, self.ring_stag.0);
        put32::<100, _>(&mut body, self.counter_stag.0);
        put64::<104, _>(&mut body, self.ring_offset.0);
        put64::<112, _>(&mut body, self.head_offset.0);
        put::<120, 16, _>(&mut body, self.instance.0);
        put32::<136, _>(&mut body, self.lease_ms);
        body
    }
}

/// The target's answer to a HELLO.
#[expect(
    clippy::large_enum_variant,
    reason = "one lives while a session is set up, and there is no allocator here to box it"
)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HelloAck<'a> {
    /// The session is set up.
    Granted {
        /// The HELLO's.
        request_id: RequestId,
        /// What the session got.
        grant: Grant,
        /// TLVs of the target.
        tlvs: KnownTlvs<'a>,
    },
    /// There is no session; the target closes the stream.
    Refused {
        /// The HELLO's.
        request_id: RequestId,
        /// Why.
        status: Status,
    },
}

impl<'a> HelloAck<'a> {
    /// Octets of a granting HELLO_ACK without TLVs, header included.
    pub const LEN: usize = Header::LEN + BODY;

    /// The HELLO_ACK in a received message.
    ///
    /// # Errors
    /// [`DecodeError`] if the header is not that of a version 1 HELLO_ACK without flags, if the length does not go with
    /// the Status, if a field has an unknown value or a reserved one is not zero, or if the TLVs are malformed.
    //= kbtp-p6-body-only-if-ok
    pub fn decode(message: &'a [u8]) -> Result<Self, DecodeError> {
        let length = |expected| DecodeError::Length {
            what: "HELLO_ACK",
            len: message.len(),
            expected,
        };
        let (head, rest) = message
            .split_first_chunk()
            .ok_or_else(|| length(Header::LEN))?;
        let header = Header::decode(head);
        let request_id = header.request_id;
        let unknown = |field, value| Err(DecodeError::Unknown { field, value });
        if header.opcode != Opcode::HelloAck.to_wire() {
            return unknown("Opcode", u64::from(header.opcode));
        }
        if header.version != VERSION {
            return unknown("Version", u64::from(header.version));
        }
        if !header.flags.allowed_with(Opcode::HelloAck) {
            return Err(DecodeError::NotZero {
                field: "HELLO_ACK, Flags",
                value: u64::from(header.flags.0),
            });
        }
        match Status::from_wire(header.status) {
            None => unknown("Status", u64::from(header.status)),
            Some(Status::Ok) => {
                let (body, tlvs) = rest.split_first_chunk().ok_or_else(|| length(Self::LEN))?;
                Ok(Self::Granted {
                    request_id,
                    grant: Grant::decode(body)?,
                    tlvs: KnownTlvs::decode(tlvs)?,
                })
            }
            Some(status) if rest.is_empty() => Ok(Self::Refused { request_id, status }),
            Some(_) => Err(length(Header::LEN)),
        }
    }

    /// Octets of this HELLO_ACK.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        match self {
            Self::Granted { tlvs, .. } => Self::LEN.saturating_add(tlvs.encoded_len()),
            Self::Refused { .. } => Header::LEN,
        }
    }

    /// Puts this HELLO_ACK at the front of `out` and returns how many octets it took.
    ///
    /// # Errors
    /// [`BufferTooSmall`](crate::BufferTooSmall) if it does not fit.
    pub fn encode_into(&self, out: &mut [u8]) -> Result<usize, crate::BufferTooSmall> {
        use crate::octets::put_front;
        let short = crate::BufferTooSmall {
            needed: self.encoded_len(),
            len: out.len(),
        };
        let (Self::Granted { request_id, .. } | Self::Refused { request_id, .. }) = *self;
        let mut header = Header::request(
            Opcode::HelloAck,
            RequestFlags::NONE,
            request_id,
            Handle(0),
            None,
        );
        if let Self::Refused { status, .. } = self {
            header.status = status.to_wire();
        }
        let out = put_front(out, &header.encode()).ok_or(short)?;
        if let Self::Granted { grant, tlvs, .. } = self {
            let out = put_front(out, &grant.encode()).ok_or(short)?;
            tlvs.encode_into(out).map_err(|_| short)?;
        }
        Ok(short.needed)
    }
}
