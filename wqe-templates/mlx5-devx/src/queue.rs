//! Completion queues and queue pairs.
//! Source: rdma-core, `providers/mlx5/mlx5_ifc.h` (`create_qp_in`, `qpc`, `ads`) and `dr_send.c` (what an RC queue pair needs at
//! each step); DPDK, `drivers/common/mlx5/mlx5_prm.h` (`create_cq_in`, `cqc`).

use crate::bits::Bits;
use crate::command::{Command, Opcode};
use kbtp_mlx5::{Cqn, Qpn};

/// Somewhere in memory that the device knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InUmem {
    /// The memory.
    pub umem: u32,
    /// Octets from its start.
    pub offset: u64,
}

/// A completion queue of 64-octet CQEs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompletionQueue {
    /// Its first CQE, at the start of a page.
    pub ring: InUmem,
    /// Log2 of its CQEs.
    pub log_size: u8,
    /// Its doorbell record.
    pub doorbell: InUmem,
    /// Where it is armed.
    pub uar: u32,
    /// Where its events go.
    pub eqn: u8,
    /// Whether CQEs may be overwritten that software did not say it read.
    pub overrun_ignored: bool,
}

const CQ_LEN: usize = 0x880 / 8;

impl CompletionQueue {
    /// `CREATE_CQ`. CQEs are whole: compression stays off.
    #[must_use]
    pub fn create(&self) -> Command {
        const fn context(at: u16, len: u8) -> Bits {
            Bits::new(at, len).behind(0x80)
        }
        let mut command = Command::new(Opcode::CreateCq, CQ_LEN);
        command.set(context(0x06, 1), 1_u8);
        command.set(context(0x0e, 1), u8::from(self.overrun_ignored));
        command.set(context(0x20, 32), self.doorbell.umem);
        command.set(context(0x63, 5), self.log_size);
        command.set(context(0x68, 24), self.uar);
        command.set(context(0xb8, 8), self.eqn);
        command.set(context(0x1c0, 64), self.doorbell.offset);
        command.set(Bits::new(0x280, 64), self.ring.offset);
        command.set(Bits::new(0x2c0, 32), self.ring.umem);
        command.set(Bits::new(0x2e0, 1), 1_u8);
        command
    }
}

/// An RC queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueuePair {
    /// Protection domain.
    pub domain: u32,
    /// Where sends complete.
    pub send_cq: Cqn,
    /// Where receives complete.
    pub receive_cq: Cqn,
    /// Its first receive WQE, at the start of a page; the send queue lies right behind the receive queue.
    pub rings: InUmem,
    /// Log2 of the basic blocks of the send queue.
    pub log_send: u8,
    /// Log2 of the receive WQEs.
    pub log_receive: u8,
    /// Log2 of the octets of a receive WQE, at least 4.
    pub log_stride: u8,
    /// Its doorbell record.
    pub doorbell: InUmem,
    /// Where it is rung.
    pub uar: u32,
    /// It may hold WAIT and `SEND_EN`.
    pub master: bool,
    /// It runs by `SEND_EN`.
    pub managed_send: bool,
    /// It receives by `RCV_EN`.
    pub managed_receive: bool,
}

const QP_LEN: usize = 0x880 / 8;
/// Where the queue pair's context starts, in all commands that have one.
const QPC: u16 = 0xc0;

const fn qpc(at: u16, len: u8) -> Bits {
    Bits::new(at, len).behind(QPC)
}

/// Kind of service: RC.
const RELIABLE: u8 = 0;
/// It goes from path to path at once.
const MIGRATED: u8 = 3;

