//! The kernel of a machine with a device: DEVX of libmlx5.

use crate::Command;
use crate::command::{self, Opcode};
use crate::kernel::{Handle, Kernel, Port, Registered};
use kbtp_device::{DeviceEvent, Route};
use kbtp_memory::{Region, barrier};
use kbtp_mlx5::{Cqn, Qpn};
use kbtp_verbs_sys::{
    Devx, DevxDomain, DevxEvents, DevxMemory, DevxObject, DevxUar, Gid, GidKind, PeerPath,
    VerbsError,
};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// Types of events. Source: Linux, `include/linux/mlx5/device.h` (`enum mlx5_event`).
mod event {
    pub(super) const COMPLETION: u16 = 0x00;
    pub(super) const CQ_ERROR: u16 = 0x04;
    pub(super) const WQ_CATASTROPHIC: u16 = 0x05;
    pub(super) const WQ_INVALID_REQUEST: u16 = 0x10;
    pub(super) const WQ_ACCESS: u16 = 0x11;
}

/// Why chains cannot use a device of this machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoDevice {
    /// There is none, or this process may not use it.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// Its port is of a kind that is not served.
    #[error("port {port} of {device}: {why}")]
    Port {
        /// The device.
        device: String,
        /// Its port.
        port: u8,
        /// What is the matter, and what helps.
        why: &'static str,
    },
}

/// What DEVX of a device gave this process. It ends all of it when it is dropped: the newest first, since a queue pair holds
/// its queues and they their memory.
#[derive(Debug)]
pub struct Libmlx5 {
    objects: BTreeMap<u64, DevxObject>,
    memories: BTreeMap<u64, DevxMemory>,
    domains: Vec<DevxDomain>,
    uar: DevxUar,
    events: DevxEvents,
    eqn: u8,
    port: Port,
    next: u64,
    waited: u32,
    devx: Devx,
}

/// The port that is used: devices have one for each function.
const PORT: u8 = 1;

/// Looks at a CQE before it counts as lost: some tenths of a second, and a device takes microseconds.
const PATIENCE: u32 = 1 << 20;

impl Libmlx5 {
    /// Opens a device, by the kernel's name for it, for chains.
    ///
    /// # Errors
    /// [`NoDevice`], which names the device and what helps.
    pub fn open(name: &str) -> Result<Self, NoDevice> {
        let devx = Devx::open(name)?;
        let port = port(name, &devx)?;
        let uar = devx.uar()?;
        let events = devx.events()?;
        let eqn = u8::try_from(devx.event_queue(0)?).unwrap_or(u8::MAX);
        Ok(Self {
            objects: BTreeMap::new(),
            memories: BTreeMap::new(),
            domains: Vec::new(),
            uar,
            events,
            eqn,
            port,
            next: 0,
            waited: 0,
            devx,
        })
    }

    /// Readable when there is an event for [`next_event`](Kernel::next_event).
    #[must_use]
    pub const fn event_fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }

    fn number(&mut self) -> u64 {
        self.next = self.next.saturating_add(1);
        self.next
    }

    fn object(&self, handle: Handle) -> Result<&DevxObject, VerbsError> {
        self.objects.get(&handle.0).ok_or(GONE)
    }

    /// Has events of a new object told, if it is of a kind that has any.
    fn watch(&self, request: &Command, number: u32, object: &DevxObject) -> Result<(), VerbsError> {
        for (types, what) in told(request.opcode()) {
            let cookie = Cookie { what, number }.encode();
            self.events.subscribe(object, types, cookie)?;
        }
        Ok(())
    }
}

const GONE: VerbsError = VerbsError::Unsupported {
    what: "object of that handle: it has ended",
};

impl Drop for Libmlx5 {
    fn drop(&mut self) {
        while self.objects.pop_last().is_some() {}
    }
}

/// What an event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Completion,
    CqError,
    QpError,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cookie {
    what: What,
    number: u32,
}

impl Cookie {
    fn encode(self) -> u64 {
        (self.what as u64) << 32 | u64::from(self.number)
    }

    fn decode(cookie: u64) -> Option<DeviceEvent> {
        let [.., kind, a, b, c, d] = cookie.to_be_bytes();
        let number = u32::from_be_bytes([a, b, c, d]);
        Some(match kind {
            0 => DeviceEvent::Completion(Cqn::truncate(number)),
            1 => DeviceEvent::CqError(Cqn::truncate(number)),
            2 => DeviceEvent::QpError(Qpn::truncate(number)),
            _ => return None,
        })
    }
}

