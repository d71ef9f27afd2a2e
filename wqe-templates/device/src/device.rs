//! The device: what software asks of it beside what it writes to memory.

use kbtp_memory::Region;
use kbtp_mlx5::limits::BASIC_BLOCK;
use kbtp_mlx5::{AccessRights, CqArm, Cqn, Klm, KsmEntry, Mkey, Qpn, RepeatEntry};

/// A protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Domain(pub u32);

/// Memory that a device knows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MemoryId(pub u32);

/// An octet of memory that a device knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Which memory.
    pub memory: MemoryId,
    /// Octets from its start.
    pub offset: u64,
}

impl Place {
    /// The octet `octets` further on.
    #[must_use]
    pub const fn plus(self, octets: u64) -> Self {
        Self {
            memory: self.memory,
            offset: self.offset.saturating_add(octets),
        }
    }
}

/// What the octets of a key are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout<'a> {
    /// Memory from a place on.
    Plain(Place),
    /// Entries, again and again: each a stride further at every repetition.
    Repeat {
        /// How many repetitions.
        repetitions: u32,
        /// The entries of one.
        entries: &'a [RepeatEntry],
    },
    /// Pieces of other keys, one after the other.
    List(&'a [Klm]),
    /// Pieces of other keys, each of 2^`log_size` octets.
    Equal {
        /// Log2 of a piece's octets.
        log_size: u8,
        /// The pieces.
        entries: &'a [KsmEntry],
    },
}

/// A key to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyAttributes<'a> {
    /// Its protection domain.
    pub domain: Domain,
    /// What it allows. Keys that it is made of must allow it too.
    pub rights: AccessRights,
    /// Its first address.
    pub start: u64,
    /// Its octets.
    pub len: u64,
    /// What they are.
    pub layout: Layout<'a>,
    /// The only queue pair that may use it; `None` for any.
    pub qpn: Option<Qpn>,
    /// Whether a peer's Send with Invalidate may end it.
    pub remote_invalidate: bool,
    /// Whether writes may land in any order. Never for queues, scratch, table and ring.
    pub relaxed_ordering: bool,
}

impl<'a> KeyAttributes<'a> {
    /// A key for any queue pair of its domain, in order, that no peer may invalidate.
    #[must_use]
    pub const fn new(
        domain: Domain,
        rights: AccessRights,
        start: u64,
        len: u64,
        layout: Layout<'a>,
    ) -> Self {
        Self {
            domain,
            rights,
            start,
            len,
            layout,
            qpn: None,
            remote_invalidate: false,
            relaxed_ordering: false,
        }
    }
}

/// A completion queue to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CqAttributes {
    /// Its first CQE, at a page ([`RING_ALIGN`]); every last octet says [`OpOwn::INITIAL`](kbtp_mlx5::OpOwn::INITIAL).
    pub ring: Place,
    /// Log2 of its CQEs.
    pub log_size: u8,
    /// Its doorbell record ([`CqDoorbell`](kbtp_mlx5::CqDoorbell)).
    pub doorbell: Place,
    /// Whether CQEs may be overwritten before software says that it read them.
    pub overrun_ignored: bool,
}

/// What a queue pair may be to others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Roles {
    /// Its send queue may hold WAIT, `SEND_EN` and `RCV_EN`.
    pub master: bool,
    /// Its send queue runs only as far as `SEND_EN` says.
    pub managed_send: bool,
    /// Its receive queue is used only as far as `RCV_EN` says.
    pub managed_receive: bool,
}

/// What a peer may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PeerAccess {
    /// RDMA Read.
    pub read: bool,
    /// RDMA Write.
    pub write: bool,
    /// Atomics.
    pub atomic: bool,
}

impl PeerAccess {
    /// Everything.
    pub const ALL: Self = Self {
        read: true,
        write: true,
        atomic: true,
    };
}

/// A queue pair to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpAttributes {
    /// Its protection domain.
    pub domain: Domain,
    /// Where its sends complete.
    pub send_cq: Cqn,
    /// Where its receives complete.
    pub receive_cq: Cqn,
    /// First basic block of its send queue, right behind its receive WQEs.
    pub send_ring: Place,
    /// Log2 of the basic blocks.
    pub log_send: u8,
    /// First receive WQE, at a page ([`RING_ALIGN`]).
    pub receive_ring: Place,
    /// Log2 of the receive WQEs.
    pub log_receive: u8,
    /// Log2 of the octets of a receive WQE.
    pub log_stride: u8,
    /// Its doorbell record ([`QpDoorbell`](kbtp_mlx5::QpDoorbell)).
    pub doorbell: Place,
    /// What it may be to others.
    pub roles: Roles,
    /// What its peer may do.
    pub access: PeerAccess,
    /// Log2 of its longest message.
    pub log_message: u8,
    /// Retries while the peer has no receive WQE; 7 for ever.
    pub rnr_retry: u8,
    /// Reads and atomics that may be outstanding.
    pub max_reads: u8,
}

