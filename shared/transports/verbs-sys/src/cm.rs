//! Connections: identifiers of librdmacm, each with an event channel of its own.

use crate::context::ContextRef;
use crate::error::{VerbsError, check, last};
use crate::load::{Cm, Verbs};
use crate::queue::{QueuePair, Queues};
use crate::raw::{
    RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED,
    RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE,
    RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_ESTABLISHED,
    RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_ROUTE_ERROR, RDMA_CM_EVENT_ROUTE_RESOLVED,
    RDMA_CM_EVENT_TIMEWAIT_EXIT, RDMA_CM_EVENT_UNREACHABLE, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY,
    RDMA_OPTION_ID_REUSEADDR, RDMA_PS_TCP, RdmaCmEvent, RdmaCmId, RdmaConnParam, RdmaEventChannel,
};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::sockaddr_storage;
use nix::sys::socket::{SockaddrLike, SockaddrStorage};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// A channel of events. Its descriptor does not block.
#[derive(Debug)]
struct Channel {
    cm: &'static Cm,
    raw: NonNull<RdmaEventChannel>,
}

// SAFETY: a channel is a descriptor; librdmacm lets every thread use it.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    fn new(cm: &'static Cm) -> Result<Self, VerbsError> {
        const WHAT: &str = "opening the RDMA connection manager";
        // SAFETY: no precondition.
        let raw = unsafe { (cm.rdma_create_event_channel)() };
        let raw = NonNull::new(raw).ok_or_else(|| last(WHAT))?;
        let channel = Self { cm, raw };
        set_nonblocking(channel.fd()).map_err(|errno| VerbsError::Os {
            what: WHAT,
            source: errno.into(),
        })?;
        Ok(channel)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is there until `self` is dropped.
        let fd = unsafe { (*self.raw.as_ptr()).fd };
        // SAFETY: the channel's descriptor is open as long as the channel, from which it is borrowed.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the channel's only identifier is gone before it (order of the members of `IdOwner`, and `CmId::new`),
        // every event was acknowledged when it was read, and the channel is not used again.
        unsafe { (self.cm.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}

/// Makes a descriptor of a library give way instead of waiting.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map(drop)
}

/// An identifier and its channel. What was made on the identifier's device holds it, since the device is only certain to
/// stay open as long as the identifier is there.
#[derive(Debug)]
pub(crate) struct IdOwner {
    cm: &'static Cm,
    raw: NonNull<RdmaCmId>,
    /// Dropped after the identifier.
    channel: Channel,
}

// SAFETY: an owner does nothing with the identifier but end it, once, when nobody else has it.
unsafe impl Send for IdOwner {}
// SAFETY: as above.
unsafe impl Sync for IdOwner {}

impl Drop for IdOwner {
    fn drop(&mut self) {
        // SAFETY: the identifier is there, its queue pair is gone (`CmId` drops it first), every event was acknowledged,
        // and it is not used again.
        let result = unsafe { (self.cm.rdma_destroy_id)(self.raw.as_ptr()) };
        if let Err(error) = check("ending an RDMA connection", result) {
            tracing::warn!(%error, "an RDMA connection may linger");
        }
    }
}

/// What happened to an identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CmEventKind {
    /// Its device is chosen.
    AddressResolved,
    /// The way to the peer is known.
    RouteResolved,
    /// A peer asks for a connection: see [`CmEvent::request`].
    ConnectRequest,
    /// The peer has accepted; the queue pair is the caller's to move. Not seen with queue pairs made here.
    ConnectResponse,
    /// The connection is there.
    Established,
    /// There is no connection: no address, no route, no peer, or it failed; see [`CmEvent::status`].
    Failed(&'static str),
    /// The peer refused.
    Rejected,
    /// The connection has ended.
    Disconnected,
    /// The device goes away.
    DeviceRemoved,
    /// The address of the interface below has changed.
    AddressChanged,
    /// The connection's numbers can be used again.
    TimeWaitExit,
    /// One that this project has no use for.
    Other(u32),
}

/// An event of an identifier.
#[derive(Debug)]
pub struct CmEvent {
    /// What happened.
    pub kind: CmEventKind,
    /// The system's error number, or on InfiniBand the reason of a rejection.
    pub status: i32,
    /// What the peer said; InfiniBand pads it with zeros.
    pub private_data: Vec<u8>,
    /// RDMA Reads and Atomics this party must take at a time: what the peer has outstanding at most.
    pub responder_resources: u8,
    /// RDMA Reads and Atomics this party may have outstanding: what the peer takes at a time.
    pub initiator_depth: u8,
    /// Of [`CmEventKind::ConnectRequest`]: the new connection, to be accepted or rejected; or why it cannot be.
    pub request: Option<Result<CmId, VerbsError>>,
}

