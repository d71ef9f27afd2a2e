//! The registrations of a stream, by their STags.

use crate::quirks::Quirks;
use kbtp_fabric::{Access, LocalBuffer, LocalError};
use kbtp_memory::Region;
use kbtp_verbs_sys::{Domain, Registration, Rights, Sge, VerbsError, Window};
use kbtp_wire::{Stag, TaggedOffset};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;
use std::io;
use std::ops::Range;

/// Why memory cannot be registered as asked.
pub(crate) fn local(what: &'static str, error: VerbsError) -> LocalError {
    let source = match error {
        VerbsError::Os { source, .. } => source,
        other => io::Error::new(io::ErrorKind::Unsupported, other),
    };
    LocalError::Os { what, source }
}

/// A region that the stream knows, in one piece or, where the device takes no piece so long, several.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Ended before what it is bound to.
    pub(crate) window: Option<Window>,
    pieces: Vec<Registration>,
    /// Octets of each piece but the last.
    piece_len: u64,
    base: u64,
    len: u64,
    access: Access,
}

/// At most two buffers: a message is no longer than a piece.
pub(crate) type Pieces = [Option<Sge>; 2];

impl Entry {
    /// The piece that everything lies in, for a region in one.
    pub(crate) fn whole(&self) -> Option<&Registration> {
        self.pieces.first()
    }

    /// The octets of `buffer` for the device. `sink`: they are written.
    fn find(&self, buffer: &LocalBuffer, sink: bool) -> Result<Pieces, LocalError> {
        let start = buffer.offset.0.wrapping_sub(self.base);
        let len = buffer.len.get();
        let end = start.checked_add(len).filter(|end| *end <= self.len);
        let (Some(end), true) = (end, self.access.local_write || !sink) else {
            return Err(LocalError::Range {
                what: if sink {
                    "reading into a buffer"
                } else {
                    "sending a buffer"
                },
                start,
                end: start.saturating_add(len),
                len: self.len,
            });
        };
        if len == 0 {
            return Ok([None; 2]);
        }
        if len > self.piece_len {
            return Err(LocalError::Limit {
                what: "octets of one message",
                limit: self.piece_len,
            });
        }
        split(start..end, self.piece_len)
            .map(|part| {
                part.map(|(piece, range)| self.piece(piece, &range))
                    .transpose()
            })
            .into_iter()
            .enumerate()
            .try_fold([None; 2], |mut found, (at, part)| {
                if let Some(place) = found.get_mut(at) {
                    *place = part?;
                }
                Ok(found)
            })
    }

    fn piece(&self, piece: usize, range: &Range<u64>) -> Result<Sge, LocalError> {
        let outside = LocalError::Range {
            what: "a piece of a registration",
            start: range.start,
            end: range.end,
            len: self.len,
        };
        let Ok(len) = u32::try_from(range.end.saturating_sub(range.start)) else {
            return Err(outside);
        };
        let found = self.pieces.get(piece);
        found
            .and_then(|piece| piece.buffer(range.start, len).ok())
            .ok_or(outside)
    }
}

/// The octets `range` in pieces of `piece_len`: which piece, and which of its octets. `range` is no longer than a piece.
fn split(range: Range<u64>, piece_len: u64) -> [Option<(usize, Range<u64>)>; 2] {
    let place = |octet: u64| octet.checked_div(piece_len).unwrap_or(0);
    let (first, last) = (
        place(range.start),
        place(range.end.saturating_sub(1).max(range.start)),
    );
    let within = |piece: u64, range: Range<u64>| {
        let before = piece.saturating_mul(piece_len);
        let number = usize::try_from(piece).unwrap_or(usize::MAX);
        (number, range.start - before..range.end - before)
    };
    if first == last {
        return [Some(within(first, range)), None];
    }
    let seam = last.saturating_mul(piece_len);
    [
        Some(within(first, range.start..seam)),
        Some(within(last, seam..range.end)),
    ]
}

/// All registrations of one stream.
#[derive(Debug)]
pub(crate) struct Keys {
    domain: Domain,
    quirks: Quirks,
    entries: BTreeMap<u32, Entry>,
    most: u16,
    /// Octets that the device registers at a time.
    piece_len: u64,
    on_demand: bool,
}

