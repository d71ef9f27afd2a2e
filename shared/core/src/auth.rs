//! The proof that an initiator has its tenant's key (profile, P9), made by one side and checked by the other.

use hmac::{Hmac, KeyInit, Mac};
use kbtp_wire::{Auth, Challenge, InitiatorId, Nonce};
use sha2::Sha256;
use std::fmt;
use subtle::ConstantTimeEq;

/// The secret of a tenant (profile, P9). Its octets are not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct TenantKey(Box<[u8]>);

impl TenantKey {
    /// The key with these octets.
    #[must_use]
    pub fn new(octets: impl AsRef<[u8]>) -> Self {
        Self(octets.as_ref().into())
    }
}

impl fmt::Debug for TenantKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TenantKey(..)")
    }
}

/// HMAC-SHA-256 under the tenant's key of the octets that P9 names.
//= kbtp-p9-mac-input
pub(crate) fn mac(
    key: &TenantKey,
    challenge: &Challenge,
    nonce: &Nonce,
    initiator: &InitiatorId,
    tenant: &str,
) -> [u8; 32] {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&key.0) else {
        // HMAC takes keys of every length. A proof of zeros is that of no key.
        return [0; 32];
    };
    for part in Auth::mac_input(challenge, nonce, initiator, tenant) {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// Whether `auth` proves `key`. Cost: does not depend on the octets.
//= kbtp-p9-constant-time
pub(crate) fn proves(
    auth: &Auth,
    key: &TenantKey,
    challenge: &Challenge,
    initiator: &InitiatorId,
    tenant: &str,
) -> bool {
    mac(key, challenge, &auth.nonce, initiator, tenant)
        .ct_eq(&auth.mac)
        .into()
}