/// What is agreed when connecting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConnectParameters<'a> {
    /// For the peer.
    pub private_data: &'a [u8],
    /// RDMA Reads and Atomics this party takes at a time (IRD).
    pub responder_resources: u8,
    /// RDMA Reads and Atomics this party has outstanding (ORD).
    pub initiator_depth: u8,
    /// Times a packet is sent again; on InfiniBand and RoCE.
    pub retry_count: u8,
    /// Times a message is sent again for want of a receive; 7 is for ever.
    pub rnr_retry_count: u8,
}

impl ConnectParameters<'_> {
    fn raw(&self) -> Result<RdmaConnParam, VerbsError> {
        Ok(RdmaConnParam {
            private_data: self.private_data.as_ptr().cast::<c_void>(),
            private_data_len: private_len(self.private_data)?,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 0,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: 0,
            qp_num: 0,
        })
    }
}

fn private_len(data: &[u8]) -> Result<u8, VerbsError> {
    u8::try_from(data.len()).map_err(|_| VerbsError::Attribute {
        attribute: "private_data_len",
        wanted: data.len() as u64,
        limit: u64::from(u8::MAX),
    })
}

/// An identifier of the connection manager: a listener, or one connection with its queue pair.
///
/// It can be handed to another thread; one thread at a time uses it.
#[derive(Debug)]
pub struct CmId {
    cm: &'static Cm,
    /// Ended first.
    pair: Option<QueuePair>,
    owner: Arc<IdOwner>,
    one_thread: PhantomData<Cell<()>>,
}

impl CmId {
    /// An identifier that is bound to nothing yet.
    ///
    /// # Errors
    /// [`VerbsError`]: a library is missing, the kernel has no connection manager, or descriptors are short.
    pub fn new() -> Result<Self, VerbsError> {
        // The owners' functions need it sooner or later: better to say so now.
        Verbs::get()?;
        let cm = Cm::get()?;
        let channel = Channel::new(cm)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is there, and `raw` may be written.
        let result = unsafe {
            (cm.rdma_create_id)(
                channel.raw.as_ptr(),
                &raw mut raw,
                ptr::null_mut(),
                RDMA_PS_TCP,
            )
        };
        check("making an RDMA connection identifier", result)?;
        let raw = NonNull::new(raw).ok_or_else(|| last("making an RDMA connection identifier"))?;
        Ok(Self::of(cm, raw, channel))
    }

    fn of(cm: &'static Cm, raw: NonNull<RdmaCmId>, channel: Channel) -> Self {
        Self {
            cm,
            pair: None,
            owner: Arc::new(IdOwner { cm, raw, channel }),
            one_thread: PhantomData,
        }
    }

    pub(crate) fn raw(&self) -> *mut RdmaCmId {
        self.owner.raw.as_ptr()
    }

    pub(crate) const fn owner(&self) -> &Arc<IdOwner> {
        &self.owner
    }

