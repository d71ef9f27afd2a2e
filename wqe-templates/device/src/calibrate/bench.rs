//! Queue pairs to ask with: connected to themselves, with a ring of 64 basic blocks and a completion queue each.

use crate::target::create_cq;
use crate::{
    CqReader, Device, Domain, KeyAttributes, Layout, Master, MemoryId, Peer, PeerAccess, Place,
    QpAttributes, Roles, SetUpError,
};
use kbtp_memory::{PageOptions, Region};
use kbtp_mlx5::limits::BASIC_BLOCK;
use kbtp_mlx5::{
    AccessRights, Body, Control, Cqe, Cqn, DataSegment, Mkey, Opcode, QpDoorbell, Qpn,
    RemoteAddress, Signal, WqeBuffer, WqeIndex,
};

/// Log2 of the basic blocks of a ring, and of its CQEs.
const LOG: u8 = 6;
/// Octets of a queue pair's part of memory: receive WQEs, ring, CQEs, doorbell records.
const PART: u64 = 16 << 10;
const RING: u64 = 1 << (LOG + LOG_STRIDE);
/// Log2 of the octets of a receive WQE.
const LOG_STRIDE: u8 = 4;
const CQES: u64 = 8 << 10;
const DOORBELL: u64 = 12 << 10;
const CQ_DOORBELL: u64 = DOORBELL + 64;
/// The most queue pairs.
const PARTS: u64 = 48;
/// Where data lies.
pub(super) const DATA: u64 = PARTS * PART;
const DATA_LEN: u64 = 64 << 10;

/// All rights that queues have.
const RIGHTS: AccessRights = AccessRights::LOCAL_READ
    .with(AccessRights::LOCAL_WRITE)
    .with(AccessRights::REMOTE_READ)
    .with(AccessRights::REMOTE_WRITE)
    .with(AccessRights::ATOMIC);

/// A queue pair, as software has it.
pub(super) struct Pair {
    pub(super) qpn: Qpn,
    pub(super) cqn: Cqn,
    cq: CqReader,
    base: u64,
    pub(super) posted: u64,
    managed: bool,
    /// The first octets of the last control segment.
    last: [u8; 8],
}

/// Where questions are asked.
pub(super) struct Bench<'a, D: Device> {
    pub(super) device: &'a mut D,
    wait: &'a mut dyn FnMut(&mut D) -> bool,
    pub(super) region: Region,
    memory: MemoryId,
    pub(super) domain: Domain,
    /// All of memory; addresses are offsets.
    pub(super) key: Mkey,
    master: Master,
    made: Vec<(Qpn, Cqn)>,
    keys: Vec<Mkey>,
}

/// Why a question has no answer.
pub(super) type Why = String;

pub(super) fn why(error: impl core::error::Error) -> Why {
    error.to_string()
}

impl<'a, D: Device> Bench<'a, D> {
    pub(super) fn new(
        device: &'a mut D,
        wait: &'a mut dyn FnMut(&mut D) -> bool,
    ) -> Result<Self, SetUpError<D::Error>> {
        let len = DATA + DATA_LEN;
        let region = Region::anonymous(len, &PageOptions::default())?;
        let memory = device
            .register(&region)
            .map_err(SetUpError::device("memory to calibrate with"))?;
        let domain = device
            .create_domain()
            .map_err(SetUpError::device("a protection domain"))?;
        let layout = Layout::Plain(Place { memory, offset: 0 });
        let key = device
            .create_key(&KeyAttributes::new(domain, RIGHTS, 0, len, layout))
            .map_err(SetUpError::device("a key to calibrate with"))?;
        let master = Master::create(device, domain)?;
        Ok(Self {
            device,
            wait,
            region,
            memory,
            domain,
            key,
            master,
            made: Vec::new(),
            keys: Vec::new(),
        })
    }

    /// A queue pair that is connected to itself.
    pub(super) fn pair(&mut self, roles: Roles) -> Result<Pair, Why> {
        let base = self.made.len() as u64 * PART;
        if base >= DATA {
            return Err("too many queue pairs".to_owned());
        }
        let memory = self.memory;
        let at = |offset| Place {
            memory,
            offset: base + offset,
        };
        let (ring, doorbell) = (at(CQES), at(CQ_DOORBELL));
        let cqn = create_cq(self.device, &self.region, ring, doorbell, LOG).map_err(why)?;
        let attributes = QpAttributes {
            domain: self.domain,
            send_cq: cqn,
            receive_cq: cqn,
            send_ring: at(RING),
            log_send: LOG,
            receive_ring: at(0),
            log_receive: LOG,
            log_stride: LOG_STRIDE,
            doorbell: at(DOORBELL),
            roles,
            access: PeerAccess::ALL,
            log_message: 20,
            rnr_retry: crate::limits::RNR_RETRY,
            max_reads: crate::limits::MAX_READS,
        };
        let qpn = self.device.create_qp(&attributes).map_err(why)?;
        self.made.push((qpn, cqn));
        self.device.connect(qpn, &Peer::Local(qpn)).map_err(why)?;
        Ok(Pair {
            qpn,
            cqn,
            cq: CqReader::new(self.region.clone(), base + CQES, LOG, None),
            base,
            posted: 0,
            managed: roles.managed_send,
            last: [0; 8],
        })
    }