/// Where rings start: at a page of the device.
pub const RING_ALIGN: u64 = 4096;

/// A ring that lies where no device of the family takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// A completion queue starts within a page.
    #[error("a completion queue starts within a page")]
    Cqes,
    /// A receive ring starts within a page.
    #[error("a receive ring starts within a page")]
    Receives,
    /// A send ring starts within a basic block.
    #[error("a receive ring is no whole number of basic blocks")]
    Block,
    /// A send ring lies elsewhere.
    #[error("a send ring does not lie right behind its receive ring")]
    Apart,
}

impl CqAttributes {
    /// Whether its ring lies where a device takes it.
    ///
    /// # Errors
    /// [`RingError`].
    pub const fn check(&self) -> Result<(), RingError> {
        if self.ring.offset.is_multiple_of(RING_ALIGN) {
            Ok(())
        } else {
            Err(RingError::Cqes)
        }
    }
}

impl QpAttributes {
    /// Whether its rings lie where a device takes them: the receive ring at a page, and the send ring right behind it.
    ///
    /// # Errors
    /// [`RingError`].
    pub fn check(&self) -> Result<(), RingError> {
        let log = u32::from(self.log_receive) + u32::from(self.log_stride);
        let receives = 1_u64.checked_shl(log).unwrap_or(0);
        let (receive, send) = (self.receive_ring, self.send_ring);
        if receive.plus(receives) != send {
            return Err(RingError::Apart);
        }
        if !receive.offset.is_multiple_of(RING_ALIGN) {
            return Err(RingError::Receives);
        }
        if !receives.is_multiple_of(BASIC_BLOCK as u64) {
            return Err(RingError::Block);
        }
        Ok(())
    }
}

/// Where a queue pair of another machine is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Its number.
    pub qpn: Qpn,
    /// Its address: a GID.
    pub gid: [u8; 16],
    /// Sequence number of the first packet to it.
    pub send_psn: u32,
    /// Sequence number of its first packet.
    pub receive_psn: u32,
    /// How it was reached; `None` where the address says enough: a peer on the same link.
    pub path: Option<Path>,
}

/// The way to a peer, and what was agreed with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// The hardware address that leads there.
    pub mac: [u8; 6],
    /// Which of the port's own addresses.
    pub gid_index: u8,
    /// The port, from 1.
    pub port: u8,
    /// Code of the MTU.
    pub mtu: u8,
    /// Routers that packets pass at most.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Reads and atomics that may be outstanding to the peer.
    pub reads_out: u8,
    /// The same from the peer.
    pub reads_in: u8,
}

/// Whom a queue pair is connected to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// A queue pair of the same device, itself for instance.
    Local(Qpn),
    /// One of another machine.
    Remote(Route),
}

/// Something that happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceEvent {
    /// A completion queue that was armed has a CQE.
    Completion(Cqn),
    /// A completion queue overran, and takes no more.
    CqError(Cqn),
    /// A queue pair went to error.
    QpError(Qpn),
}

/// A device of the mlx5 family, or a model of one. Queues, CQEs and doorbell records are memory: software reads and writes
/// them itself, by [`Region`]; a [`barrier`](Self::barrier) orders what it wrote before what tells the device to look.
///
/// Calls are for set-up and ending, but for [`ring_send`](Self::ring_send), [`arm_cq`](Self::arm_cq),
/// [`barrier`](Self::barrier) and [`next_event`](Self::next_event), which do not allocate.
pub trait Device {
    /// What the device says when it refuses.
    type Error: core::error::Error + 'static;

    /// Makes a protection domain.
    ///
    /// # Errors
    /// What the device says.
    fn create_domain(&mut self) -> Result<Domain, Self::Error>;

    /// Makes memory known; no key to it exists yet. The device keeps the region.
    ///
    /// # Errors
    /// What the device says.
    fn register(&mut self, region: &Region) -> Result<MemoryId, Self::Error>;

    /// Forgets memory. Keys to it are destroyed before.
    ///
    /// # Errors
    /// What the device says; it does not know the memory.
    fn unregister(&mut self, memory: MemoryId) -> Result<(), Self::Error>;