    /// The descriptor that is readable when there is an event.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.owner.channel.fd()
    }

    /// Binds it to an address of this machine; an address of an interface chooses the device.
    ///
    /// # Errors
    /// [`VerbsError::Os`]: the address is taken, or no RDMA device has it.
    pub fn bind(&mut self, address: SocketAddr) -> Result<(), VerbsError> {
        let address = SockaddrStorage::from(address);
        // SAFETY: the identifier is there, and the address is one, which is only read.
        let result = unsafe { (self.cm.rdma_bind_addr)(self.raw(), address.as_ptr().cast_mut()) };
        check("binding an RDMA address", result)
    }

    /// Lets its port be bound while old connections of it linger.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn reuse_address(&mut self) -> Result<(), VerbsError> {
        self.set_option(RDMA_OPTION_ID_REUSEADDR)
    }

    /// Keeps an IPv6 address from serving IPv4 too.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn ipv6_only(&mut self) -> Result<(), VerbsError> {
        self.set_option(RDMA_OPTION_ID_AFONLY)
    }

    fn set_option(&mut self, option: c_int) -> Result<(), VerbsError> {
        let mut on: c_int = 1;
        // SAFETY: the identifier is there, and these options are numbers of this length, which are only read.
        let result = unsafe {
            (self.cm.rdma_set_option)(
                self.raw(),
                RDMA_OPTION_ID,
                option,
                (&raw mut on).cast::<c_void>(),
                size_of::<c_int>(),
            )
        };
        check("setting an option of an RDMA connection", result)
    }

    /// Starts to find the device that reaches `to`, from `from` if it is given.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn resolve_address(
        &mut self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout_ms: u32,
    ) -> Result<(), VerbsError> {
        let from = from.map(SockaddrStorage::from);
        let to = SockaddrStorage::from(to);
        let from = from
            .as_ref()
            .map_or(ptr::null(), SockaddrLike::as_ptr)
            .cast_mut();
        let wait = c_int::try_from(timeout_ms).unwrap_or(c_int::MAX);
        // SAFETY: the identifier is there; both are addresses, or null for the first, and are only read.
        let result =
            unsafe { (self.cm.rdma_resolve_addr)(self.raw(), from, to.as_ptr().cast_mut(), wait) };
        check("resolving an RDMA address", result)
    }

    /// Starts to find the way to the peer.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn resolve_route(&mut self, timeout_ms: u32) -> Result<(), VerbsError> {
        let wait = c_int::try_from(timeout_ms).unwrap_or(c_int::MAX);
        // SAFETY: the identifier is there.
        let result = unsafe { (self.cm.rdma_resolve_route)(self.raw(), wait) };
        check("resolving an RDMA route", result)
    }

    /// Makes its queue pair. It must have a device.
    ///
    /// # Errors
    /// [`VerbsError`]: there is one already, the queues are of another device, or the device refuses.
    pub fn create_queue_pair(&mut self, queues: &Queues<'_>) -> Result<(), VerbsError> {
        if self.pair.is_some() {
            return Err(VerbsError::Unsupported {
                what: "second queue pair on a connection",
            });
        }
        let context = self.context_raw()?;
        self.pair = Some(QueuePair::create(self.cm, self.owner.raw, context, queues)?);
        Ok(())
    }

    /// Ends its queue pair: the device touches no buffer of what was posted to it from here on.
    pub fn end_queue_pair(&mut self) {
        self.pair = None;
    }

    /// Its queue pair, once made.
    #[must_use]
    pub const fn queue_pair(&self) -> Option<&QueuePair> {
        self.pair.as_ref()
    }

    /// Asks the peer for the connection.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn connect(&mut self, parameters: &ConnectParameters<'_>) -> Result<(), VerbsError> {
        let mut raw = parameters.raw()?;
        // SAFETY: the identifier is there, and the parameters with what they point to are only read, and only now.
        let result = unsafe { (self.cm.rdma_connect)(self.raw(), &raw mut raw) };
        check("connecting over RDMA", result)
    }

    /// Accepts what the peer asked for.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn accept(&mut self, parameters: &ConnectParameters<'_>) -> Result<(), VerbsError> {
        self.accept_raw(parameters, 0)
    }

    pub(crate) const fn cm(&self) -> &'static Cm {
        self.cm
    }

    /// Accepts with the identifier's own queue pair, or with one of this number if it has none.
    pub(crate) fn accept_raw(
        &self,
        parameters: &ConnectParameters<'_>,
        queue_pair: u32,
    ) -> Result<(), VerbsError> {
        let mut raw = parameters.raw()?;
        raw.qp_num = queue_pair;
        // SAFETY: as in `connect`.
        let result = unsafe { (self.cm.rdma_accept)(self.raw(), &raw mut raw) };
        check("accepting an RDMA connection", result)
    }

    /// Refuses what the peer asked for.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn reject(&mut self, private_data: &[u8]) -> Result<(), VerbsError> {
        let len = private_len(private_data)?;
        // SAFETY: the identifier is there, and the data are only read, and only now.
        let result = unsafe {
            (self.cm.rdma_reject)(self.raw(), private_data.as_ptr().cast::<c_void>(), len)
        };
        check("rejecting an RDMA connection", result)
    }

    /// Ends the connection: what is posted is flushed.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn disconnect(&mut self) -> Result<(), VerbsError> {
        // SAFETY: the identifier is there.
        let result = unsafe { (self.cm.rdma_disconnect)(self.raw()) };
        check("ending an RDMA connection", result)
    }

    /// Takes connections; at most `backlog` wait.
    ///
    /// # Errors
    /// [`VerbsError::Os`]: the address is taken, or the kernel has no RDMA device.
    pub fn listen(&mut self, backlog: i32) -> Result<(), VerbsError> {
        // SAFETY: the identifier is there.
        let result = unsafe { (self.cm.rdma_listen)(self.raw(), backlog) };
        check("listening for RDMA connections", result)
    }

    fn context_raw(&self) -> Result<NonNull<crate::raw::IbvContext>, VerbsError> {
        // SAFETY: the identifier is there.
        let context = unsafe { (*self.raw()).verbs };
        NonNull::new(context).ok_or(VerbsError::Unsupported {
            what: "address that is resolved: the connection is bound to no device",
        })
    }

    /// Its device, once it is bound to one.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] before that.
    pub fn context(&self) -> Result<ContextRef<'_>, VerbsError> {
        Ok(ContextRef {
            verbs: Verbs::get()?,
            raw: self.context_raw()?,
            life: PhantomData,
        })
    }

    /// Its device's port, counted from 1; 0 before it has one.
    #[must_use]
    pub fn port(&self) -> u8 {
        // SAFETY: the identifier is there.
        unsafe { (*self.raw()).port_num }
    }

    /// Its own address, once it has one.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier is there.
        let address = unsafe { (*self.raw()).route.addr.src };
        socket_addr(&address)
    }

    /// The peer's address, once it has one.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier is there.
        let address = unsafe { (*self.raw()).route.addr.dst };
        socket_addr(&address)
    }

    /// The next event, if there is one now.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn next_event(&mut self) -> Result<Option<CmEvent>, VerbsError> {
        const WHAT: &str = "reading an event of the RDMA connection manager";
        let mut event = ptr::null_mut();
        // SAFETY: the channel is there, and `event` may be written.
        let result =
            unsafe { (self.cm.rdma_get_cm_event)(self.owner.channel.raw.as_ptr(), &raw mut event) };
        if let Err(error) = check(WHAT, result) {
            // Drivers and library report a wait that was not wanted in either way.
            let again = [nix::libc::EAGAIN, nix::libc::EINTR];
            return match error.errno() {
                Some(errno) if again.contains(&errno) => Ok(None),
                _ => Err(error),
            };
        }
        let Some(event) = NonNull::new(event) else {
            return Ok(None);
        };
        // SAFETY: the library gave it, and it stays until it is acknowledged, below.
        let (mut read, new) = unsafe { read_event(event) };
        // SAFETY: it has not been acknowledged, and is not used again.
        let result = unsafe { (self.cm.rdma_ack_cm_event)(event.as_ptr()) };
        check(
            "acknowledging an event of the RDMA connection manager",
            result,
        )?;
        if let Some(new) = new {
            read.request = Some(self.adopt(new));
        }
        Ok(Some(read))
    }

    /// A new connection, moved to a channel of its own: it can then go to another thread.
    fn adopt(&self, raw: NonNull<RdmaCmId>) -> Result<Self, VerbsError> {
        let moved = Channel::new(self.cm).and_then(|channel| {
            // SAFETY: both are there, and no event of the identifier is unacknowledged.
            let result = unsafe { (self.cm.rdma_migrate_id)(raw.as_ptr(), channel.raw.as_ptr()) };
            check("moving an RDMA connection", result).map(|()| channel)
        });
        match moved {
            Ok(channel) => Ok(Self::of(self.cm, raw, channel)),
            Err(error) => {
                // SAFETY: the identifier is this party's since the event, has no queue pair, and is not used again.
                let result = unsafe { (self.cm.rdma_destroy_id)(raw.as_ptr()) };
                if let Err(error) = check("ending an RDMA connection", result) {
                    tracing::warn!(%error, "an RDMA connection may linger");
                }
                Err(error)
            }
        }
    }
}

