//! Memory that the model knows, and keys to it: from key and address to octets.

use crate::error::ModelError;
use crate::limits::{MAX_ENTRIES, MAX_NESTING, MAX_OBJECTS};
use kbtp_device::{Domain, KeyAttributes, Layout, MemoryId, Place};
use kbtp_memory::Region;
use kbtp_mlx5::limits::SEGMENT;
use kbtp_mlx5::{
    AccessRights, Klm, KsmEntry, Mkey, MkeyContext, Qpn, RepeatBlock, RepeatEntry, UmrControl,
    UmrFlags, UmrMask,
};

/// Octets of memory, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The first.
    pub place: Place,
    /// How many.
    pub len: u64,
}

/// Why a key does not give octets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Denied;

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(crate) domain: Domain,
    pub(crate) qpn: Qpn,
}

#[derive(Clone, Debug)]
enum Octets {
    Plain(Place),
    Repeat {
        entries: Vec<RepeatEntry>,
        /// Octets of one repetition.
        len: u64,
    },
    /// With where each piece starts.
    List(Vec<(u64, Klm)>),
    Equal {
        log_size: u8,
        entries: Vec<KsmEntry>,
    },
}

#[derive(Clone, Debug)]
struct Key {
    tag: u8,
    free: bool,
    domain: Domain,
    rights: AccessRights,
    start: u64,
    len: u64,
    octets: Octets,
    qpn: Option<Qpn>,
    remote_invalidate: bool,
    relaxed: bool,
}

/// The first number of a key: devices do not start at zero.
const FIRST_KEY: u32 = 0x1000;

/// Puts an object where there is none, or behind all others; gives its place.
pub(crate) fn put<T>(
    objects: &mut Vec<Option<T>>,
    object: T,
    what: &'static str,
) -> Result<u32, ModelError> {
    let free = objects.iter().position(Option::is_none);
    let place = free.unwrap_or(objects.len());
    let number = u32::try_from(place).ok();
    let number = number.filter(|number| *number < MAX_OBJECTS);
    let number = number.ok_or(ModelError::Exhausted(what))?;
    match objects.get_mut(place) {
        Some(slot) => *slot = Some(object),
        None => objects.push(Some(object)),
    }
    Ok(number)
}

/// Regions and keys.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    regions: Vec<Option<Region>>,
    keys: Vec<Option<Key>>,
    /// The tag of the last key that was made.
    tags: u8,
}

impl Memory {
    pub(crate) fn register(&mut self, region: &Region) -> Result<MemoryId, ModelError> {
        let number = put(&mut self.regions, region.clone(), "regions")?;
        Ok(MemoryId(number))
    }

    pub(crate) fn unregister(&mut self, memory: MemoryId) -> Result<(), ModelError> {
        let used = |key: &Key| matches!(key.octets, Octets::Plain(place) if place.memory == memory);
        if self.keys.iter().flatten().any(used) {
            return Err(ModelError::InUse("memory that a key names"));
        }
        let slot = usize::try_from(memory.0)
            .ok()
            .and_then(|at| self.regions.get_mut(at));
        let slot = slot.ok_or(ModelError::Memory(memory))?;
        slot.take().map(drop).ok_or(ModelError::Memory(memory))
    }

    pub(crate) fn region(&self, memory: MemoryId) -> Option<&Region> {
        let at = usize::try_from(memory.0).ok()?;
        self.regions.get(at)?.as_ref()
    }

    /// That `len` octets lie in memory.
    pub(crate) fn check(&self, what: &'static str, at: Place, len: u64) -> Result<(), ModelError> {
        let region = self.region(at.memory);
        let region = region.ok_or(ModelError::Memory(at.memory))?;
        match at.offset.checked_add(len) {
            Some(end) if end <= region.len() => Ok(()),
            _ => Err(ModelError::Bounds {
                what,
                value: at.offset,
            }),
        }
    }

    pub(crate) fn read(&self, at: Place, to: &mut [u8]) -> Result<(), Denied> {
        let region = self.region(at.memory).ok_or(Denied)?;
        region.read(at.offset, to).map_err(|_| Denied)
    }

