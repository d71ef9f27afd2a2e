//! Devices, their ports and their GIDs.

use crate::cm::set_nonblocking;
use crate::error::{VerbsError, check, last};
use crate::load::{Mlx5, Verbs};
use crate::raw::{
    IBV_ATOMIC_NONE, IBV_DEVICE_MEM_WINDOW_TYPE_2A, IBV_DEVICE_MEM_WINDOW_TYPE_2B,
    IBV_EVENT_DEVICE_FATAL, IBV_EVENT_GID_CHANGE, IBV_EVENT_PATH_MIG_ERR, IBV_EVENT_PORT_ACTIVE,
    IBV_EVENT_PORT_ERR, IBV_EVENT_QP_FATAL, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2,
    IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, IBV_ODP_SUPPORT, IBV_ODP_SUPPORT_READ,
    IBV_ODP_SUPPORT_RECV, IBV_ODP_SUPPORT_SEND, IBV_ODP_SUPPORT_WRITE, IBV_PORT_ACTIVE,
    IBV_TRANSPORT_IWARP, IbvAsyncEvent, IbvContext, IbvDevice, IbvDeviceAttr, IbvDeviceAttrEx,
    IbvGid, IbvGidEntry, IbvPortAttr, VerbsContext,
};
use nix::libc::{EAGAIN, EINTR};
use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::mem::{MaybeUninit, offset_of};
use std::net::Ipv6Addr;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

/// A device of this machine, opened if that was possible.
#[derive(Debug)]
pub struct Device {
    /// The kernel's name for it.
    pub name: String,
    /// It is of the mlx5 family, and libmlx5 is there.
    pub mlx5: bool,
    /// The device, open; or why not.
    pub context: Result<Context, VerbsError>,
}

