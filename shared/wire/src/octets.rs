//! Writing into a caller's buffer, part after part.

/// Copies `octets` to the front of `out` and returns the rest of `out`; `None` if they do not fit.
pub(crate) fn put_front<'a>(out: &'a mut [u8], octets: &[u8]) -> Option<&'a mut [u8]> {
    let (front, rest) = out.split_at_mut_checked(octets.len())?;
    front.copy_from_slice(octets);
    Some(rest)
}
