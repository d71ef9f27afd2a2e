//! Completion queues: CQEs written to memory, counted, and events.

use crate::memory::Memory;
use kbtp_device::CqAttributes;
use kbtp_mlx5::{
    Completed, CqArm, CqDoorbell, Cqe, CqeIndex, CqeOpcode, Failed, OpOwn, Qpn, Syndrome, owner_of,
};

/// What a CQE says, but for its owner bit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report<'a> {
    pub(crate) opcode: CqeOpcode,
    pub(crate) qpn: Qpn,
    pub(crate) send_opcode: u8,
    pub(crate) wqe_counter: u16,
    pub(crate) byte_count: u32,
    pub(crate) immediate: u32,
    /// Not zero for an error.
    pub(crate) syndrome: Option<Syndrome>,
    pub(crate) solicited: bool,
    /// Octets that come in the CQE: at most 32.
    pub(crate) data: Option<&'a [u8]>,
}

/// What came of a CQE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Posted {
    Quiet,
    /// Software asked for an event.
    Event,
    /// The queue is full: the CQE is lost.
    Overrun,
}

#[derive(Clone, Debug)]
pub(crate) struct Cq {
    pub(crate) attributes: CqAttributes,
    /// CQEs since the start.
    pub(crate) produced: u64,
    pub(crate) armed: Option<CqArm>,
    pub(crate) failed: bool,
}

/// Format of a CQE whose first 32 octets are data.
const INLINE_32: u8 = 1;

impl Cq {
    pub(crate) const fn new(attributes: CqAttributes) -> Self {
        Self {
            attributes,
            produced: 0,
            armed: None,
            failed: false,
        }
    }

    /// Whether a WAIT for this CQE is over.
    pub(crate) const fn reached(&self, index: CqeIndex) -> bool {
        index.is_reached(self.produced)
    }

    fn index(&self) -> CqeIndex {
        let [.., a, b, c] = self.produced.to_be_bytes();
        CqeIndex::truncate(u32::from_be_bytes([0, a, b, c]))
    }

    /// CQEs that software has not said it read.
    fn unread(&self, memory: &Memory) -> u32 {
        let mut record = [0; CqDoorbell::LEN];
        if memory.read(self.attributes.doorbell, &mut record).is_err() {
            return 0;
        }
        let consumer = CqDoorbell::decode(&record).consumer;
        CqeIndex::truncate(self.index().get().wrapping_sub(consumer.get())).get()
    }

    pub(crate) fn post(&mut self, memory: &Memory, report: &Report<'_>) -> Posted {
        let size = 1_u32
            .checked_shl(u32::from(self.attributes.log_size))
            .unwrap_or(u32::MAX);
        let full = !self.attributes.overrun_ignored && self.unread(memory) >= size;
        if self.failed || full {
            self.failed = true;
            return Posted::Overrun;
        }
        let owner = owner_of(self.index().get(), self.attributes.log_size);
        let octets = report.encode(owner, self.produced);
        let place = self.produced % u64::from(size) * Cqe::LEN as u64;
        let at = self.attributes.ring.plus(place);
        // The queue was checked to lie in memory when it was made; memory in use is not taken away.
        let written = memory.write(at, &octets);
        debug_assert!(written.is_ok());
        self.produced = self.produced.wrapping_add(1);
        let wanted = report.solicited || report.syndrome.is_some();
        match self.armed {
            Some(how) if wanted || !how.solicited_only => {
                self.armed = None;
                Posted::Event
            }
            _ => Posted::Quiet,
        }
    }
}

impl Report<'_> {
    fn encode(&self, owner: bool, time: u64) -> [u8; Cqe::LEN] {
        let op_own = OpOwn {
            format: if self.data.is_some() { INLINE_32 } else { 0 },
            solicited: self.solicited,
            ..OpOwn::new(self.opcode, owner)
        };
        let cqe = match self.syndrome {
            Some(syndrome) => Cqe::Failed(Failed {
                srqn: 0,
                vendor_syndrome: 0,
                syndrome,
                send_opcode: self.send_opcode,
                qpn: self.qpn,
                wqe_counter: self.wqe_counter,
                signature: 0,
                op_own,
            }),
            None => Cqe::Completed(Completed {
                wqe_id: 0,
                ml_path: 0,
                slid: 0,
                flags_rqpn: 0,
                srqn_uidx: 0,
                immediate: self.immediate,
                byte_count: self.byte_count,
                timestamp: time,
                send_opcode: self.send_opcode,
                qpn: self.qpn,
                wqe_counter: self.wqe_counter,
                signature: 0,
                op_own,
            }),
        };
        let mut octets = cqe.encode();
        for (to, from) in octets.iter_mut().zip(self.data.into_iter().flatten()) {
            *to = *from;
        }
        octets
    }
}
