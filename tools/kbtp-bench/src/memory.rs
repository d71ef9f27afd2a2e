//! The limit of one core that copies: `memcpy` between two buffers beyond the caches.

use kbtp::driver;
use std::time::Duration;

/// Octets of each buffer.
const BUFFER_LEN: usize = 64 << 20;

/// Two buffers.
#[derive(Debug)]
pub(crate) struct Copier {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Copier {
    /// Buffers whose pages are all there.
    pub(crate) fn new() -> Self {
        Self {
            from: vec![1; BUFFER_LEN],
            to: vec![2; BUFFER_LEN],
        }
    }

    /// Copies pieces of `size` octets for `window`; returns the octets copied and the time it took.
    pub(crate) fn copy(&mut self, size: u32, window: Duration) -> (u64, Duration) {
        let size = usize::try_from(size)
            .unwrap_or(BUFFER_LEN)
            .clamp(1, BUFFER_LEN);
        let began = driver::now();
        let mut octets = 0_u64;
        loop {
            for (to, from) in self.to.chunks_mut(size).zip(self.from.chunks(size)) {
                to.copy_from_slice(from.get(..to.len()).unwrap_or(from));
                octets += u64::try_from(to.len()).unwrap_or(0);
            }
            std::hint::black_box(&mut self.to);
            if began.elapsed() >= window {
                return (octets, began.elapsed());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_copies_all_it_counts() {
        let mut copier = Copier::new();
        let (octets, _) = copier.copy(4096, Duration::ZERO);
        assert_eq!(octets, u64::try_from(BUFFER_LEN).unwrap());
        assert!(copier.to.iter().all(|&o| o == 1));
    }
}