/// Copies what an event says; of a request, its new identifier too.
///
/// # Safety
/// `event` is an event of the library that was not acknowledged.
unsafe fn read_event(event: NonNull<RdmaCmEvent>) -> (CmEvent, Option<NonNull<RdmaCmId>>) {
    // SAFETY: the caller's word; the structure is as long as the library's, and its members are plain.
    let raw = unsafe { event.as_ref() };
    let conn = raw.conn;
    let len = usize::from(conn.private_data_len);
    let data = conn.private_data.cast::<u8>();
    let private_data = if data.is_null() || len == 0 {
        Vec::new()
    } else {
        // SAFETY: the library says that so many octets are there; they stay until the event is acknowledged, and are
        // copied now.
        unsafe { std::slice::from_raw_parts(data, len) }.to_vec()
    };
    let kind = kind(raw.event);
    let new = NonNull::new(raw.id).filter(|_| kind == CmEventKind::ConnectRequest);
    let read = CmEvent {
        kind,
        status: raw.status,
        private_data,
        responder_resources: conn.responder_resources,
        initiator_depth: conn.initiator_depth,
        request: None,
    };
    (read, new)
}

const fn kind(event: u32) -> CmEventKind {
    match event {
        RDMA_CM_EVENT_ADDR_RESOLVED => CmEventKind::AddressResolved,
        RDMA_CM_EVENT_ROUTE_RESOLVED => CmEventKind::RouteResolved,
        RDMA_CM_EVENT_CONNECT_REQUEST => CmEventKind::ConnectRequest,
        RDMA_CM_EVENT_CONNECT_RESPONSE => CmEventKind::ConnectResponse,
        RDMA_CM_EVENT_ESTABLISHED => CmEventKind::Established,
        RDMA_CM_EVENT_ADDR_ERROR => CmEventKind::Failed("no RDMA device has a way to the address"),
        RDMA_CM_EVENT_ROUTE_ERROR => CmEventKind::Failed("no route to the address"),
        RDMA_CM_EVENT_CONNECT_ERROR => CmEventKind::Failed("the connection failed"),
        RDMA_CM_EVENT_UNREACHABLE => CmEventKind::Failed("the peer did not answer"),
        RDMA_CM_EVENT_REJECTED => CmEventKind::Rejected,
        RDMA_CM_EVENT_DISCONNECTED => CmEventKind::Disconnected,
        RDMA_CM_EVENT_DEVICE_REMOVAL => CmEventKind::DeviceRemoved,
        RDMA_CM_EVENT_ADDR_CHANGE => CmEventKind::AddressChanged,
        RDMA_CM_EVENT_TIMEWAIT_EXIT => CmEventKind::TimeWaitExit,
        other => CmEventKind::Other(other),
    }
}

