//! A queue pair for UMRs: how repeat blocks come into keys. It is connected to itself.

use kbtp_device::CqReader;
use kbtp_memory::{AccessError, Region};
use kbtp_mlx5::limits::{BASIC_BLOCK, SEGMENT};
use kbtp_mlx5::{
    AccessRights, Body, Control, Mkey, MkeyContext, OpOwn, Opcode, QpDoorbell, Qpn, RepeatBlock,
    RepeatEntry, Signal, UmrControl, UmrFlags, UmrMask, WqeBuffer, WqeIndex,
};

/// Log2 of the basic blocks of its ring, of its receive WQEs, and of its CQEs.
pub(crate) const LOG: u8 = 6;
/// Log2 of the octets of a receive WQE: with it the receive queue is a page, and the send queue the next one.
pub(crate) const LOG_STRIDE: u8 = 6;
pub(crate) const SENDS: u64 = 4 << 10;
pub(crate) const CQES: u64 = 8 << 10;
pub(crate) const CQ_DOORBELL: u64 = 12 << 10;
pub(crate) const DOORBELL: u64 = CQ_DOORBELL + 64;
pub(crate) const LEN: u64 = 16 << 10;

/// The queue pair.
#[derive(Debug)]
pub(crate) struct UmrQueue {
    qpn: Qpn,
    region: Region,
    pub(crate) cq: CqReader,
    posted: u64,
}

/// Writes the CQEs of a queue that has none yet.
pub(crate) fn clear_cqes(region: &Region) -> Result<(), AccessError> {
    for cqe in 0..1 << LOG {
        let last = CQES + cqe * kbtp_mlx5::Cqe::LEN as u64 + kbtp_mlx5::Cqe::OP_OWN_AT as u64;
        region.write(last, &[OpOwn::INITIAL])?;
    }
    Ok(())
}

/// Segments of the list of a repeat block, as long as a device reads it: lines of 64 octets.
pub(crate) fn list_segments(entries: usize) -> u32 {
    let segments = entries.saturating_add(1).next_multiple_of(4);
    u32::try_from(segments).unwrap_or(u32::MAX)
}

impl UmrQueue {
    pub(crate) const fn new(qpn: Qpn, region: Region, cq: CqReader) -> Self {
        Self {
            qpn,
            cq,
            region,
            posted: 0,
        }
    }

    /// Posts the UMR that puts a repeat block into a key and lets it be used. Gives what rings the queue.
    pub(crate) fn post(
        &mut self,
        key: Mkey,
        repetitions: u32,
        entries: &[RepeatEntry],
    ) -> Result<[u8; 8], PostError> {
        let block = RepeatBlock {
            len: entries.iter().map(|entry| u32::from(entry.len)).sum(),
            repetitions,
            entries: u16::try_from(entries.len()).unwrap_or(u16::MAX),
        };
        let mut list: Vec<[u8; SEGMENT]> = vec![block.encode()];
        list.extend(entries.iter().map(RepeatEntry::encode));
        let segments = list_segments(entries.len());
        list.resize(usize::try_from(segments).unwrap_or(0), [0; SEGMENT]);
        let umr = UmrControl {
            flags: UmrFlags::INLINE,
            list_segments: u16::try_from(segments).unwrap_or(u16::MAX),
            offset: 0,
            mask: UmrMask::FREE,
        };
        let context = MkeyContext {
            free: false,
            rights: AccessRights::default(),
            qpn: Qpn::truncate(Qpn::MAX),
            tag: 0,
            flags: 0,
            pd: 0,
            start: 0,
            len: 0,
            list_segments: 0,
            log_page_size: 0,
        };
        let blocks = 1_u64 << LOG;
        let body = Body::Umr(umr, context, &list);
        let wqe = self.encode(Opcode::Umr, key, &body)?;
        while self.posted % blocks + wqe.basic_blocks() as u64 > blocks {
            self.put(&self.encode(Opcode::Nop, Mkey(0), &Body::Ignored(&[]))?)?;
        }
        let wqe = self.encode(Opcode::Umr, key, &body)?;
        self.put(&wqe)?;
        let record = QpDoorbell {
            receive: 0,
            send: self.index(),
        };
        self.region.write(DOORBELL, &record.encode())?;
        Ok(wqe.as_octets().first_chunk().copied().unwrap_or_default())
    }

    const fn index(&self) -> WqeIndex {
        let [.., high, low] = self.posted.to_be_bytes();
        WqeIndex(u16::from_be_bytes([high, low]))
    }

    fn encode(&self, opcode: Opcode, key: Mkey, body: &Body<'_>) -> Result<WqeBuffer, PostError> {
        let mut control = Control::new(opcode, self.qpn, self.index());
        control.immediate = key.0;
        if opcode == Opcode::Umr {
            control.signal = Signal::Always;
        }
        Ok(WqeBuffer::encode(&control, body)?)
    }

    fn put(&mut self, wqe: &WqeBuffer) -> Result<(), PostError> {
        let at = SENDS + self.posted % (1 << LOG) * BASIC_BLOCK as u64;
        self.region.write(at, wqe.as_octets())?;
        self.posted += wqe.basic_blocks() as u64;
        Ok(())
    }
}

/// A UMR that cannot be posted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PostError {
    #[error(transparent)]
    TooLong(#[from] kbtp_mlx5::WqeTooLong),
    #[error(transparent)]
    Access(#[from] AccessError),
}