const STATE_AND_SERVICE: Bits = qpc(0x08, 8);
const PATH_STATE: Bits = qpc(0x13, 2);
const DOMAIN: Bits = qpc(0x28, 24);
const MTU: Bits = qpc(0x40, 3);
const LOG_MESSAGE: Bits = qpc(0x43, 5);
const LOG_RECEIVE: Bits = qpc(0x49, 4);
const LOG_STRIDE: Bits = qpc(0x4d, 3);
const LOG_SEND: Bits = qpc(0x51, 4);
const UAR: Bits = qpc(0x68, 24);
const USER_INDEX: Bits = qpc(0x88, 24);
const REMOTE_QPN: Bits = qpc(0xa8, 24);
const PATH: u16 = 0xc0;
const LOG_READS_OUT: Bits = qpc(0x388, 3);
const RETRIES: Bits = qpc(0x38d, 3);
const RNR_RETRIES: Bits = qpc(0x390, 3);
const SEND_PSN: Bits = qpc(0x3c8, 24);
const SEND_CQ: Bits = qpc(0x3e8, 24);
const LOG_READS_IN: Bits = qpc(0x488, 3);
const ATOMIC_MODE: Bits = qpc(0x48c, 4);
const REMOTE_READ: Bits = qpc(0x490, 1);
const REMOTE_WRITE: Bits = qpc(0x491, 1);
const REMOTE_ATOMIC: Bits = qpc(0x492, 1);
const MANAGED_RECEIVE: Bits = qpc(0x49d, 1);
const MANAGED_SEND: Bits = qpc(0x49e, 1);
const MASTER: Bits = qpc(0x49f, 1);
const RNR_TIMER: Bits = qpc(0x4a3, 5);
const RECEIVE_PSN: Bits = qpc(0x4a8, 24);
const RECEIVE_CQ: Bits = qpc(0x4e8, 24);
const DOORBELL_AT: Bits = qpc(0x500, 64);
const DATA_IN_CQE_REQUEST: Bits = qpc(0x630, 8);
const DATA_IN_CQE_RESPONSE: Bits = qpc(0x638, 8);
const DOORBELL_VALID: Bits = qpc(0x683, 1);
const DOORBELL_UMEM: Bits = qpc(0x720, 32);

impl QueuePair {
    /// `CREATE_QP`. No data in CQEs.
    #[must_use]
    pub fn create(&self) -> Command {
        let mut command = Command::new(Opcode::CreateQp, QP_LEN);
        command.set(STATE_AND_SERVICE, RELIABLE);
        command.set(PATH_STATE, MIGRATED);
        command.set(DOMAIN, self.domain);
        command.set(LOG_RECEIVE, self.log_receive);
        command.set(LOG_STRIDE, self.log_stride.saturating_sub(4));
        command.set(LOG_SEND, self.log_send);
        command.set(UAR, self.uar);
        // CQEs of version 0 name no user's index: all ones.
        command.set(USER_INDEX, 0x00ff_ffff_u32);
        command.set(SEND_CQ, self.send_cq.get());
        command.set(RECEIVE_CQ, self.receive_cq.get());
        command.set(MANAGED_RECEIVE, u8::from(self.managed_receive));
        command.set(MANAGED_SEND, u8::from(self.managed_send));
        command.set(MASTER, u8::from(self.master));
        command.set(DATA_IN_CQE_REQUEST, 0_u8);
        command.set(DATA_IN_CQE_RESPONSE, 0_u8);
        command.set(DOORBELL_VALID, 1_u8);
        command.set(DOORBELL_UMEM, self.doorbell.umem);
        command.set(DOORBELL_AT, self.doorbell.offset);
        command.set(Bits::new(0x800, 64), self.rings.offset);
        command.set(Bits::new(0x840, 32), self.rings.umem);
        command.set(Bits::new(0x860, 1), 1_u8);
        command
    }
}

/// Whom a queue pair is connected to, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    /// The queue pair.
    pub qpn: Qpn,
    /// Its peer.
    pub peer: Qpn,
    /// The peer's address.
    pub gid: [u8; 16],
    /// The peer's hardware address (`RoCE`).
    pub mac: [u8; 6],
    /// Which of the port's own addresses.
    pub gid_index: u8,
    /// The port, from 1.
    pub port: u8,
    /// Code of the MTU: 3 for 1024 octets, 5 for 4096.
    pub mtu: u8,
    /// Packets stay in the device: it is its own peer.
    pub loopback: bool,
    /// Number of the first packet to the peer.
    pub send_psn: u32,
    /// Number of the peer's first packet.
    pub receive_psn: u32,
    /// Log2 of the longest message.
    pub log_message: u8,
    /// Log2 of the reads and atomics that may be outstanding to the peer.
    pub log_reads_out: u8,
    /// The same from the peer.
    pub log_reads_in: u8,
    /// Routers that packets pass at most.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Retries while the peer has no receive WQE; 7 for ever.
    pub rnr_retry: u8,
    /// What the peer may do: read, write, atomics.
    pub access: [bool; 3],
}

/// Masked atomics of all sizes.
const ATOMICS_EXTENDED: u8 = 3;
/// Some 0.64 ms between retries of a peer that is not ready.
const RNR_TIMER_CODE: u8 = 12;
/// Retries of a packet, and their interval: 4.096 us times 2^14.
const RETRY_COUNT: u8 = 7;
const ACK_TIMEOUT: u8 = 14;

