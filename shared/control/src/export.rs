//! The pool in the hands of another function of a device: what a host tells the processor on its NIC (cross-GVMI).
//!
//! A [`PoolGrant`] names memory of the host by a key of its device, so that queue pairs of the NIC's own processor reach it
//! without the host. It is good for one epoch. The host takes it back with `Revoke`; it unmaps nothing before the other side
//! says with the grant's key that it uses the grant no more ([`Exports`]).
//!
//! [`Mechanism::Emulated`] is the same between two processes of one machine: the memory is the memfd beside the frame.

use crate::{Incarnation, PoolGeometry, Refusal};
use core::fmt;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroize as _;

/// What the device of the other side shows to reach the memory: 32 random octets, made for one grant. It is in no log, equal
/// to another in the same time whatever it is, and wiped when dropped.
#[derive(Clone, Serialize, Deserialize)]
pub struct AccessKey([u8; 32]);

impl AccessKey {
    /// The key of these octets.
    #[must_use]
    pub const fn new(octets: [u8; 32]) -> Self {
        Self(octets)
    }

    /// Its octets, for the command that shows them to a device.
    #[must_use]
    pub const fn reveal(&self) -> &[u8; 32] {
        &self.0
    }

    fn is_zero(&self) -> bool {
        self.0.ct_eq(&[0; 32]).into()
    }
}

impl PartialEq for AccessKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for AccessKey {}

impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessKey(..)")
    }
}

impl Drop for AccessKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// How another function reaches the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Mechanism {
    /// A key of the owner's function, which another function may make an alias of; the grant's key is what it shows.
    Alias {
        /// The owner's function.
        vhca_id: u16,
        /// Index of its key: 24 bits.
        mkey_index: u32,
    },
    /// A key of the owner's function that a key of another function crosses to.
    Crossing {
        /// The owner's function.
        vhca_id: u16,
        /// The key.
        mkey: u32,
    },
    /// Both are of one function: the key as it is.
    SameDevice {
        /// The key.
        mkey: u32,
    },
    /// No device: the memory itself comes beside the frame.
    Emulated,
}

impl Mechanism {
    /// The set of it alone.
    #[must_use]
    pub const fn kind(self) -> Mechanisms {
        match self {
            Self::Alias { .. } => Mechanisms::ALIAS,
            Self::Crossing { .. } => Mechanisms::CROSSING,
            Self::SameDevice { .. } => Mechanisms::SAME_DEVICE,
            Self::Emulated => Mechanisms::EMULATED,
        }
    }
}

/// Some mechanisms.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mechanisms(pub u8);

impl Mechanisms {
    /// [`Mechanism::Alias`].
    pub const ALIAS: Self = Self(1);
    /// [`Mechanism::Crossing`].
    pub const CROSSING: Self = Self(2);
    /// [`Mechanism::SameDevice`].
    pub const SAME_DEVICE: Self = Self(4);
    /// [`Mechanism::Emulated`].
    pub const EMULATED: Self = Self(8);

    /// Those of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are among them.
    #[must_use]
    pub const fn contain(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Display for Mechanisms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Self::ALIAS, "alias"),
            (Self::CROSSING, "crossing"),
            (Self::SAME_DEVICE, "same device"),
            (Self::EMULATED, "emulated"),
        ];
        let mut separator = "";
        for (_, name) in names.iter().filter(|(kind, _)| self.contain(*kind)) {
            write!(f, "{separator}{name}")?;
            separator = ", ";
        }
        if separator.is_empty() {
            f.write_str("none")?;
        }
        Ok(())
    }
}

/// What the other function may do with the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GrantRights(pub u32);

impl GrantRights {
    /// Read it for what its own queue pairs send.
    pub const LOCAL_READ: Self = Self(1);
    /// Write what they read or receive to it.
    pub const LOCAL_WRITE: Self = Self(2);
    /// Let peers read (DIRECT_LOAD).
    pub const REMOTE_READ: Self = Self(4);
    /// Let peers write (DIRECT_ALLOC).
    pub const REMOTE_WRITE: Self = Self(8);
    /// Writes may land in any order: of blocks, never of anything else.
    pub const RELAXED_ORDERING: Self = Self(16);

    const KNOWN: Self = Self(31);