    pub(crate) fn write(&self, at: Place, from: &[u8]) -> Result<(), Denied> {
        let region = self.region(at.memory).ok_or(Denied)?;
        region.write(at.offset, from).map_err(|_| Denied)
    }

    fn slot(key: Mkey) -> Option<usize> {
        usize::try_from((key.0 >> 8).checked_sub(FIRST_KEY)?).ok()
    }

    /// The key, unless its tag is another or it is free.
    fn key(&self, key: Mkey) -> Option<&Key> {
        let found = self.keys.get(Self::slot(key)?)?.as_ref()?;
        let [.., tag] = key.0.to_be_bytes();
        (found.tag == tag && !found.free).then_some(found)
    }

    pub(crate) fn create_key(
        &mut self,
        attributes: &KeyAttributes<'_>,
    ) -> Result<Mkey, ModelError> {
        let octets = self.octets(attributes)?;
        if attributes.start.checked_add(attributes.len).is_none() {
            return Err(ModelError::Bounds {
                what: "a key's end",
                value: attributes.start,
            });
        }
        // A number that is used again has another tag, so that a key of before is none.
        self.tags = self.tags.wrapping_add(1);
        let key = Key {
            tag: self.tags,
            free: false,
            domain: attributes.domain,
            rights: attributes.rights,
            start: attributes.start,
            len: attributes.len,
            octets,
            qpn: attributes.qpn,
            remote_invalidate: attributes.remote_invalidate,
            relaxed: attributes.relaxed_ordering,
        };
        let tag = u32::from(key.tag);
        let number = put(&mut self.keys, key, "keys")?;
        Ok(Mkey((FIRST_KEY + number) << 8 | tag))
    }

    fn octets(&self, attributes: &KeyAttributes<'_>) -> Result<Octets, ModelError> {
        let exists = |key: Mkey| match self.key(key) {
            Some(_) => Ok(()),
            None => Err(ModelError::Key(key)),
        };
        let few = |entries: usize| match entries {
            1..=MAX_ENTRIES => Ok(()),
            _ => Err(bounds("entries of a key", entries as u64)),
        };
        let enough = |have: Option<u64>| match have {
            Some(have) if have >= attributes.len => Ok(()),
            _ => Err(bounds("a key's length", attributes.len)),
        };
        Ok(match attributes.layout {
            Layout::Plain(place) => {
                self.check("a key's memory", place, attributes.len)?;
                Octets::Plain(place)
            }
            Layout::Repeat {
                repetitions,
                entries,
            } => {
                few(entries.len())?;
                let len: u64 = entries.iter().map(|entry| u64::from(entry.len)).sum();
                enough(len.checked_mul(u64::from(repetitions)).filter(|_| len > 0))?;
                entries.iter().try_for_each(|entry| exists(entry.mkey))?;
                Octets::Repeat {
                    entries: entries.to_vec(),
                    len,
                }
            }
            Layout::List(klms) => {
                few(klms.len())?;
                let mut at = 0_u64;
                let mut list = Vec::with_capacity(klms.len());
                for klm in klms {
                    exists(klm.mkey)?;
                    list.push((at, *klm));
                    at = at.saturating_add(u64::from(klm.len));
                }
                enough(Some(at))?;
                Octets::List(list)
            }
            Layout::Equal { log_size, entries } => {
                few(entries.len())?;
                let size = 1_u64.checked_shl(u32::from(log_size));
                enough(size.and_then(|size| size.checked_mul(entries.len() as u64)))?;
                entries.iter().try_for_each(|entry| exists(entry.mkey))?;
                Octets::Equal {
                    log_size,
                    entries: entries.to_vec(),
                }
            }
        })
    }

    pub(crate) fn destroy_key(&mut self, key: Mkey) -> Result<(), ModelError> {
        let slot = Self::slot(key).and_then(|at| self.keys.get_mut(at));
        let found = slot.and_then(Option::take);
        found.map(drop).ok_or(ModelError::Key(key))
    }

    /// Whether a key's writes may land in any order.
    pub(crate) fn is_relaxed(&self, key: Mkey) -> bool {
        self.key(key).is_some_and(|key| key.relaxed)
    }

