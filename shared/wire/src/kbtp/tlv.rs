//! TLVs at the end of HELLO and HELLO_ACK: Type (16), Length of Value (16), Value, zero-padded to 4 octets.
//! Source: KBTP profile, P5.
//! Checked here: that each TLV ends within the message, that padding is zero, that there are not too many, that Tenant
//! and Auth come once, that texts are UTF-8. Unknown types are skipped.

use super::auth::Auth;
use super::limits::MAX_TLVS;
use crate::BufferTooSmall;
use crate::octets::put_front;

/// Octets before a Value.
const HEAD: usize = 4;

/// TLV types (P5).
//= kbtp-p5-tlv-types
pub mod tlv_type {
    /// Tenant, UTF-8.
    pub const TENANT: u16 = 1;
    /// Auth (P9).
    pub const AUTH: u16 = 2;
    /// Software, UTF-8, informative.
    pub const SOFTWARE: u16 = 3;
}

/// What can be wrong with a TLV list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlvError {
    /// A TLV, or its padding, ends after the message.
    #[error("a TLV ends after the message")]
    Truncated,
    /// Padding that is not zero.
    #[error("the padding of TLV type {kind} is not zero")]
    Padding {
        /// The type.
        kind: u16,
    },
    /// A type that may come once comes again.
    #[error("TLV type {kind} comes twice")]
    Duplicate {
        /// The type.
        kind: u16,
    },
    /// More TLVs than [`MAX_TLVS`].
    #[error("more than {MAX_TLVS} TLVs")]
    TooMany,
    /// A Value of the wrong length, or text that is not UTF-8.
    #[error("the value of TLV type {kind} is malformed")]
    Value {
        /// The type.
        kind: u16,
    },
}

/// One TLV, its padding taken off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tlv<'a> {
    /// Type.
    pub kind: u16,
    /// Value.
    pub value: &'a [u8],
}

/// The TLVs of a message, in order. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Tlvs<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Tlvs<'a> {
    /// The TLVs in these octets, which reach to the end of the message.
    #[must_use]
    pub const fn new(octets: &'a [u8]) -> Self {
        Self {
            rest: octets,
            left: MAX_TLVS,
        }
    }

    //= kbtp-p5-tlv-format
    fn take(&mut self) -> Result<Tlv<'a>, TlvError> {
        self.left = self.left.checked_sub(1).ok_or(TlvError::TooMany)?;
        let (&[k0, k1, l0, l1], rest) = self
            .rest
            .split_first_chunk::<HEAD>()
            .ok_or(TlvError::Truncated)?;
        let kind = u16::from_be_bytes([k0, k1]);
        let len = usize::from(u16::from_be_bytes([l0, l1]));
        let (value, rest) = rest.split_at_checked(len).ok_or(TlvError::Truncated)?;
        let (padding, rest) = rest
            .split_at_checked(padding_of(len))
            .ok_or(TlvError::Truncated)?;
        if padding.iter().any(|octet| *octet != 0) {
            return Err(TlvError::Padding { kind });
        }
        self.rest = rest;
        Ok(Tlv { kind, value })
    }
}

impl<'a> Iterator for Tlvs<'a> {
    type Item = Result<Tlv<'a>, TlvError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let taken = self.take();
        if taken.is_err() {
            self.rest = &[];
        }
        Some(taken)
    }
}

/// Octets of padding after a Value of `len`.
const fn padding_of(len: usize) -> usize {
    len.wrapping_neg() % 4
}

/// What version 1 takes from the TLVs of a HELLO or HELLO_ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KnownTlvs<'a> {
    /// Tenant.
    pub tenant: Option<&'a str>,
    /// Auth.
    pub auth: Option<Auth>,
    /// Software; the first, if there are several.
    pub software: Option<&'a str>,
}

impl<'a> KnownTlvs<'a> {
    /// The known TLVs in these octets; unknown types are skipped.
    ///
    /// # Errors
    /// [`TlvError`], the first.
    //= kbtp-p5-unknown-tlvs-skipped
    pub fn decode(octets: &'a [u8]) -> Result<Self, TlvError> {
        let mut known = Self::default();
        for tlv in Tlvs::new(octets) {
            let Tlv { kind, value } = tlv?;
            match kind {
                tlv_type::TENANT => once(kind, &mut known.tenant, text(kind, value)?)?,
                tlv_type::AUTH => {
                    let octets = value.as_array().ok_or(TlvError::Value { kind })?;
                    once(kind, &mut known.auth, Auth::decode(octets))?;
                }
                tlv_type::SOFTWARE => {
                    let text = text(kind, value)?;
                    known.software.get_or_insert(text);
                }
                _ => {}
            }
        }
        Ok(known)
    }

    /// Octets these TLVs take.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let one = |value: Option<usize>| {
            value.map_or(0, |len| {
                HEAD.saturating_add(len).saturating_add(padding_of(len))
            })
        };
        one(self.tenant.map(str::len))
            .saturating_add(one(self.auth.map(|_| Auth::LEN)))
            .saturating_add(one(self.software.map(str::len)))
    }

    /// Puts these TLVs at the front of `out` and returns how many octets they took.
    ///
    /// # Errors
    /// [`BufferTooSmall`] if they do not fit, or if a text is over 65,535 octets long (`needed` then tells so).
    pub fn encode_into(&self, out: &mut [u8]) -> Result<usize, BufferTooSmall> {
        let (needed, len) = (self.encoded_len(), out.len());
        let mut rest = Some(out);
        if let Some(tenant) = self.tenant {
            rest = rest.and_then(|out| put(out, tlv_type::TENANT, tenant.as_bytes()));
        }
        if let Some(auth) = self.auth {
            rest = rest.and_then(|out| put(out, tlv_type::AUTH, &auth.encode()));
        }
        if let Some(software) = self.software {
            rest = rest.and_then(|out| put(out, tlv_type::SOFTWARE, software.as_bytes()));
        }
        rest.map(|_| needed).ok_or(BufferTooSmall { needed, len })
    }
}

