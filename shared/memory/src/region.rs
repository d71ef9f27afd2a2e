//! A region: a counted handle on mapped memory, and every way to touch its octets.

use crate::crc32c;
use crate::error::{AccessError, MapError};
use crate::map::Mapping;
use crate::pages::{PageOptions, PageReport};
use std::fmt;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A stretch of mapped memory that other parties (a peer through a NIC, another process, another thread) may read and
/// write at the same time. Cloning is cheap; the memory is unmapped with its last clone.
///
/// There is no slice of it: words that two parties use at the same time are atomics ([`u32_at`](Self::u32_at),
/// [`u64_at`](Self::u64_at)), and blocks are copied while the protocol gives one party the right to write them. A
/// party that writes without that right spoils the octets it writes and nothing else: no function here decides
/// anything by them.
///
/// No function here panics, allocates or blocks after the region is made; all offsets and lengths are octets and
/// checked.
#[derive(Clone)]
pub struct Region {
    mapping: Arc<Mapping>,
    /// Where the region begins in the mapping.
    start: usize,
    len: usize,
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("start", &self.start)
            .field("len", &self.len)
            .field("shared", &self.mapping.fd().is_some())
            .finish_non_exhaustive()
    }
}

impl Region {
    /// `len` octets of zeroed memory of this process.
    ///
    /// # Errors
    /// [`MapError`] if the length is zero or too long, hugepages are required and missing, or memory is.
    pub fn anonymous(len: u64, options: &PageOptions) -> Result<Self, MapError> {
        Self::whole(Mapping::anonymous(len, options)?, len)
    }

    /// `len` octets of zeroed memory behind a memfd, to hand to another process. The file is sealed: it can neither
    /// shrink nor grow. `name` shows up in `/proc/*/maps`.
    ///
    /// # Errors
    /// [`MapError`] as for [`anonymous`](Self::anonymous), or if the system has no memfd.
    pub fn memfd(name: &str, len: u64, options: &PageOptions) -> Result<Self, MapError> {
        Self::whole(Mapping::memfd(name, len, options)?, len)
    }

    /// The first `len` octets of a file that another process made with [`memfd`](Self::memfd) or likewise.
    ///
    /// # Errors
    /// [`MapError::NotSealed`] unless the file is sealed against shrinking (its maker could otherwise kill this
    /// process by truncating it), [`MapError::FileTooShort`], or what the system says.
    pub fn from_fd(fd: OwnedFd, len: u64) -> Result<Self, MapError> {
        Self::whole(Mapping::from_fd(fd, len)?, len)
    }

    fn whole(mapping: Mapping, len: u64) -> Result<Self, MapError> {
        Ok(Self {
            mapping: Arc::new(mapping),
            start: 0,
            len: usize::try_from(len).map_err(|_| MapError::Length { len })?,
        })
    }

    /// The octets `range` of this region, as a region of its own.
    ///
    /// # Errors
    /// [`AccessError::Bounds`] if the range is not within this region.
    pub fn sub(&self, range: Range<u64>) -> Result<Self, AccessError> {
        let out = |len| self.outside(range.start, len);
        let len = range.end.checked_sub(range.start).ok_or_else(|| out(0))?;
        let (start, len) = self.check(range.start, len)?;
        Ok(Self {
            mapping: Arc::clone(&self.mapping),
            start: self.start.checked_add(start).ok_or_else(|| out(0))?,
            len,
        })
    }

