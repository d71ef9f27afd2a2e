//! How a region's pages are asked for, and what was got. Nothing is refused or replaced without a word: whatever was
//! preferred and not got stands in the [`PageReport`] with its reason.

use nix::errno::Errno;
use std::fmt;

/// Octets of the hugepage asked for. 2 MiB exists on every x86-64 and aarch64 (4 KiB granule) machine.
pub const HUGE_PAGE_LEN: u64 = 2 << 20;

/// Whether a region shall lie in hugepages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Huge {
    /// Hugepages if there are any, else ordinary pages.
    #[default]
    Prefer,
    /// Reserved hugepages or an error.
    Require,
    /// Ordinary pages.
    Never,
}

/// What to ask of the system for a region's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageOptions {
    /// Hugepages.
    pub huge: Huge,
    /// Lock the pages in memory, if the system lets us.
    pub lock: bool,
    /// Take the pages from this NUMA node, if the system lets us.
    pub numa_node: Option<u32>,
    /// Fault all pages in now rather than at first use.
    pub populate: bool,
}

/// Why something that was preferred was not got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// It was not asked for.
    NotAsked,
    /// The region is smaller than one hugepage.
    TooSmall,
    /// The pages belong to a file that another process made.
    MadeElsewhere,
    /// `/sys/kernel/mm/transparent_hugepage` says "never" for this kind of memory.
    SwitchedOff,
    /// The system refused.
    Refused(Errno),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAsked => f.write_str("not asked for"),
            Self::TooSmall => f.write_str("the region is smaller than a hugepage"),
            Self::MadeElsewhere => f.write_str("the pages were made by another process"),
            Self::SwitchedOff => f.write_str("transparent hugepages are switched off"),
            Self::Refused(errno) => f.write_str(errno.desc()),
        }
    }
}

/// The pages a region has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HugePages {
    /// Reserved hugepages of this many octets.
    Reserved {
        /// Octets of one page.
        page_len: u64,
    },
    /// Ordinary pages that the kernel was asked to merge into hugepages, and may; `reserved` is why there are no
    /// reserved ones.
    Transparent {
        /// Why not reserved hugepages.
        reserved: Reason,
    },
    /// Ordinary pages.
    Ordinary {
        /// Why not reserved hugepages.
        reserved: Reason,
        /// Why not transparent ones.
        transparent: Reason,
    },
}

/// Whether something was got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Got {
    /// Yes.
    Yes,
    /// No, and why.
    No(Reason),
}

/// What a region's pages are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageReport {
    /// Hugepages or not.
    pub huge: HugePages,
    /// Locked in memory or not.
    pub locked: Got,
    /// Bound to the NUMA node that was asked for, or not.
    pub numa_bound: Got,
    /// The NUMA node that was asked for.
    pub numa_node: Option<u32>,
    /// All pages present from the start.
    pub populated: Got,
    /// Left out of core dumps.
    pub no_dump: Got,
}

impl fmt::Display for PageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.huge {
            HugePages::Reserved { page_len } => {
                write!(f, "reserved hugepages of {} KiB", page_len >> 10)?;
            }
            HugePages::Transparent { reserved } => {
                write!(
                    f,
                    "transparent hugepages asked for (reserved ones: {reserved})"
                )?;
            }
            HugePages::Ordinary {
                reserved,
                transparent,
            } => write!(
                f,
                "ordinary pages (reserved hugepages: {reserved}; transparent ones: {transparent})"
            )?,
        }
        match self.locked {
            Got::Yes => f.write_str(", locked")?,
            Got::No(why) => write!(f, ", not locked ({why})")?,
        }
        match (self.numa_node, self.numa_bound) {
            (Some(node), Got::Yes) => write!(f, ", on NUMA node {node}")?,
            (Some(node), Got::No(why)) => write!(f, ", not bound to NUMA node {node} ({why})")?,
            (None, _) => {}
        }
        if let Got::No(why) = self.populated
            && why != Reason::NotAsked
        {
            write!(f, ", not populated ({why})")?;
        }
        if let Got::No(why) = self.no_dump {
            write!(f, ", in core dumps ({why})")?;
        }
        Ok(())
    }
}