/// Which events of what a command makes are told.
fn told(opcode: u16) -> Vec<(&'static [u16], What)> {
    match opcode {
        made if made == Opcode::CreateCq as u16 => vec![
            (&[event::COMPLETION], What::Completion),
            (&[event::CQ_ERROR], What::CqError),
        ],
        made if made == Opcode::CreateQp as u16 => vec![(
            &[
                event::WQ_CATASTROPHIC,
                event::WQ_INVALID_REQUEST,
                event::WQ_ACCESS,
            ],
            What::QpError,
        )],
        _ => Vec::new(),
    }
}

impl Kernel for Libmlx5 {
    type Error = VerbsError;

    fn command(&mut self, request: &Command, answer: &mut [u8]) -> Result<(), VerbsError> {
        self.devx.command(request.as_octets(), answer)
    }

    fn create(
        &mut self,
        request: &Command,
        answer: &mut [u8],
    ) -> Result<Option<Handle>, VerbsError> {
        let Some(object) = self.devx.create(request.as_octets(), answer)? else {
            return Ok(None);
        };
        self.watch(request, command::number(answer), &object)?;
        let handle = self.number();
        self.objects.insert(handle, object);
        Ok(Some(Handle(handle)))
    }

    fn modify(
        &mut self,
        object: Handle,
        request: &Command,
        answer: &mut [u8],
    ) -> Result<(), VerbsError> {
        self.object(object)?.modify(request.as_octets(), answer)
    }

    fn query(
        &mut self,
        object: Handle,
        request: &Command,
        answer: &mut [u8],
    ) -> Result<(), VerbsError> {
        self.object(object)?.query(request.as_octets(), answer)
    }

    fn destroy(&mut self, object: Handle) -> Result<(), VerbsError> {
        self.objects.remove(&object.0).map(drop).ok_or(GONE)
    }

    fn register(&mut self, region: &Region) -> Result<Registered, VerbsError> {
        let memory = self.devx.register(region)?;
        let umem = memory.number();
        let handle = self.number();
        self.memories.insert(handle, memory);
        Ok(Registered {
            handle: Handle(handle),
            umem,
        })
    }

    fn unregister(&mut self, memory: Handle) -> Result<(), VerbsError> {
        self.memories.remove(&memory.0).map(drop).ok_or(GONE)
    }

    fn create_domain(&mut self) -> Result<u32, VerbsError> {
        let domain = self.devx.domain()?;
        let number = domain.number();
        self.domains.push(domain);
        Ok(number)
    }

    fn uar(&self) -> u32 {
        self.uar.number()
    }

    fn eqn(&self) -> u8 {
        self.eqn
    }

    fn port(&self) -> Port {
        self.port
    }

    fn barrier(&mut self) {
        barrier::to_device();
    }

    fn ring(&mut self, at: usize, octets: [u8; 8]) {
        self.waited = 0;
        self.uar.write(at, octets);
    }

    fn next_event(&mut self) -> Option<DeviceEvent> {
        match self.events.next() {
            Ok(cookie) => cookie.and_then(Cookie::decode),
            Err(error) => {
                tracing::error!(%error, "an mlx5 device's events cannot be read");
                None
            }
        }
    }

    fn wait(&mut self) -> bool {
        std::thread::yield_now();
        self.waited = self.waited.saturating_add(1);
        let goes_on = self.waited < PATIENCE;
        if !goes_on {
            self.waited = 0;
        }
        goes_on
    }
}

/// A peer that the connection manager has found, as a queue pair of the device is connected to it.
#[must_use]
pub const fn route(found: &PeerPath) -> Route {
    Route {
        qpn: Qpn::truncate(found.queue_pair),
        gid: found.gid,
        send_psn: found.send_psn,
        receive_psn: found.receive_psn,
        path: Some(kbtp_device::Path {
            mac: found.mac,
            gid_index: found.gid_index,
            port: found.port,
            mtu: found.mtu,
            hop_limit: found.hop_limit,
            traffic_class: found.traffic_class,
            reads_out: found.reads_out,
            reads_in: found.reads_in,
        }),
    }
}

/// Code of an MTU: 256 octets are 1, 4096 are 5.
fn mtu_code(octets: u32) -> u8 {
    let log = octets.max(256).ilog2().saturating_sub(7);
    u8::try_from(log).unwrap_or(5).min(5)
}

