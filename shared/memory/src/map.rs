//! One mapping: how it is made and unmade. The only file that calls mmap.

use crate::error::MapError;
use crate::limits::MAX_REGION_LEN;
use crate::pages::{Got, HUGE_PAGE_LEN, Huge, HugePages, PageOptions, PageReport, Reason};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags};
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// Mapped memory; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<c_void>,
    /// Octets mapped: a multiple of the page length.
    mapped: NonZeroUsize,
    fd: Option<OwnedFd>,
    report: PageReport,
}

// SAFETY: a mapping belongs to the process, not to a thread; nothing in it is tied to the thread that made it.
unsafe impl Send for Mapping {}
// SAFETY: through a shared reference the octets are reached only by atomics and by raw-pointer copies, never by
// references. Two copies of one octet by two threads, one of them a write, are ordered by an atomic word of whoever uses
// the region; docs/adr/0015-regions-are-shared.md says by which, and what remains.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base` and `mapped` are what mmap returned and was given, and no pointer into the mapping outlives
        // it: every accessor borrows from a `Region`, which holds this mapping.
        let unmapped = unsafe { nix::sys::mman::munmap(self.base, self.mapped.get()) };
        // munmap fails only for arguments that mmap would not have given.
        debug_assert_eq!(unmapped, Ok(()));
    }
}

const READ_WRITE: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

fn os(what: &'static str) -> impl Fn(Errno) -> MapError {
    move |errno| MapError::Os {
        what,
        source: errno.into(),
    }
}

/// `len` rounded up to `page`, a power of two.
fn round_up(len: u64, page: u64) -> Result<NonZeroUsize, MapError> {
    let mask = page.saturating_sub(1);
    len.checked_add(mask)
        .map(|l| l & !mask)
        .filter(|&l| l <= MAX_REGION_LEN)
        .and_then(|l| usize::try_from(l).ok())
        .and_then(NonZeroUsize::new)
        .ok_or(MapError::Length { len })
}

fn page_len() -> u64 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .and_then(|n| u64::try_from(n).ok())
        .unwrap_or(4096)
}

/// Why no reserved hugepage is even tried for; `None` if it is.
fn no_reserved(options: &PageOptions, len: u64) -> Option<Reason> {
    match options.huge {
        Huge::Never => Some(Reason::NotAsked),
        Huge::Prefer if len < HUGE_PAGE_LEN => Some(Reason::TooSmall),
        Huge::Prefer | Huge::Require => None,
    }
}

impl Mapping {
    /// Private anonymous memory, zeroed.
    pub(crate) fn anonymous(len: u64, options: &PageOptions) -> Result<Self, MapError> {
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_ANONYMOUS;
        Self::huge_or_ordinary(len, options, |mapped, huge| {
            let flags = if huge {
                flags | MapFlags::MAP_HUGETLB | MapFlags::MAP_HUGE_2MB
            } else {
                flags
            };
            // SAFETY: no address is asked for (no MAP_FIXED), so no existing mapping is touched.
            let base = unsafe { nix::sys::mman::mmap_anonymous(None, mapped, READ_WRITE, flags) };
            base.map(|base| (base, None))
        })
    }

    /// Shared memory behind a memfd that can neither shrink nor grow, zeroed.
    pub(crate) fn memfd(name: &str, len: u64, options: &PageOptions) -> Result<Self, MapError> {
        Self::huge_or_ordinary(len, options, |mapped, huge| {
            let mut flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
            if huge {
                flags |= MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB;
            }
            let fd = memfd_create(name, flags)?;
            let file_len = i64::try_from(mapped.get()).map_err(|_| Errno::EFBIG)?;
            nix::unistd::ftruncate(&fd, file_len)?;
            let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
            fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
            let base = map_shared(&fd, mapped)?;
            Ok((base, Some(fd)))
        })
    }

