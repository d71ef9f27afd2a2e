//! Private data of the MPA reply or CM reply: 40 octets.
//! Source: KBTP profile, P9.
//! Octets: 0..4 "KBTP", 4 Version (1), 5 Auth Mode, 6..8 Reserved (written as zero, not looked at), 8..40 Challenge.

use super::auth::Challenge;
use super::header::VERSION;
use crate::DecodeError;

/// Whether the target wants HELLO authenticated (P9).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum AuthMode {
    /// No.
    None = 0,
    /// HMAC-SHA-256 under the tenant's key.
    Hmac = 1,
}

/// What a target says when it accepts a stream.
//= kbtp-p9-private-data
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrivateData {
    /// Auth Mode.
    pub auth_mode: AuthMode,
    /// Challenge.
    pub challenge: Challenge,
}

impl PrivateData {
    /// Octets of the private data.
    pub const LEN: usize = 40;

    const MAGIC: [u8; 4] = *b"KBTP";

    /// The private data in these octets.
    ///
    /// # Errors
    /// [`DecodeError::Unknown`] if it is not "KBTP", not Version 1, or has an Auth Mode that P9 does not name.
    pub fn decode(octets: &[u8; Self::LEN]) -> Result<Self, DecodeError> {
        let [m0, m1, m2, m3, version, mode, _, _, challenge @ ..] = octets;
        let magic = [*m0, *m1, *m2, *m3];
        if magic != Self::MAGIC {
            return Err(DecodeError::Unknown {
                field: "private data, magic",
                value: u32::from_be_bytes(magic).into(),
            });
        }
        if *version != VERSION {
            return Err(DecodeError::Unknown {
                field: "private data, Version",
                value: u64::from(*version),
            });
        }
        let auth_mode = match mode {
            0 => AuthMode::None,
            1 => AuthMode::Hmac,
            _ => {
                return Err(DecodeError::Unknown {
                    field: "Auth Mode",
                    value: u64::from(*mode),
                });
            }
        };
        Ok(Self {
            auth_mode,
            challenge: Challenge(*challenge),
        })
    }

    /// The octets of this private data.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        let (head, challenge) = octets.split_at_mut(8);
        let [m0, m1, m2, m3] = Self::MAGIC;
        head.copy_from_slice(&[m0, m1, m2, m3, VERSION, self.auth_mode as u8, 0, 0]);
        challenge.copy_from_slice(&self.challenge.0);
        octets
    }
}
