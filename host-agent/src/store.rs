//! The memory an agent owns.

use crate::limits::{POOL_BASE, STAG_DRAWS};
use crate::{AgentConfig, AgentError, Lock};
use kbtp_control::limits::MAX_SIDE_REGIONS;
use kbtp_control::{
    AccessKey, GrantRights, Incarnation, Mechanism, PageReport, PoolGrant, Refusal, RegionGrant,
    RegionName, RegionStatus, clip,
};
use kbtp_fabric::Access;
use kbtp_memory::{Got, Huge, HugePages, MapError, Reason, Region};
use kbtp_wire::{Stag, TaggedOffset};
use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::BTreeMap;

/// What lies behind the regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backing {
    /// A memfd, to hand over.
    Memfd,
    /// Memory of this process alone.
    Private,
}

/// A region and what was granted of it.
#[derive(Debug)]
struct Owned {
    region: Region,
    grant: RegionGrant,
    grants: u64,
}

/// Pool and side regions.
#[derive(Debug)]
pub(crate) struct Store {
    config: AgentConfig,
    backing: Backing,
    incarnation: Incarnation,
    pool: Owned,
    sides: BTreeMap<RegionName, Owned>,
}

/// Peers may read and write blocks; a target narrows that for each session.
const POOL_ACCESS: Access = Access {
    remote_read: true,
    remote_write: true,
    remote_atomic: false,
    remote_invalidate: false,
    local_write: true,
};

/// Peers may read table and ring and count on the counters; only the target writes (draft, sections 3.2 and 6.6).
const SIDE_ACCESS: Access = Access {
    remote_read: true,
    remote_write: false,
    remote_atomic: true,
    remote_invalidate: false,
    local_write: true,
};

impl Store {
    /// Allocates the pool.
    pub(crate) fn new(config: &AgentConfig, backing: Backing) -> Result<Self, AgentError> {
        config.validate()?;
        let incarnation = Incarnation(random()?);
        let region = allocate(config, backing, "pool", config.geometry().len())?;
        let grant = RegionGrant {
            stag: draw_stag(|_| false)?,
            base: TaggedOffset(POOL_BASE),
            len: region.len(),
            access: POOL_ACCESS,
            incarnation,
        };
        Ok(Self {
            config: config.clone(),
            backing,
            incarnation,
            pool: Owned {
                region,
                grant,
                grants: 0,
            },
            sides: BTreeMap::new(),
        })
    }

    pub(crate) const fn config(&self) -> &AgentConfig {
        &self.config
    }

    pub(crate) const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Grants the pool; says whether it is the first time.
    pub(crate) fn pool(&mut self) -> (RegionGrant, Region, bool) {
        let fresh = self.pool.grants == 0;
        let (grant, region) = self.pool.grant();
        (grant, region, fresh)
    }

    /// The pool's memory.
    pub(crate) const fn memory(&self) -> &Region {
        &self.pool.region
    }

    /// What another function of the device is told of the pool, with a key of its own.
    pub(crate) fn export(&self, epoch: u64, mechanism: Mechanism) -> Result<PoolGrant, Refusal> {
        let key = random().map_err(|error| Refusal::Memory {
            reason: in_words(&error),
        })?;
        let pages = self.pages();
        let local = GrantRights::LOCAL_READ.with(GrantRights::LOCAL_WRITE);
        let access = self.pool.grant.access;
        let remote = [
            (access.remote_read, GrantRights::REMOTE_READ),
            (access.remote_write, GrantRights::REMOTE_WRITE),
        ];
        let granted = remote.into_iter().filter(|(granted, _)| *granted);
        Ok(PoolGrant {
            mechanism,
            key: AccessKey::new(key),
            epoch,
            iova: self.pool.grant.base.0,
            len: self.pool.grant.len,
            geometry: self.config.geometry(),
            rights: granted.fold(local, |all, (_, right)| all.with(right)),
            numa_node: pages.numa_node,
            page_size: pages.page_size,
            device: [0; 16],
            incarnation: self.incarnation,
        })
    }

