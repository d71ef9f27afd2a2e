//! Protection domains, registrations and windows.

use crate::cm::{CmId, IdOwner};
use crate::error::{VerbsError, check, last};
use crate::load::Verbs;
use crate::raw::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_MW_BIND, IBV_ACCESS_ON_DEMAND, IBV_ACCESS_REMOTE_ATOMIC,
    IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_MW_TYPE_2, IbvContext, IbvMr, IbvMw,
    IbvPd, IbvSge,
};
use kbtp_memory::Region;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// A protection domain: queue pairs reach the registrations of their own domain, and no other.
#[derive(Clone, Debug)]
pub struct Domain {
    inner: Arc<DomainInner>,
}

#[derive(Debug)]
struct DomainInner {
    verbs: &'static Verbs,
    raw: NonNull<IbvPd>,
    context: NonNull<IbvContext>,
    /// Keeps the device open; dropped after the domain.
    _id: Arc<IdOwner>,
}

// SAFETY: libibverbs lets every thread use a protection domain at any time.
unsafe impl Send for DomainInner {}
// SAFETY: as above.
unsafe impl Sync for DomainInner {}

impl Drop for DomainInner {
    fn drop(&mut self) {
        // SAFETY: what was made in the domain holds it, and is gone; it is not used again.
        let result = unsafe { (self.verbs.ibv_dealloc_pd)(self.raw.as_ptr()) };
        if let Err(error) = check("ending a protection domain", result) {
            tracing::warn!(%error, "a protection domain stays");
        }
    }
}

/// What may be done with a registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "rights are independent of each other"
)]
pub struct Rights {
    /// The device writes it for this party: receives, and the sinks of Reads and Atomics.
    pub local_write: bool,
    /// The peer writes it.
    pub remote_write: bool,
    /// The peer reads it.
    pub remote_read: bool,
    /// The peer's Atomics reach it.
    pub remote_atomic: bool,
    /// Windows may be bound to it.
    pub bind_window: bool,
    /// Its pages are not pinned but faulted in as they are used.
    pub on_demand: bool,
}

impl Rights {
    fn raw(self) -> u32 {
        let bit = |right, bit| if right { bit } else { 0 };
        // A right to write from far needs the right to write from near.
        bit(
            self.local_write || self.remote_write || self.remote_atomic,
            IBV_ACCESS_LOCAL_WRITE,
        ) | bit(self.remote_write, IBV_ACCESS_REMOTE_WRITE)
            | bit(self.remote_read, IBV_ACCESS_REMOTE_READ)
            | bit(self.remote_atomic, IBV_ACCESS_REMOTE_ATOMIC)
            | bit(self.bind_window, IBV_ACCESS_MW_BIND)
            | bit(self.on_demand, IBV_ACCESS_ON_DEMAND)
    }
}

impl Domain {
    /// A domain on the device of `id`, which must have one.
    ///
    /// # Errors
    /// [`VerbsError`]: it has none yet, or the device has no more domains.
    pub fn new(id: &CmId) -> Result<Self, VerbsError> {
        let context = id.context()?;
        // SAFETY: the context is open as long as the identifier, which the domain holds.
        let raw = unsafe { (context.verbs.ibv_alloc_pd)(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| last("making a protection domain"))?;
        Ok(Self {
            inner: Arc::new(DomainInner {
                verbs: context.verbs,
                raw,
                context: context.raw,
                _id: Arc::clone(id.owner()),
            }),
        })
    }

    pub(crate) fn raw(&self) -> *mut IbvPd {
        self.inner.raw.as_ptr()
    }

    pub(crate) fn context(&self) -> NonNull<IbvContext> {
        self.inner.context
    }

    /// Registers the octets `range` of `region`. A peer reaches the first of them at the address `base`, if it is given
    /// and the device heeds it, else at the address it has here.
    ///
    /// # Errors
    /// [`VerbsError::Range`], or [`VerbsError::Os`]: rights the device lacks, memory that cannot be locked, or too many
    /// registrations.
    pub fn register(
        &self,
        region: &Region,
        range: Range<u64>,
        base: Option<u64>,
        rights: Rights,
    ) -> Result<Registration, VerbsError> {
        let outside = VerbsError::Range {
            start: range.start,
            end: range.end,
            len: region.len(),
        };
        let Ok(part) = region.sub(range) else {
            return Err(outside);
        };
        let Ok(len) = usize::try_from(part.len()) else {
            return Err(outside);
        };
        let verbs = self.inner.verbs;
        let start = part.as_ptr().cast::<c_void>();
        let access = c_int::try_from(rights.raw()).map_err(|_| VerbsError::Unsupported {
            what: "right of that number",
        })?;
        let raw = match base {
            None => {
                // SAFETY: the domain is there. The memory is mapped as long as the registration, which holds a clone of
                // its region; what a device does to it is what any other party may do to a region.
                unsafe { (verbs.ibv_reg_mr)(self.raw(), start, len, access) }
            }
            Some(base) => {
                let register = verbs.ibv_reg_mr_iova.ok_or(VerbsError::Unsupported {
                    what: "ibv_reg_mr_iova: the library is older than rdma-core 19",
                })?;
                // SAFETY: as above.
                unsafe { register(self.raw(), start, len, base, access) }
            }
        };
        let raw = NonNull::new(raw).ok_or_else(|| last("registering memory with a device"))?;
        // SAFETY: the library gave it.
        let keys = unsafe { raw.as_ref() };
        Ok(Registration {
            lkey: keys.lkey,
            rkey: keys.rkey,
            address: part.as_ptr().addr() as u64,
            base: base.unwrap_or_else(|| part.as_ptr().addr() as u64),
            region: Some(part),
            raw,
            domain: self.clone(),
        })
    }

    /// A window of type 2, bound to nothing.
    ///
    /// # Errors
    /// [`VerbsError`]: the device has none, or no more.
    pub fn window(&self) -> Result<Window, VerbsError> {
        const LACKS: VerbsError = VerbsError::Unsupported {
            what: "memory windows of type 2",
        };
        // SAFETY: the context is open as long as the domain.
        let alloc = unsafe { (*self.inner.context.as_ptr()).ops.alloc_mw };
        let alloc = alloc.ok_or(LACKS)?;
        // SAFETY: the domain is there.
        let raw = unsafe { alloc(self.raw(), IBV_MW_TYPE_2) };
        let raw = NonNull::new(raw).ok_or_else(|| last("making a memory window of type 2"))?;
        // SAFETY: the library gave it.
        let rkey = unsafe { raw.as_ref() }.rkey;
        Ok(Window {
            raw,
            rkey,
            domain: self.clone(),
        })
    }
}

/// Memory that a device reaches. It ends, and the device no longer reaches the memory, when this is dropped.
#[derive(Debug)]
pub struct Registration {
    raw: NonNull<IbvMr>,
    lkey: u32,
    rkey: u32,
    address: u64,
    /// Address of its first octet for the device.
    base: u64,
    /// The memory: mapped as long as the device may reach it.
    region: Option<Region>,
    domain: Domain,
}

// SAFETY: libibverbs lets every thread use a registration; nothing here changes it but its end.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// The key that a peer names it with.
    #[must_use]
    pub const fn remote_key(&self) -> u32 {
        self.rkey
    }

