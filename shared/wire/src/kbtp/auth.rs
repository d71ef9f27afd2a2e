//! Auth: 48 octets in a TLV of HELLO.
//! Source: KBTP profile, P9.       Octets: 0..16 Nonce, 16..48 HMAC-SHA-256.
//! Not checked here: the MAC; the code that holds the tenant's key does.

use super::InitiatorId;

/// The target's Challenge: 256 fresh random bits (P9).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Challenge(pub [u8; 32]);

/// The initiator's Nonce: 128 fresh random bits (P9).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nonce(pub [u8; 16]);

/// What an initiator proves its tenant with.
///
/// Comparing two of them is not done in constant time: verify the MAC with the library that computes it.
//= kbtp-p9-auth-layout
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Auth {
    /// Nonce.
    pub nonce: Nonce,
    /// HMAC-SHA-256 under the tenant's key of what [`mac_input`](Self::mac_input) gives.
    pub mac: [u8; 32],
}

impl Auth {
    /// Octets of an Auth value.
    pub const LEN: usize = 48;

    /// The first octets of the MAC's input.
    pub const LABEL: &[u8] = b"KBTP-AUTH-1";

    /// The value in these octets.
    #[must_use]
    pub fn decode(octets: &[u8; Self::LEN]) -> Self {
        let mut auth = Self {
            nonce: Nonce([0; 16]),
            mac: [0; 32],
        };
        let (nonce, mac) = octets.split_at(auth.nonce.0.len());
        auth.nonce.0.copy_from_slice(nonce);
        auth.mac.copy_from_slice(mac);
        auth
    }

    /// The octets of this value.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        let (nonce, mac) = octets.split_at_mut(self.nonce.0.len());
        nonce.copy_from_slice(&self.nonce.0);
        mac.copy_from_slice(&self.mac);
        octets
    }

    /// What the MAC is taken of, in order: label, Challenge, Nonce, Initiator ID, Tenant.
    //= kbtp-p9-mac-input
    #[must_use]
    pub const fn mac_input<'a>(
        challenge: &'a Challenge,
        nonce: &'a Nonce,
        initiator: &'a InitiatorId,
        tenant: &'a str,
    ) -> [&'a [u8]; 5] {
        [
            Self::LABEL,
            &challenge.0,
            &nonce.0,
            &initiator.0,
            tenant.as_bytes(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    //= test kbtp-p9-mac-input
    #[test]
    fn the_mac_is_taken_of_five_parts_in_order() {
        let parts = Auth::mac_input(
            &Challenge([1; 32]),
            &Nonce([2; 16]),
            &InitiatorId([3; 16]),
            "red",
        );
        let mut expected = Vec::from(*b"KBTP-AUTH-1");
        expected.extend([1; 32]);
        expected.extend([2; 16]);
        expected.extend([3; 16]);
        expected.extend(*b"red");
        assert_eq!(parts.concat(), expected);
    }
}