    /// Grants a side region, made of zeros if there is none; says whether it was.
    pub(crate) fn side(
        &mut self,
        name: &RegionName,
        len: u64,
    ) -> Result<(RegionGrant, Region, bool), Refusal> {
        if let Some(side) = self.sides.get_mut(name) {
            let have = side.grant.len;
            if have != len {
                return Err(Refusal::SideLength {
                    name: name.clone(),
                    have,
                    asked: len,
                });
            }
            let (grant, region) = side.grant();
            return Ok((grant, region, false));
        }
        if self.sides.len() >= MAX_SIDE_REGIONS {
            return Err(Refusal::SideCount {
                limit: u32::try_from(MAX_SIDE_REGIONS).unwrap_or(u32::MAX),
            });
        }
        let used = self
            .sides
            .values()
            .fold(0u64, |sum, side| sum.saturating_add(side.grant.len));
        let left = self.config.side_limit().saturating_sub(used);
        if len > left || len == 0 {
            return Err(Refusal::SideSize { asked: len, left });
        }
        let refuse = |error: AgentError| Refusal::Memory {
            reason: in_words(&error),
        };
        let region = allocate(&self.config, self.backing, name.as_str(), len).map_err(refuse)?;
        let stag = draw_stag(|stag| self.in_use(stag)).map_err(refuse)?;
        let mut side = Owned {
            region,
            grant: RegionGrant {
                stag,
                base: TaggedOffset(0),
                len,
                access: SIDE_ACCESS,
                incarnation: self.incarnation,
            },
            grants: 0,
        };
        let (grant, region) = side.grant();
        self.sides.insert(name.clone(), side);
        Ok((grant, region, true))
    }

    /// Forgets a side region; says whether there was one.
    pub(crate) fn drop_side(&mut self, name: &RegionName) -> bool {
        self.sides.remove(name).is_some()
    }

    fn in_use(&self, stag: Stag) -> bool {
        self.pool.grant.stag == stag || self.sides.values().any(|side| side.grant.stag == stag)
    }

    /// What the pool's memory is made of.
    pub(crate) fn pages(&self) -> PageReport {
        let report = self.pool.region.page_report();
        let page_size = match report.huge {
            HugePages::Reserved { page_len } => page_len,
            _ => u64::try_from(rustix::param::page_size()).unwrap_or(0),
        };
        PageReport {
            page_size,
            huge: matches!(report.huge, HugePages::Reserved { .. }),
            locked: self.pool.locked(),
            numa_node: report.numa_node,
            shortfall: shortfall(&self.pool.region),
        }
    }

    /// That the pool has ordinary pages although reserved ones are preferred.
    pub(crate) fn ordinary_pages(&self) -> Option<String> {
        ordinary_pages(&self.pool.region)
    }

    /// What else was wished for the pool and not had.
    pub(crate) fn unmet(&self) -> Vec<String> {
        unmet(&self.pool.region)
    }

    pub(crate) fn regions(&self) -> Vec<RegionStatus> {
        let row = |name: &str, owned: &Owned| RegionStatus {
            name: name.to_owned(),
            len: owned.grant.len,
            locked: owned.locked(),
            grants: owned.grants,
        };
        std::iter::once(row("pool", &self.pool))
            .chain(
                self.sides
                    .iter()
                    .map(|(name, side)| row(name.as_str(), side)),
            )
            .collect()
    }
}

impl Owned {
    fn grant(&mut self) -> (RegionGrant, Region) {
        self.grants = self.grants.saturating_add(1);
        (self.grant, self.region.clone())
    }

    fn locked(&self) -> u64 {
        match self.region.page_report().locked {
            Got::Yes => self.region.len(),
            Got::No(_) => 0,
        }
    }
}