    /// Ends a key because a peer's message said so.
    pub(crate) fn invalidate(&mut self, who: Asker, key: Mkey) -> Result<(), Denied> {
        let found = self.key(key).ok_or(Denied)?;
        if !found.remote_invalidate || found.domain != who.domain {
            return Err(Denied);
        }
        self.set_free(key, true)
    }

    /// Changes a key as a UMR says.
    pub(crate) fn update(
        &mut self,
        who: Asker,
        mkey: Mkey,
        control: &UmrControl,
        context: &MkeyContext,
        list: &[[u8; SEGMENT]],
    ) -> Result<(), Denied> {
        let octets = match control.flags.0 & UmrFlags::INLINE.0 {
            0 => None,
            _ => Some(self.listed(control, list)?),
        };
        let slot = Self::slot(mkey).and_then(|at| self.keys.get_mut(at));
        let key = slot.and_then(Option::as_mut).ok_or(Denied)?;
        let has = |flag: UmrFlags| control.flags.0 & flag.0 != 0;
        let changes = |mask: UmrMask| control.mask.0 & mask.0 != 0;
        let [.., tag] = mkey.0.to_be_bytes();
        // A UMR that sets the tag names the key by its index alone.
        let known = key.tag == tag || changes(UmrMask::MKEY);
        let bound = key.qpn.is_none_or(|qpn| qpn == who.qpn);
        if !known || key.domain != who.domain || !key.rights.contains(AccessRights::UMR) {
            return Err(Denied);
        }
        if has(UmrFlags::CHECK_FREE) && !key.free || has(UmrFlags::CHECK_QPN) && !bound {
            return Err(Denied);
        }
        for (mask, right) in [
            (UmrMask::LOCAL_WRITE, AccessRights::LOCAL_WRITE),
            (UmrMask::REMOTE_READ, AccessRights::REMOTE_READ),
            (UmrMask::REMOTE_WRITE, AccessRights::REMOTE_WRITE),
            (UmrMask::ATOMIC, AccessRights::ATOMIC),
        ] {
            if changes(mask) {
                key.rights.0 = key.rights.0 & !right.0 | context.rights.0 & right.0;
            }
        }
        if changes(UmrMask::LEN) {
            key.len = context.len;
        }
        if changes(UmrMask::START_ADDRESS) {
            key.start = context.start;
        }
        if changes(UmrMask::QPN) {
            key.qpn = (context.qpn.get() != Qpn::MAX).then_some(context.qpn);
        }
        if changes(UmrMask::MKEY) {
            key.tag = context.tag;
        }
        if changes(UmrMask::FREE) {
            key.free = context.free;
        }
        if let Some(octets) = octets {
            key.octets = octets;
        }
        Ok(())
    }

    /// What the list of a UMR says that the octets of a key are.
    fn listed(&self, control: &UmrControl, list: &[[u8; SEGMENT]]) -> Result<Octets, Denied> {
        let list = list.get(..usize::from(control.list_segments));
        let list = list.ok_or(Denied)?;
        let (first, rest) = list.split_first().ok_or(Denied)?;
        if let Ok(block) = RepeatBlock::decode(first) {
            let rest = rest.get(..usize::from(block.entries)).ok_or(Denied)?;
            let entries: Vec<RepeatEntry> = rest.iter().map(RepeatEntry::decode).collect();
            let len: u64 = entries.iter().map(|entry| u64::from(entry.len)).sum();
            let known = entries.iter().all(|entry| self.key(entry.mkey).is_some());
            return if len == u64::from(block.len) && len > 0 && known {
                Ok(Octets::Repeat { entries, len })
            } else {
                Err(Denied)
            };
        }
        let mut at = 0_u64;
        let mut pieces = Vec::with_capacity(list.len());
        for octets in list {
            let klm = Klm::decode(octets);
            self.key(klm.mkey).ok_or(Denied)?;
            pieces.push((at, klm));
            at = at.saturating_add(u64::from(klm.len));
        }
        Ok(Octets::List(pieces))
    }

