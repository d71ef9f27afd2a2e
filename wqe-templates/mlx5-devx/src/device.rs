//! The device, made of commands.

use crate::alias;
use crate::command::{self, Command, Refused, check, number};
use crate::hca::{self, Atomics, Capabilities, General, Kind, Sharing};
use crate::kernel::{Handle, Kernel, Port};
use crate::key::Key;
use crate::queue::{self, CompletionQueue, Connection, InUmem, QueuePair};
use crate::umr::{self, PostError, UmrQueue};
use kbtp_device::{
    CqAttributes, CqReader, Device, DeviceEvent, Domain, KeyAttributes, Layout, MemoryId, Peer,
    PeerAccess, Place, QpAttributes, RingError, Roles, Route,
};
use kbtp_memory::{MapError, PageOptions, Region};
use kbtp_mlx5::{CqArm, Cqe, Cqn, Mkey, Qpn, RepeatEntry, Syndrome};
use kbtp_mlx5::{UAR_CQ, UAR_SEND};
use std::collections::BTreeMap;

/// Why a device does not do what it is asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevxError<E: core::error::Error + 'static> {
    /// The system refused to ask it.
    #[error("the system refused {what}")]
    Kernel {
        /// What.
        what: &'static str,
        /// What it said.
        #[source]
        source: E,
    },
    /// The device refused.
    #[error("the device refused {what}: {source}")]
    Refused {
        /// What.
        what: &'static str,
        /// How.
        #[source]
        source: Refused,
    },
    /// There is no such thing.
    #[error("there is no {what} {number:#x}")]
    Unknown {
        /// What.
        what: &'static str,
        /// Its number.
        number: u64,
    },
    /// The device wants it otherwise.
    #[error("{0}")]
    Layout(&'static str),
    /// A ring lies elsewhere.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// There is no memory for queues of its own.
    #[error(transparent)]
    Memory(#[from] MapError),
    /// A key could not be given its list.
    #[error("a key's list of pieces could not be written: {0}")]
    Umr(String),
}

#[derive(Debug)]
struct Memory {
    handle: Handle,
    umem: u32,
    region: Region,
}

#[derive(Debug)]
struct Completions {
    handle: Handle,
    doorbell: Place,
}

#[derive(Debug)]
struct Pair {
    handle: Handle,
    attributes: QpAttributes,
}

/// An mlx5 device, or a function of one.
#[derive(Debug)]
pub struct Mlx5Devx<K: Kernel> {
    kernel: K,
    memories: BTreeMap<u32, Memory>,
    next_memory: u32,
    keys: BTreeMap<u32, Handle>,
    cqs: BTreeMap<u32, Completions>,
    pairs: BTreeMap<u32, Pair>,
    /// The tag of the last key.
    tag: u8,
    umr: Option<UmrQueue>,
}

type Error<K> = DevxError<<K as Kernel>::Error>;

impl<K: Kernel> Mlx5Devx<K> {
    /// The device that `kernel` leads to.
    pub const fn new(kernel: K) -> Self {
        Self {
            kernel,
            memories: BTreeMap::new(),
            next_memory: 0,
            keys: BTreeMap::new(),
            cqs: BTreeMap::new(),
            pairs: BTreeMap::new(),
            tag: 0,
            umr: None,
        }
    }

    /// What leads to it.
    pub const fn kernel(&self) -> &K {
        &self.kernel
    }

    /// Lets the device go on while it is waited for; `false` when that has been long enough.
    pub fn wait(&mut self) -> bool {
        self.kernel.wait()
    }

    /// What the device can do, as it says itself.
    ///
    /// # Errors
    /// [`DevxError`].
    pub fn capabilities(&mut self) -> Result<Capabilities, Error<K>> {
        let mut ask = |kind| {
            let what = "its capabilities";
            let request = hca::query(kind);
            let mut answer = vec![0; hca::ANSWER];
            let asked = self.kernel.command(&request, &mut answer);
            asked.map_err(|source| DevxError::Kernel { what, source })?;
            check(&request, &answer).map_err(|source| DevxError::Refused { what, source })?;
            Ok::<_, Error<K>>(answer)
        };
        let general = General::decode(&ask(Kind::General)?);
        let atomics = Atomics::decode(&ask(Kind::Atomic)?);
        Ok(Capabilities {
            general,
            atomics,
            // Devices of before sharing do not know the second page.
            sharing: ask(Kind::General2).ok().map(|page| Sharing::decode(&page)),
        })
    }

    /// An alias of a key of another function of the device, which it allowed whoever shows the access key.
    ///
    /// # Errors
    /// [`DevxError`].
    pub fn create_alias(
        &mut self,
        vhca_id: u16,
        mkey_index: u32,
        access_key: &[u8; alias::ACCESS_KEY],
        domain: Domain,
    ) -> Result<Mkey, Error<K>> {
        let request = alias::create(vhca_id, mkey_index, access_key, domain.0);
        let (handle, answer) = self.make("an alias of a key", &request)?;
        // The tag of an alias is its maker's: zero.
        let key = alias::key(command::object(&answer), 0);
        self.keys.insert(key.0, handle);
        Ok(key)
    }

    /// Lets another function make an alias of a key, if it shows the access key.
    ///
    /// # Errors
    /// [`DevxError`].
    pub fn allow_alias(
        &mut self,
        key: Mkey,
        access_key: &[u8; alias::ACCESS_KEY],
    ) -> Result<(), Error<K>> {
        let request = alias::allow(key.0 >> 8, access_key);
        let mut answer = [0; Command::ANSWER];
        let what = "an alias to others";
        let asked = self.kernel.command(&request, &mut answer);
        asked.map_err(|source| DevxError::Kernel { what, source })?;
        check(&request, &answer).map_err(|source| DevxError::Refused { what, source })
    }

    fn make(
        &mut self,
        what: &'static str,
        request: &Command,
    ) -> Result<(Handle, [u8; Command::ANSWER]), Error<K>> {
        let mut answer = [0; Command::ANSWER];
        let made = self.kernel.create(request, &mut answer);
        let made = made.map_err(|source| DevxError::Kernel { what, source })?;
        check(request, &answer).map_err(|source| DevxError::Refused { what, source })?;
        let handle = made.ok_or(DevxError::Unknown { what, number: 0 })?;
        Ok((handle, answer))
    }

    fn change(
        &mut self,
        what: &'static str,
        object: Handle,
        request: &Command,
    ) -> Result<(), Error<K>> {
        let mut answer = [0; Command::ANSWER];
        let done = self.kernel.modify(object, request, &mut answer);
        done.map_err(|source| DevxError::Kernel { what, source })?;
        check(request, &answer).map_err(|source| DevxError::Refused { what, source })
    }

    fn end(&mut self, what: &'static str, object: Handle) -> Result<(), Error<K>> {
        let ended = self.kernel.destroy(object);
        ended.map_err(|source| DevxError::Kernel { what, source })
    }

    fn place(&self, place: Place) -> Result<InUmem, Error<K>> {
        let memory = self.memories.get(&place.memory.0);
        let memory = memory.ok_or(DevxError::Unknown {
            what: "memory",
            number: place.memory.0.into(),
        })?;
        Ok(InUmem {
            umem: memory.umem,
            offset: place.offset,
        })
    }

    fn pair(&self, qpn: Qpn) -> Result<&Pair, Error<K>> {
        self.pairs.get(&qpn.get()).ok_or(DevxError::Unknown {
            what: "queue pair",
            number: qpn.get().into(),
        })
    }

    /// The queue pair for UMRs, made when it is first needed.
    fn umr(&mut self, domain: Domain) -> Result<&mut UmrQueue, Error<K>> {
        if self.umr.is_none() {
            let made = self.make_umr(domain)?;
            self.umr = Some(made);
        }
        self.umr.as_mut().ok_or(DevxError::Unknown {
            what: "queue pair for UMRs",
            number: 0,
        })
    }

    fn make_umr(&mut self, domain: Domain) -> Result<UmrQueue, Error<K>> {
        let region = Region::anonymous(umr::LEN, &PageOptions::default())?;
        umr::clear_cqes(&region).map_err(|error| DevxError::Umr(error.to_string()))?;
        let memory = self.register(&region)?;
        let at = |offset| Place { memory, offset };
        let cqn = self.create_cq(&CqAttributes {
            ring: at(umr::CQES),
            log_size: umr::LOG,
            doorbell: at(umr::CQ_DOORBELL),
            overrun_ignored: false,
        })?;
        let qpn = self.create_qp(&QpAttributes {
            domain,
            send_cq: cqn,
            receive_cq: cqn,
            send_ring: at(umr::SENDS),
            log_send: umr::LOG,
            receive_ring: at(0),
            log_receive: umr::LOG,
            log_stride: umr::LOG_STRIDE,
            doorbell: at(umr::DOORBELL),
            roles: Roles::default(),
            access: PeerAccess::default(),
            log_message: 12,
            rnr_retry: 7,
            max_reads: 1,
        })?;
        self.connect(qpn, &Peer::Local(qpn))?;
        let cq = CqReader::new(region.clone(), umr::CQES, umr::LOG, Some(umr::CQ_DOORBELL));
        Ok(UmrQueue::new(qpn, region, cq))
    }

    /// Gives a key its repeat block, and lets it be used.
    fn repeat(
        &mut self,
        domain: Domain,
        key: Mkey,
        repetitions: u32,
        entries: &[RepeatEntry],
    ) -> Result<(), Error<K>> {
        let failed = |error: PostError| DevxError::Umr(error.to_string());
        let control = self.umr(domain)?.post(key, repetitions, entries);
        self.kernel.ring(UAR_SEND, control.map_err(failed)?);
        loop {
            match self.umr(domain)?.cq.next() {
                Some(Cqe::Completed(_)) => return Ok(()),
                Some(Cqe::Failed(cqe)) => {
                    let Syndrome(syndrome) = cqe.syndrome;
                    return Err(DevxError::Umr(format!("syndrome {syndrome:#04x}")));
                }
                None if !self.kernel.wait() => {
                    return Err(DevxError::Umr("no CQE came".to_owned()));
                }
                None => {}
            }
        }
    }
}

/// Routers that packets to a peer of whom nothing was said pass at most.
const HOP_LIMIT: u8 = 64;

/// A connection to a peer of another machine.
fn far<E: core::error::Error + 'static>(
    own: Connection,
    route: &Route,
) -> Result<Connection, DevxError<E>> {
    let to = Connection {
        peer: route.qpn,
        gid: route.gid,
        loopback: false,
        send_psn: route.send_psn,
        receive_psn: route.receive_psn,
        ..own
    };
    let Some(path) = route.path else {
        let mac = mac_of(route.gid).ok_or(DevxError::Layout(
            "the peer's hardware address is not in its GID, and no path was given: only link-local addresses have it",
        ))?;
        return Ok(Connection { mac, ..to });
    };
    Ok(Connection {
        mac: path.mac,
        gid_index: path.gid_index,
        port: path.port,
        mtu: path.mtu,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        // What both take: a chain that has more under way only waits.
        log_reads_out: log2(path.reads_out).min(own.log_reads_out),
        log_reads_in: log2(path.reads_in).min(own.log_reads_in),
        ..to
    })
}