    /// The rights of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are among them.
    #[must_use]
    pub const fn contain(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A pool of a host, for another function of its device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolGrant {
    /// How it is reached.
    pub mechanism: Mechanism,
    /// What the other function's device shows, and what its release must show.
    pub key: AccessKey,
    /// Which grant of this agent's life: more than zero, and more than that of each before it.
    pub epoch: u64,
    /// Address of the first octet under the key: the Block Offset of the first block.
    pub iova: u64,
    /// Octets under the key.
    pub len: u64,
    /// The pool's shape.
    pub geometry: PoolGeometry,
    /// What may be done with it.
    pub rights: GrantRights,
    /// NUMA node of the memory.
    pub numa_node: Option<u32>,
    /// Octets of a page.
    pub page_size: u64,
    /// The device, to be compared with one's own; zeros for none.
    pub device: [u8; 16],
    /// Which life of the agent granted it.
    pub incarnation: Incarnation,
}

/// Why a grant cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// There is no epoch zero.
    #[error("it has epoch 0: the first grant has epoch 1")]
    Epoch,
    /// No key was made for it.
    #[error("its access key is all zeros: the agent made none")]
    Key,
    /// Not an index.
    #[error("key index {0:#x} has more than 24 bits")]
    Index(u32),
    /// No blocks, or they do not fit.
    #[error("{len} octets do not hold {blocks} blocks of {block_size}")]
    Short {
        /// Octets under the key.
        len: u64,
        /// Blocks.
        blocks: u32,
        /// Octets of each.
        block_size: u32,
    },
    /// Past the end of all addresses, or where a Block Offset could be taken for that of an empty slot.
    #[error(
        "{len} octets at {iova:#x} reach addresses whose high half is all ones, which mark consumed slots"
    )]
    Range {
        /// The first.
        iova: u64,
        /// How many.
        len: u64,
    },
    /// Rights nobody here knows.
    #[error(
        "rights {0:#x} have bits that this version does not know: run agent and target of one release"
    )]
    UnknownRights(u32),
    /// Without both a target can do nothing.
    #[error("rights {0:#x} lack local read or local write: a target needs both")]
    TooFewRights(u32),
    /// A page is a power of two.
    #[error("pages of {0} octets: not a power of two")]
    PageSize(u64),
}

/// Where Block Offsets end: those above have a high half of all ones.
const END_OF_OFFSETS: u64 = 0xffff_ffff << 32;

impl PoolGrant {
    /// Whether it makes sense by itself.
    ///
    /// # Errors
    /// [`GrantError`], the first thing that is wrong with it.
    pub fn check(&self) -> Result<(), GrantError> {
        let geometry = self.geometry;
        if self.epoch == 0 {
            return Err(GrantError::Epoch);
        }
        if self.key.is_zero() {
            return Err(GrantError::Key);
        }
        if let Mechanism::Alias { mkey_index, .. } = self.mechanism
            && mkey_index >= 1 << 24
        {
            return Err(GrantError::Index(mkey_index));
        }
        if geometry.is_empty() || self.len < geometry.len() {
            return Err(GrantError::Short {
                len: self.len,
                blocks: geometry.blocks,
                block_size: geometry.block_size,
            });
        }
        let end = self.iova.checked_add(self.len);
        if end.is_none_or(|end| end > END_OF_OFFSETS) {
            return Err(GrantError::Range {
                iova: self.iova,
                len: self.len,
            });
        }
        let needed = GrantRights::LOCAL_READ.with(GrantRights::LOCAL_WRITE);
        match self.rights {
            rights if !GrantRights::KNOWN.contain(rights) => {
                Err(GrantError::UnknownRights(rights.0))
            }
            rights if !rights.contain(needed) => Err(GrantError::TooFewRights(rights.0)),
            _ if !self.page_size.is_power_of_two() => Err(GrantError::PageSize(self.page_size)),
            _ => Ok(()),
        }
    }
}

/// The grants of an agent, one at a time.
///
/// ```text
/// none -- grant --> live -- revoke --> revoked
///   ^                |                    |
///   +---- released --+------ released ----+
/// ```
///
/// While there is one, revoked or not, its memory stays mapped.
#[derive(Debug, Default)]
pub struct Exports {
    last: u64,
    live: Option<(PoolGrant, bool)>,
}