fn allocate(
    config: &AgentConfig,
    backing: Backing,
    name: &str,
    len: u64,
) -> Result<Region, AgentError> {
    if let Some(available) = available(&meminfo(), config.pages.huge)
        && len > available
    {
        return Err(AgentError::TooLarge {
            name: name.to_owned(),
            len,
            available,
        });
    }
    let options = config.page_options();
    let region = match backing {
        Backing::Memfd => Region::memfd(&format!("kbtp-{name}"), len, &options),
        Backing::Private => Region::anonymous(len, &options),
    };
    let region = region.map_err(|source| AgentError::Memory {
        name: name.to_owned(),
        len,
        remedy: remedy(&source, len),
        source,
    })?;
    // A page that is not there now would kill whoever touches it first. Kernels before 5.14 do not know the question
    // and say EINVAL; they find out at first use.
    if let Got::No(Reason::Refused(errno)) = region.page_report().populated
        && errno != Errno::EINVAL
    {
        let source = MapError::Os {
            what: "touching each page",
            source: errno.into(),
        };
        return Err(AgentError::Memory {
            name: name.to_owned(),
            len,
            remedy: remedy(&source, len),
            source,
        });
    }
    let locked = region.page_report().locked == Got::Yes;
    if config.pages.lock == Lock::Require && !locked {
        return Err(AgentError::NotLocked {
            name: name.to_owned(),
            shortfall: shortfall(&region),
        });
    }
    Ok(region)
}

/// What the system says of its memory; empty if it says nothing, and then nobody is refused for it.
fn meminfo() -> String {
    std::fs::read_to_string("/proc/meminfo").unwrap_or_default()
}

/// Octets that a region may have at most; `None` if that is not known, or if the kernel itself refuses in time, as it
/// does with reserved hugepages.
fn available(meminfo: &str, huge: Huge) -> Option<u64> {
    let field = |name: &str| {
        let rest = meminfo
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        rest.split_whitespace().next()?.parse::<u64>().ok()
    };
    let ordinary = field("MemAvailable")?.checked_mul(1024)?;
    let reserved = || {
        let page = field("Hugepagesize")?.checked_mul(1024)?;
        field("HugePages_Free")?.checked_mul(page)
    };
    match huge {
        Huge::Never => Some(ordinary),
        // A region lies in the one or in the other.
        Huge::Prefer => Some(ordinary.max(reserved().unwrap_or(0))),
        Huge::Require => None,
    }
}

fn remedy(error: &MapError, len: u64) -> String {
    match error {
        MapError::NoHugePages { .. } => {
            format!(
                "reserve hugepages, {}, or do not require them",
                reserve(len)
            )
        }
        _ => "take a smaller pool, or free memory".to_owned(),
    }
}

fn reserve(len: u64) -> String {
    let pages = len.div_ceil(kbtp_memory::HUGE_PAGE_LEN);
    format!("at least {pages} more with sysctl vm.nr_hugepages")
}

/// That there are ordinary pages where reserved ones were preferred, and what helps. Where they are required there is no
/// region without.
fn ordinary_pages(region: &Region) -> Option<String> {
    let (HugePages::Transparent {
        reserved: why @ Reason::Refused(_),
    }
    | HugePages::Ordinary {
        reserved: why @ Reason::Refused(_),
        ..
    }) = region.page_report().huge
    else {
        return None;
    };
    Some(format!(
        "no reserved hugepages ({why}), so ordinary pages: for fewer TLB misses reserve {}",
        reserve(region.len())
    ))
}

/// What was wished and not had, with the remedy; empty if nothing.
fn shortfall(region: &Region) -> String {
    let pages = ordinary_pages(region);
    let lacks: Vec<String> = pages.into_iter().chain(unmet(region)).collect();
    clip(&lacks.join("; "))
}

/// What was wished besides hugepages and not had: a pool without it may be slow, or be swapped out.
fn unmet(region: &Region) -> Vec<String> {
    let report = region.page_report();
    let mut lacks = Vec::new();
    if let Got::No(why @ Reason::Refused(_)) = report.locked {
        let limit = match getrlimit(Resource::RLIMIT_MEMLOCK) {
            Ok((RLIM_INFINITY, _)) => "unlimited".to_owned(),
            Ok((soft, _)) => format!("{soft} octets"),
            Err(_) => "unknown".to_owned(),
        };
        lacks.push(format!(
            "{} octets are not locked in memory ({why}; the limit is {limit}): raise it with `ulimit -l`, or LimitMEMLOCK=infinity in the service",
            region.len()
        ));
    }
    if let (Some(node), Got::No(why @ Reason::Refused(_))) = (report.numa_node, report.numa_bound) {
        lacks.push(format!(
            "not on NUMA node {node} ({why}): name a node that `numactl --hardware` lists"
        ));
    }
    lacks
}