//= kbtp-p5-tlv-once
fn once<T>(kind: u16, place: &mut Option<T>, value: T) -> Result<(), TlvError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(TlvError::Duplicate { kind }),
    }
}

fn text(kind: u16, value: &[u8]) -> Result<&str, TlvError> {
    core::str::from_utf8(value).map_err(|_| TlvError::Value { kind })
}

/// Puts one TLV at the front of `out` and returns the rest; `None` if it does not fit.
fn put<'a>(out: &'a mut [u8], kind: u16, value: &[u8]) -> Option<&'a mut [u8]> {
    let len = u16::try_from(value.len()).ok()?;
    let out = put_front(out, &kind.to_be_bytes())?;
    let out = put_front(out, &len.to_be_bytes())?;
    let out = put_front(out, value)?;
    let (padding, out) = out.split_at_mut_checked(padding_of(value.len()))?;
    padding.fill(0);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    fn list(tlvs: &[(u16, &[u8])]) -> Vec<u8> {
        let mut octets = vec![0xee; 4096];
        let len = octets.len();
        let mut rest: &mut [u8] = &mut octets;
        for (kind, value) in tlvs {
            rest = put(rest, *kind, value).unwrap();
        }
        let used = len - rest.len();
        octets.truncate(used);
        octets
    }

    //= test kbtp-p5-tlv-format
    #[test]
    fn padding_fills_to_four_and_is_zero() {
        for (len, total) in [(0, 4), (1, 8), (2, 8), (3, 8), (4, 8), (5, 12)] {
            let value = vec![0xff; len];
            let octets = list(&[(9, &value)]);
            assert_eq!(octets.len(), total);
            assert_eq!(
                Tlvs::new(&octets).next(),
                Some(Ok(Tlv {
                    kind: 9,
                    value: &value
                }))
            );
            for at in 4 + len..total {
                let mut bad = octets.clone();
                bad[at] = 1;
                assert_eq!(
                    Tlvs::new(&bad).next(),
                    Some(Err(TlvError::Padding { kind: 9 }))
                );
            }
            for cut in 1..total {
                assert_eq!(
                    Tlvs::new(&octets[..cut]).next(),
                    Some(Err(TlvError::Truncated))
                );
            }
        }
    }

    #[test]
    fn the_iterator_ends_after_an_error() {
        let mut tlvs = Tlvs::new(&[0, 1, 0, 9, 0, 0, 0, 0]);
        assert_eq!(tlvs.next(), Some(Err(TlvError::Truncated)));
        assert_eq!(tlvs.next(), None);
    }

    //= test kbtp-p5-unknown-tlvs-skipped
    //= test kbtp-p5-tlv-types
    #[test]
    fn unknown_types_are_skipped_wherever_they_stand() {
        let auth = [7; 48];
        let octets = list(&[
            (0, b"x"),
            (1, b"blue"),
            (0xffff, b""),
            (2, &auth),
            (4, b"later"),
            (3, b"kbtp 1"),
            (3, b"again"),
        ]);
        let known = KnownTlvs::decode(&octets).unwrap();
        assert_eq!(known.tenant, Some("blue"));
        assert_eq!(known.auth, Some(Auth::decode(&auth)));
        assert_eq!(known.software, Some("kbtp 1"));
    }

    //= test kbtp-p5-tlv-once
    #[test]
    fn tenant_and_auth_come_once() {
        let twice = list(&[(1, b"a"), (1, b"a")]);
        assert_eq!(
            KnownTlvs::decode(&twice),
            Err(TlvError::Duplicate { kind: 1 })
        );
        let twice = list(&[(2, &[0; 48]), (3, b""), (2, &[0; 48])]);
        assert_eq!(
            KnownTlvs::decode(&twice),
            Err(TlvError::Duplicate { kind: 2 })
        );
    }

    #[test]
    fn values_are_checked() {
        assert_eq!(
            KnownTlvs::decode(&list(&[(1, &[0xff])])),
            Err(TlvError::Value { kind: 1 })
        );
        assert_eq!(
            KnownTlvs::decode(&list(&[(2, &[0; 47])])),
            Err(TlvError::Value { kind: 2 })
        );
        assert_eq!(
            KnownTlvs::decode(&list(&[(3, &[0xc0])])),
            Err(TlvError::Value { kind: 3 })
        );
    }

    #[test]
    fn there_are_not_too_many() {
        let most = [0_u8, 9, 0, 0].repeat(MAX_TLVS);
        assert_eq!(KnownTlvs::decode(&most), Ok(KnownTlvs::default()));
        let more = [0_u8, 9, 0, 0].repeat(MAX_TLVS + 1);
        assert_eq!(KnownTlvs::decode(&more), Err(TlvError::TooMany));
    }

    #[test]
    fn too_small_a_buffer_is_named() {
        let known = KnownTlvs {
            tenant: Some("abcde"),
            ..KnownTlvs::default()
        };
        assert_eq!(known.encode_into(&mut [0; 12]), Ok(12));
        for len in 0..12 {
            let mut out = [0; 12];
            assert_eq!(
                known.encode_into(&mut out[..len]),
                Err(BufferTooSmall { needed: 12, len })
            );
        }
    }
}
