//! Gather and scatter lists of slices and region ranges, and the system calls that take them: payload goes between a
//! socket and a region with no copy of ours. The lists lie on the stack.

use crate::error::AccessError;
use crate::limits::MAX_VEC_ENTRIES;
use crate::region::Region;
use nix::libc::{self, c_void, iovec, msghdr};
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// The entries of both lists.
struct Entries {
    vec: [MaybeUninit<iovec>; MAX_VEC_ENTRIES],
    used: usize,
    octets: usize,
}

impl Entries {
    const fn new() -> Self {
        Self {
            vec: [const { MaybeUninit::uninit() }; MAX_VEC_ENTRIES],
            used: 0,
            octets: 0,
        }
    }

    /// Appends `len` octets at `base`; empty ones take no entry.
    fn push(&mut self, base: *mut u8, len: usize) -> Result<(), AccessError> {
        const FULL: AccessError = AccessError::ListFull {
            limit: MAX_VEC_ENTRIES,
        };
        if len == 0 {
            return Ok(());
        }
        let octets = self.octets.checked_add(len).ok_or(FULL)?;
        let entry = self.vec.get_mut(self.used).ok_or(FULL)?;
        entry.write(iovec {
            iov_base: base.cast::<c_void>(),
            iov_len: len,
        });
        self.used += 1;
        self.octets = octets;
        Ok(())
    }

    const fn as_ptr(&self) -> *const iovec {
        self.vec.as_ptr().cast()
    }

    /// The entries that are used.
    fn filled(&self) -> impl Iterator<Item = iovec> + '_ {
        self.vec.iter().take(self.used).map(|entry| {
            // SAFETY: `push` writes the entries in order, and `used` counts them.
            unsafe { entry.assume_init() }
        })
    }

    /// Number of entries as readv wants it: `used <= MAX_VEC_ENTRIES`, far below the limit of a C int.
    fn count(&self) -> libc::c_int {
        libc::c_int::try_from(self.used).unwrap_or(libc::c_int::MAX)
    }
}

/// Repeats `call` while a signal interrupts it.
fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        if let Ok(octets) = usize::try_from(call()) {
            return Ok(octets);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

macro_rules! list {
    ($name:ident, $doc:literal) => {
        #[doc = $doc]
        ///
        /// At most [`MAX_VEC_ENTRIES`] entries; empty ones take none.
        pub struct $name<'a> {
            entries: Entries,
            buffers: PhantomData<&'a mut [u8]>,
        }

        impl fmt::Debug for $name<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("entries", &self.entries.used)
                    .field("octets", &self.entries.octets)
                    .finish_non_exhaustive()
            }
        }

        impl Default for $name<'_> {
            fn default() -> Self {
                Self::new()
            }
        }

        impl<'a> $name<'a> {
            /// An empty list.
            #[must_use]
            pub const fn new() -> Self {
                Self {
                    entries: Entries::new(),
                    buffers: PhantomData,
                }
            }

            /// Appends `len` octets at `offset` of `region`.
            ///
            /// # Errors
            /// [`AccessError::Bounds`] or [`AccessError::ListFull`]; the list is as before.
            pub fn push_region(
                &mut self,
                region: &'a Region,
                offset: u64,
                len: u64,
            ) -> Result<(), AccessError> {
                let (base, len) = region.pointer(offset, len)?;
                self.entries.push(base, len)
            }

            /// Octets in the list.
            #[must_use]
            pub const fn octets(&self) -> usize {
                self.entries.octets
            }

            /// Entries in the list.
            #[must_use]
            pub const fn entries(&self) -> usize {
                self.entries.used
            }

            /// Entries that may still be pushed.
            #[must_use]
            pub const fn room(&self) -> usize {
                MAX_VEC_ENTRIES.saturating_sub(self.entries.used)
            }

            /// Whether there are no octets in the list.
            #[must_use]
            pub const fn is_empty(&self) -> bool {
                self.entries.octets == 0
            }
        }
    };
}

list!(
    ReadVec,
    "A scatter list: where the octets of one receive go, in order."
);
list!(
    WriteVec,
    "A gather list: where the octets of one send come from, in order."
);

impl<'a> ReadVec<'a> {
    /// Appends a slice.
    ///
    /// # Errors
    /// [`AccessError::ListFull`]; the list is as before.
    pub fn push_slice(&mut self, slice: &'a mut [u8]) -> Result<(), AccessError> {
        self.entries.push(slice.as_mut_ptr(), slice.len())
    }

    /// Reads from `fd` into the list; gives the octets read, 0 at the end of the stream (or for an empty list). One
    /// system call, repeated only if a signal interrupts it.
    ///
    /// # Errors
    /// What the system says, among it `WouldBlock` for a non-blocking descriptor with nothing to read.
    pub fn read_from(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let fd = fd.as_raw_fd();
        let entries = &self.entries;
        // SAFETY: the first `count` entries are initialised (`push` writes them in order), and each names octets that
        // are mapped and writable for 'a: an exclusively borrowed slice, or a checked range of a `Region` borrowed
        // for 'a, which is memory that others may write as well.
        retry(|| unsafe { libc::readv(fd, entries.as_ptr(), entries.count()) })
    }