    /// Whether there is such a key and it is free.
    pub(crate) fn is_free(&self, key: Mkey) -> bool {
        let found = Self::slot(key).and_then(|at| self.keys.get(at)?.as_ref());
        found.is_some_and(|found| found.free)
    }

    /// Frees a key or takes it into use.
    pub(crate) fn set_free(&mut self, key: Mkey, free: bool) -> Result<(), Denied> {
        let slot = Self::slot(key).and_then(|at| self.keys.get_mut(at));
        let found = slot.and_then(Option::as_mut).ok_or(Denied)?;
        let [.., tag] = key.0.to_be_bytes();
        if found.tag != tag {
            return Err(Denied);
        }
        found.free = free;
        Ok(())
    }

    /// Appends the octets at `address` under `key` to `to`.
    pub(crate) fn translate(
        &self,
        who: Asker,
        key: Mkey,
        address: u64,
        len: u64,
        need: AccessRights,
        to: &mut Vec<Extent>,
    ) -> Result<(), Denied> {
        self.nested(who, key, address, len, need, MAX_NESTING, to)
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "it is `translate` with a depth, and called from there only"
    )]
    fn nested(
        &self,
        who: Asker,
        mkey: Mkey,
        address: u64,
        len: u64,
        need: AccessRights,
        depth: u8,
        to: &mut Vec<Extent>,
    ) -> Result<(), Denied> {
        let key = self.key(mkey).ok_or(Denied)?;
        let at = address.checked_sub(key.start).ok_or(Denied)?;
        let inside = at.checked_add(len).is_some_and(|end| end <= key.len);
        let bound = key.qpn.is_none_or(|qpn| qpn == who.qpn);
        if !inside || !bound || key.domain != who.domain || !key.rights.contains(need) {
            return Err(Denied);
        }
        if let Octets::Plain(place) = key.octets {
            push(to, place.plus(at), len);
            return Ok(());
        }
        let depth = depth.checked_sub(1).ok_or(Denied)?;
        let (mut at, mut left) = (at, len);
        while left > 0 {
            let (mkey, address, here) = key.octets.piece(at).ok_or(Denied)?;
            let now = here.min(left);
            self.nested(who, mkey, address, now, need, depth, to)?;
            at = at.saturating_add(now);
            left -= now;
        }
        Ok(())
    }
}

impl Octets {
    /// The key and address of octet `at`, and how many octets follow there, that one included.
    fn piece(&self, at: u64) -> Option<(Mkey, u64, u64)> {
        match self {
            Self::Plain(_) => None,
            Self::Repeat { entries, len } => {
                let (repetition, mut within) = (at.checked_div(*len)?, at.checked_rem(*len)?);
                for entry in entries {
                    let octets = u64::from(entry.len);
                    if within < octets {
                        let stride = repetition.checked_mul(u64::from(entry.stride))?;
                        let address = entry.address.checked_add(stride)?.checked_add(within)?;
                        return Some((entry.mkey, address, octets - within));
                    }
                    within -= octets;
                }
                None
            }
            Self::List(list) => {
                let after = list.partition_point(|(start, _)| *start <= at);
                let (start, klm) = list.get(after.checked_sub(1)?)?;
                let within = at - start;
                let octets = u64::from(klm.len).checked_sub(within)?;
                let address = klm.address.checked_add(within)?;
                (octets > 0).then_some((klm.mkey, address, octets))
            }
            Self::Equal { log_size, entries } => {
                let size = 1_u64.checked_shl(u32::from(*log_size))?;
                let entry = entries.get(usize::try_from(at >> log_size).ok()?)?;
                let within = at & (size - 1);
                let address = entry.address.checked_add(within)?;
                Some((entry.mkey, address, size - within))
            }
        }
    }
}

const fn bounds(what: &'static str, value: u64) -> ModelError {
    ModelError::Bounds { what, value }
}

/// Appends octets; they join those before them if they follow them.
fn push(to: &mut Vec<Extent>, place: Place, len: u64) {
    if let Some(last) = to.last_mut()
        && last.place.memory == place.memory
        && last.place.offset.checked_add(last.len) == Some(place.offset)
    {
        last.len += len;
    } else if len > 0 {
        to.push(Extent { place, len });
    }
}