/// Opens every RDMA device of this machine, in the order of their names. No device is no error.
///
/// # Errors
/// [`VerbsError::Missing`] without libibverbs, [`VerbsError::Os`] if the kernel has no RDMA.
pub fn devices() -> Result<Vec<Device>, VerbsError> {
    let verbs = Verbs::get()?;
    let mut found = each(verbs, |device| open(verbs, device))?;
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// What `f` makes of each device of this machine. A device is valid while `f` has it, and as long as what `f` opened.
pub(crate) fn each<T>(
    verbs: &'static Verbs,
    mut f: impl FnMut(NonNull<IbvDevice>) -> T,
) -> Result<Vec<T>, VerbsError> {
    let mut count: c_int = 0;
    // SAFETY: `count` may be written; the list is freed below.
    let list = unsafe { (verbs.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        return Err(last("listing RDMA devices"));
    }
    let mut found = Vec::new();
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` devices and a null behind them.
        let place = unsafe { list.add(index) };
        // SAFETY: as above.
        let device = unsafe { *place };
        found.extend(NonNull::new(device).map(&mut f));
    }
    // SAFETY: the list came from the function above and is not used again. Devices that were opened stay valid.
    unsafe { (verbs.ibv_free_device_list)(list) };
    Ok(found)
}

fn open(verbs: &'static Verbs, device: NonNull<IbvDevice>) -> Device {
    let mlx5 = Mlx5::get().is_ok_and(|mlx5| {
        // SAFETY: the device is in the list, which is not freed yet.
        unsafe { (mlx5.mlx5dv_is_supported)(device.as_ptr()) }
    });
    // SAFETY: as above.
    let name = unsafe { device_name(device.as_ptr()) };
    // SAFETY: as above.
    let raw = unsafe { (verbs.ibv_open_device)(device.as_ptr()) };
    let context = NonNull::new(raw)
        .map(|raw| Context { verbs, raw })
        .ok_or_else(|| last("opening an RDMA device"));
    Device {
        name,
        mlx5,
        context,
    }
}

/// # Safety
/// `device` is a device of libibverbs.
pub(crate) unsafe fn device_name(device: *const IbvDevice) -> String {
    // SAFETY: the caller's word.
    let name = unsafe { (*device).name };
    string(&name)
}

/// The text before the first zero.
pub(crate) fn string(text: &[c_char]) -> String {
    let octets: Vec<u8> = text.iter().map(|c| c.to_ne_bytes()[0]).collect();
    CStr::from_bytes_until_nul(&octets)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// A device that this process has opened.
#[derive(Debug)]
pub struct Context {
    verbs: &'static Verbs,
    raw: NonNull<IbvContext>,
}

// SAFETY: libibverbs lets every thread use a context at any time.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// What can be asked of it.
    #[must_use]
    pub const fn get(&self) -> ContextRef<'_> {
        ContextRef {
            verbs: self.verbs,
            raw: self.raw,
            life: PhantomData,
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was opened by `open` and is not used again.
        let result = unsafe { (self.verbs.ibv_close_device)(self.raw.as_ptr()) };
        if let Err(error) = check("closing an RDMA device", result) {
            tracing::warn!(%error, "an RDMA device stays open");
        }
    }
}

/// An open device: of [`Context`], or of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ContextRef<'a> {
    pub(crate) verbs: &'static Verbs,
    pub(crate) raw: NonNull<IbvContext>,
    pub(crate) life: PhantomData<&'a ()>,
}

/// What a device has. Named as in `ibv_query_device(3)`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "abilities of a device are independent of each other"
)]
pub struct DeviceAttributes {
    /// Version of its firmware.
    pub firmware: String,
    /// Vendor's number.
    pub vendor_id: u32,
    /// The vendor's number for its kind.
    pub vendor_part_id: u32,
    /// Longest registration, in octets.
    pub max_mr_size: u64,
    /// Work requests a queue may hold.
    pub max_qp_wr: u32,
    /// Buffers of one work request.
    pub max_sge: u32,
    /// Buffers of one RDMA Read; 0 where the driver does not say.
    pub max_sge_rd: u32,
    /// Completions a queue may hold.
    pub max_cqe: u32,
    /// Registrations.
    pub max_mr: u32,
    /// RDMA Reads and Atomics a peer may have outstanding on a queue pair.
    pub max_qp_rd_atom: u32,
    /// RDMA Reads and Atomics a queue pair may have outstanding.
    pub max_qp_init_rd_atom: u32,
    /// It executes the unmasked 64-bit FetchAdd and CmpSwap.
    pub atomics: bool,
    /// It has memory windows of type 2.
    pub windows_2: bool,
    /// Memory windows.
    pub max_mw: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Ports.
    pub ports: u8,
    /// On-demand registrations may be the source and sink of Sends, Writes and Reads.
    pub on_demand: bool,
    /// The driver has the extended queue pair and completion queue interfaces. Nothing here uses them.
    pub extended: bool,
}

/// What a port is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortAttributes {
    /// It is up.
    pub active: bool,
    /// Its state, as `enum ibv_port_state` numbers them.
    pub state: u32,
    /// Largest packet payload in use, in octets; 0 if the port does not say.
    pub mtu: u32,
    /// Longest message, in octets.
    pub max_msg_sz: u32,
    /// It is an Ethernet port.
    pub ethernet: bool,
    /// It is an InfiniBand port.
    pub infiniband: bool,
    /// Places in its GID table.
    pub gids: u32,
}

/// Which protocol a GID stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GidKind {
    /// InfiniBand, or iWARP, which has no use for it.
    Native,
    /// RoCE version 1: no IP header.
    RoceV1,
    /// RoCE version 2: UDP and IP.
    RoceV2,
    /// The library is too old to say.
    Unknown,
}

/// An entry of a port's GID table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gid {
    /// Its place.
    pub index: u32,
    /// What it stands for.
    pub kind: GidKind,
    /// The octets, as an address: RoCE has IPv4 addresses mapped.
    pub address: Ipv6Addr,
    /// Index of its network interface; 0 if there is none or the library does not say.
    pub interface: u32,
}

/// An event of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AsyncEvent {
    /// This port came up.
    PortActive(u8),
    /// This port went down.
    PortDown(u8),
    /// A GID of this port changed.
    GidChange(u8),
    /// The device failed; nothing on it works any more.
    DeviceFatal,
    /// Something of a queue pair, as `enum ibv_event_type` numbers it; its completions tell of it too.
    QueuePair(u32),
    /// Another, as `enum ibv_event_type` numbers it.
    Other(u32),
}

/// Most entries of a GID table that are looked at: tables have 256 places or fewer, and drivers may say what they like.
const MAX_GIDS: u32 = 1024;

fn number(value: c_int) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

impl ContextRef<'_> {
    /// The kernel's name for the device.
    #[must_use]
    pub fn name(&self) -> String {
        // SAFETY: the context is open.
        let device = unsafe { (*self.raw.as_ptr()).device };
        // SAFETY: a context's device stays valid as long as the context is open.
        unsafe { device_name(device) }
    }

    /// It is an iWARP device.
    #[must_use]
    pub fn is_iwarp(&self) -> bool {
        // SAFETY: the context is open.
        let device = unsafe { (*self.raw.as_ptr()).device };
        // SAFETY: a context's device stays valid as long as the context is open.
        let transport = unsafe { (*device).transport_type };
        transport == IBV_TRANSPORT_IWARP
    }

    /// The descriptor that is readable when the device has an event to report.
    #[must_use]
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open.
        let fd = unsafe { (*self.raw.as_ptr()).async_fd };
        // SAFETY: it stays open as long as the context, which `self` is borrowed from.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Has [`next_async_event`](Self::next_async_event) give way instead of waiting.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn make_async_nonblocking(&self) -> Result<(), VerbsError> {
        set_nonblocking(self.async_fd()).map_err(|errno| VerbsError::Os {
            what: "watching a device",
            source: errno.into(),
        })
    }

    /// The next event of the device, if there is one now.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn next_async_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        let mut event = MaybeUninit::<IbvAsyncEvent>::zeroed();
        // SAFETY: the context is open, and the event may be written.
        let result =
            unsafe { (self.verbs.ibv_get_async_event)(self.raw.as_ptr(), event.as_mut_ptr()) };
        if result != 0 {
            let error = last("reading an event of a device");
            return match error.errno() {
                Some(EAGAIN | EINTR) => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: it was zero before, and the call has filled it in.
        let mut event = unsafe { event.assume_init() };
        // SAFETY: it is only looked at if the event is a port's, and a number is all that is read: every pattern of bits
        // is one.
        let port = unsafe { event.element.port_num };
        let port = u8::try_from(port).unwrap_or(0);
        let read = match event.event_type {
            IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortActive(port),
            IBV_EVENT_PORT_ERR => AsyncEvent::PortDown(port),
            IBV_EVENT_GID_CHANGE => AsyncEvent::GidChange(port),
            IBV_EVENT_DEVICE_FATAL => AsyncEvent::DeviceFatal,
            kind @ IBV_EVENT_QP_FATAL..=IBV_EVENT_PATH_MIG_ERR => AsyncEvent::QueuePair(kind),
            kind => AsyncEvent::Other(kind),
        };
        // SAFETY: it was read and not acknowledged yet. The object that it is about is there: its end waits for this.
        unsafe { (self.verbs.ibv_ack_async_event)(&raw mut event) };
        Ok(Some(read))
    }

    /// What the device has.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn attributes(&self) -> Result<DeviceAttributes, VerbsError> {
        let mut raw = MaybeUninit::<IbvDeviceAttr>::zeroed();
        // SAFETY: the context is open, and the structure may be written.
        let result = unsafe { (self.verbs.ibv_query_device)(self.raw.as_ptr(), raw.as_mut_ptr()) };
        check("asking an RDMA device what it has", result)?;
        // SAFETY: it was zero before, and the call has filled it in; every pattern of bits is one of its values.
        let raw = unsafe { raw.assume_init() };
        let windows = IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
        Ok(DeviceAttributes {
            firmware: string(&raw.fw_ver),
            vendor_id: raw.vendor_id,
            vendor_part_id: raw.vendor_part_id,
            max_mr_size: raw.max_mr_size,
            max_qp_wr: number(raw.max_qp_wr),
            max_sge: number(raw.max_sge),
            max_sge_rd: number(raw.max_sge_rd),
            max_cqe: number(raw.max_cqe),
            max_mr: number(raw.max_mr),
            max_qp_rd_atom: number(raw.max_qp_rd_atom),
            max_qp_init_rd_atom: number(raw.max_qp_init_rd_atom),
            atomics: raw.atomic_cap != IBV_ATOMIC_NONE,
            windows_2: raw.device_cap_flags & windows != 0 && raw.max_mw > 0,
            max_mw: number(raw.max_mw),
            max_srq: number(raw.max_srq),
            ports: raw.phys_port_cnt,
            on_demand: self.on_demand(),
            extended: self.has_extended(),
        })
    }

    /// The structure before the context, if the library has one that reaches to the member at `offset`.
    fn extended(&self, offset: usize) -> Option<NonNull<VerbsContext>> {
        // SAFETY: the context is open.
        let compat = unsafe { (*self.raw.as_ptr()).abi_compat };
        if compat.addr() != usize::MAX {
            return None;
        }
        let before = self.raw.as_ptr().wrapping_byte_sub(size_of::<usize>());
        // SAFETY: all ones in `abi_compat` say that the context lies at the end of a `VerbsContext`, whose member `sz`
        // stands right before the context in every version of it.
        let size = unsafe { *before.cast::<usize>() };
        let start = self
            .raw
            .as_ptr()
            .wrapping_byte_sub(offset_of!(VerbsContext, context));
        let outer = NonNull::new(start.cast::<VerbsContext>())?;
        (size >= size_of::<VerbsContext>().checked_sub(offset)?).then_some(outer)
    }

    fn on_demand(&self) -> bool {
        let Some(outer) = self.extended(offset_of!(VerbsContext, query_device_ex)) else {
            return false;
        };
        // SAFETY: the member is there (checked).
        let Some(query) = (unsafe { (*outer.as_ptr()).query_device_ex }) else {
            return false;
        };
        let mut raw = MaybeUninit::<IbvDeviceAttrEx>::zeroed();
        let size = size_of::<IbvDeviceAttrEx>();
        // SAFETY: the context is open, the structure may be written up to the size given, and no input is allowed.
        let result = unsafe { query(self.raw.as_ptr(), ptr::null(), raw.as_mut_ptr(), size) };
        if result != 0 {
            return false;
        }
        // SAFETY: it was zero before the call; every pattern of bits is one of its values.
        let odp = unsafe { raw.assume_init() }.odp_caps;
        let needed = IBV_ODP_SUPPORT_SEND
            | IBV_ODP_SUPPORT_RECV
            | IBV_ODP_SUPPORT_WRITE
            | IBV_ODP_SUPPORT_READ;
        odp.general_caps & IBV_ODP_SUPPORT != 0 && odp.rc_odp_caps & needed == needed
    }

    fn has_extended(&self) -> bool {
        let Some(outer) = self.extended(offset_of!(VerbsContext, create_cq_ex)) else {
            return false;
        };
        // SAFETY: the member is there (checked), and so are those behind it.
        let cq = unsafe { (*outer.as_ptr()).create_cq_ex };
        // SAFETY: as above.
        let qp = unsafe { (*outer.as_ptr()).create_qp_ex };
        cq.is_some() && qp.is_some()
    }

    /// What port `port` is; ports are counted from 1.
    ///
    /// # Errors
    /// [`VerbsError::Os`]: there is no such port.
    pub fn port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        let mut raw = MaybeUninit::<IbvPortAttr>::zeroed();
        let query = self
            .extended(offset_of!(VerbsContext, query_port))
            .and_then(|outer| {
                // SAFETY: the member is there (checked).
                unsafe { (*outer.as_ptr()).query_port }
            });
        let size = size_of::<IbvPortAttr>();
        let result = match query {
            // SAFETY: the context is open, and the structure may be written up to the size given.
            Some(query) => unsafe { query(self.raw.as_ptr(), port, raw.as_mut_ptr(), size) },
            // SAFETY: the context is open; what this function writes is shorter than the structure.
            None => unsafe {
                (self.verbs.ibv_query_port)(self.raw.as_ptr(), port, raw.as_mut_ptr())
            },
        };
        check("asking a port of an RDMA device what it is", result)?;
        // SAFETY: it was zero before the call; every pattern of bits is one of its values.
        let raw = unsafe { raw.assume_init() };
        Ok(PortAttributes {
            active: raw.state == IBV_PORT_ACTIVE,
            state: raw.state,
            mtu: match raw.active_mtu {
                size @ 1..=5 => 128 << size,
                _ => 0,
            },
            max_msg_sz: raw.max_msg_sz,
            ethernet: raw.link_layer == IBV_LINK_LAYER_ETHERNET,
            infiniband: raw.link_layer == IBV_LINK_LAYER_INFINIBAND,
            gids: number(raw.gid_tbl_len),
        })
    }

    /// The GIDs of port `port` that are in use.
    ///
    /// # Errors
    /// [`VerbsError::Os`]: there is no such port.
    pub fn gids(&self, port: u8) -> Result<Vec<Gid>, VerbsError> {
        let places = self.port(port)?.gids.min(MAX_GIDS);
        let found = (0..places).filter_map(|index| match self.verbs.ibv_query_gid_ex {
            Some(query) => {
                let mut entry = IbvGidEntry::default();
                let size = size_of::<IbvGidEntry>();
                let port = u32::from(port);
                // SAFETY: the context is open, and the entry may be written up to the size given.
                let result =
                    unsafe { query(self.raw.as_ptr(), port, index, &raw mut entry, 0, size) };
                (result == 0).then(|| Gid {
                    index,
                    kind: match entry.gid_type {
                        IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
                        IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
                        _ => GidKind::Native,
                    },
                    address: Ipv6Addr::from(entry.gid.raw),
                    interface: entry.ndev_ifindex,
                })
            }
            None => self.old_gid(port, index),
        });
        Ok(found.filter(|gid| !gid.address.is_unspecified()).collect())
    }

    fn old_gid(&self, port: u8, index: u32) -> Option<Gid> {
        let mut gid = IbvGid::default();
        let place = c_int::try_from(index).ok()?;
        // SAFETY: the context is open, and the GID may be written.
        let result =
            unsafe { (self.verbs.ibv_query_gid)(self.raw.as_ptr(), port, place, &raw mut gid) };
        (result == 0).then(|| Gid {
            index,
            kind: GidKind::Unknown,
            address: Ipv6Addr::from(gid.raw),
            interface: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_at_the_first_zero() {
        let text: Vec<c_char> = b"siw0\0junk"
            .iter()
            .map(|octet| c_char::from_ne_bytes([*octet]))
            .collect();
        assert_eq!(string(&text), "siw0");
        assert_eq!(string(&text[..4]), "");
    }

    #[test]
    fn every_device_can_be_asked() {
        // On most machines there is none, or no library: both are answers.
        match devices() {
            Ok(devices) => {
                for device in devices {
                    assert!(!device.name.is_empty());
                    let Ok(context) = &device.context else {
                        continue;
                    };
                    let context = context.get();
                    assert_eq!(context.name(), device.name);
                    let attributes = context.attributes().unwrap();
                    assert!(attributes.max_qp_wr > 0);
                    for port in 1..=attributes.ports {
                        context.port(port).unwrap();
                        context.gids(port).unwrap();
                    }
                    assert!(context.port(0).is_err());
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
