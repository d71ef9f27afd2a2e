//! Randomness from the system, taken when a stream is set up: the cores are given seeds and draw from those.

use std::io;

/// Octets of a seed.
pub const SEED_LEN: usize = 32;

/// Fresh randomness nobody can guess: for STags, challenges, nonces and identities. One system call.
///
/// # Errors
/// What the system says; it has no randomness to give only in the first moments after boot.
//= kbtp-p9-fresh-nonce
//= kbtp-p9-fresh-challenge
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut octets = [0; N];
    getrandom::fill(&mut octets)?;
    Ok(octets)
}

#[cfg(test)]
mod tests {
    use super::*;

    //= test kbtp-p9-fresh-nonce
    //= test kbtp-p9-fresh-challenge
    #[test]
    fn no_two_are_alike() {
        let a: [u8; SEED_LEN] = random().unwrap();
        let b: [u8; SEED_LEN] = random().unwrap();
        assert_ne!(a, b);
        assert_ne!(a, [0; SEED_LEN]);
    }
}