    /// Copies the first octets of `from` into the list, for a network that is no descriptor; gives how many it took:
    /// all, or as many as the list has. No system call.
    pub fn copy_from(&mut self, from: &[u8]) -> usize {
        let mut left = from;
        for entry in self.entries.filled() {
            let (now, rest) = left.split_at(entry.iov_len.min(left.len()));
            // SAFETY: the entry names `iov_len` octets that are mapped and writable for 'a, as in `read_from`; `now` is
            // at most as long, and no slice overlaps a mapping or a slice that is exclusively borrowed.
            unsafe {
                ptr::copy_nonoverlapping(now.as_ptr(), entry.iov_base.cast::<u8>(), now.len());
            }
            left = rest;
        }
        from.len().saturating_sub(left.len())
    }
}

/// Lets a TCP socket's peer send `octets` ahead of this end's reading from the start, where Linux would begin with
/// 64 KiB and find out by itself, slowly or not at all on short paths, that more is needed. The system goes on sizing
/// the buffer upwards, unlike after `SO_RCVBUF`; its own limit (`tcp_rmem`) holds. Two system calls.
///
/// It works by a request to be woken only by so many octets (`SO_RCVLOWAT`), for which the kernel makes room, and
/// which is then taken back. It stands in this crate because no wrapper of that option without `unsafe` is at hand.
///
/// # Errors
/// What the system says.
pub fn raise_receive_window(socket: BorrowedFd<'_>, octets: u32) -> io::Result<()> {
    for low_water in [libc::c_int::try_from(octets).unwrap_or(libc::c_int::MAX), 1] {
        let len = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(4);
        // SAFETY: the value is a C int that outlives the call, and `len` is its size; the kernel only reads it.
        let rc = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVLOWAT,
                (&raw const low_water).cast(),
                len,
            )
        };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

impl<'a> WriteVec<'a> {
    /// Copies the first octets of the list into `to`, for a network that is no descriptor; gives how many it took: as
    /// many as `to` has, or all. No system call.
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        let room = to.len();
        let mut left = to;
        for entry in self.entries.filled() {
            let (now, rest) = left.split_at_mut(entry.iov_len.min(left.len()));
            // SAFETY: the entry names `iov_len` octets that are mapped and readable for 'a, as in `write_to`; `now` is
            // at most as long, and is exclusively borrowed, so that it overlaps none of them.
            unsafe {
                ptr::copy_nonoverlapping(
                    entry.iov_base.cast::<u8>().cast_const(),
                    now.as_mut_ptr(),
                    now.len(),
                );
            }
            left = rest;
        }
        room.saturating_sub(left.len())
    }

    /// Appends a slice.
    ///
    /// # Errors
    /// [`AccessError::ListFull`]; the list is as before.
    pub fn push_slice(&mut self, slice: &'a [u8]) -> Result<(), AccessError> {
        self.entries.push(slice.as_ptr().cast_mut(), slice.len())
    }

    /// Writes the list to any descriptor; gives the octets taken. One system call, repeated only if a signal
    /// interrupts it. On a socket whose peer is gone it raises SIGPIPE: use [`send_to`](Self::send_to) there.
    ///
    /// # Errors
    /// What the system says, among it `WouldBlock` for a non-blocking descriptor with no room.
    pub fn write_to(&self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let fd = fd.as_raw_fd();
        let entries = &self.entries;
        // SAFETY: the first `count` entries are initialised (`push` writes them in order), and each names octets that
        // are mapped and readable for 'a; writev does not write to them.
        retry(|| unsafe { libc::writev(fd, entries.as_ptr(), entries.count()) })
    }

    /// Sends the list on a socket, with no SIGPIPE; `more` tells TCP that more follows at once (`MSG_MORE`). Gives the
    /// octets taken. One system call, repeated only if a signal interrupts it.
    ///
    /// # Errors
    /// What the system says, among it `WouldBlock` for a non-blocking socket with no room.
    pub fn send_to(&self, socket: BorrowedFd<'_>, more: bool) -> io::Result<usize> {
        let fd = socket.as_raw_fd();
        let flags = libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
        // SAFETY: msghdr is a C struct of integers and pointers, for which all zeros is a value: no name, no control.
        let mut message: msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_iov = self.entries.as_ptr().cast_mut();
        message.msg_iovlen = self.entries.used;
        // SAFETY: `message` names no address and no control octets; its entries are initialised and name octets
        // readable for 'a, as in `write_to`; sendmsg writes neither to them nor to the list.
        retry(|| unsafe { libc::sendmsg(fd, &raw const message, flags) })
    }
}