/// Which of a port's addresses queue pairs have: of RoCE version 2 if there is one.
fn choose(gids: &[Gid]) -> Option<Gid> {
    let of = |kind| gids.iter().find(|gid| gid.kind == kind).copied();
    of(GidKind::RoceV2).or_else(|| of(GidKind::RoceV1))
}

/// Six octets of a network interface's address as the system writes it.
fn hardware_address(text: &str) -> Option<[u8; 6]> {
    let octets: Vec<u8> = text
        .trim()
        .split(':')
        .map(|octet| u8::from_str_radix(octet, 16))
        .collect::<Result<_, _>>()
        .ok()?;
    octets.try_into().ok()
}

fn interface_address(device: &str, gid_index: u32) -> Option<[u8; 6]> {
    let place = format!("ports/{PORT}/gid_attrs/ndevs/{gid_index}");
    let name = Path::new("/sys/class/infiniband").join(device).join(place);
    let name = std::fs::read_to_string(name).ok()?;
    let net = Path::new("/sys/class/net").join(name.trim());
    hardware_address(&std::fs::read_to_string(net.join("address")).ok()?)
}

fn port(name: &str, devx: &Devx) -> Result<Port, NoDevice> {
    let failed = |why| NoDevice::Port {
        device: name.to_owned(),
        port: PORT,
        why,
    };
    let context = devx.context();
    let attributes = context.port(PORT)?;
    if !attributes.ethernet {
        return Err(failed(
            "it is no Ethernet port, and queue pairs for chains are connected over RoCE alone: \
             set LINK_TYPE_P1=ETH with mlxconfig, or let software serve",
        ));
    }
    if !attributes.active {
        return Err(failed("it is down: ip link set its interface up"));
    }
    let gid = choose(&context.gids(PORT)?)
        .ok_or_else(|| failed("it has no RoCE address: give its interface an IP address"))?;
    let mac = interface_address(name, gid.index)
        .ok_or_else(|| failed("the system does not say its hardware address in /sys"))?;
    Ok(Port {
        number: PORT,
        gid: gid.address.octets(),
        gid_index: u8::try_from(gid.index).unwrap_or(0),
        mac,
        mtu: mtu_code(attributes.mtu),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    #[test]
    fn an_event_says_what_it_is_about() {
        for (what, event) in [
            (What::Completion, DeviceEvent::Completion(Cqn::truncate(7))),
            (What::CqError, DeviceEvent::CqError(Cqn::truncate(7))),
            (What::QpError, DeviceEvent::QpError(Qpn::truncate(7))),
        ] {
            let cookie = Cookie { what, number: 7 }.encode();
            assert_eq!(Cookie::decode(cookie), Some(event));
        }
        assert_eq!(Cookie::decode(3 << 32), None);
    }

    #[test]
    fn queues_have_events_and_keys_have_none() {
        let kinds = |opcode| -> Vec<What> { told(opcode).iter().map(|(_, what)| *what).collect() };
        assert_eq!(kinds(0x400), [What::Completion, What::CqError]);
        assert_eq!(kinds(0x500), [What::QpError]);
        assert_eq!(kinds(0x200), []);
    }

    #[test]
    fn codes_and_addresses_are_those_of_the_device() {
        assert_eq!([256, 1024, 2048, 4096].map(mtu_code), [1, 3, 4, 5]);
        assert_eq!([0, 9000].map(mtu_code), [1, 5]);
        let mac = hardware_address("0a:1b:2c:3d:4e:5f\n");
        assert_eq!(mac, Some([0x0a, 0x1b, 0x2c, 0x3d, 0x4e, 0x5f]));
        assert_eq!(hardware_address("0a:1b"), None);
        assert_eq!(hardware_address("0a:1b:2c:3d:4e:zz"), None);
    }

    #[test]
    fn version_2_of_roce_goes_before_version_1() {
        let gid = |index, kind| Gid {
            index,
            kind,
            address: Ipv6Addr::LOCALHOST,
            interface: 0,
        };
        let all = [gid(0, GidKind::RoceV1), gid(1, GidKind::RoceV2)];
        assert_eq!(choose(&all).map(|gid| gid.index), Some(1));
        assert_eq!(choose(&all[..1]).map(|gid| gid.index), Some(0));
        assert_eq!(choose(&[gid(0, GidKind::Native)]), None);
    }

    #[test]
    fn a_device_that_cannot_be_opened_is_named() {
        let said = Libmlx5::open("mlx5_of_nowhere").unwrap_err().to_string();
        assert!(
            said.contains("mlx5_of_nowhere") || said.contains("cannot be used"),
            "{said}"
        );
    }
}
