//! Memory of this function of a device that queue pairs of another function reach: a host's pool, for the processor on its NIC.
//!
//! A key over all of it is made of pieces of a key to the memory, as other drivers do it, and begins at an address that is agreed;
//! who shows the access key may make an alias of it ([`Mlx5Devx::create_alias`]). With the key every alias ends: whoever uses one
//! from then on fails.

use crate::alias::ACCESS_KEY;
use crate::device::{DevxError, Mlx5Devx};
use crate::kernel::Kernel;
use kbtp_device::{Device as _, Domain, KeyAttributes, Layout, MemoryId, Place};
use kbtp_memory::Region;
use kbtp_mlx5::{AccessRights, KsmEntry, Mkey};

/// Memory that others may be allowed to reach.
#[derive(Debug)]
pub struct Shared<K: Kernel> {
    device: Mlx5Devx<K>,
    domain: Domain,
    memory: MemoryId,
    len: u64,
    vhca_id: u16,
    /// The key that is shared, and the one it is made of.
    keys: Vec<Mkey>,
}

/// What another function names the key by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allowed {
    /// This function.
    pub vhca_id: u16,
    /// Index of the key.
    pub mkey_index: u32,
}

/// Log2 of the octets of a piece: a key's field for it has five bits.
const LOG_PIECE: u8 = 30;

impl<K: Kernel> Shared<K> {
    /// Memory of the function that `kernel` leads to. Nobody may reach it yet.
    ///
    /// # Errors
    /// [`DevxError`]: the device shares no keys, or memory cannot be locked.
    pub fn new(kernel: K, region: &Region) -> Result<Self, DevxError<K::Error>> {
        let mut device = Mlx5Devx::new(kernel);
        let capabilities = device.capabilities()?;
        if !capabilities.sharing.is_some_and(|one| one.shares_keys()) {
            return Err(DevxError::Layout(
                "the device lets no other function make an alias of a key (cross_vhca_object_to_object_supported)",
            ));
        }
        let domain = device.create_domain()?;
        let memory = device.register(region)?;
        Ok(Self {
            device,
            domain,
            memory,
            len: region.len(),
            vhca_id: capabilities.general.vhca_id,
            keys: Vec::new(),
        })
    }

    /// What leads to the device.
    pub const fn kernel(&self) -> &K {
        self.device.kernel()
    }

    /// Lets whoever shows the access key reach the memory, from the address `start` on. What was allowed before is over.
    ///
    /// # Errors
    /// [`DevxError`]; nothing is allowed then.
    pub fn allow(
        &mut self,
        rights: AccessRights,
        start: u64,
        access_key: &[u8; ACCESS_KEY],
    ) -> Result<Allowed, DevxError<K::Error>> {
        self.forbid()?;
        match self.make(rights, start, access_key) {
            Ok(key) => Ok(Allowed {
                vhca_id: self.vhca_id,
                mkey_index: key.0 >> 8,
            }),
            Err(error) => {
                self.forbid()?;
                Err(error)
            }
        }
    }

    fn make(
        &mut self,
        rights: AccessRights,
        start: u64,
        access_key: &[u8; ACCESS_KEY],
    ) -> Result<Mkey, DevxError<K::Error>> {
        let place = Place {
            memory: self.memory,
            offset: 0,
        };
        let plain = Layout::Plain(place);
        let attributes = KeyAttributes::new(self.domain, rights, 0, self.len, plain);
        let base = self.device.create_key(&attributes)?;
        self.keys.push(base);
        let pieces = self.len.div_ceil(1 << LOG_PIECE);
        let entries: Vec<KsmEntry> = (0..pieces)
            .map(|piece| KsmEntry {
                mkey: base,
                address: piece << LOG_PIECE,
            })
            .collect();
        let layout = Layout::Equal {
            log_size: LOG_PIECE,
            entries: &entries,
        };
        let attributes = KeyAttributes::new(self.domain, rights, start, self.len, layout);
        let key = self.device.create_key(&attributes)?;
        self.keys.push(key);
        self.device.allow_alias(key, access_key)?;
        Ok(key)
    }

    /// Ends what was allowed: queue pairs that still use it fail. Of what is not allowed it does nothing.
    ///
    /// # Errors
    /// [`DevxError`]; the key is kept, and this can be tried again.
    pub fn forbid(&mut self) -> Result<(), DevxError<K::Error>> {
        while let Some(key) = self.keys.last().copied() {
            self.device.destroy_key(key)?;
            self.keys.pop();
        }
        Ok(())
    }
}
