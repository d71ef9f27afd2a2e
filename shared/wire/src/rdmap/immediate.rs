//! Immediate Data: 8 octets after the DDP header.
//! Source: RFC 7306, section 6.2 (Figure 7).

/// Immediate Data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImmediateData(pub u64);

impl ImmediateData {
    /// Octets.
    pub const LEN: usize = 8;

    /// Decodes; every input is valid.
    #[must_use]
    pub const fn decode(octets: [u8; Self::LEN]) -> Self {
        Self(u64::from_be_bytes(octets))
    }

    /// The octets.
    #[must_use]
    pub const fn encode(self) -> [u8; Self::LEN] {
        self.0.to_be_bytes()
    }

    /// The 32 bits that the fabric carries: the low ones.
    #[must_use]
    pub const fn low(self) -> u32 {
        let [_, _, _, _, a, b, c, d] = self.0.to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_significant_octet_first() {
        let data = ImmediateData(0x0102_0304_0506_0708);
        assert_eq!(data.encode(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(ImmediateData::decode(data.encode()), data);
        assert_eq!(data.low(), 0x0506_0708);
    }
}
