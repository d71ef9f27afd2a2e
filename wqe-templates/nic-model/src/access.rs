//! Octets at extents: read, appended, scattered over.

use crate::hazards::Schedule;
use crate::memory::{Asker, Denied, Extent};
use crate::model::Model;
use kbtp_mlx5::{AccessRights, DataSegment, Syndrome};

impl Model {
    /// The octets at `extents`, which are as many as `to` has.
    pub(crate) fn read_extents(&self, extents: &[Extent], to: &mut [u8]) -> Result<(), Denied> {
        let mut left = to;
        for extent in extents {
            let len = usize::try_from(extent.len).map_err(|_| Denied)?;
            let (now, rest) = left.split_at_mut_checked(len).ok_or(Denied)?;
            self.memory.read(extent.place, now)?;
            left = rest;
        }
        Ok(())
    }

    /// Appends the octets at `extents` to `data`.
    pub(crate) fn append(&self, extents: &[Extent], data: &mut Vec<u8>) -> Result<(), Denied> {
        let len: u64 = extents.iter().map(|extent| extent.len).sum();
        let from = data.len();
        let len = usize::try_from(len).map_err(|_| Denied)?;
        data.resize(from.checked_add(len).ok_or(Denied)?, 0);
        self.read_extents(extents, data.get_mut(from..).unwrap_or(&mut []))
    }

    /// Writes `data` to extents, which have as many octets.
    pub(crate) fn write_extents(&self, extents: &[Extent], data: &[u8]) -> Result<(), Denied> {
        let mut left = data;
        for extent in extents {
            let len = usize::try_from(extent.len).map_err(|_| Denied)?;
            let (now, rest) = left.split_at_checked(len).ok_or(Denied)?;
            self.memory.write(extent.place, now)?;
            left = rest;
        }
        Ok(())
    }

    /// Writes `data` over a list of segments: all of it, or nothing.
    pub(crate) fn scatter(
        &mut self,
        asker: Asker,
        list: &[DataSegment],
        data: &[u8],
    ) -> Result<(), Syndrome> {
        let mut extents = std::mem::take(&mut self.extents);
        extents.clear();
        let result = self.scatter_with(asker, list, data, &mut extents);
        self.extents = extents;
        result
    }

    fn scatter_with(
        &mut self,
        asker: Asker,
        list: &[DataSegment],
        data: &[u8],
        extents: &mut Vec<Extent>,
    ) -> Result<(), Syndrome> {
        let mut left = data.len() as u64;
        let mut relaxed = false;
        for segment in list {
            let now = u64::from(segment.len.get()).min(left);
            if now == 0 {
                break;
            }
            let (key, need) = (segment.lkey, AccessRights::LOCAL_WRITE);
            self.memory
                .translate(asker, key, segment.address, now, need, extents)
                .map_err(|_| Syndrome::LOCAL_PROTECTION)?;
            relaxed |= self.memory.is_relaxed(key);
            left -= now;
        }
        if left > 0 {
            return Err(Syndrome::LOCAL_LENGTH);
        }
        self.place(extents, data, relaxed)
            .map_err(|_| Syndrome::LOCAL_PROTECTION)
    }

    /// Writes octets: at once, or, where ordering is relaxed, when the schedule says.
    pub(crate) fn place(
        &mut self,
        extents: &[Extent],
        data: &[u8],
        relaxed: bool,
    ) -> Result<(), Denied> {
        if !relaxed || self.schedule == Schedule::Eager {
            return self.write_extents(extents, data);
        }
        let mut left = data;
        for extent in extents {
            let len = usize::try_from(extent.len).map_err(|_| Denied)?;
            let (now, rest) = left.split_at_checked(len).ok_or(Denied)?;
            let mut held = self.take();
            held.extend_from_slice(now);
            self.late.push((extent.place, held));
            left = rest;
        }
        Ok(())
    }
}