impl Connection {
    fn command(&self, opcode: Opcode) -> Command {
        Command::about(opcode, self.qpn.get(), QP_LEN)
    }

    fn path(command: &mut Command, at: u16, len: u8, value: impl Into<u64>) {
        command.set(Bits::new(at, len).behind(QPC + PATH), value);
    }

    /// `RST2INIT_QP`: what peers may do, and through which port.
    #[must_use]
    pub fn to_init(&self) -> Command {
        let mut command = self.command(Opcode::Rst2Init);
        command.set(PATH_STATE, MIGRATED);
        self.set_access(&mut command);
        Self::path(&mut command, 0x128, 8, self.port);
        command
    }

    /// The UDP port that packets of RoCE version 2 come from, of those that are set apart for it: another for each pair of
    /// queue pairs, so that networks spread them.
    fn udp_source(&self) -> u16 {
        let [.., high, low] = (self.qpn.get() ^ self.peer.get().rotate_left(7)).to_be_bytes();
        0xc000 | u16::from_be_bytes([high, low])
    }

    fn set_access(&self, command: &mut Command) {
        let [read, write, atomic] = self.access;
        command.set(REMOTE_READ, u8::from(read));
        command.set(REMOTE_WRITE, u8::from(write));
        command.set(REMOTE_ATOMIC, u8::from(atomic));
        command.set(ATOMIC_MODE, if atomic { ATOMICS_EXTENDED } else { 0 });
    }

    /// `INIT2RTR_QP`: the peer, and what comes from it.
    #[must_use]
    pub fn to_ready_to_receive(&self) -> Command {
        let mut command = self.command(Opcode::Init2Rtr);
        command.set(MTU, self.mtu);
        command.set(LOG_MESSAGE, self.log_message);
        command.set(REMOTE_QPN, self.peer.get());
        command.set(RECEIVE_PSN, self.receive_psn);
        command.set(LOG_READS_IN, self.log_reads_in);
        command.set(RNR_TIMER, RNR_TIMER_CODE);
        self.set_access(&mut command);
        Self::path(&mut command, 0x00, 1, u8::from(self.loopback));
        Self::path(&mut command, 0x28, 1, 1_u8);
        Self::path(&mut command, 0x48, 8, self.gid_index);
        Self::path(&mut command, 0x58, 8, self.hop_limit);
        Self::path(&mut command, 0x64, 8, self.traffic_class);
        Self::path(&mut command, 0x110, 16, self.udp_source());
        let mac = usize::from((QPC + PATH + 0x130) / 8);
        command.put(mac, &self.mac);
        Self::path(&mut command, 0x128, 8, self.port);
        let gid = usize::from((QPC + PATH + 0x80) / 8);
        command.put(gid, &self.gid);
        command
    }

    /// `RTR2RTS_QP`: what goes to the peer.
    #[must_use]
    pub fn to_ready_to_send(&self) -> Command {
        let mut command = self.command(Opcode::Rtr2Rts);
        command.set(LOG_READS_OUT, self.log_reads_out);
        command.set(RETRIES, RETRY_COUNT);
        command.set(RNR_RETRIES, self.rnr_retry);
        command.set(SEND_PSN, self.send_psn);
        Self::path(&mut command, 0x40, 5, ACK_TIMEOUT);
        command
    }
}

/// `2ERR_QP`.
#[must_use]
pub fn to_error(qpn: Qpn) -> Command {
    Command::about(Opcode::ToError, qpn.get(), 16)
}

/// `2RST_QP`.
#[must_use]
pub fn to_reset(qpn: Qpn) -> Command {
    Command::about(Opcode::ToReset, qpn.get(), 16)
}

/// `QUERY_QP`.
#[must_use]
pub fn query(qpn: Qpn) -> Command {
    Command::about(Opcode::QueryQp, qpn.get(), 16)
}

/// Octets of the answer.
pub const QUERY_ANSWER: usize = 0x880 / 8;

/// What a queue pair has come to: its state (0 reset, 1 to 3 up to ready to send, 6 error), and basic blocks that the device
/// has run.
#[must_use]
pub fn progress(answer: &[u8]) -> (u8, u16) {
    let state = qpc(0x00, 4).get(answer);
    let run = qpc(0x5a0, 16).get(answer);
    (
        u8::try_from(state).unwrap_or(u8::MAX),
        u16::try_from(run).unwrap_or(0),
    )
}
