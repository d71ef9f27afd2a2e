//! Send WQE: a control segment and what its opcode asks for behind it, in basic blocks of 64 octets.
//! Source: rdma-core, providers/mlx5/mlx5dv.h and qp.c.
//!
//! | opcodes | behind the control segment |
//! |---|---|
//! | NOP | anything: ignored |
//! | SEND, `SEND_IMM`, `SEND_INVAL` | data segments, or one inline segment |
//! | `RDMA_WRITE`, `RDMA_WRITE_IMM` | remote address, then as SEND |
//! | `RDMA_READ` | remote address, data segments |
//! | atomics | remote address, operands, one data segment for the reply |
//! | WAIT, `SEND_EN`, `RCV_EN` | their segment |
//! | UMR | UMR control, key context, list |
//!
//! Not checked here: that keys, queue pairs and completion queues exist, and index and QPN against the WQE's place.

use crate::atomic::operands_len;
use crate::field::Field;
use crate::limits::{MAX_SEGMENTS, MAX_WQE_LEN, SEGMENT};
use crate::{
    Atomic, Control, DataSegment, DecodeError, Enable, InlineHeader, MkeyContext, Opcode,
    RemoteAddress, UmrControl, WaitCqe, WaitData, WqeTooLong,
};
use core::fmt;

/// Data segments: values, or the octets of a WQE.
#[derive(Clone, Copy)]
pub struct DataList<'a>(Inner<'a>);

#[derive(Clone, Copy)]
enum Inner<'a> {
    Values(&'a [DataSegment]),
    /// Every one of them was decoded once.
    Octets(&'a [[u8; SEGMENT]]),
}

impl<'a> DataList<'a> {
    /// These segments.
    #[must_use]
    pub const fn new(segments: &'a [DataSegment]) -> Self {
        Self(Inner::Values(segments))
    }

    /// How many.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self.0 {
            Inner::Values(values) => values.len(),
            Inner::Octets(octets) => octets.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The segments.
    pub fn iter(&self) -> impl Iterator<Item = DataSegment> + Clone + 'a {
        let (values, octets) = match self.0 {
            Inner::Values(values) => (values, &[][..]),
            Inner::Octets(octets) => (&[][..], octets),
        };
        let decoded = octets
            .iter()
            .filter_map(|one| DataSegment::decode(one).ok());
        values.iter().copied().chain(decoded)
    }

    /// Octets they name together.
    #[must_use]
    pub fn octets(&self) -> u64 {
        // At most 62 segments of 2^31 octets.
        self.iter()
            .map(|segment| u64::from(segment.len.get()))
            .sum()
    }
}

impl PartialEq for DataList<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for DataList<'_> {}

