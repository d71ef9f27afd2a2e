//! How many half-open streams each source has: from the end of its MPA startup until its HELLO is answered a stream holds a
//! place, so that one source that connects and is silent leaves room for the rest.

use crate::limits;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

/// Places of one source.
pub(crate) fn places_of(peer: &SocketAddr, half_open: usize) -> usize {
    // On loopback everybody is one source.
    let sources = if peer.ip().to_canonical().is_loopback() {
        1
    } else {
        limits::HALF_OPEN_SOURCES
    };
    half_open.checked_div(sources).unwrap_or(0).max(1)
}

/// Whether few of `most` places are left when so many are taken: then one that is silent makes room for the next.
pub(crate) fn few_left(taken: usize, most: usize) -> bool {
    let last = most.checked_div(limits::HALF_OPEN_LAST).unwrap_or(0);
    most.saturating_sub(taken) <= last
}

/// The places that are taken. A lock, because streams are dealt by the control thread and answered by the workers; taken
/// twice for each stream.
#[derive(Debug, Default)]
pub(crate) struct Sources(Mutex<HashMap<IpAddr, usize>>);

impl Sources {
    /// A place for a stream from `peer`, of which its source has `most`; `None` if they are all taken.
    pub(crate) fn take(self: &Arc<Self>, peer: &SocketAddr, most: usize) -> Option<Place> {
        let source = kbtp_iwarp_tcp::source(peer);
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(source).or_insert(0);
        //= rfc5040-8.1.2-fair-share
        //= rfc5041-8.3.2-fair-share
        //= rfc5042-7.2-fair-share
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Place {
            sources: Arc::clone(self),
            source,
        })
    }

    /// Whether few of the `most` places of a source are left.
    pub(crate) fn are_few(&self, source: IpAddr, most: usize) -> bool {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = taken.get(&source).copied().unwrap_or(0);
        few_left(taken, most)
    }

    /// Places taken.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.0.lock().unwrap().values().sum()
    }

    fn give(&self, source: IpAddr) {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&source) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                taken.remove(&source);
            }
        }
    }
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    sources: Arc<Sources>,
    source: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.sources.give(self.source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_so_many_places_and_others_have_theirs() {
        //= test rfc5040-8.1.2-fair-share
        //= test rfc5041-8.3.2-fair-share
        //= test rfc5042-7.2-fair-share
        let sources = Arc::new(Sources::default());
        let peer = |text: &str| text.parse::<SocketAddr>().unwrap();
        let first = sources.take(&peer("192.0.2.1:1"), 2).unwrap();
        let _second = sources.take(&peer("192.0.2.1:2"), 2).unwrap();
        assert!(sources.take(&peer("192.0.2.1:3"), 2).is_none());
        let _other = sources.take(&peer("192.0.2.2:1"), 2).unwrap();
        assert!(sources.are_few(kbtp_iwarp_tcp::source(&peer("192.0.2.1:9")), 2));
        assert!(!sources.are_few(kbtp_iwarp_tcp::source(&peer("192.0.2.9:9")), 2));
        drop(first);
        let _third = sources.take(&peer("192.0.2.1:3"), 2).unwrap();
        let _v6 = sources.take(&peer("[2001:db8::1]:1"), 1).unwrap();
        assert!(sources.take(&peer("[2001:db8::2]:1"), 1).is_none());
    }

    #[test]
    fn the_last_eighth_is_few() {
        assert!(!few_left(223, 256) && few_left(224, 256) && few_left(300, 256));
        assert!(!few_left(3, 4) && few_left(4, 4));
        assert!(!few_left(0, 1) && few_left(1, 1));
    }

    #[test]
    fn nothing_is_remembered_of_a_source_that_is_gone() {
        let sources = Arc::new(Sources::default());
        for n in 0..100_u8 {
            let peer = SocketAddr::from(([192, 0, 2, n], 1));
            drop(sources.take(&peer, 1).unwrap());
        }
        assert!(sources.0.lock().unwrap().is_empty());
    }

    #[test]
    fn a_source_has_a_part_of_all_places_and_loopback_has_them_all() {
        let places = |text: &str, half_open| places_of(&text.parse().unwrap(), half_open);
        assert_eq!(places("192.0.2.1:1", 256), 64);
        assert_eq!(places("192.0.2.1:1", 2), 1);
        assert_eq!(places("127.0.0.1:1", 256), 256);
        assert_eq!(places("[::1]:1", 256), 256);
    }
}