    /// Makes a key.
    ///
    /// # Errors
    /// What the device says; a layout that makes no sense, memory or keys that there are not.
    fn create_key(&mut self, attributes: &KeyAttributes<'_>) -> Result<Mkey, Self::Error>;

    /// Ends a key: whoever uses it from now on fails.
    ///
    /// # Errors
    /// What the device says; there is no such key.
    fn destroy_key(&mut self, key: Mkey) -> Result<(), Self::Error>;

    /// Makes a completion queue.
    ///
    /// # Errors
    /// What the device says; its ring lies outside memory.
    fn create_cq(&mut self, attributes: &CqAttributes) -> Result<Cqn, Self::Error>;

    /// Ends a completion queue. Queue pairs that complete in it are destroyed before.
    ///
    /// # Errors
    /// What the device says; there is no such queue.
    fn destroy_cq(&mut self, cqn: Cqn) -> Result<(), Self::Error>;

    /// Makes a queue pair, not connected yet: it takes no messages and sends none.
    ///
    /// # Errors
    /// What the device says; its rings lie outside memory, its completion queues do not exist.
    fn create_qp(&mut self, attributes: &QpAttributes) -> Result<Qpn, Self::Error>;

    /// Connects a queue pair: it may receive and send.
    ///
    /// # Errors
    /// What the device says; it is connected or in error.
    fn connect(&mut self, qpn: Qpn, peer: &Peer) -> Result<(), Self::Error>;

    /// Puts a queue pair in error: what was posted is flushed.
    ///
    /// # Errors
    /// What the device says; there is no such queue pair.
    fn stop(&mut self, qpn: Qpn) -> Result<(), Self::Error>;

    /// Resets a queue pair: not connected, its indices zero. CQEs that it wrote stay.
    ///
    /// # Errors
    /// What the device says; there is no such queue pair.
    fn reset(&mut self, qpn: Qpn) -> Result<(), Self::Error>;

    /// Ends a queue pair.
    ///
    /// # Errors
    /// What the device says; there is no such queue pair.
    fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), Self::Error>;

    /// All that software wrote before is visible to the device before anything it writes after.
    fn barrier(&mut self);

    /// Tells a send queue to look at its doorbell record: writes the first octets of the last WQE's control segment to the
    /// UAR. A managed queue does not start by it.
    ///
    /// # Errors
    /// What the device says; there is no such queue pair.
    fn ring_send(&mut self, qpn: Qpn, control: [u8; 8]) -> Result<(), Self::Error>;

    /// Asks for an event at the next CQE.
    ///
    /// # Errors
    /// What the device says; there is no such queue.
    fn arm_cq(&mut self, cqn: Cqn, how: CqArm) -> Result<(), Self::Error>;

    /// The next thing that happened; `None` if nothing did.
    fn next_event(&mut self) -> Option<DeviceEvent>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(receive: u64, send: u64) -> QpAttributes {
        let at = |offset| Place {
            memory: MemoryId(1),
            offset,
        };
        QpAttributes {
            domain: Domain(1),
            send_cq: Cqn::truncate(1),
            receive_cq: Cqn::truncate(1),
            send_ring: at(send),
            log_send: 6,
            receive_ring: at(receive),
            log_receive: 6,
            log_stride: 4,
            doorbell: at(0),
            roles: Roles::default(),
            access: PeerAccess::ALL,
            log_message: 12,
            rnr_retry: 7,
            max_reads: 16,
        }
    }

    #[test]
    fn rings_lie_where_devices_take_them() {
        assert_eq!(pair(4096, 5120).check(), Ok(()));
        assert_eq!(pair(4096, 8192).check(), Err(RingError::Apart));
        assert_eq!(pair(64, 1088).check(), Err(RingError::Receives));
        let small = QpAttributes {
            log_receive: 1,
            ..pair(4096, 4096 + 32)
        };
        assert_eq!(small.check(), Err(RingError::Block));
        let elsewhere = QpAttributes {
            send_ring: Place {
                memory: MemoryId(2),
                offset: 5120,
            },
            ..pair(4096, 5120)
        };
        assert_eq!(elsewhere.check(), Err(RingError::Apart));
        let cq = |offset| CqAttributes {
            ring: Place {
                memory: MemoryId(1),
                offset,
            },
            log_size: 6,
            doorbell: Place {
                memory: MemoryId(1),
                offset: 0,
            },
            overrun_ignored: true,
        };
        assert_eq!(cq(8192).check(), Ok(()));
        assert_eq!(cq(64).check(), Err(RingError::Cqes));
    }
}