impl fmt::Debug for DataList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// What a Send or an RDMA Write carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload<'a> {
    /// Gathered from memory.
    List(DataList<'a>),
    /// In the WQE. At least one octet.
    Inline(&'a [u8]),
}

/// What lies behind a control segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body<'a> {
    /// NOP: octets that the device ignores.
    Ignored(&'a [u8]),
    /// SEND and its kin.
    Send(Payload<'a>),
    /// `RDMA_WRITE`, `RDMA_WRITE_IMM`.
    Write(RemoteAddress, Payload<'a>),
    /// `RDMA_READ`.
    Read(RemoteAddress, DataList<'a>),
    /// An atomic: where, what, and where the reply goes.
    Atomic(RemoteAddress, Atomic, DataSegment),
    /// WAIT for a CQE.
    WaitCqe(WaitCqe),
    /// WAIT for data.
    WaitData(WaitData),
    /// `SEND_EN`, `RCV_EN`.
    Enable(Enable),
    /// UMR with its list in the WQE: KLM or KSM entries, or a repeat block and its entries.
    Umr(UmrControl, MkeyContext, &'a [[u8; SEGMENT]]),
}

/// A WQE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wqe<'a> {
    /// Its control segment.
    pub control: Control,
    /// The rest.
    pub body: Body<'a>,
}

impl<'a> Wqe<'a> {
    /// The WQE at the start of `octets`; its own length says where it ends.
    ///
    /// # Errors
    /// [`DecodeError`] if a field has no meaning, if there are fewer octets than the WQE's length, or if that is too
    /// little for its opcode.
    pub fn decode(octets: &'a [u8]) -> Result<Self, DecodeError> {
        let (segments, _) = octets.as_chunks::<SEGMENT>();
        let (first, _) = segments
            .split_first()
            .ok_or_else(|| short("Control segment", octets.len(), SEGMENT))?;
        let control = Control::decode(first)?;
        let len = usize::from(control.segments);
        let body = segments
            .get(1..len)
            .ok_or_else(|| short("WQE", octets.len(), len.max(1).saturating_mul(SEGMENT)))?;
        Ok(Self {
            control,
            body: Body::decode(control.opcode, control.modifier, body)?,
        })
    }
}

fn short(what: &'static str, len: usize, expected: usize) -> DecodeError {
    DecodeError::Length {
        what,
        len,
        expected,
    }
}

/// The first `N` octets of `segments`, and the segments behind them.
fn front<'a, const N: usize>(
    what: &'static str,
    segments: &'a [[u8; SEGMENT]],
) -> Result<(&'a [u8; N], &'a [[u8; SEGMENT]]), DecodeError> {
    let octets = segments.as_flattened();
    let (first, rest) = octets
        .split_first_chunk::<N>()
        .ok_or_else(|| short(what, octets.len(), N))?;
    let (rest, _) = rest.as_chunks();
    Ok((first, rest))
}

fn list(segments: &[[u8; SEGMENT]]) -> Result<DataList<'_>, DecodeError> {
    for segment in segments {
        DataSegment::decode(segment)?;
    }
    Ok(DataList(Inner::Octets(segments)))
}

fn payload(segments: &[[u8; SEGMENT]]) -> Result<Payload<'_>, DecodeError> {
    let octets = segments.as_flattened();
    let Some((word, data)) = octets.split_first_chunk() else {
        return Ok(Payload::List(DataList::new(&[])));
    };
    let Some(header) = InlineHeader::decode(word) else {
        return list(segments).map(Payload::List);
    };
    let len = usize::from(header.data_len());
    if len == 0 {
        return Err(DecodeError::Unknown {
            field: "Inline length",
            value: 0,
        });
    }
    data.get(..len)
        .map(Payload::Inline)
        .ok_or_else(|| short("Inline data", data.len(), len))
}

impl<'a> Body<'a> {
    /// What `segments`, those behind the control segment, mean to this opcode and modifier. Also for a WQE whose own
    /// opcode another WQE has yet to write.
    ///
    /// # Errors
    /// [`DecodeError`] if a field has no meaning or there are too few segments.
    pub fn decode(
        opcode: Opcode,
        modifier: u8,
        segments: &'a [[u8; SEGMENT]],
    ) -> Result<Self, DecodeError> {
        let plain = |body: Self| {
            if modifier == 0 {
                Ok(body)
            } else {
                Err(DecodeError::Unknown {
                    field: "Modifier",
                    value: u64::from(modifier),
                })
            }
        };
        match opcode {
            Opcode::Nop => plain(Self::Ignored(segments.as_flattened())),
            Opcode::Send | Opcode::SendImmediate | Opcode::SendInvalidate => {
                plain(Self::Send(payload(segments)?))
            }
            Opcode::RdmaWrite | Opcode::RdmaWriteImmediate => {
                let (remote, rest) = front("Remote address", segments)?;
                plain(Self::Write(RemoteAddress::decode(remote), payload(rest)?))
            }
            Opcode::RdmaRead => {
                let (remote, rest) = front("Remote address", segments)?;
                plain(Self::Read(RemoteAddress::decode(remote), list(rest)?))
            }
            Opcode::AtomicCs | Opcode::AtomicFa | Opcode::MaskedCs | Opcode::MaskedFa => {
                Self::decode_atomic(opcode, modifier, segments)
            }
            Opcode::Wait if modifier == 1 => {
                let (wait, _) = front("WAIT for data", segments)?;
                Ok(Self::WaitData(WaitData::decode(wait)?))
            }
            Opcode::Wait => {
                let (wait, _) = front("WAIT", segments)?;
                plain(Self::WaitCqe(WaitCqe::decode(wait)))
            }
            Opcode::SendEnable | Opcode::ReceiveEnable => {
                let (enable, _) = front("Enable", segments)?;
                plain(Self::Enable(Enable::decode(enable)))
            }
            Opcode::Umr => {
                let (control, rest) = front("UMR control", segments)?;
                let (context, rest) = front("Key context", rest)?;
                let context = MkeyContext::decode(context);
                plain(Self::Umr(UmrControl::decode(control), context, rest))
            }
            Opcode::Tso | Opcode::Dump | Opcode::Mmo | Opcode::LocalMmo => {
                Err(DecodeError::Unknown {
                    field: "Opcode",
                    value: u64::from(opcode.to_wire()),
                })
            }
        }
    }

    fn decode_atomic(
        opcode: Opcode,
        modifier: u8,
        segments: &[[u8; SEGMENT]],
    ) -> Result<Self, DecodeError> {
        let (remote, rest) = front("Remote address", segments)?;
        let (operands, reply) = rest
            .as_flattened()
            .split_at_checked(operands_len(opcode, modifier))
            .ok_or_else(|| short("Operands", rest.len(), 2))?;
        let mut padded = [0; Atomic::MAX_LEN];
        for (to, from) in padded.iter_mut().zip(operands) {
            *to = *from;
        }
        let reply = reply
            .first_chunk()
            .ok_or_else(|| short("Reply", reply.len(), SEGMENT))?;
        Ok(Self::Atomic(
            RemoteAddress::decode(remote),
            Atomic::decode(opcode, modifier, &padded)?,
            DataSegment::decode(reply)?,
        ))
    }
}

/// A WQE being put together: at most [`MAX_WQE_LEN`] octets, in place.
#[derive(Clone, PartialEq, Eq)]
pub struct WqeBuffer {
    octets: [u8; MAX_WQE_LEN],
    len: usize,
}

impl WqeBuffer {
    /// The WQE of `control` and `body`. Its length is counted, whatever `control` says; the rest of `control` stands as
    /// it is, so that a body may be put under an opcode that ignores it.
    ///
    /// # Errors
    /// [`WqeTooLong`] above 63 segments, or for inline data of no or more than 1023 octets.
    pub fn encode(control: &Control, body: &Body<'_>) -> Result<Self, WqeTooLong> {
        let mut buffer = Self {
            octets: [0; MAX_WQE_LEN],
            len: 0,
        };
        buffer.push(&control.encode())?;
        match body {
            Body::Ignored(octets) => buffer.push(octets)?,
            Body::Send(payload) => buffer.push_payload(payload)?,
            Body::Write(remote, payload) => {
                buffer.push(&remote.encode())?;
                buffer.push_payload(payload)?;
            }
            Body::Read(remote, list) => {
                buffer.push(&remote.encode())?;
                buffer.push_payload(&Payload::List(*list))?;
            }
            Body::Atomic(remote, atomic, reply) => {
                buffer.push(&remote.encode())?;
                let operands = atomic.encode();
                let (used, _) = operands
                    .split_at_checked(atomic.operands_len())
                    .unwrap_or((&operands, &[]));
                buffer.push(used)?;
                buffer.push(&reply.encode())?;
            }
            Body::WaitCqe(wait) => buffer.push(&wait.encode())?,
            Body::WaitData(wait) => buffer.push(&wait.encode())?,
            Body::Enable(enable) => buffer.push(&enable.encode())?,
            Body::Umr(control, context, list) => {
                buffer.push(&control.encode())?;
                buffer.push(&context.encode())?;
                buffer.push(list.as_flattened())?;
            }
        }
        buffer.close();
        Ok(buffer)
    }

    fn push(&mut self, octets: &[u8]) -> Result<(), WqeTooLong> {
        let end = self.len.saturating_add(octets.len());
        let room = self
            .octets
            .get_mut(self.len..end)
            .ok_or(WqeTooLong { octets: end })?;
        room.copy_from_slice(octets);
        self.len = end;
        Ok(())
    }

    fn push_payload(&mut self, payload: &Payload<'_>) -> Result<(), WqeTooLong> {
        match payload {
            Payload::List(list) => {
                for segment in list.iter() {
                    self.push(&segment.encode())?;
                }
                Ok(())
            }
            Payload::Inline(data) => {
                let too_long = WqeTooLong {
                    octets: self.len.saturating_add(data.len()),
                };
                let header = u16::try_from(data.len())
                    .ok()
                    .filter(|len| *len > 0)
                    .and_then(InlineHeader::new)
                    .ok_or(too_long)?;
                self.push(&header.encode())?;
                self.push(data)
            }
        }
    }

    /// Pads to a whole segment with the zeros that are there and writes the length.
    fn close(&mut self) {
        self.len = self.len.next_multiple_of(SEGMENT).min(MAX_WQE_LEN);
        let segments = u8::try_from(self.len / SEGMENT).unwrap_or(u8::MAX);
        debug_assert!(usize::from(segments) <= MAX_SEGMENTS);
        self.put(Field::LENGTH, &[segments]);
    }

    /// Writes `octets` over a field; nothing happens unless the field lies inside and is as long.
    pub fn put(&mut self, field: Field, octets: &[u8]) {
        let place = usize::from(field.at)..usize::from(field.end());
        if let Some(place) = self.octets.get_mut(place)
            && place.len() == octets.len()
        {
            place.copy_from_slice(octets);
        }
    }

    /// The octets of the WQE: a multiple of 16.
    #[must_use]
    pub fn as_octets(&self) -> &[u8] {
        self.octets.get(..self.len).unwrap_or(&self.octets)
    }

    /// Basic blocks it takes.
    #[must_use]
    pub const fn basic_blocks(&self) -> usize {
        self.len.div_ceil(crate::limits::BASIC_BLOCK)
    }
}

impl fmt::Debug for WqeBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Wqe::decode(self.as_octets()) {
            Ok(wqe) => wqe.fmt(f),
            Err(_) => f.debug_list().entries(self.as_octets()).finish(),
        }
    }
}