fn log2(value: u8) -> u8 {
    u8::try_from(value.max(1).ilog2()).unwrap_or(0)
}

impl<K: Kernel> Device for Mlx5Devx<K> {
    type Error = DevxError<K::Error>;

    fn create_domain(&mut self) -> Result<Domain, Self::Error> {
        let made = self.kernel.create_domain();
        let what = "a protection domain";
        made.map(Domain)
            .map_err(|source| DevxError::Kernel { what, source })
    }

    fn register(&mut self, region: &Region) -> Result<MemoryId, Self::Error> {
        let what = "memory";
        let made = self.kernel.register(region);
        let made = made.map_err(|source| DevxError::Kernel { what, source })?;
        let number = self.next_memory;
        self.next_memory = number.saturating_add(1);
        let memory = Memory {
            handle: made.handle,
            umem: made.umem,
            region: region.clone(),
        };
        self.memories.insert(number, memory);
        Ok(MemoryId(number))
    }

    fn unregister(&mut self, memory: MemoryId) -> Result<(), Self::Error> {
        let what = "memory";
        let found = self.memories.remove(&memory.0);
        let found = found.ok_or(DevxError::Unknown {
            what,
            number: memory.0.into(),
        })?;
        let ended = self.kernel.unregister(found.handle);
        ended.map_err(|source| DevxError::Kernel { what, source })
    }

