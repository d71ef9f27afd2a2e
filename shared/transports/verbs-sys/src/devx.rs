//! DEVX: a device of the mlx5 family driven by its own commands. What their octets mean is for `kbtp-mlx5-devx`; here are the
//! device, its objects and its doorbell page, each as an owner that keeps the device open.

use crate::cm::set_nonblocking;
use crate::context::{ContextRef, device_name, each};
use crate::error::{VerbsError, check, last};
use crate::load::{Missing, Mlx5, Verbs};
use crate::raw::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IbvContext, IbvPd,
    MLX5DV_CONTEXT_FLAGS_DEVX, MLX5DV_DEVX_CREATE_EVENT_CHANNEL_FLAGS_OMIT_EV_DATA, MLX5DV_OBJ_PD,
    MLX5DV_UAR_ALLOC_TYPE_NC, Mlx5dvContextAttr, Mlx5dvDevxAsyncEventHdr, Mlx5dvDevxEventChannel,
    Mlx5dvDevxObj, Mlx5dvDevxUar, Mlx5dvDevxUmem, Mlx5dvObj, Mlx5dvPart, Mlx5dvPd,
};
use kbtp_memory::{Region, barrier};
use nix::libc::{EAGAIN, EINTR, ENOSYS};
use std::ffi::{c_int, c_void};
use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

type Command =
    unsafe extern "C" fn(*mut IbvContext, *const c_void, usize, *mut c_void, usize) -> c_int;
type Create = unsafe extern "C" fn(
    *mut IbvContext,
    *const c_void,
    usize,
    *mut c_void,
    usize,
) -> *mut Mlx5dvDevxObj;
type Change =
    unsafe extern "C" fn(*mut Mlx5dvDevxObj, *const c_void, usize, *mut c_void, usize) -> c_int;

macro_rules! functions {
    ($($name:ident = $symbol:ident: $kind:ty;)*) => {
        /// The functions of libmlx5 that DEVX needs: all of them, or the library is too old.
        #[derive(Clone, Copy, Debug)]
        struct Functions {
            $($name: $kind,)*
        }

        impl Functions {
            fn of(mlx5: &Mlx5) -> Result<Self, Missing> {
                let lacks = |name| Missing {
                    library: Mlx5::LIBRARY,
                    reason: format!(
                        "it has no {name}: DEVX with events needs rdma-core 25 or later"
                    ),
                };
                Ok(Self {
                    $($name: mlx5.$symbol.ok_or_else(|| lacks(stringify!($symbol)))?,)*
                })
            }
        }
    };
}

functions! {
    open = mlx5dv_open_device: unsafe extern "C" fn(*mut crate::raw::IbvDevice, *mut Mlx5dvContextAttr) -> *mut IbvContext;
    command = mlx5dv_devx_general_cmd: Command;
    create = mlx5dv_devx_obj_create: Create;
    modify = mlx5dv_devx_obj_modify: Change;
    query = mlx5dv_devx_obj_query: Change;
    destroy = mlx5dv_devx_obj_destroy: unsafe extern "C" fn(*mut Mlx5dvDevxObj) -> c_int;
    umem_reg = mlx5dv_devx_umem_reg: unsafe extern "C" fn(*mut IbvContext, *mut c_void, usize, u32) -> *mut Mlx5dvDevxUmem;
    umem_dereg = mlx5dv_devx_umem_dereg: unsafe extern "C" fn(*mut Mlx5dvDevxUmem) -> c_int;
    alloc_uar = mlx5dv_devx_alloc_uar: unsafe extern "C" fn(*mut IbvContext, u32) -> *mut Mlx5dvDevxUar;
    free_uar = mlx5dv_devx_free_uar: unsafe extern "C" fn(*mut Mlx5dvDevxUar);
    query_eqn = mlx5dv_devx_query_eqn: unsafe extern "C" fn(*mut IbvContext, u32, *mut u32) -> c_int;
    create_channel = mlx5dv_devx_create_event_channel: unsafe extern "C" fn(*mut IbvContext, u32) -> *mut Mlx5dvDevxEventChannel;
    destroy_channel = mlx5dv_devx_destroy_event_channel: unsafe extern "C" fn(*mut Mlx5dvDevxEventChannel);
    subscribe = mlx5dv_devx_subscribe_devx_event: unsafe extern "C" fn(*mut Mlx5dvDevxEventChannel, *mut Mlx5dvDevxObj, u16, *mut u16, u64) -> c_int;
    get_event = mlx5dv_devx_get_event: unsafe extern "C" fn(*mut Mlx5dvDevxEventChannel, *mut Mlx5dvDevxAsyncEventHdr, usize) -> isize;
    init_obj = mlx5dv_init_obj: unsafe extern "C" fn(*mut Mlx5dvObj, u64) -> c_int;
}

