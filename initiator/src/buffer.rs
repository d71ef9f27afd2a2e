//! Memory that operations read from and write to.

use crate::error::ClientError;
use kbtp_fabric::{Access, LocalBuffer, Stream};
use kbtp_memory::{AccessError, Region};
use kbtp_wire::{ByteLen, Stag, TaggedOffset};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What a buffer is registered for: two STags at most, so that a target that is to write into a buffer cannot read it,
/// and the other way round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Loads: the target writes it, or this party's own RDMA Reads do.
    Sink,
    /// Stores: the target reads it, or it is sent.
    Source,
}

impl Role {
    /// The rights that go with it.
    const fn access(self, invalidate: bool) -> Access {
        Access {
            remote_read: matches!(self, Self::Source),
            remote_write: matches!(self, Self::Sink),
            remote_atomic: false,
            //= rfc5042-6.3.3-read-no-longer-than-needed
            remote_invalidate: invalidate,
            local_write: matches!(self, Self::Sink),
        }
    }
}

/// A registration with one stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Registration {
    epoch: u64,
    stag: Stag,
    /// Tagged Offset of its first octet.
    base: TaggedOffset,
}

/// STags of buffers that were dropped, for the client to invalidate.
#[derive(Debug, Default)]
pub(crate) struct Returned {
    any: AtomicBool,
    stags: Mutex<Vec<Registration>>,
}

impl Returned {
    fn put(&self, registrations: &[Option<Registration>; 2]) {
        if registrations.iter().all(Option::is_none) {
            return;
        }
        let mut stags = self.stags.lock().unwrap_or_else(PoisonError::into_inner);
        stags.extend(registrations.iter().flatten());
        self.any.store(true, Ordering::Release);
    }

    /// Invalidates what was registered with the stream of `epoch`. One atomic load if there is nothing.
    pub(crate) fn invalidate(&self, stream: &mut impl Stream, epoch: u64) {
        if !self.any.swap(false, Ordering::Acquire) {
            return;
        }
        let mut stags = self.stags.lock().unwrap_or_else(PoisonError::into_inner);
        for registration in stags.drain(..).filter(|r| r.epoch == epoch) {
            // An STag that is gone already is as good as invalidated.
            drop(stream.invalidate(registration.stag));
        }
    }
}

/// Memory for one block, registered with the client's connection as it is used.
///
/// It has a capacity, and a length: the data of the next store, or of the last load. A buffer is either in the caller's
/// hands or lent to one operation, never both: blocking calls borrow it, pipelined ones own it until they are claimed.
/// Its octets are copied in and out, because a faulty target could write to a buffer whose STag it still knows; see
/// [`Options::invalidate`](crate::Options::invalidate).
#[derive(Debug)]
pub struct Buffer {
    region: Region,
    start: u64,
    capacity: ByteLen,
    len: ByteLen,
    sink: Option<Registration>,
    source: Option<Registration>,
    /// Where its registrations go back to: that of the client it served last.
    returned: Arc<Returned>,
}

impl Buffer {
    pub(crate) fn new(
        region: Region,
        start: u64,
        capacity: ByteLen,
        returned: Arc<Returned>,
    ) -> Self {
        Self {
            region,
            start,
            capacity,
            len: ByteLen(0),
            sink: None,
            source: None,
            returned,
        }
    }