    /// The key that this party's own work requests name it with.
    #[must_use]
    pub const fn local_key(&self) -> u32 {
        self.lkey
    }

    /// Address of its first octet here.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Address at which the device, and a peer, find its first octet, if the device heeds the base it was registered with.
    #[must_use]
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// Octets.
    #[must_use]
    pub const fn len(&self) -> u64 {
        match &self.region {
            Some(region) => region.len(),
            None => 0,
        }
    }

    /// Whether it has no octets.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory, only what is registered of it.
    #[must_use]
    pub const fn region(&self) -> Option<&Region> {
        self.region.as_ref()
    }

    /// `len` octets at `offset` of it as a work request names them.
    ///
    /// # Errors
    /// [`VerbsError::Range`].
    pub const fn buffer(&self, offset: u64, len: u32) -> Result<Sge, VerbsError> {
        let outside = VerbsError::Range {
            start: offset,
            end: offset.saturating_add(len as u64),
            len: self.len(),
        };
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len() => {}
            _ => return Err(outside),
        }
        match self.base.checked_add(offset) {
            Some(addr) => Ok(Sge(IbvSge {
                addr,
                length: len,
                lkey: self.lkey,
            })),
            None => Err(outside),
        }
    }

    pub(crate) const fn raw(&self) -> *mut IbvMr {
        self.raw.as_ptr()
    }

    pub(crate) fn is_of(&self, domain: &Domain) -> bool {
        Arc::ptr_eq(&self.domain.inner, &domain.inner)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let verbs = self.domain.inner.verbs;
        // SAFETY: it is there, and is not used again.
        let result = unsafe { (verbs.ibv_dereg_mr)(self.raw.as_ptr()) };
        if let Err(error) = check("ending a registration", result) {
            // The device may still reach the memory: it stays mapped for good.
            tracing::error!(%error, "a registration stays, and its memory with it");
            std::mem::forget(self.region.take());
        }
    }
}

/// A buffer of this party as a work request names it: octets of a registration.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sge(pub(crate) IbvSge);

impl Sge {
    /// No octets of nothing, to fill a place with.
    pub const EMPTY: Self = Self(IbvSge {
        addr: 0,
        length: 0,
        lkey: 0,
    });

    /// Octets.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.0.length
    }

    /// Whether it has no octets.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A window of type 2: a key on a part of a registration, which a peer can invalidate and a queue pair binds.
#[derive(Debug)]
pub struct Window {
    raw: NonNull<IbvMw>,
    rkey: u32,
    domain: Domain,
}

// SAFETY: libibverbs lets every thread use a window; nothing here changes it but binding, through `&mut`, and its end.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// The key it has, or has once the binding that was posted last is done.
    #[must_use]
    pub const fn remote_key(&self) -> u32 {
        self.rkey
    }

    /// The key for its next binding: the low eight bits are the party's own, and it counts them.
    pub(crate) const fn next_key(&mut self) -> u32 {
        let low = (self.rkey & 0xff).wrapping_add(1) & 0xff;
        self.rkey = (self.rkey & !0xff) | low;
        self.rkey
    }

    pub(crate) const fn raw(&self) -> *mut IbvMw {
        self.raw.as_ptr()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the context is open as long as the domain.
        let dealloc = unsafe { (*self.domain.inner.context.as_ptr()).ops.dealloc_mw };
        let Some(dealloc) = dealloc else {
            return;
        };
        // SAFETY: it is there, and is not used again.
        let result = unsafe { dealloc(self.raw.as_ptr()) };
        if let Err(error) = check("ending a memory window", result) {
            tracing::warn!(%error, "a memory window stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_the_bits_of_verbs() {
        assert_eq!(Rights::default().raw(), 0);
        let far = Rights {
            remote_write: true,
            ..Rights::default()
        };
        assert_eq!(far.raw(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        let read = Rights {
            remote_read: true,
            ..Rights::default()
        };
        assert_eq!(read.raw(), IBV_ACCESS_REMOTE_READ);
        let atomic = Rights {
            remote_atomic: true,
            on_demand: true,
            bind_window: true,
            ..Rights::default()
        };
        assert_eq!(atomic.raw(), 1 | 8 | 16 | 64);
    }
}