    fn create_key(&mut self, attributes: &KeyAttributes<'_>) -> Result<Mkey, Self::Error> {
        self.tag = self.tag.wrapping_add(1);
        let key = Key {
            domain: attributes.domain.0,
            rights: attributes.rights,
            start: attributes.start,
            len: attributes.len,
            tag: self.tag,
            qpn: attributes.qpn,
            remote_invalidate: attributes.remote_invalidate,
            relaxed_ordering: attributes.relaxed_ordering,
        };
        let request = match attributes.layout {
            Layout::Plain(place) => {
                let InUmem { umem, offset } = self.place(place)?;
                key.over_memory(umem, offset)
            }
            Layout::List(pieces) => key.over_pieces(pieces),
            Layout::Equal { log_size, entries } => key.over_equal_pieces(log_size, entries),
            Layout::Repeat { entries, .. } => key.for_umr(umr::list_segments(entries.len())),
        };
        let (handle, answer) = self.make("a key", &request)?;
        let made = Mkey(number(&answer) << 8 | u32::from(key.tag));
        self.keys.insert(made.0, handle);
        if let Layout::Repeat {
            repetitions,
            entries,
        } = attributes.layout
            && let Err(error) = self.repeat(attributes.domain, made, repetitions, entries)
        {
            self.destroy_key(made)?;
            return Err(error);
        }
        Ok(made)
    }