    /// Octets it can hold.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.capacity.0
    }

    /// Octets of data in it.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len.0
    }

    /// Whether it holds no data.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len.0 == 0
    }

    /// Says how many octets of it are data.
    ///
    /// # Errors
    /// [`ClientError::Length`] over the capacity.
    pub const fn set_len(&mut self, len: u32) -> Result<(), ClientError> {
        if len > self.capacity.0 {
            return Err(ClientError::Length {
                what: "setting a buffer's length",
                len: len as u64,
                limit: self.capacity.0 as u64,
            });
        }
        self.len = ByteLen(len);
        Ok(())
    }

    /// Makes `data` its data. One copy.
    ///
    /// # Errors
    /// [`ClientError::Length`] over the capacity.
    pub fn fill(&mut self, data: &[u8]) -> Result<(), ClientError> {
        let too_long = ClientError::Length {
            what: "filling a buffer",
            len: data.len() as u64,
            limit: self.capacity.get(),
        };
        let Ok(len) = u32::try_from(data.len()) else {
            return Err(too_long);
        };
        if len > self.capacity.0 {
            return Err(too_long);
        }
        self.region
            .write(self.start, data)
            .map_err(|source| outside("filling a buffer", source))?;
        self.len = ByteLen(len);
        Ok(())
    }

    /// Copies `data` into it at `offset`; the length becomes at least where it ends.
    ///
    /// # Errors
    /// [`ClientError::Length`] over the capacity.
    pub fn write_at(&mut self, offset: u32, data: &[u8]) -> Result<(), ClientError> {
        let end = u64::from(offset).saturating_add(data.len() as u64);
        let end = within("writing to a buffer", end, self.capacity)?;
        self.region
            .write(self.start.saturating_add(u64::from(offset)), data)
            .map_err(|source| outside("writing to a buffer", source))?;
        self.len = self.len.max(end);
        Ok(())
    }

    /// Copies `to.len()` octets of data at `offset` out of it.
    ///
    /// # Errors
    /// [`ClientError::Length`] beyond its data.
    pub fn read_at(&self, offset: u32, to: &mut [u8]) -> Result<(), ClientError> {
        let end = u64::from(offset).saturating_add(to.len() as u64);
        within("reading a buffer", end, self.len)?;
        self.region
            .read(self.start.saturating_add(u64::from(offset)), to)
            .map_err(|source| outside("reading a buffer", source))
    }

    /// A copy of its data. Allocates.
    ///
    /// # Errors
    /// None in practice: its data lies within it.
    pub fn to_vec(&self) -> Result<Vec<u8>, ClientError> {
        let len = usize::try_from(self.len.0).map_err(|_| ClientError::Length {
            what: "reading a buffer",
            len: self.len.get(),
            limit: 0,
        })?;
        let mut data = vec![0; len];
        self.read_at(0, &mut data)?;
        Ok(data)
    }

    /// The memory it lies in, to hand to a device or to copy from without a detour. See [`range`](Self::range).
    #[must_use]
    pub const fn region(&self) -> &Region {
        &self.region
    }

    /// Where in [`region`](Self::region) it lies, all its capacity.
    #[must_use]
    pub const fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.capacity.0 as u64)
    }

    /// The buffer as an operation names it: registered with the stream of `epoch` for `role`. What it was registered with
    /// before goes back to the client of that stream: one target is not to see, or to spoil, what another is sent.
    pub(crate) fn lend(
        &mut self,
        stream: &mut impl Stream,
        epoch: u64,
        returned: &Arc<Returned>,
        role: Role,
        invalidate: bool,
    ) -> Result<LocalBuffer, ClientError> {
        if !Arc::ptr_eq(&self.returned, returned) {
            self.give_back();
            self.returned = Arc::clone(returned);
        }
        let (stag, base) = match *self.registration(role) {
            Some(Registration {
                epoch: e,
                stag,
                base,
            }) if e == epoch => (stag, base),
            _ => {
                let base = stream.tagged_base(&self.region, self.start, TaggedOffset(0));
                let access = role.access(invalidate);
                let stag = stream.register(&self.region, self.range(), base, access)?;
                *self.registration(role) = Some(Registration { epoch, stag, base });
                (stag, base)
            }
        };
        Ok(LocalBuffer {
            stag,
            offset: base,
            len: match role {
                Role::Sink => self.capacity,
                Role::Source => self.len,
            },
        })
    }

    /// Leaves its registrations to the client they were made for.
    fn give_back(&mut self) {
        self.returned.put(&[self.sink.take(), self.source.take()]);
    }

    /// Its STag for `role` is no more.
    pub(crate) fn forget(&mut self, role: Role) {
        *self.registration(role) = None;
    }

    /// A load put so many octets into it.
    pub(crate) fn loaded(&mut self, len: ByteLen) {
        self.len = len.min(self.capacity);
    }

    const fn registration(&mut self, role: Role) -> &mut Option<Registration> {
        match role {
            Role::Sink => &mut self.sink,
            Role::Source => &mut self.source,
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.give_back();
    }
}

fn within(what: &'static str, end: u64, limit: ByteLen) -> Result<ByteLen, ClientError> {
    match u32::try_from(end) {
        Ok(end) if end <= limit.0 => Ok(ByteLen(end)),
        _ => Err(ClientError::Length {
            what,
            len: end,
            limit: limit.get(),
        }),
    }
}

const fn outside(what: &'static str, source: AccessError) -> ClientError {
    ClientError::Buffer { what, source }
}