    /// Shared memory behind a file that another process made.
    pub(crate) fn from_fd(fd: OwnedFd, len: u64) -> Result<Self, MapError> {
        if len == 0 {
            return Err(MapError::Length { len });
        }
        // The seal is checked before the size: once sealed, the size checked stays true.
        let seals = fcntl(&fd, FcntlArg::F_GET_SEALS).map_err(|_| MapError::NotSealed)?;
        if !SealFlag::from_bits_truncate(seals).contains(SealFlag::F_SEAL_SHRINK) {
            return Err(MapError::NotSealed);
        }
        let stat = nix::sys::stat::fstat(&fd).map_err(os("size of the file"))?;
        let have = u64::try_from(stat.st_size).unwrap_or(0);
        let fs = fstatfs(&fd).map_err(os("kind of the file"))?;
        let huge = (fs.filesystem_type() == HUGETLBFS_MAGIC)
            .then(|| u64::try_from(fs.block_size()).ok())
            .flatten()
            .filter(|page| page.is_power_of_two());
        // A file of ordinary pages need only hold `len`: the rest of its last page reads as zeros.
        let mapped = round_up(len, huge.unwrap_or_else(page_len))?;
        let need = huge.map_or(len, |_| mapped.get() as u64);
        if have < need {
            return Err(MapError::FileTooShort { have, need });
        }
        let base = map_shared(&fd, mapped).map_err(os("mapping the file"))?;
        let made_elsewhere = Reason::MadeElsewhere;
        let mut mapping = Self {
            base,
            mapped,
            fd: Some(fd),
            report: PageReport {
                huge: huge.map_or(
                    HugePages::Ordinary {
                        reserved: made_elsewhere,
                        transparent: made_elsewhere,
                    },
                    |page_len| HugePages::Reserved { page_len },
                ),
                locked: Got::No(made_elsewhere),
                numa_bound: Got::No(made_elsewhere),
                numa_node: None,
                populated: Got::No(Reason::NotAsked),
                no_dump: Got::No(Reason::NotAsked),
            },
        };
        mapping.report.no_dump = got(mapping.advise(MmapAdvise::MADV_DONTDUMP));
        Ok(mapping)
    }

    /// Tries reserved hugepages as `options` say, then ordinary pages.
    fn huge_or_ordinary(
        len: u64,
        options: &PageOptions,
        map: impl Fn(NonZeroUsize, bool) -> Result<(NonNull<c_void>, Option<OwnedFd>), Errno>,
    ) -> Result<Self, MapError> {
        if len == 0 {
            return Err(MapError::Length { len });
        }
        let reserved = if let Some(reason) = no_reserved(options, len) {
            reason
        } else {
            let mapped = round_up(len, HUGE_PAGE_LEN)?;
            let page_len = HUGE_PAGE_LEN;
            let tried = map(mapped, true).and_then(|made| {
                let mut mapping =
                    Self::unset(made, mapped, options, HugePages::Reserved { page_len });
                // A reserved hugepage may still be missing on the NUMA node or in the control group, and then its
                // first use kills the process. Faulting it in here gives an error instead.
                mapping.bind(options);
                mapping.advise(MmapAdvise::MADV_POPULATE_WRITE)?;
                Ok(mapping)
            });
            match tried {
                Ok(mut mapping) => {
                    mapping.report.populated = Got::Yes;
                    mapping.lock(options);
                    return Ok(mapping);
                }
                Err(errno) if options.huge == Huge::Require => {
                    return Err(MapError::NoHugePages {
                        source: errno.into(),
                    });
                }
                Err(errno) => Reason::Refused(errno),
            }
        };
        let mapped = round_up(len, page_len())?;
        let made = map(mapped, false).map_err(os("mapping memory"))?;
        let is_file = made.1.is_some();
        let ordinary = HugePages::Ordinary {
            reserved,
            transparent: reserved,
        };
        let mut mapping = Self::unset(made, mapped, options, ordinary);
        if !matches!(reserved, Reason::NotAsked | Reason::TooSmall) {
            mapping.report.huge = match mapping.ask_transparent(is_file) {
                Ok(()) => HugePages::Transparent { reserved },
                Err(transparent) => HugePages::Ordinary {
                    reserved,
                    transparent,
                },
            };
        }
        mapping.bind(options);
        if options.populate {
            mapping.report.populated = got(mapping.advise(MmapAdvise::MADV_POPULATE_WRITE));
        }
        mapping.lock(options);
        Ok(mapping)
    }