    fn destroy_key(&mut self, key: Mkey) -> Result<(), Self::Error> {
        let what = "key";
        let found = self.keys.remove(&key.0).ok_or(DevxError::Unknown {
            what,
            number: key.0.into(),
        })?;
        self.end(what, found)
    }

    fn create_cq(&mut self, attributes: &CqAttributes) -> Result<Cqn, Self::Error> {
        attributes.check()?;
        let request = CompletionQueue {
            ring: self.place(attributes.ring)?,
            log_size: attributes.log_size,
            doorbell: self.place(attributes.doorbell)?,
            uar: self.kernel.uar(),
            eqn: self.kernel.eqn(),
            overrun_ignored: attributes.overrun_ignored,
        };
        let (handle, answer) = self.make("a completion queue", &request.create())?;
        let cqn = Cqn::truncate(number(&answer));
        let doorbell = attributes.doorbell;
        self.cqs.insert(cqn.get(), Completions { handle, doorbell });
        Ok(cqn)
    }

    fn destroy_cq(&mut self, cqn: Cqn) -> Result<(), Self::Error> {
        let what = "completion queue";
        let found = self.cqs.remove(&cqn.get()).ok_or(DevxError::Unknown {
            what,
            number: cqn.get().into(),
        })?;
        self.end(what, found.handle)
    }

    fn create_qp(&mut self, attributes: &QpAttributes) -> Result<Qpn, Self::Error> {
        attributes.check()?;
        let receive = attributes.receive_ring;
        let request = QueuePair {
            domain: attributes.domain.0,
            send_cq: attributes.send_cq,
            receive_cq: attributes.receive_cq,
            rings: self.place(receive)?,
            log_send: attributes.log_send,
            log_receive: attributes.log_receive,
            log_stride: attributes.log_stride,
            doorbell: self.place(attributes.doorbell)?,
            uar: self.kernel.uar(),
            master: attributes.roles.master,
            managed_send: attributes.roles.managed_send,
            managed_receive: attributes.roles.managed_receive,
        };
        let (handle, answer) = self.make("a queue pair", &request.create())?;
        let qpn = Qpn::truncate(number(&answer));
        let pair = Pair {
            handle,
            attributes: *attributes,
        };
        self.pairs.insert(qpn.get(), pair);
        Ok(qpn)
    }

