//! Queue pairs with nothing on them: a test writes WQEs and looks at what comes.

use kbtp_device::{
    CqAttributes, CqReader, Device, Domain, KeyAttributes, Layout, MemoryId, Peer, PeerAccess,
    Place, QpAttributes, Roles,
};
use kbtp_memory::{PageOptions, Region};
use kbtp_mlx5::{
    AccessRights, Body, Control, Cqe, Cqn, DataList, DataSegment, Mkey, Opcode, Payload,
    QpDoorbell, Qpn, RemoteAddress, Signal, Syndrome, WqeBuffer, WqeIndex, encode_receive,
};
use kbtp_nic_model::{Hazards, Model, ModelError, Schedule};

/// Octets of a queue's part of memory.
const PART: u64 = 1 << 16;
const RECEIVES: u64 = 0;
/// Right behind sixteen receive WQEs.
const RING: u64 = RECEIVES + (1 << (LOG_RECEIVES + LOG_STRIDE));
const SEND_CQES: u64 = 2 << 14;
const RECEIVE_CQES: u64 = (2 << 14) + (1 << 13);
const DOORBELLS: u64 = 3 << 14;
/// Where data lies: behind the parts of four queue pairs.
pub(crate) const DATA: u64 = 4 * PART;
pub(crate) const DATA_LEN: u64 = 1 << 16;
const LOG_CQ: u8 = 6;
pub(crate) const LOG_SEND: u8 = 6;
const LOG_STRIDE: u8 = 6;
const LOG_RECEIVES: u8 = 4;

pub(crate) struct Bare {
    pub(crate) model: Model,
    pub(crate) region: Region,
    pub(crate) memory: MemoryId,
    pub(crate) domain: Domain,
    /// All of memory, with all rights; addresses are offsets.
    pub(crate) all: Mkey,
}

/// A queue pair, as software sees it.
pub(crate) struct Pair {
    pub(crate) qpn: Qpn,
    pub(crate) send_cqn: Cqn,
    pub(crate) sends: CqReader,
    pub(crate) receives: CqReader,
    base: u64,
    posted: u64,
    received: u16,
}

pub(crate) const ALL: AccessRights = AccessRights::LOCAL_READ
    .with(AccessRights::LOCAL_WRITE)
    .with(AccessRights::REMOTE_READ)
    .with(AccessRights::REMOTE_WRITE)
    .with(AccessRights::ATOMIC)
    .with(AccessRights::UMR);

pub(crate) const MASTER: Roles = Roles {
    master: true,
    managed_send: false,
    managed_receive: false,
};

pub(crate) const MANAGED: Roles = Roles {
    master: false,
    managed_send: true,
    managed_receive: false,
};

impl Bare {
    pub(crate) fn new(hazards: Hazards, schedule: Schedule) -> Self {
        let mut model = Model::new(hazards, schedule, 1);
        let len = DATA + DATA_LEN;
        let region = Region::anonymous(len, &PageOptions::default()).unwrap();
        let memory = model.register(&region).unwrap();
        let domain = model.create_domain().unwrap();
        let layout = Layout::Plain(Place { memory, offset: 0 });
        let all = KeyAttributes::new(domain, ALL, 0, len, layout);
        let all = model.create_key(&all).unwrap();
        Self {
            model,
            region,
            memory,
            domain,
            all,
        }
    }

    pub(crate) fn eager() -> Self {
        Self::new(Hazards::default(), Schedule::Eager)
    }

    pub(crate) const fn place(&self, offset: u64) -> Place {
        Place {
            memory: self.memory,
            offset,
        }
    }

    pub(crate) fn key(&mut self, rights: AccessRights, start: u64, len: u64, at: u64) -> Mkey {
        let layout = Layout::Plain(self.place(at));
        let attributes = KeyAttributes::new(self.domain, rights, start, len, layout);
        self.model.create_key(&attributes).unwrap()
    }

    pub(crate) fn attributes(&mut self, number: u64, overrun_ignored: bool) -> QpAttributes {
        let base = number * PART;
        let mut cq = |ring, doorbell| {
            for cqe in 0..1 << LOG_CQ {
                self.region
                    .write(base + ring + cqe * 64 + 63, &[0xf0])
                    .unwrap();
            }
            let attributes = CqAttributes {
                ring: Place {
                    memory: self.memory,
                    offset: base + ring,
                },
                log_size: LOG_CQ,
                doorbell: Place {
                    memory: self.memory,
                    offset: base + DOORBELLS + doorbell,
                },
                overrun_ignored,
            };
            self.model.create_cq(&attributes).unwrap()
        };
        let (send_cq, receive_cq) = (cq(SEND_CQES, 64), cq(RECEIVE_CQES, 128));
        QpAttributes {
            domain: self.domain,
            send_cq,
            receive_cq,
            send_ring: self.place(base + RING),
            log_send: LOG_SEND,
            receive_ring: self.place(base + RECEIVES),
            log_receive: LOG_RECEIVES,
            log_stride: LOG_STRIDE,
            doorbell: self.place(base + DOORBELLS),
            roles: MASTER,
            access: PeerAccess::ALL,
            log_message: 16,
            rnr_retry: 7,
            max_reads: 16,
        }
    }