impl Exports {
    /// Grants: the grant there is, or a new one that `make` makes of its epoch. `None` if the one there is was revoked.
    ///
    /// # Errors
    /// What `make` says: nothing is granted, and the epoch is still to come.
    pub fn grant<E>(
        &mut self,
        make: impl FnOnce(u64) -> Result<PoolGrant, E>,
    ) -> Result<Option<PoolGrant>, E> {
        if let Some((grant, revoked)) = &self.live {
            return Ok((!revoked).then(|| grant.clone()));
        }
        // 2^64 grants do not happen.
        let epoch = self.last.saturating_add(1);
        let grant = make(epoch)?;
        self.last = epoch;
        self.live = Some((grant.clone(), false));
        Ok(Some(grant))
    }

    /// Takes the grant back: which epoch the other side is to be told, if there is one that it was not told of.
    pub const fn revoke(&mut self) -> Option<u64> {
        match &mut self.live {
            Some((grant, revoked)) if !*revoked => {
                *revoked = true;
                Some(grant.epoch)
            }
            _ => None,
        }
    }

    /// The other side uses the grant no more.
    ///
    /// # Errors
    /// [`Refusal::NoGrant`] if that is not the grant there is; the grant stays.
    pub fn released(&mut self, epoch: u64, key: &AccessKey) -> Result<(), Refusal> {
        let is = |(grant, _): &(PoolGrant, bool)| grant.epoch == epoch && grant.key == *key;
        if !self.live.as_ref().is_some_and(is) {
            return Err(Refusal::NoGrant { epoch });
        }
        self.live = None;
        Ok(())
    }

    /// The other side is gone and its device cannot reach the memory: with [`Mechanism::Emulated`] that is so when its
    /// process is.
    pub fn forget(&mut self) {
        self.live = None;
    }

