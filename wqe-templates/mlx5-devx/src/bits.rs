//! Fields of commands: so many bits from a bit on, counted from the top of the first octet, as the device's documents count.

/// A field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bits {
    /// The first bit.
    pub at: u16,
    /// How many, at most 64.
    pub len: u8,
}

impl Bits {
    /// `len` bits from bit `at` on.
    #[must_use]
    pub const fn new(at: u16, len: u8) -> Self {
        Self { at, len }
    }

    /// The same field in something that lies `by` bits further on.
    #[must_use]
    pub const fn behind(self, by: u16) -> Self {
        Self {
            at: self.at.saturating_add(by),
            len: self.len,
        }
    }

    fn places(self) -> impl Iterator<Item = (usize, u8)> {
        let from = usize::from(self.at);
        (from..from.saturating_add(usize::from(self.len))).map(|bit| {
            let within = u8::try_from(bit % 8).unwrap_or(0);
            (bit / 8, 0x80 >> within)
        })
    }

    /// Writes the low bits of `value`. What lies outside of `octets` is not written, nor bits that the field has no room for.
    pub fn set(self, octets: &mut [u8], value: u64) {
        let top = u32::from(self.len).saturating_sub(1);
        for (number, (at, mask)) in (0..).zip(self.places()) {
            let bit = value.checked_shr(top.saturating_sub(number)).unwrap_or(0) & 1;
            if let Some(octet) = octets.get_mut(at) {
                *octet = if bit == 1 {
                    *octet | mask
                } else {
                    *octet & !mask
                };
            }
        }
    }

    /// Reads it. What lies outside of `octets` is zero.
    #[must_use]
    pub fn get(self, octets: &[u8]) -> u64 {
        self.places().fold(0, |value, (at, mask)| {
            let octet = octets.get(at).copied().unwrap_or(0);
            value << 1 | u64::from(octet & mask != 0)
        })
    }

    /// Reads the low 32 bits of it.
    #[must_use]
    pub fn get32(self, octets: &[u8]) -> u32 {
        let [.., a, b, c, d] = self.get(octets).to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }

    /// Reads it as a flag: whether any bit is set.
    #[must_use]
    pub fn is_set(self, octets: &[u8]) -> bool {
        self.get(octets) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted_from_the_top() {
        let mut octets = [0; 4];
        Bits::new(0, 1).set(&mut octets, 1);
        assert_eq!(octets, [0x80, 0, 0, 0]);
        Bits::new(8, 24).set(&mut octets, 0x0012_3456);
        assert_eq!(octets, [0x80, 0x12, 0x34, 0x56]);
        Bits::new(6, 4).set(&mut octets, 0b1011);
        assert_eq!(octets, [0x82, 0xd2, 0x34, 0x56]);
        assert_eq!(Bits::new(6, 4).get(&octets), 0b1011);
        assert_eq!(Bits::new(8, 24).get32(&octets), 0x00d2_3456);
        Bits::new(6, 4).set(&mut octets, 0);
        assert_eq!(octets, [0x80, 0x12, 0x34, 0x56]);
    }

    #[test]
    fn what_has_no_room_is_left_out() {
        let mut octets = [0; 2];
        Bits::new(4, 4).set(&mut octets, 0xfff);
        Bits::new(12, 8).set(&mut octets, 0xff);
        assert_eq!(octets, [0x0f, 0x0f]);
        assert_eq!(Bits::new(12, 8).get(&octets), 0xf0);
        assert!(!Bits::new(64, 1).is_set(&octets));
        let mut wide = [0; 8];
        Bits::new(0, 64).set(&mut wide, u64::MAX);
        assert_eq!(Bits::new(0, 64).get(&wide), u64::MAX);
    }
}