    fn unset(
        (base, fd): (NonNull<c_void>, Option<OwnedFd>),
        mapped: NonZeroUsize,
        options: &PageOptions,
        huge: HugePages,
    ) -> Self {
        let not_asked = Got::No(Reason::NotAsked);
        let mut mapping = Self {
            base,
            mapped,
            fd,
            report: PageReport {
                huge,
                locked: not_asked,
                numa_bound: not_asked,
                numa_node: options.numa_node,
                populated: not_asked,
                no_dump: not_asked,
            },
        };
        mapping.report.no_dump = got(mapping.advise(MmapAdvise::MADV_DONTDUMP));
        mapping
    }

    fn ask_transparent(&self, is_file: bool) -> Result<(), Reason> {
        let switch = if is_file {
            "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
        } else {
            "/sys/kernel/mm/transparent_hugepage/enabled"
        };
        // The kernel takes the advice whatever the switch says, so the switch is asked too. Where it cannot be read
        // the kernel's answer stands.
        let off = std::fs::read_to_string(switch)
            .is_ok_and(|text| text.contains("[never]") || text.contains("[deny]"));
        self.advise(MmapAdvise::MADV_HUGEPAGE)
            .map_err(Reason::Refused)?;
        if off {
            Err(Reason::SwitchedOff)
        } else {
            Ok(())
        }
    }

    fn advise(&self, advice: MmapAdvise) -> Result<(), Errno> {
        // SAFETY: the range is this whole mapping; the advices used here (hugepage, no dump, populate) change no
        // octet and unmap nothing.
        unsafe { nix::sys::mman::madvise(self.base, self.mapped.get(), advice) }
    }

    fn bind(&mut self, options: &PageOptions) {
        if let Some(node) = options.numa_node {
            self.report.numa_bound = got(self.mbind(node));
        }
    }

    fn mbind(&self, node: u32) -> Result<(), Errno> {
        // The mask has 1024 bits, the most nodes a kernel can be built with.
        let mut mask = [0_u64; 16];
        let word = usize::try_from(node / 64).map_err(|_| Errno::EINVAL)?;
        *mask.get_mut(word).ok_or(Errno::EINVAL)? = 1 << (node % 64);
        // SAFETY: the range is this whole mapping, `mask` has the 1024 bits announced (the kernel reads one less than
        // the number given) and outlives the call, which moves no page (no MPOL_MF_MOVE) and changes no octet.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.mapped.get(),
                libc::MPOL_BIND,
                mask.as_ptr(),
                1025_usize,
                0_u32,
            )
        };
        Errno::result(rc).map(drop)
    }

    fn lock(&mut self, options: &PageOptions) {
        if options.lock {
            // SAFETY: the range is this whole mapping; locking changes no octet.
            let locked = unsafe { nix::sys::mman::mlock(self.base, self.mapped.get()) };
            self.report.locked = got(locked);
        }
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr().cast()
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    pub(crate) const fn report(&self) -> &PageReport {
        &self.report
    }
}

fn got(result: Result<(), Errno>) -> Got {
    match result {
        Ok(()) => Got::Yes,
        Err(errno) => Got::No(Reason::Refused(errno)),
    }
}

fn map_shared(fd: &OwnedFd, mapped: NonZeroUsize) -> Result<NonNull<c_void>, Errno> {
    // SAFETY: no address is asked for (no MAP_FIXED), so no existing mapping is touched.
    unsafe { nix::sys::mman::mmap(None, mapped, READ_WRITE, MapFlags::MAP_SHARED, fd, 0) }
}