    fn connect(&mut self, qpn: Qpn, peer: &Peer) -> Result<(), Self::Error> {
        let Pair { handle, attributes } = *self.pair(qpn)?;
        let Port {
            number,
            gid,
            gid_index,
            mac,
            mtu,
        } = self.kernel.port();
        let access = attributes.access;
        let own = Connection {
            qpn,
            peer: qpn,
            gid,
            mac,
            gid_index,
            port: number,
            mtu,
            loopback: true,
            send_psn: 0,
            receive_psn: 0,
            log_message: attributes.log_message,
            log_reads_out: log2(attributes.max_reads),
            log_reads_in: log2(attributes.max_reads),
            hop_limit: HOP_LIMIT,
            traffic_class: 0,
            rnr_retry: attributes.rnr_retry,
            access: [access.read, access.write, access.atomic],
        };
        let connection = match peer {
            Peer::Local(other) => Connection {
                peer: *other,
                ..own
            },
            Peer::Remote(route) => far(own, route)?,
        };
        self.change("a queue pair to start", handle, &connection.to_init())?;
        let ready = connection.to_ready_to_receive();
        self.change("a queue pair to receive", handle, &ready)?;
        self.change(
            "a queue pair to send",
            handle,
            &connection.to_ready_to_send(),
        )
    }

    fn stop(&mut self, qpn: Qpn) -> Result<(), Self::Error> {
        let handle = self.pair(qpn)?.handle;
        self.change("a queue pair to stop", handle, &queue::to_error(qpn))
    }

    fn reset(&mut self, qpn: Qpn) -> Result<(), Self::Error> {
        let handle = self.pair(qpn)?.handle;
        self.change("a queue pair to be reset", handle, &queue::to_reset(qpn))
    }

    fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), Self::Error> {
        let handle = self.pair(qpn)?.handle;
        self.pairs.remove(&qpn.get());
        self.end("queue pair", handle)
    }

    fn barrier(&mut self) {
        self.kernel.barrier();
    }

    fn ring_send(&mut self, qpn: Qpn, control: [u8; 8]) -> Result<(), Self::Error> {
        self.pair(qpn)?;
        self.kernel.ring(UAR_SEND, control);
        Ok(())
    }

    fn arm_cq(&mut self, cqn: Cqn, how: CqArm) -> Result<(), Self::Error> {
        let what = "completion queue";
        let found = self.cqs.get(&cqn.get()).ok_or(DevxError::Unknown {
            what,
            number: cqn.get().into(),
        })?;
        let ring = how.ring(cqn);
        let [a, b, c, d, ..] = ring;
        if let Some(memory) = self.memories.get(&found.doorbell.memory.0) {
            // The record says it too, and first: behind the word of what software has read.
            let at = found.doorbell.offset.saturating_add(4);
            let written = memory.region.write(at, &[a, b, c, d]);
            written.map_err(|_| DevxError::Layout("a doorbell record lies outside its memory"))?;
        }
        self.kernel.ring(UAR_CQ, ring);
        Ok(())
    }

    fn next_event(&mut self) -> Option<DeviceEvent> {
        self.kernel.next_event()
    }
}

/// The hardware address in a link-local GID; `None` if there is none.
const fn mac_of(gid: [u8; 16]) -> Option<[u8; 6]> {
    match gid {
        // Its first octet has one bit turned over, and two octets lie in its middle.
        [
            0xfe,
            0x80,
            0,
            0,
            0,
            0,
            0,
            0,
            first,
            b,
            c,
            0xff,
            0xfe,
            d,
            e,
            last,
        ] => Some([first ^ 2, b, c, d, e, last]),
        _ => None,
    }
}