#[derive(Debug)]
struct Opened {
    verbs: &'static Verbs,
    mlx5: Functions,
    raw: NonNull<IbvContext>,
}

// SAFETY: libibverbs and libmlx5 let every thread use a context, and what was made on it, at any time.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: what was made on it holds it, and is gone; it is not used again.
        let result = unsafe { (self.verbs.ibv_close_device)(self.raw.as_ptr()) };
        complain("closing a device", result);
    }
}

fn complain(what: &'static str, result: c_int) {
    if let Err(error) = check(what, result) {
        tracing::warn!(%error, "something of a device stays with this process");
    }
}

/// A device that this process may give commands to.
#[derive(Clone, Debug)]
pub struct Devx {
    opened: Arc<Opened>,
}

/// Whether a call was made: the library says so, or the device has answered, if only that it refuses.
fn answered(what: &'static str, result: c_int, answer: &[u8]) -> Result<(), VerbsError> {
    match check(what, result) {
        Err(_) if answer.first().is_some_and(|status| *status != 0) => Ok(()),
        said => said,
    }
}

impl Devx {
    /// Opens a device by the kernel's name for it.
    ///
    /// # Errors
    /// [`VerbsError::Missing`] without the libraries, [`VerbsError::NoDevice`], [`VerbsError::NotMlx5`],
    /// [`VerbsError::NoDevx`].
    pub fn open(name: &str) -> Result<Self, VerbsError> {
        let verbs = Verbs::get()?;
        let library = Mlx5::get()?;
        let mlx5 = Functions::of(library)?;
        let mut known = Vec::new();
        let tried = each(verbs, |device| {
            // SAFETY: the device is in the list, which is not freed yet.
            let found = unsafe { device_name(device.as_ptr()) };
            if found != name {
                known.push(found);
                return None;
            }
            // SAFETY: as above.
            if !unsafe { (library.mlx5dv_is_supported)(device.as_ptr()) } {
                return Some(Err(VerbsError::NotMlx5 { name: found }));
            }
            let mut attributes = Mlx5dvContextAttr {
                flags: MLX5DV_CONTEXT_FLAGS_DEVX,
                comp_mask: 0,
            };
            // SAFETY: as above, and the attributes may be read.
            let raw = unsafe { (mlx5.open)(device.as_ptr(), &raw mut attributes) };
            let opened = NonNull::new(raw).map(|raw| Opened { verbs, mlx5, raw });
            Some(opened.ok_or_else(|| VerbsError::NoDevx {
                name: found,
                source: io::Error::last_os_error(),
            }))
        });
        let tried = match tried {
            // The kernel knows no RDMA.
            Err(error) if error.errno() == Some(ENOSYS) => Vec::new(),
            tried => tried?,
        };
        let found = tried.into_iter().flatten().next();
        let opened = found.ok_or_else(|| VerbsError::NoDevice {
            name: name.to_owned(),
            known,
        })?;
        Ok(Self {
            opened: Arc::new(opened?),
        })
    }

