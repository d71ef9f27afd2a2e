use super::*;
use proptest::prelude::*;
use std::hash::{BuildHasherDefault, Hasher};

/// Sends all keys to few hashes, so that chains are long and keys must be compared.
#[derive(Default)]
struct Poor(u64);

impl Hasher for Poor {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, octets: &[u8]) {
        for octet in octets {
            self.0 = (self.0 + u64::from(*octet)) % 3;
        }
    }
}

/// A key, its value and its pins, in a list: least lately used first.
struct Known {
    key: Vec<u8>,
    value: u32,
    pins: u32,
}

/// The index, and the same by searching a list.
struct Pair<H> {
    index: Index<H>,
    list: Vec<Known>,
    capacity: usize,
    value: u32,
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, bool),
    Get(u8),
    Remove(u8),
    Pin(u8),
    Unpin(u8),
    Clear,
}

const KEYS: u8 = 24;

fn step() -> impl Strategy<Value = Step> {
    let key = 0..KEYS;
    prop_oneof![
        8 => (key.clone(), prop::bool::weighted(0.9)).prop_map(|(k, ok)| Step::Put(k, ok)),
        6 => key.clone().prop_map(Step::Get),
        2 => key.clone().prop_map(Step::Remove),
        1 => key.clone().prop_map(Step::Pin),
        1 => key.prop_map(Step::Unpin),
        1 => Just(Step::Clear),
    ]
}

fn key_of(number: u8) -> Vec<u8> {
    vec![number; usize::from(number % 5) + 1]
}

impl<H: BuildHasher> Pair<H> {
    fn new(index: Index<H>) -> Self {
        Self {
            capacity: usize::try_from(index.capacity()).unwrap(),
            index,
            list: Vec::new(),
            value: 0,
        }
    }

    fn place(&self, key: &[u8]) -> Option<usize> {
        self.list.iter().position(|known| known.key == key)
    }

    /// Moves a key to the new end.
    fn use_it(&mut self, place: usize) {
        let known = self.list.remove(place);
        self.list.push(known);
    }

    fn put(&mut self, key: &[u8], succeeds: bool) {
        let at = if let Some(at) = self.index.find_stored(key) {
            self.index.restore(at);
            Some(at)
        } else {
            let oldest = self.index.oldest();
            let reserved = self.index.reserve(key);
            reserved.or_else(|| {
                let evicted = self.index.evict(key);
                assert_eq!(evicted, oldest);
                evicted
            })
        };
        if let Some(place) = self.place(key) {
            self.list.remove(place);
        } else if self.list.len() == self.capacity {
            let Some(victim) = self.list.iter().position(|known| known.pins == 0) else {
                assert_eq!(at, None, "all are pinned");
                return;
            };
            let victim = self.list.remove(victim);
            assert_eq!(self.index.find(&victim.key), None, "the same was evicted");
        }
        let at = at.unwrap();
        assert_eq!(self.index.find_stored(key), None, "not stored yet");
        assert_eq!(self.index.find(key), Some(at));
        if succeeds {
            self.value += 1;
            self.index.stored(at, Generation::FIRST, self.value);
            self.list.push(Known {
                key: key.to_vec(),
                value: self.value,
                pins: 0,
            });
        } else {
            self.index.remove(at, true);
            assert!(self.index.is_dirty(at));
        }
    }

    fn take(&mut self, step: &Step) {
        let (Step::Put(number, _)
        | Step::Get(number)
        | Step::Remove(number)
        | Step::Pin(number)
        | Step::Unpin(number)) = *step
        else {
            self.index.clear(self.index.capacity());
            self.list.clear();
            return;
        };
        let key = key_of(number);
        if let Step::Put(_, succeeds) = *step {
            self.put(&key, succeeds);
            return;
        }
        let (found, place) = (self.index.find_stored(&key), self.place(&key));
        assert_eq!(found.is_some(), place.is_some());
        let (Some(at), Some(place)) = (found, place) else {
            return;
        };
        let pins = self.list[place].pins;
        match step {
            Step::Get(_) => {
                self.index.touch(at);
                assert_eq!(self.index.data_len(at), self.list[place].value);
                // A pinned entry is out of the order: using it does not move it.
                if pins == 0 {
                    self.use_it(place);
                }
            }
            Step::Remove(_) => {
                self.index.remove(at, false);
                self.list.remove(place);
            }
            Step::Pin(_) => {
                self.index.pin(at);
                self.list[place].pins += 1;
            }
            _ => {
                self.index.unpin(at);
                self.list[place].pins = pins.saturating_sub(1);
                // Unpinning is a use.
                if pins == 1 {
                    self.use_it(place);
                }
            }
        }
    }

    fn compare(&self) {
        for number in 0..KEYS {
            let key = key_of(number);
            let found = self.index.find_stored(&key);
            assert_eq!(found.is_some(), self.place(&key).is_some());
        }
    }
}

fn run<H: BuildHasher>(index: Index<H>, steps: &[Step]) {
    let mut pair = Pair::new(index);
    for step in steps {
        pair.take(step);
        pair.compare();
    }
}

proptest! {
    #[test]
    fn agrees_with_a_list(capacity in 1_u32..12, steps in prop::collection::vec(step(), 0..200)) {
        run(Index::new(capacity), &steps);
    }

    #[test]
    fn agrees_with_a_list_when_hashes_collide(
        capacity in 1_u32..12,
        steps in prop::collection::vec(step(), 0..200),
    ) {
        run(Index::with_hasher(capacity, BuildHasherDefault::<Poor>::default()), &steps);
    }
}

#[test]
fn buckets_spread_as_keys_come() {
    let mut index = Index::new(10_000);
    for number in 0_u32..10_000 {
        let at = index.reserve(&number.to_be_bytes()).unwrap();
        index.stored(at, Generation::FIRST, number);
    }
    assert!(index.buckets.len() >= 10_000 / 2);
    for number in 0_u32..10_000 {
        let at = index.find_stored(&number.to_be_bytes()).unwrap();
        assert_eq!(index.data_len(at), number);
    }
    assert_eq!(index.reserve(b"one more"), None);
}