/// An error and its sources in one line.
pub(crate) fn in_words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    clip(&text)
}

fn random<const N: usize>() -> Result<[u8; N], AgentError> {
    let mut octets = [0; N];
    let mut have = 0;
    while let Some(rest) = octets.get_mut(have..).filter(|rest| !rest.is_empty()) {
        match getrandom(rest, GetRandomFlags::empty()) {
            Ok(more) => have = have.saturating_add(more),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(AgentError::os("no random numbers from the system", e)),
        }
    }
    Ok(octets)
}

fn draw_stag(taken: impl Fn(Stag) -> bool) -> Result<Stag, AgentError> {
    for _ in 0..STAG_DRAWS {
        let stag = Stag(u32::from_ne_bytes(random()?));
        if stag.0 != 0 && !taken(stag) {
            return Ok(stag);
        }
    }
    let source = std::io::Error::other("each number drawn is in use");
    Err(AgentError::os("no free STag", source))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(block_size: u32, blocks: u32, huge: Huge) -> AgentConfig {
        let mut config = AgentConfig::new("/x", block_size, blocks);
        config.pages.huge = huge;
        config
    }

    #[test]
    fn a_pool_larger_than_the_machine_is_refused_before_it_is_touched() {
        // 32 TiB.
        for (huge, remedy) in [
            (Huge::Never, "smaller pool"),
            (Huge::Prefer, "smaller pool"),
            (Huge::Require, "vm.nr_hugepages"),
        ] {
            let config = config(16 << 20, 1 << 21, huge);
            let text = in_words(&Store::new(&config, Backing::Memfd).unwrap_err());
            assert!(text.contains("35184372088832 octets for pool"), "{text}");
            assert!(text.contains(remedy), "{text}");
        }
    }

    #[test]
    fn what_is_available_is_read_from_the_systems_report() {
        let text = "MemTotal:  9 kB\nMemAvailable:    100 kB\nHugePages_Free:      3\nHugepagesize:   2048 kB\n";
        assert_eq!(available(text, Huge::Never), Some(100 << 10));
        assert_eq!(available(text, Huge::Prefer), Some(6 << 20));
        assert_eq!(available(text, Huge::Require), None);
        assert_eq!(available("", Huge::Prefer), None);
        assert_eq!(available("MemAvailable: x kB", Huge::Never), None);
        assert_eq!(available("MemAvailable: 7 kB", Huge::Prefer), Some(7 << 10));
        // And there is such a report here.
        assert!(available(&meminfo(), Huge::Never).is_some());
    }

    #[test]
    fn missing_hugepages_are_named_with_how_many_are_needed() {
        let mut store = Store::new(&config(4096, 1024, Huge::Prefer), Backing::Memfd).unwrap();
        let pages = store.pages();
        if pages.huge {
            assert_eq!(pages.page_size, kbtp_memory::HUGE_PAGE_LEN);
        } else {
            let lack = "at least 2 more with sysctl vm.nr_hugepages";
            assert!(pages.shortfall.contains(lack), "{}", pages.shortfall);
            let other = store.unmet().join("; ");
            assert!(!other.contains("hugepages"), "{other}");
        }
        let (grant, region, fresh) = store.pool();
        assert!(fresh && grant.stag.0 != 0);
        assert_eq!((grant.len, region.len()), (4 << 20, 4 << 20));
    }

    #[test]
    fn stags_in_use_are_not_drawn() {
        assert!(draw_stag(|_| true).is_err());
        assert_ne!(draw_stag(|_| false).unwrap(), Stag(0));
    }
}