    /// What verbs say of it.
    #[must_use]
    pub fn context(&self) -> ContextRef<'_> {
        ContextRef {
            verbs: self.opened.verbs,
            raw: self.opened.raw,
            life: PhantomData,
        }
    }

    fn raw(&self) -> *mut IbvContext {
        self.opened.raw.as_ptr()
    }

    /// Gives a command that makes nothing. What the device says of it is in the answer.
    ///
    /// # Errors
    /// [`VerbsError::Os`]: the system did not pass it on.
    pub fn command(&self, request: &[u8], answer: &mut [u8]) -> Result<(), VerbsError> {
        let (from, len) = (request.as_ptr().cast(), request.len());
        let (to, room) = (answer.as_mut_ptr().cast(), answer.len());
        // SAFETY: the context is open; the request may be read and the answer written, each as far as it goes.
        let result = unsafe { (self.opened.mlx5.command)(self.raw(), from, len, to, room) };
        answered("giving a command to the device", result, answer)
    }

    /// Gives a command that makes an object. Without one the device refused, and the answer says why.
    ///
    /// # Errors
    /// [`VerbsError::Os`]: the system did not pass it on.
    pub fn create(
        &self,
        request: &[u8],
        answer: &mut [u8],
    ) -> Result<Option<DevxObject>, VerbsError> {
        let (from, len) = (request.as_ptr().cast(), request.len());
        let (to, room) = (answer.as_mut_ptr().cast(), answer.len());
        // SAFETY: as in `command`.
        let raw = unsafe { (self.opened.mlx5.create)(self.raw(), from, len, to, room) };
        let Some(raw) = NonNull::new(raw) else {
            let error = last("having the device make something");
            return if answer.first().is_some_and(|status| *status != 0) {
                Ok(None)
            } else {
                Err(error)
            };
        };
        Ok(Some(DevxObject {
            raw,
            devx: self.clone(),
        }))
    }

    /// Lets the device reach memory, to read and write, by keys and queues that name it.
    ///
    /// # Errors
    /// [`VerbsError::Os`]: it cannot be locked, for instance.
    pub fn register(&self, region: &Region) -> Result<DevxMemory, VerbsError> {
        let len = usize::try_from(region.len()).unwrap_or(usize::MAX);
        let start = region.as_ptr().cast::<c_void>();
        // What a key allows is in the key; the kernel takes no right of atomics here.
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
        // SAFETY: the context is open. The memory stays mapped as long as the registration, which holds a clone of its
        // region; what a device does to it is what any other party may do to a region.
        let raw = unsafe { (self.opened.mlx5.umem_reg)(self.raw(), start, len, access) };
        let raw = NonNull::new(raw).ok_or_else(|| last("registering memory with the device"))?;
        Ok(DevxMemory {
            raw,
            _region: region.clone(),
            devx: self.clone(),
        })
    }

    /// A protection domain.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn domain(&self) -> Result<DevxDomain, VerbsError> {
        // SAFETY: the context is open.
        let raw = unsafe { (self.opened.verbs.ibv_alloc_pd)(self.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| last("making a protection domain"))?;
        let mut domain = DevxDomain {
            raw,
            number: 0,
            devx: self.clone(),
        };
        let mut out = Mlx5dvPd::default();
        let mut asked = Mlx5dvObj {
            pd: Mlx5dvPart {
                r#in: raw.as_ptr(),
                out: &raw mut out,
            },
            ..Mlx5dvObj::NONE
        };
        // SAFETY: the domain is there, and of this library; only the part that is asked for is looked at, and its answer may
        // be written.
        let result = unsafe { (self.opened.mlx5.init_obj)(&raw mut asked, MLX5DV_OBJ_PD) };
        check("asking a protection domain its number", result)?;
        domain.number = out.pdn;
        Ok(domain)
    }

    /// A page where queues are rung.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn uar(&self) -> Result<DevxUar, VerbsError> {
        // SAFETY: the context is open.
        let raw = unsafe { (self.opened.mlx5.alloc_uar)(self.raw(), MLX5DV_UAR_ALLOC_TYPE_NC) };
        let raw = NonNull::new(raw).ok_or_else(|| last("making a page of doorbells"))?;
        Ok(DevxUar {
            raw,
            devx: self.clone(),
        })
    }

    /// The device's number of its queue of events for interrupt vector `vector`.
    ///
    /// # Errors
    /// [`VerbsError::Os`]: there is no such vector.
    pub fn event_queue(&self, vector: u32) -> Result<u32, VerbsError> {
        let mut number = 0;
        // SAFETY: the context is open, and the number may be written.
        let result = unsafe { (self.opened.mlx5.query_eqn)(self.raw(), vector, &raw mut number) };
        check("asking for the queue of events", result)?;
        Ok(number)
    }

    /// A channel of events.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn events(&self) -> Result<DevxEvents, VerbsError> {
        let flags = MLX5DV_DEVX_CREATE_EVENT_CHANNEL_FLAGS_OMIT_EV_DATA;
        // SAFETY: the context is open.
        let raw = unsafe { (self.opened.mlx5.create_channel)(self.raw(), flags) };
        let raw = NonNull::new(raw).ok_or_else(|| last("making a channel of events"))?;
        let events = DevxEvents {
            raw,
            devx: self.clone(),
        };
        set_nonblocking(events.fd()).map_err(|errno| VerbsError::Os {
            what: "watching a channel of events",
            source: errno.into(),
        })?;
        Ok(events)
    }
}