    /// Puts a WQE at the end of a ring; NOPs before it where it would lie across the end. `change` has the last word on its
    /// control segment.
    pub(super) fn post(
        &mut self,
        pair: &mut Pair,
        opcode: Opcode,
        body: &Body<'_>,
        change: &dyn Fn(&mut Control),
    ) -> Result<(), Why> {
        let blocks = 1_u64 << LOG;
        let index = |posted: u64| {
            let [.., high, low] = posted.to_be_bytes();
            WqeIndex(u16::from_be_bytes([high, low]))
        };
        let mut control = Control::new(opcode, pair.qpn, index(pair.posted));
        if let Body::Atomic(_, atomic, _) = body {
            control.modifier = atomic.modifier();
        }
        let wqe = WqeBuffer::encode(&control, body).map_err(why)?;
        let size = wqe.basic_blocks() as u64;
        while pair.posted % blocks + size > blocks {
            self.post(pair, Opcode::Nop, &Body::Ignored(&[]), &|_| {})?;
        }
        control.index = index(pair.posted);
        change(&mut control);
        let wqe = WqeBuffer::encode(&control, body).map_err(why)?;
        let at = pair.base + RING + pair.posted % blocks * BASIC_BLOCK as u64;
        self.region.write(at, wqe.as_octets()).map_err(why)?;
        pair.last = wqe.as_octets().first_chunk().copied().unwrap_or_default();
        pair.posted += size;
        Ok(())
    }

    /// The same, signalled and as it is.
    pub(super) fn signalled(
        &mut self,
        pair: &mut Pair,
        opcode: Opcode,
        body: &Body<'_>,
    ) -> Result<(), Why> {
        self.post(pair, opcode, body, &|control| {
            control.signal = Signal::Always;
        })
    }

    /// A NOP that writes a CQE.
    pub(super) fn nop(&mut self, pair: &mut Pair) -> Result<(), Why> {
        self.signalled(pair, Opcode::Nop, &Body::Ignored(&[]))
    }

    /// Lets everything that was posted run.
    pub(super) fn go(&mut self, pair: &Pair) -> Result<(), Why> {
        self.run_to(pair, pair.posted)
    }

    /// Lets what was posted run up to a basic block: by the doorbell, or by `SEND_EN` if the queue is managed.
    pub(super) fn run_to(&mut self, pair: &Pair, block: u64) -> Result<(), Why> {
        let [.., high, low] = block.to_be_bytes();
        let send = WqeIndex(u16::from_be_bytes([high, low]));
        let record = QpDoorbell { receive: 0, send }.encode();
        self.device.barrier();
        let at = pair.base + DOORBELL;
        self.region.write(at, &record).map_err(why)?;
        self.device.barrier();
        if !pair.managed {
            let rung = self.device.ring_send(pair.qpn, pair.last);
            return rung.map_err(why);
        }
        loop {
            let enabled = self.master.enable(self.device, pair.qpn, send);
            if enabled.map_err(why)? {
                return Ok(());
            }
            if !(self.wait)(self.device) {
                return Err("SEND_ENs do not complete".to_owned());
            }
        }
    }

    /// The next CQE; `None` if none comes.
    pub(super) fn next(&mut self, pair: &mut Pair) -> Option<Cqe> {
        loop {
            if let Some(cqe) = pair.cq.next() {
                return Some(cqe);
            }
            if !(self.wait)(self.device) {
                return pair.cq.next();
            }
        }
    }

    /// The next CQE, of a WQE that succeeded.
    pub(super) fn done(&mut self, pair: &mut Pair) -> Result<(), Why> {
        match self.next(pair) {
            Some(Cqe::Completed(_)) => Ok(()),
            Some(Cqe::Failed(failed)) => Err(format!("syndrome {:#04x}", failed.syndrome.0)),
            None => Err("no CQE came".to_owned()),
        }
    }

    /// That no CQE comes, however long one waits.
    pub(super) fn nothing(&mut self, pair: &mut Pair, what: &str) -> Result<(), Why> {
        match self.next(pair) {
            None => Ok(()),
            Some(_) => Err(what.to_owned()),
        }
    }

    /// Waits as long as one waits.
    pub(super) fn idle(&mut self) {
        while (self.wait)(self.device) {}
    }

    /// A key that is made of the one over all of memory.
    pub(super) fn key_of(&mut self, start: u64, len: u64, layout: Layout<'_>) -> Result<Mkey, Why> {
        let rights = AccessRights::REMOTE_READ;
        let attributes = KeyAttributes::new(self.domain, rights, start, len, layout);
        let key = self.device.create_key(&attributes).map_err(why)?;
        self.keys.push(key);
        Ok(key)
    }

    /// `len` octets of data from `at` on, to gather from or scatter to.
    pub(super) fn local(&self, at: u64, len: u32) -> Result<DataSegment, Why> {
        DataSegment::new(len, self.key, DATA + at).ok_or_else(|| "no octets".to_owned())
    }

    /// Data from `at` on, at the responder.
    pub(super) const fn remote(&self, at: u64) -> RemoteAddress {
        RemoteAddress {
            address: DATA + at,
            rkey: self.key,
        }
    }

    pub(super) fn put(&self, at: u64, octets: &[u8]) -> Result<(), Why> {
        self.region.write(DATA + at, octets).map_err(why)
    }

    pub(super) fn get<const N: usize>(&self, at: u64) -> Result<[u8; N], Why> {
        let mut octets = [0; N];
        self.region.read(DATA + at, &mut octets).map_err(why)?;
        Ok(octets)
    }

    /// Gives everything back that can be. What a device keeps it keeps until it is closed.
    pub(super) fn end(mut self) {
        let mut kept = 0_usize;
        for (qpn, cqn) in self.made.drain(..) {
            kept += usize::from(self.device.destroy_qp(qpn).is_err());
            kept += usize::from(self.device.destroy_cq(cqn).is_err());
        }
        for key in self.keys.drain(..).rev().chain([self.key]) {
            kept += usize::from(self.device.destroy_key(key).is_err());
        }
        kept += usize::from(self.device.unregister(self.memory).is_err());
        debug_assert_eq!(kept, 0, "objects that could not be destroyed");
    }
}
