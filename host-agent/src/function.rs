//! The function of a device from which the pool is granted to another: the host's, to the processor on its NIC.

use kbtp_control::{GrantRights, Mechanism, PoolGrant};
use kbtp_memory::Region;
use kbtp_mlx5::AccessRights;
use kbtp_mlx5_devx::{Allowed, Kernel, Libmlx5, Shared};
use std::error::Error;

/// A function that knows the pool's memory.
pub(crate) trait Function: core::fmt::Debug + Send {
    /// Lets whoever shows the grant's key reach the pool, with its rights and at its address.
    fn allow(&mut self, grant: &PoolGrant) -> Result<Mechanism, String>;

    /// Ends that: queue pairs that still use it fail.
    fn forbid(&mut self) -> Result<(), String>;
}

/// The function of a device of this machine, by the kernel's name for the device.
pub(crate) fn open(device: &str, pool: &Region) -> Result<Box<dyn Function>, String> {
    let kernel = Libmlx5::open(device).map_err(|error| error.to_string())?;
    let shared = Shared::new(kernel, pool).map_err(|error| in_words(&error))?;
    Ok(Box::new(shared))
}

fn in_words(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

fn rights(of: GrantRights) -> AccessRights {
    let each = [
        (GrantRights::LOCAL_READ, AccessRights::LOCAL_READ),
        (GrantRights::LOCAL_WRITE, AccessRights::LOCAL_WRITE),
        (GrantRights::REMOTE_READ, AccessRights::REMOTE_READ),
        (GrantRights::REMOTE_WRITE, AccessRights::REMOTE_WRITE),
    ];
    let granted = each.into_iter().filter(|(grant, _)| of.contain(*grant));
    granted.fold(AccessRights::default(), |all, (_, right)| all.with(right))
}

impl<K: Kernel + core::fmt::Debug + Send> Function for Shared<K> {
    fn allow(&mut self, grant: &PoolGrant) -> Result<Mechanism, String> {
        let key = grant.key.reveal();
        let allowed = Self::allow(self, rights(grant.rights), grant.iova, key);
        let Allowed {
            vhca_id,
            mkey_index,
        } = allowed.map_err(|error| in_words(&error))?;
        Ok(Mechanism::Alias {
            vhca_id,
            mkey_index,
        })
    }

    fn forbid(&mut self) -> Result<(), String> {
        Self::forbid(self).map_err(|error| in_words(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_the_rights_that_are_granted_and_no_more() {
        let local = GrantRights::LOCAL_READ.with(GrantRights::LOCAL_WRITE);
        assert_eq!(
            rights(local),
            AccessRights::LOCAL_READ.with(AccessRights::LOCAL_WRITE)
        );
        let read = rights(local.with(GrantRights::REMOTE_READ));
        assert!(read.contains(AccessRights::REMOTE_READ));
        assert!(!read.contains(AccessRights::REMOTE_WRITE));
        assert!(!read.contains(AccessRights::ATOMIC));
    }
}