/// Something that a device made. It ends when this is dropped.
#[derive(Debug)]
pub struct DevxObject {
    raw: NonNull<Mlx5dvDevxObj>,
    devx: Devx,
}

// SAFETY: as for the context.
unsafe impl Send for DevxObject {}

impl DevxObject {
    /// Gives a command that changes it.
    ///
    /// # Errors
    /// [`VerbsError::Os`]: the system did not pass it on.
    pub fn modify(&self, request: &[u8], answer: &mut [u8]) -> Result<(), VerbsError> {
        let how = self.devx.opened.mlx5.modify;
        self.change("changing an object of the device", how, request, answer)
    }

    /// Gives a command that asks it something.
    ///
    /// # Errors
    /// [`VerbsError::Os`]: the system did not pass it on.
    pub fn query(&self, request: &[u8], answer: &mut [u8]) -> Result<(), VerbsError> {
        let how = self.devx.opened.mlx5.query;
        self.change("asking an object of the device", how, request, answer)
    }

    fn change(
        &self,
        what: &'static str,
        how: Change,
        request: &[u8],
        answer: &mut [u8],
    ) -> Result<(), VerbsError> {
        let (from, len) = (request.as_ptr().cast(), request.len());
        let (to, room) = (answer.as_mut_ptr().cast(), answer.len());
        // SAFETY: the object is there; the request may be read and the answer written, each as far as it goes.
        let result = unsafe { how(self.raw.as_ptr(), from, len, to, room) };
        answered(what, result, answer)
    }
}

impl Drop for DevxObject {
    fn drop(&mut self) {
        // SAFETY: it is there, and is not used again.
        let result = unsafe { (self.devx.opened.mlx5.destroy)(self.raw.as_ptr()) };
        complain("ending an object of the device", result);
    }
}

/// Memory that a device reaches. It no longer does when this is dropped.
#[derive(Debug)]
pub struct DevxMemory {
    raw: NonNull<Mlx5dvDevxUmem>,
    /// Kept mapped until the device has let go: dropped after.
    _region: Region,
    devx: Devx,
}

// SAFETY: as for the context.
unsafe impl Send for DevxMemory {}

impl DevxMemory {
    /// The device's number of it.
    #[must_use]
    pub const fn number(&self) -> u32 {
        // SAFETY: the library gave it, and it is there.
        unsafe { self.raw.as_ref() }.umem_id
    }
}

impl Drop for DevxMemory {
    fn drop(&mut self) {
        // SAFETY: it is there, and is not used again.
        let result = unsafe { (self.devx.opened.mlx5.umem_dereg)(self.raw.as_ptr()) };
        complain("taking memory from the device", result);
    }
}

/// A protection domain.
#[derive(Debug)]
pub struct DevxDomain {
    raw: NonNull<IbvPd>,
    number: u32,
    devx: Devx,
}

// SAFETY: as for the context.
unsafe impl Send for DevxDomain {}

impl DevxDomain {
    /// The device's number of it.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for DevxDomain {
    fn drop(&mut self) {
        // SAFETY: it is there, and is not used again.
        let result = unsafe { (self.devx.opened.verbs.ibv_dealloc_pd)(self.raw.as_ptr()) };
        complain("ending a protection domain", result);
    }
}

/// A page where queues are rung.
#[derive(Debug)]
pub struct DevxUar {
    raw: NonNull<Mlx5dvDevxUar>,
    devx: Devx,
}

// SAFETY: as for the context; the page is written by whole words.
unsafe impl Send for DevxUar {}

/// Octets of a page of doorbells that are rung here.
const UAR_LEN: usize = 4096;

impl DevxUar {
    /// The device's number of it.
    #[must_use]
    pub const fn number(&self) -> u32 {
        // SAFETY: the library gave it, and it is there.
        unsafe { self.raw.as_ref() }.page_id
    }