    /// Octets in the region.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len as u64
    }

    /// Whether it has no octets (only a [`sub`](Self::sub) region can).
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The file behind the whole mapping, for a region made by [`memfd`](Self::memfd) or [`from_fd`](Self::from_fd).
    /// It starts at octet [`file_offset`](Self::file_offset) of the file.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.mapping.fd()
    }

    /// Where the region begins in its file: 0 unless it came from [`sub`](Self::sub).
    #[must_use]
    pub const fn file_offset(&self) -> u64 {
        self.start as u64
    }

    /// What pages the memory has: hugepages or not, locked or not, which NUMA node, and why not.
    #[must_use]
    pub fn page_report(&self) -> &PageReport {
        self.mapping.report()
    }

    /// Address of the first octet, to register the memory with a device. Dereferencing it is the caller's unsafe.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.base().wrapping_add(self.start)
    }

    const fn outside(&self, offset: u64, len: u64) -> AccessError {
        AccessError::Bounds {
            offset,
            len,
            region_len: self.len as u64,
        }
    }

    /// `offset` and `len` as this machine's sizes, `offset + len <= self.len`.
    fn check(&self, offset: u64, len: u64) -> Result<(usize, usize), AccessError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len as u64 => {
                let outside = |_| self.outside(offset, len);
                Ok((
                    usize::try_from(offset).map_err(outside)?,
                    usize::try_from(len).map_err(outside)?,
                ))
            }
            _ => Err(self.outside(offset, len)),
        }
    }

    /// Pointer to `len` octets at `offset`, all within the mapping.
    pub(crate) fn pointer(&self, offset: u64, len: u64) -> Result<(*mut u8, usize), AccessError> {
        let (offset, len) = self.check(offset, len)?;
        Ok((self.as_ptr().wrapping_add(offset), len))
    }

    /// Copies `to.len()` octets at `offset` out of the region.
    ///
    /// # Errors
    /// [`AccessError::Bounds`].
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), AccessError> {
        let (from, len) = self.pointer(offset, to.len() as u64)?;
        // SAFETY: `from` has `len` mapped octets (checked), `to` is as long and exclusively borrowed; safe code has no
        // reference into a mapping, so they do not overlap. Octets another party writes meanwhile arrive spoilt, as
        // documented on `Region`.
        unsafe { ptr::copy_nonoverlapping(from.cast_const(), to.as_mut_ptr(), len) };
        Ok(())
    }

    /// Copies `from` into the region at `offset`.
    ///
    /// # Errors
    /// [`AccessError::Bounds`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), AccessError> {
        let (to, len) = self.pointer(offset, from.len() as u64)?;
        // SAFETY: `to` has `len` mapped, writable octets (checked), `from` is as long; safe code has no reference into
        // a mapping, so they do not overlap.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, len) };
        Ok(())
    }

    /// Copies `len` octets at `src_offset` of `src` to `dst_offset` of this region. The two may be one region and may
    /// overlap.
    ///
    /// # Errors
    /// [`AccessError::Bounds`] for either.
    pub fn copy_from(
        &self,
        src: &Self,
        src_offset: u64,
        dst_offset: u64,
        len: u64,
    ) -> Result<(), AccessError> {
        let (from, _) = src.pointer(src_offset, len)?;
        let (to, len) = self.pointer(dst_offset, len)?;
        // SAFETY: both have `len` mapped octets (checked); `copy` allows overlap.
        unsafe { ptr::copy(from.cast_const(), to, len) };
        Ok(())
    }

    /// Sets `len` octets at `offset` to zero.
    ///
    /// # Errors
    /// [`AccessError::Bounds`].
    pub fn zero(&self, offset: u64, len: u64) -> Result<(), AccessError> {
        self.fill(offset, len, 0)
    }

    /// Sets `len` octets at `offset` to `octet`.
    ///
    /// # Errors
    /// [`AccessError::Bounds`].
    pub fn fill(&self, offset: u64, len: u64, octet: u8) -> Result<(), AccessError> {
        let (to, len) = self.pointer(offset, len)?;
        // SAFETY: `to` has `len` mapped, writable octets (checked).
        unsafe { ptr::write_bytes(to, octet, len) };
        Ok(())
    }

    /// The CRC32C of `len` octets at `offset`, continued from `seed`, the CRC32C of what comes before (0 if nothing).
    ///
    /// # Errors
    /// [`AccessError::Bounds`].
    pub fn crc32c(&self, offset: u64, len: u64, seed: u32) -> Result<u32, AccessError> {
        let (from, len) = self.pointer(offset, len)?;
        // SAFETY: `from` has `len` mapped octets (checked).
        Ok(unsafe { crc32c::update_raw(seed, from.cast_const(), len) })
    }

    /// The 32-bit word at `offset`, in native byte order: the caller converts.
    ///
    /// # Errors
    /// [`AccessError::Bounds`], or [`AccessError::Misaligned`] if its address is not a multiple of 4.
    pub fn u32_at(&self, offset: u64) -> Result<&AtomicU32, AccessError> {
        let word = self.aligned::<u32>(offset)?;
        // SAFETY: `word` is aligned and its 4 octets are mapped and writable (both checked) as long as `self` is
        // borrowed. By the rules of this crate's users a word is accessed by atomics of one size only.
        Ok(unsafe { AtomicU32::from_ptr(word) })
    }

    /// The 64-bit word at `offset`, in native byte order: the caller converts.
    ///
    /// # Errors
    /// [`AccessError::Bounds`], or [`AccessError::Misaligned`] if its address is not a multiple of 8.
    pub fn u64_at(&self, offset: u64) -> Result<&AtomicU64, AccessError> {
        let word = self.aligned::<u64>(offset)?;
        // SAFETY: `word` is aligned and its 8 octets are mapped and writable (both checked) as long as `self` is
        // borrowed. By the rules of this crate's users a word is accessed by atomics of one size only.
        Ok(unsafe { AtomicU64::from_ptr(word) })
    }

    /// Pointer to an aligned `T` at `offset`.
    fn aligned<T>(&self, offset: u64) -> Result<*mut T, AccessError> {
        let (octet, _) = self.pointer(offset, size_of::<T>() as u64)?;
        let word = octet.cast::<T>();
        if word.is_aligned() {
            Ok(word)
        } else {
            Err(AccessError::Misaligned {
                offset,
                align: align_of::<T>() as u64,
            })
        }
    }
}
