//! What a grant of memory says.

use crate::ControlError;
use crate::limits::MAX_NAME_LEN;
use core::fmt;
use kbtp_fabric::Access;
use kbtp_wire::{Stag, TaggedOffset};
use serde::{Deserialize, Serialize};

/// One life of an agent: 128 random bits. Memory granted by another incarnation is other memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub [u8; 16]);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As every ID is written: as a UUID.
        write!(f, "{}", kbtp_wire::kbtp::InitiatorId(self.0))
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Incarnation({self})")
    }
}

/// A region the agent grants to the target.
///
/// The STag and the base stay the same for the life of the region, however often it is granted: a Block Offset that
/// one target wrote into the table means the same block to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionGrant {
    /// Names the region between agent and target. Never zero. It is no STag of any stream: the target registers the
    /// region with each of its streams and gets those from them.
    pub stag: Stag,
    /// Tagged Offset of the region's first octet, to register it with.
    pub base: TaggedOffset,
    /// Octets.
    pub len: u64,
    /// The most a target may allow a peer on it.
    pub access: Access,
    /// Which life of the agent granted it.
    pub incarnation: Incarnation,
}

const REMOTE_READ: u8 = 1;
const REMOTE_WRITE: u8 = 2;
const REMOTE_ATOMIC: u8 = 4;
const REMOTE_INVALIDATE: u8 = 8;
const LOCAL_WRITE: u8 = 16;

/// A grant as it crosses the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WireGrant {
    stag: u32,
    base: u64,
    len: u64,
    access: u8,
    incarnation: Incarnation,
}

impl From<RegionGrant> for WireGrant {
    fn from(grant: RegionGrant) -> Self {
        let a = grant.access;
        let access = [
            (a.remote_read, REMOTE_READ),
            (a.remote_write, REMOTE_WRITE),
            (a.remote_atomic, REMOTE_ATOMIC),
            (a.remote_invalidate, REMOTE_INVALIDATE),
            (a.local_write, LOCAL_WRITE),
        ]
        .into_iter()
        .filter(|(set, _)| *set)
        .fold(0, |bits, (_, bit)| bits | bit);
        Self {
            stag: grant.stag.0,
            base: grant.base.0,
            len: grant.len,
            access,
            incarnation: grant.incarnation,
        }
    }
}

/// Rights that this side does not know are not granted: a bit it cannot name is left out.
impl From<WireGrant> for RegionGrant {
    fn from(wire: WireGrant) -> Self {
        let has = |bit| wire.access & bit != 0;
        Self {
            stag: Stag(wire.stag),
            base: TaggedOffset(wire.base),
            len: wire.len,
            access: Access {
                remote_read: has(REMOTE_READ),
                remote_write: has(REMOTE_WRITE),
                remote_atomic: has(REMOTE_ATOMIC),
                remote_invalidate: has(REMOTE_INVALIDATE),
                local_write: has(LOCAL_WRITE),
            },
            incarnation: wire.incarnation,
        }
    }
}

/// Name of a side region: 1 to 64 of `a-z 0-9 . _ -`, the first a letter or digit. It ends up in logs, in the name
/// of a memfd and in a metric's label, so nothing that needs quoting.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RegionName(String);

impl RegionName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`ControlError::BadName`].
    pub fn new(name: &str) -> Result<Self, ControlError> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let good = name.len() <= MAX_NAME_LEN
            && name.starts_with(plain)
            && name.chars().all(|c| plain(c) || ".-_".contains(c));
        if good {
            Ok(Self(name.to_owned()))
        } else {
            Err(ControlError::BadName {
                name: name.chars().take(MAX_NAME_LEN).collect(),
            })
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RegionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for RegionName {
    type Error = ControlError;

    fn try_from(name: String) -> Result<Self, ControlError> {
        Self::new(&name)
    }
}

impl From<RegionName> for String {
    fn from(name: RegionName) -> Self {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_words() {
        for good in ["table", "ring-0", "a", "0.dir_x", &"x".repeat(MAX_NAME_LEN)] {
            assert_eq!(RegionName::new(good).unwrap().as_str(), good);
        }
        for bad in [
            "",
            ".x",
            "-x",
            "Table",
            "a/b",
            "a b",
            "ä",
            "a\0",
            &"x".repeat(MAX_NAME_LEN + 1),
        ] {
            assert!(RegionName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_grant_survives_the_wire_with_each_right() {
        for bits in 0..32 {
            let wire = WireGrant {
                stag: 7,
                base: 1 << 40,
                len: 4096,
                access: bits,
                incarnation: Incarnation([9; 16]),
            };
            let grant = RegionGrant::from(wire);
            assert_eq!(grant.access.remote_read, bits & REMOTE_READ != 0);
            assert_eq!(grant.access.local_write, bits & LOCAL_WRITE != 0);
            assert_eq!(WireGrant::from(grant), wire);
        }
    }
}