    /// Writes eight octets to it at once, after all that was written to memory before. What lies beyond the page, or on no
    /// boundary of eight, is not written.
    pub fn write(&self, at: usize, octets: [u8; 8]) {
        // SAFETY: the library gave it, and it is there.
        let base = unsafe { self.raw.as_ref() }.base_addr;
        if !at.is_multiple_of(8) || at >= UAR_LEN {
            return;
        }
        let place = base.wrapping_byte_add(at).cast::<u64>();
        barrier::to_device();
        // SAFETY: the library mapped a page there, writable, on a boundary of pages; the place is within it and on a boundary
        // of eight. Nobody else has this page.
        unsafe { place.write_volatile(u64::from_ne_bytes(octets)) };
        barrier::to_device();
    }
}

impl Drop for DevxUar {
    fn drop(&mut self) {
        // SAFETY: it is there, and is not used again.
        unsafe { (self.devx.opened.mlx5.free_uar)(self.raw.as_ptr()) };
    }
}

/// A channel of events.
#[derive(Debug)]
pub struct DevxEvents {
    raw: NonNull<Mlx5dvDevxEventChannel>,
    devx: Devx,
}

// SAFETY: as for the context.
unsafe impl Send for DevxEvents {}

impl DevxEvents {
    /// Readable when there is an event.
    #[must_use]
    pub const fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the library gave it, and it is there.
        let fd = unsafe { self.raw.as_ref() }.fd;
        // SAFETY: it stays open as long as the channel, which `self` is borrowed from.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Has events of an object, by their types' numbers, told with a cookie. They end with the object.
    ///
    /// # Errors
    /// [`VerbsError::Os`]: the device has no such events, or the object none of them.
    pub fn subscribe(
        &self,
        object: &DevxObject,
        types: &[u16],
        cookie: u64,
    ) -> Result<(), VerbsError> {
        let mut types = types.to_vec();
        let octets = u16::try_from(size_of_val(types.as_slice())).unwrap_or(u16::MAX);
        let (channel, object) = (self.raw.as_ptr(), object.raw.as_ptr());
        let types = types.as_mut_ptr();
        // SAFETY: channel and object are there, and the types may be read as far as is said.
        let result =
            unsafe { (self.devx.opened.mlx5.subscribe)(channel, object, octets, types, cookie) };
        check("asking for events of an object", result)
    }

    /// The cookie of the next event, if there is one now.
    ///
    /// # Errors
    /// [`VerbsError::Os`]: events were lost, or the device is gone.
    pub fn next(&self) -> Result<Option<u64>, VerbsError> {
        let mut event = Mlx5dvDevxAsyncEventHdr::default();
        let room = size_of::<Mlx5dvDevxAsyncEventHdr>();
        // SAFETY: the channel is there, and the event may be written as far as is said.
        let got =
            unsafe { (self.devx.opened.mlx5.get_event)(self.raw.as_ptr(), &raw mut event, room) };
        if got >= 0 {
            return Ok(Some(event.cookie));
        }
        let error = last("reading an event of the device");
        match error.errno() {
            Some(EAGAIN | EINTR) => Ok(None),
            _ => Err(error),
        }
    }
}

impl Drop for DevxEvents {
    fn drop(&mut self) {
        // SAFETY: it is there, and is not used again.
        unsafe { (self.devx.opened.mlx5.destroy_channel)(self.raw.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_named_with_those_that_are() {
        let error = Devx::open("mlx5_of_nowhere").unwrap_err();
        let said = error.to_string();
        match error {
            VerbsError::NoDevice { name, known } => {
                assert_eq!(name, "mlx5_of_nowhere");
                assert!(said.contains("mlx5_of_nowhere"), "{said}");
                assert!(known.iter().all(|one| said.contains(one)), "{said}");
            }
            VerbsError::Missing(_) => assert!(said.contains("cannot be used"), "{said}"),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn what_a_device_answers_is_no_error_of_the_system() {
        assert!(answered("x", 0, &[0; 16]).is_ok());
        // Refused, and said so: kernels give an error beside the answer.
        assert!(answered("x", 121, &[5; 16]).is_ok());
        assert_eq!(answered("x", 22, &[0; 16]).unwrap_err().errno(), Some(22));
    }
}