    pub(crate) fn make(&mut self, number: u64, attributes: &QpAttributes) -> Pair {
        let qpn = self.model.create_qp(attributes).unwrap();
        let base = number * PART;
        let reader = |at, doorbell| CqReader::new(self.region.clone(), at, LOG_CQ, Some(doorbell));
        Pair {
            qpn,
            send_cqn: attributes.send_cq,
            sends: reader(base + SEND_CQES, base + DOORBELLS + 64),
            receives: reader(base + RECEIVE_CQES, base + DOORBELLS + 128),
            base,
            posted: 0,
            received: 0,
        }
    }

    /// A queue pair connected to itself.
    pub(crate) fn looped(&mut self, number: u64, roles: Roles) -> Pair {
        let attributes = QpAttributes {
            roles,
            ..self.attributes(number, true)
        };
        let pair = self.make(number, &attributes);
        self.model
            .connect(pair.qpn, &Peer::Local(pair.qpn))
            .unwrap();
        pair
    }

    /// Two connected to each other.
    pub(crate) fn two(&mut self) -> (Pair, Pair) {
        let one = self.attributes(0, true);
        let one = self.make(0, &one);
        let other = self.attributes(1, true);
        let other = self.make(1, &other);
        self.model
            .connect(one.qpn, &Peer::Local(other.qpn))
            .unwrap();
        self.model
            .connect(other.qpn, &Peer::Local(one.qpn))
            .unwrap();
        (one, other)
    }

    pub(crate) fn run(&mut self) {
        assert!(self.model.run(10_000).is_some(), "it does not come to rest");
    }

    pub(crate) fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut octets = vec![0; len];
        self.region.read(DATA + at, &mut octets).unwrap();
        octets
    }

    pub(crate) fn write(&self, at: u64, octets: &[u8]) {
        self.region.write(DATA + at, octets).unwrap();
    }

    /// A data segment under the key of everything.
    pub(crate) fn piece(&self, at: u64, len: u32) -> DataSegment {
        DataSegment::new(len, self.all, DATA + at).unwrap()
    }

    pub(crate) const fn remote(&self, at: u64) -> RemoteAddress {
        RemoteAddress {
            address: DATA + at,
            rkey: self.all,
        }
    }

    pub(crate) fn ring(&mut self, pair: &Pair) -> Result<(), ModelError> {
        self.model.ring_send(pair.qpn, [0; 8])
    }

    /// Runs one WQE to its end: its CQE.
    pub(crate) fn once(&mut self, pair: &mut Pair, control: Control, body: &Body<'_>) -> Cqe {
        pair.post(&self.region, control, body);
        self.ring(pair).unwrap();
        self.run();
        pair.sends.next().expect("a CQE")
    }
}

impl Pair {
    pub(crate) fn control(&self, opcode: Opcode) -> Control {
        let [.., high, low] = self.posted.to_be_bytes();
        let index = WqeIndex(u16::from_be_bytes([high, low]));
        let mut control = Control::new(opcode, self.qpn, index);
        control.signal = Signal::Always;
        control
    }

    pub(crate) const fn posted(&self) -> u64 {
        self.posted
    }

    pub(crate) fn set_posted(&mut self, posted: u64) {
        self.posted = posted;
    }

    /// Where basic block `block` lies.
    pub(crate) const fn block(&self, block: u64) -> u64 {
        self.base + RING + block % (1 << LOG_SEND) * 64
    }

    /// Writes a WQE and the doorbell record; gives where it lies.
    pub(crate) fn post(&mut self, region: &Region, control: Control, body: &Body<'_>) -> u64 {
        let wqe = WqeBuffer::encode(&control, body).unwrap();
        let at = self.put(region, wqe.as_octets());
        self.record(region);
        at
    }

    /// Writes a WQE's octets.
    pub(crate) fn put(&mut self, region: &Region, octets: &[u8]) -> u64 {
        let at = self.block(self.posted);
        region.write(at, octets).unwrap();
        self.posted += octets.len().div_ceil(64) as u64;
        at
    }

    /// Writes the doorbell record.
    pub(crate) fn record(&self, region: &Region) {
        let [.., high, low] = self.posted.to_be_bytes();
        let record = QpDoorbell {
            receive: self.received,
            send: WqeIndex(u16::from_be_bytes([high, low])),
        };
        region
            .write(self.base + DOORBELLS, &record.encode())
            .unwrap();
    }

    /// Posts a receive WQE.
    pub(crate) fn receive(&mut self, region: &Region, list: &[DataSegment]) {
        let mut stride = [0; 1 << LOG_STRIDE];
        encode_receive(&mut stride, list).unwrap();
        let at = self.base + RECEIVES + u64::from(self.received % 16) * 64;
        region.write(at, &stride).unwrap();
        self.received = self.received.wrapping_add(1);
        self.record(region);
    }
}

/// That it failed, and why.
pub(crate) fn failed(cqe: &Cqe) -> Syndrome {
    match cqe {
        Cqe::Failed(failed) => failed.syndrome,
        Cqe::Completed(completed) => panic!("{completed:?}"),
    }
}

pub(crate) fn done(cqe: &Cqe) -> kbtp_mlx5::Completed {
    match cqe {
        Cqe::Completed(completed) => *completed,
        Cqe::Failed(failed) => panic!("{failed:?}"),
    }
}

pub(crate) fn list(segments: &[DataSegment]) -> Payload<'_> {
    Payload::List(DataList::new(segments))
}