fn socket_addr(address: &sockaddr_storage) -> Option<SocketAddr> {
    let start = ptr::from_ref(address).cast::<nix::libc::sockaddr>();
    // SAFETY: `address` is a whole `sockaddr_storage`, so that an address of any family can be read from it.
    let address = unsafe { SockaddrStorage::from_raw(start, None) }?;
    let v4 = address
        .as_sockaddr_in()
        .map(|a| SocketAddr::from((a.ip(), a.port())));
    let v6 = || {
        address
            .as_sockaddr_in6()
            .map(|a| SocketAddr::from((a.ip(), a.port())))
    };
    v4.or_else(v6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_back() {
        for text in ["192.0.2.1:7471", "[2001:db8::1]:7471"] {
            let address: SocketAddr = text.parse().unwrap();
            let storage = SockaddrStorage::from(address);
            // SAFETY: all zeros is a `sockaddr_storage`.
            let mut raw: sockaddr_storage = unsafe { std::mem::zeroed() };
            let len = usize::try_from(storage.len()).unwrap();
            let to = (&raw mut raw).cast::<u8>();
            // SAFETY: `len` octets of `storage` are an address, and no address is longer than a `sockaddr_storage`.
            unsafe { ptr::copy_nonoverlapping(storage.as_ptr().cast::<u8>(), to, len) };
            assert_eq!(socket_addr(&raw), Some(address));
        }
        // SAFETY: all zeros is a `sockaddr_storage`, of no family.
        let none: sockaddr_storage = unsafe { std::mem::zeroed() };
        assert_eq!(socket_addr(&none), None);
    }

    #[test]
    fn private_data_has_a_bound() {
        let data = [0; 256];
        let parameters = ConnectParameters {
            private_data: &data,
            ..ConnectParameters::default()
        };
        let error = parameters.raw().unwrap_err().to_string();
        assert_eq!(
            error,
            "private_data_len of the device is 255, and 256 were asked for"
        );
        let parameters = ConnectParameters {
            private_data: &data[..255],
            ..parameters
        };
        assert_eq!(parameters.raw().unwrap().private_data_len, 255);
    }

    #[test]
    fn without_the_kernels_connection_manager_there_is_an_error_that_says_so() {
        match CmId::new() {
            // A machine with RDMA.
            Ok(mut id) => assert!(id.next_event().unwrap().is_none()),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