    /// Whether nobody may be using the memory.
    #[must_use]
    pub const fn may_unmap(&self) -> bool {
        self.live.is_none()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn sample(epoch: u64) -> PoolGrant {
        PoolGrant {
            mechanism: Mechanism::Emulated,
            key: AccessKey::new([7; 32]),
            epoch,
            iova: 1 << 32,
            len: 8 * 4096,
            geometry: PoolGeometry {
                block_size: 4096,
                blocks: 8,
            },
            rights: GrantRights::LOCAL_READ.with(GrantRights::LOCAL_WRITE),
            numa_node: None,
            page_size: 4096,
            device: [0; 16],
            incarnation: Incarnation([3; 16]),
        }
    }

    fn any_mechanism() -> impl Strategy<Value = Mechanism> {
        prop_oneof![
            (any::<u16>(), any::<u32>()).prop_map(|(vhca_id, mkey_index)| Mechanism::Alias {
                vhca_id,
                mkey_index
            }),
            (any::<u16>(), any::<u32>())
                .prop_map(|(vhca_id, mkey)| Mechanism::Crossing { vhca_id, mkey }),
            any::<u32>().prop_map(|mkey| Mechanism::SameDevice { mkey }),
            Just(Mechanism::Emulated),
        ]
    }

    pub(crate) fn any_pool_grant() -> impl Strategy<Value = PoolGrant> {
        let place = (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>());
        let rest = (any::<u32>(), any::<Option<u32>>(), any::<u64>());
        (
            any_mechanism(),
            any::<[u8; 32]>(),
            any::<u64>(),
            place,
            rest,
        )
            .prop_map(|(mechanism, key, epoch, place, rest)| {
                let (iova, len, block_size, blocks) = place;
                let (rights, numa_node, page_size) = rest;
                PoolGrant {
                    mechanism,
                    key: AccessKey::new(key),
                    epoch,
                    iova,
                    len,
                    geometry: PoolGeometry { block_size, blocks },
                    rights: GrantRights(rights),
                    numa_node,
                    page_size,
                    ..sample(1)
                }
            })
    }

    type Spoil = fn(&mut PoolGrant);

    #[test]
    fn each_thing_that_can_be_wrong_is_named() {
        assert_eq!(sample(1).check(), Ok(()));
        let wrong: [(Spoil, GrantError); 10] = [
            (|g| g.epoch = 0, GrantError::Epoch),
            (|g| g.key = AccessKey::new([0; 32]), GrantError::Key),
            (
                |g| {
                    g.mechanism = Mechanism::Alias {
                        vhca_id: 1,
                        mkey_index: 1 << 24,
                    };
                },
                GrantError::Index(1 << 24),
            ),
            (
                |g| g.len -= 1,
                GrantError::Short {
                    len: 8 * 4096 - 1,
                    blocks: 8,
                    block_size: 4096,
                },
            ),
            (
                |g| g.geometry.blocks = 0,
                GrantError::Short {
                    len: 8 * 4096,
                    blocks: 0,
                    block_size: 4096,
                },
            ),
            (
                |g| g.iova = END_OF_OFFSETS - 8 * 4096 + 1,
                GrantError::Range {
                    iova: END_OF_OFFSETS - 8 * 4096 + 1,
                    len: 8 * 4096,
                },
            ),
            (
                |g| g.iova = u64::MAX,
                GrantError::Range {
                    iova: u64::MAX,
                    len: 8 * 4096,
                },
            ),
            (|g| g.rights.0 |= 32, GrantError::UnknownRights(35)),
            (|g| g.rights.0 = 1, GrantError::TooFewRights(1)),
            (|g| g.page_size = 4095, GrantError::PageSize(4095)),
        ];
        for (spoil, error) in wrong {
            let mut grant = sample(1);
            spoil(&mut grant);
            assert_eq!(grant.check(), Err(error));
            assert!(!error.to_string().is_empty());
        }
        let mut last = sample(1);
        last.iova = END_OF_OFFSETS - last.len;
        assert_eq!(last.check(), Ok(()));
    }

    #[test]
    fn a_key_is_in_no_text() {
        let grant = PoolGrant {
            key: AccessKey::new([0xa7; 32]),
            ..sample(1)
        };
        let all = [
            format!("{grant:?}"),
            format!("{grant:#?}"),
            format!("{:?}", grant.key),
        ];
        for text in all {
            assert!(text.contains("AccessKey(..)"), "{text}");
            // 0xa7 in decimal and hexadecimal.
            assert!(!text.contains("167") && !text.contains("a7"), "{text}");
        }
    }

    #[test]
    fn mechanisms_have_names() {
        let two = Mechanisms::ALIAS.with(Mechanisms::EMULATED);
        assert_eq!(two.to_string(), "alias, emulated");
        assert_eq!(Mechanisms(0).to_string(), "none");
        assert!(two.contain(Mechanism::Emulated.kind()));
        assert!(!two.contain(Mechanisms::CROSSING));
    }

    #[test]
    fn memory_is_unmapped_only_after_the_release_of_what_was_granted() {
        let mut exports = Exports::default();
        let grant =
            |exports: &mut Exports| exports.grant(|epoch| Ok::<_, ()>(sample(epoch))).unwrap();
        assert!(exports.may_unmap());
        let first = grant(&mut exports).unwrap();
        assert_eq!(first.epoch, 1);
        // Asked again it is the same.
        assert_eq!(grant(&mut exports), Some(first.clone()));
        assert!(!exports.may_unmap());
        assert_eq!(exports.revoke(), Some(1));
        assert_eq!(exports.revoke(), None);
        assert!(!exports.may_unmap());
        assert_eq!(grant(&mut exports), None);
        // Neither another epoch nor another key releases it.
        let other = AccessKey::new([8; 32]);
        for (epoch, key) in [(2, &first.key), (0, &first.key), (1, &other)] {
            assert_eq!(
                exports.released(epoch, key),
                Err(Refusal::NoGrant { epoch })
            );
            assert!(!exports.may_unmap());
        }
        assert_eq!(exports.released(1, &first.key), Ok(()));
        assert!(exports.may_unmap());
        assert!(exports.released(1, &first.key).is_err());
        let second = grant(&mut exports).unwrap();
        assert_eq!(second.epoch, 2);
        assert_eq!(exports.released(2, &second.key), Ok(()));
        assert_eq!(exports.revoke(), None);
    }

    #[test]
    fn what_could_not_be_made_takes_no_epoch() {
        let mut exports = Exports::default();
        assert_eq!(
            exports.grant(|_| Err("no random numbers")),
            Err("no random numbers")
        );
        assert!(exports.may_unmap());
        let grant = exports.grant(|epoch| Ok::<_, ()>(sample(epoch))).unwrap();
        assert_eq!(grant.unwrap().epoch, 1);
    }

    proptest! {
        #[test]
        fn any_grant_is_good_or_wrong_in_words(grant in any_pool_grant()) {
            if let Err(error) = grant.check() {
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }
}
