//! Randomness, from the system.

use crate::error::ClientError;

/// 16 fresh random octets.
pub(crate) fn octets() -> Result<[u8; 16], ClientError> {
    kbtp_iwarp_tcp::entropy::random().map_err(|source| ClientError::Os {
        what: "reading random octets",
        source,
    })
}

/// A fresh random UUID (RFC 9562, version 4).
pub(crate) fn uuid() -> Result<[u8; 16], ClientError> {
    let mut octets = octets()?;
    let [.., version, _, variant, _, _, _, _, _, _, _] = &mut octets;
    *version = (*version & 0x0f) | 0x40;
    *variant = (*variant & 0x3f) | 0x80;
    Ok(octets)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_uuid_says_that_it_is_random() {
        let uuid = super::uuid().unwrap();
        assert_eq!(uuid[6] >> 4, 4);
        assert_eq!(uuid[8] >> 6, 0b10);
        assert_ne!(uuid, super::uuid().unwrap());
    }
}
