//! A completion queue as software reads it.

use kbtp_memory::Region;
use kbtp_mlx5::{CqDoorbell, Cqe, CqeIndex};

/// Reads CQEs in order.
#[derive(Debug)]
pub struct CqReader {
    region: Region,
    at: u64,
    log_size: u8,
    doorbell: Option<u64>,
    consumed: u64,
}

impl CqReader {
    /// Of the queue of 2^`log_size` CQEs from octet `at` of `region`. With a doorbell record (where it lies in the region),
    /// each CQE that is read is given back.
    #[must_use]
    pub const fn new(region: Region, at: u64, log_size: u8, doorbell: Option<u64>) -> Self {
        Self {
            region,
            at,
            log_size,
            doorbell,
            consumed: 0,
        }
    }

    /// Reads on from CQE number `consumed`, as if all before had been read.
    #[must_use]
    pub const fn from(mut self, consumed: u64) -> Self {
        self.consumed = consumed;
        self
    }

    /// CQEs read since the start.
    #[must_use]
    pub const fn consumed(&self) -> u64 {
        self.consumed
    }

    fn index(&self) -> CqeIndex {
        let [.., a, b, c] = self.consumed.to_be_bytes();
        CqeIndex::truncate(u32::from_be_bytes([0, a, b, c]))
    }

    /// The next CQE; `None` if there is none yet. One that makes no sense counts as not there.
    #[expect(
        clippy::should_implement_trait,
        reason = "the queue does not end: `None` says that nothing is there now"
    )]
    pub fn next(&mut self) -> Option<Cqe> {
        let cqe = self.peek()?;
        self.consumed = self.consumed.wrapping_add(1);
        if let Some(doorbell) = self.doorbell {
            let record = CqDoorbell {
                consumer: self.index(),
                ..CqDoorbell::default()
            };
            let [a, b, c, d, ..] = record.encode();
            self.region.write(doorbell, &[a, b, c, d]).ok()?;
        }
        Some(cqe)
    }

    /// The next CQE, which stays.
    #[must_use]
    pub fn peek(&self) -> Option<Cqe> {
        let size = 1_u64.checked_shl(u32::from(self.log_size))?;
        let place = self.consumed.checked_rem(size)? * Cqe::LEN as u64;
        let at = self.at.checked_add(place)?;
        let mut last = [0];
        self.region
            .read(at + Cqe::OP_OWN_AT as u64, &mut last)
            .ok()?;
        let [last] = last;
        let op_own = kbtp_mlx5::OpOwn::decode(last).ok()?;
        if !op_own.is_ready(self.index().get(), self.log_size) {
            return None;
        }
        // The last octet says that the rest is there; it must be read before.
        kbtp_memory::barrier::from_device();
        let mut octets = [0; Cqe::LEN];
        self.region.read(at, &mut octets).ok()?;
        Cqe::decode(&octets).ok()
    }
}