impl Keys {
    pub(crate) const fn new(
        domain: Domain,
        quirks: Quirks,
        most: u16,
        piece_len: u64,
        on_demand: bool,
    ) -> Self {
        Self {
            domain,
            quirks,
            entries: BTreeMap::new(),
            most,
            piece_len,
            on_demand,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        u64::try_from(self.entries.len()).unwrap_or(u64::MAX)
    }

    /// Where a peer finds octet `start` of `region` if `wanted` is asked for: there, but as far into a page as the octet is into
    /// its own, since devices translate whole pages; or at its address here, on a device that knows no other.
    pub(crate) fn tagged_base(
        &self,
        region: &Region,
        start: u64,
        wanted: TaggedOffset,
    ) -> TaggedOffset {
        let address = (region.as_ptr().addr() as u64).saturating_add(start);
        if !self.quirks.heeds_base {
            return TaggedOffset(address);
        }
        TaggedOffset((wanted.0 & !PAGE_MASK) | (address & PAGE_MASK))
    }

    /// Whether memory can be registered as asked.
    fn check(
        &self,
        region: &Region,
        range: &Range<u64>,
        base: TaggedOffset,
        access: Access,
    ) -> Result<(), LocalError> {
        if self.entries.len() >= usize::from(self.most) {
            return Err(LocalError::Limit {
                what: "registrations of a stream",
                limit: u64::from(self.most),
            });
        }
        let len = range.end.saturating_sub(range.start);
        let outside = LocalError::Range {
            what: "registering a region",
            start: range.start,
            end: range.end,
            len: region.len(),
        };
        if range.end > region.len() || range.start >= range.end {
            return Err(outside);
        }
        let far = is_far(access);
        if far && self.tagged_base(region, range.start, base) != base {
            return Err(unsupported(
                WHAT,
                "the device does not have that Tagged Offset: ask tagged_base",
            ));
        }
        if access.remote_atomic && !self.quirks.atomics {
            return Err(unsupported(WHAT, "the device has no atomic operations"));
        }
        if access.remote_invalidate && !self.quirks.windows {
            return Err(unsupported(
                WHAT,
                "the device has no key that a peer can invalidate",
            ));
        }
        if far && len > self.piece_len {
            return Err(LocalError::Limit {
                what: "octets behind one STag (max_mr_size of the device)",
                limit: self.piece_len,
            });
        }
        Ok(())
    }

    /// Registers memory. A window, where one is asked for, is made and not yet bound.
    pub(crate) fn prepare(
        &self,
        region: &Region,
        range: Range<u64>,
        base: TaggedOffset,
        access: Access,
    ) -> Result<Entry, LocalError> {
        self.check(region, &range, base, access)?;
        let len = range.end.saturating_sub(range.start);
        let far = is_far(access);
        let windowed = access.remote_invalidate && far;
        let rights = Rights {
            local_write: access.local_write,
            remote_write: access.remote_write && !windowed,
            remote_read: access.remote_read && !windowed,
            remote_atomic: access.remote_atomic,
            bind_window: windowed,
            on_demand: self.on_demand,
        };
        // A window that peers write through is bound to memory that may be written.
        let rights = Rights {
            local_write: rights.local_write || access.remote_write,
            ..rights
        };
        let asked = (far && self.quirks.heeds_base).then_some(base.0);
        let mut pieces = Vec::new();
        let mut start = range.start;
        while start < range.end {
            let end = start.saturating_add(self.piece_len).min(range.end);
            let base = asked.map(|base| base.saturating_add(start - range.start));
            let piece = self
                .domain
                .register(region, start..end, base, rights)
                .map_err(|error| local(WHAT, error))?;
            pieces.push(piece);
            start = end;
        }
        let window = if windowed {
            Some(
                self.domain
                    .window()
                    .map_err(|error| local("making a memory window", error))?,
            )
        } else {
            None
        };
        Ok(Entry {
            window,
            pieces,
            piece_len: self.piece_len,
            base: base.0,
            len,
            access,
        })
    }

    /// Puts a registration among the others; its STag.
    pub(crate) fn insert(&mut self, entry: Entry) -> Result<Stag, LocalError> {
        let key = match (&entry.window, entry.pieces.first()) {
            (Some(window), _) => window.remote_key(),
            (None, Some(piece)) if is_far(entry.access) => piece.remote_key(),
            // Memory that no peer has a right to may have no key for peers, or all of it the same one (rxe: 0).
            (None, Some(piece)) => piece.local_key(),
            (None, None) => return Err(unsupported("registering memory", "there is none")),
        };
        match self.entries.entry(key) {
            MapEntry::Vacant(place) => {
                place.insert(entry);
                Ok(Stag(key))
            }
            MapEntry::Occupied(_) => Err(unsupported(WHAT, "the device gave a key twice")),
        }
    }

    /// Ends a registration: the device no longer reaches its memory.
    pub(crate) fn remove(&mut self, stag: Stag) -> Result<(), LocalError> {
        match self.entries.remove(&stag.0) {
            Some(_ended) => Ok(()),
            None => Err(LocalError::UnknownStag { stag }),
        }
    }

    /// Ends all.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// The octets of a buffer for the device.
    pub(crate) fn find(&self, buffer: &LocalBuffer, sink: bool) -> Result<Pieces, LocalError> {
        let entry = self.entries.get(&buffer.stag.0);
        entry
            .ok_or(LocalError::UnknownStag { stag: buffer.stag })?
            .find(buffer, sink)
    }
}

/// Of an address, where in its page it is.
const PAGE_MASK: u64 = 4095;

/// What is done when memory is registered.
const WHAT: &str = "registering memory with the device";

/// Whether a peer has some right.
const fn is_far(access: Access) -> bool {
    access.remote_read || access.remote_write || access.remote_atomic
}

fn unsupported(what: &'static str, why: &'static str) -> LocalError {
    LocalError::Os {
        what,
        source: io::Error::new(io::ErrorKind::Unsupported, why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_split_where_pieces_meet() {
        assert_eq!(split(0..10, 100), [Some((0, 0..10)), None]);
        assert_eq!(split(90..100, 100), [Some((0, 90..100)), None]);
        assert_eq!(split(100..110, 100), [Some((1, 0..10)), None]);
        assert_eq!(split(95..110, 100), [Some((0, 95..100)), Some((1, 0..10))]);
        assert_eq!(split(250..350, 100), [Some((2, 50..100)), Some((3, 0..50))]);
        // Nothing lies in the piece that it begins in.
        assert_eq!(split(100..100, 100), [Some((1, 0..0)), None]);
        assert_eq!(split(0..0, 100), [Some((0, 0..0)), None]);
    }

    #[test]
    fn every_octet_lies_in_one_piece() {
        for start in 0..70 {
            for len in 0..=30 {
                let parts = split(start..start + len, 30);
                let octets: Vec<u64> = parts
                    .into_iter()
                    .flatten()
                    .flat_map(|(piece, range)| range.map(move |o| piece as u64 * 30 + o))
                    .collect();
                assert_eq!(octets, (start..start + len).collect::<Vec<_>>());
            }
        }
    }
}
