//! The cache over a target in memory, by hand and against a model.

use super::*;
use crate::testing::{BLOCK, FakeDial, World, client, options, pattern, target};
use kbtp_wire::Opcode;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

fn cache(blocks: u32) -> (Arc<Mutex<World>>, BlockCache<FakeDial>) {
    let (world, client) = client(blocks);
    (world, BlockCache::new(client))
}

fn put(cache: &mut BlockCache<FakeDial>, key: &[u8], data: &[u8]) -> Result<(), CacheError> {
    let mut buffer = cache.client().register(BLOCK)?;
    buffer.fill(data)?;
    cache.put(key, &mut buffer)
}

fn get(cache: &mut BlockCache<FakeDial>, key: &[u8]) -> Option<Vec<u8>> {
    let mut buffer = cache.client().register(BLOCK).unwrap();
    cache
        .get(key, &mut buffer)
        .unwrap()
        .map(|_| buffer.to_vec().unwrap())
}

#[test]
fn keeps_the_most_lately_used() {
    let (world, mut cache) = cache(3);
    assert_eq!(cache.capacity(), 3);
    for key in [b"a", b"b", b"c"] {
        put(&mut cache, key, key).unwrap();
    }
    assert_eq!(get(&mut cache, b"a").unwrap(), b"a");
    put(&mut cache, b"d", b"dd").unwrap();
    assert!(!cache.contains(b"b"));
    assert_eq!(get(&mut cache, b"b"), None);
    assert_eq!(cache.data_len(b"d"), Some(2));
    assert_eq!(cache.prefix_len([b"a", b"c", b"d", b"b", b"a"]), 3);
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.evictions), (1, 1, 1));
    assert_eq!((stats.stores, stats.keys, stats.octets), (4, 3, 4));
    assert_eq!(world.lock().unwrap().bound(), 3);
}

#[test]
fn a_lease_that_ran_out_leaves_the_cache_of_use() {
    let (world, mut cache) = cache(2);
    put(&mut cache, b"a", b"1").unwrap();
    put(&mut cache, b"b", b"2").unwrap();
    world.lock().unwrap().lapse();
    // The same instance and the same range: nothing says that what was bound is gone.
    assert!(cache.reconnect().unwrap().bindings_kept());
    assert_eq!(get(&mut cache, b"a"), None);
    assert_eq!(get(&mut cache, b"b"), None);
    put(&mut cache, b"c", b"3").unwrap();
    put(&mut cache, b"d", b"4").unwrap();
    assert_eq!(get(&mut cache, b"c").unwrap(), b"3");
    assert_eq!(get(&mut cache, b"d").unwrap(), b"4");
}

#[test]
fn a_session_resumed_with_less_quota_evicts() {
    let (world, mut cache) = cache(4);
    put(&mut cache, b"a", b"1").unwrap();
    put(&mut cache, b"b", b"2").unwrap();
    world.lock().unwrap().quota = 2;
    assert!(cache.reconnect().unwrap().bindings_kept());
    assert_eq!(cache.capacity(), 2);
    put(&mut cache, b"c", b"3").unwrap();
    assert_eq!(get(&mut cache, b"a"), None);
    assert_eq!(get(&mut cache, b"b").unwrap(), b"2");
    assert_eq!(get(&mut cache, b"c").unwrap(), b"3");
    assert_eq!(world.lock().unwrap().bound(), 2);
    // And it grows again with the quota.
    world.lock().unwrap().quota = 3;
    assert!(cache.reconnect().unwrap().bindings_kept());
    put(&mut cache, b"d", b"4").unwrap();
    assert_eq!(cache.stats().keys, 3);
    assert_eq!(get(&mut cache, b"b").unwrap(), b"2");
}

#[test]
fn replaces_and_removes() {
    let (world, mut cache) = cache(3);
    put(&mut cache, b"key", &pattern(1, 4096)).unwrap();
    put(&mut cache, b"key", &pattern(2, 10)).unwrap();
    assert_eq!(get(&mut cache, b"key").unwrap(), pattern(2, 10));
    assert_eq!((cache.stats().keys, cache.stats().octets), (1, 10));
    assert!(cache.remove(b"key").unwrap());
    assert!(!cache.remove(b"key").unwrap());
    assert_eq!(get(&mut cache, b"key"), None);
    assert_eq!(world.lock().unwrap().bound(), 0);
}

#[test]
fn pinned_keys_stay() {
    let (_, mut cache) = cache(2);
    put(&mut cache, b"a", b"1").unwrap();
    put(&mut cache, b"b", b"2").unwrap();
    assert!(cache.pin(b"a"));
    assert!(!cache.pin(b"x"));
    put(&mut cache, b"c", b"3").unwrap();
    assert!(cache.contains(b"a") && !cache.contains(b"b"));
    assert!(cache.pin(b"c"));
    let full = put(&mut cache, b"d", b"4");
    assert!(matches!(full, Err(CacheError::Full { capacity: 2 })));
    assert!(matches!(
        put(&mut cache, b"a", b"5"),
        Err(CacheError::Pinned)
    ));
    assert_eq!(get(&mut cache, b"a").unwrap(), b"1");
    cache.unpin(b"a");
    put(&mut cache, b"d", b"4").unwrap();
    assert!(!cache.contains(b"a"));
}

#[test]
fn many_at_once_the_same_key_in_order() {
    let (_, mut cache) = cache(16);
    let keys: Vec<[u8; 1]> = (0..40).map(|n| [n % 20]).collect();
    let mut buffers = cache.client().register_many(40, BLOCK).unwrap();
    for (buffer, n) in buffers.iter_mut().zip(0..) {
        buffer.fill(&pattern(n, 700)).unwrap();
    }
    let mut items: Vec<_> = keys
        .iter()
        .zip(buffers.iter_mut())
        .map(|(key, buffer)| PutItem::new(key, buffer))
        .collect();
    assert_eq!(cache.put_many(&mut items).unwrap(), 40);
    drop(items);
    // The last 16 keys are there, each with what was put last.
    let mut items: Vec<_> = keys
        .iter()
        .take(20)
        .zip(buffers.iter_mut())
        .map(|(key, buffer)| GetItem::new(key, buffer))
        .collect();
    assert_eq!(cache.get_many(&mut items).unwrap(), 16);
    let found: Vec<_> = items
        .iter()
        .map(|item| matches!(item.result, Some(Ok(Some(_)))))
        .collect();
    drop(items);
    for ((found, buffer), n) in found.iter().zip(&buffers).zip(0_u8..) {
        assert_eq!(*found, n >= 4, "key {n}");
        if *found {
            assert_eq!(buffer.to_vec().unwrap(), pattern(n + 20, 700));
        }
    }
}

#[test]
fn a_store_that_fails_leaves_no_key() {
    let (world, mut cache) = cache(2);
    world.lock().unwrap().script.fail_alloc = Some(Status::NoSpace);
    let failed = put(&mut cache, b"a", b"1");
    assert!(matches!(&failed, Err(CacheError::Client(e)) if e.status() == Some(Status::NoSpace)));
    assert!(!cache.contains(b"a"));
    assert_eq!(cache.stats().failed_stores, 1);
    // A block that is too long, too.
    let mut long = cache.client().register(2 * BLOCK).unwrap();
    long.set_len(BLOCK + 1).unwrap();
    assert!(cache.put(b"a", &mut long).is_err());
    assert!(!cache.contains(b"a"));
    put(&mut cache, b"a", b"1").unwrap();
    // Replacing fails: the old data is gone, and the new is not there.
    world.lock().unwrap().script.fail_alloc = Some(Status::InternalError);
    assert!(put(&mut cache, b"a", b"2").is_err());
    assert_eq!(get(&mut cache, b"a"), None);
    assert_eq!(cache.stats().keys, 0);
    for key in [b"x", b"y"] {
        put(&mut cache, key, key).unwrap();
    }
    assert_eq!(cache.stats().keys, 2);
}

#[test]
fn what_another_process_left_is_freed_as_it_is_in_the_way() {
    let (world, mut first) = cache(2);
    put(&mut first, b"a", b"1").unwrap();
    put(&mut first, b"b", b"2").unwrap();
    let dial = FakeDial {
        world: Arc::clone(&world),
    };
    let mut second = BlockCache::new(Client::connect_with(dial, options()).unwrap());
    for key in [b"c", b"d", b"e"] {
        put(&mut second, key, key).unwrap();
    }
    assert_eq!(get(&mut second, b"e").unwrap(), b"e");
    assert_eq!(get(&mut second, b"c"), None);
    // And for the first, its blocks were replaced: misses, not the other's data.
    assert_eq!(get(&mut first, b"a"), None);
    assert_eq!(get(&mut first, b"b"), None);
    assert_eq!(first.stats().stale, 2);
    assert_eq!(first.stats().keys, 0);
    put(&mut first, b"f", b"3").unwrap();
    assert_eq!(get(&mut first, b"f").unwrap(), b"3");
}

#[test]
fn a_lost_instance_empties_the_cache_and_a_kept_one_does_not() {
    let (world, mut cache) = cache(4);
    put(&mut cache, b"a", b"1").unwrap();
    world.lock().unwrap().script.break_after = Some(0);
    assert!(put(&mut cache, b"b", b"2").is_err());
    assert!(!cache.contains(b"b"), "not known to be stored");
    assert!(cache.reconnect().unwrap().bindings_kept());
    assert_eq!(get(&mut cache, b"a").unwrap(), b"1");
    // The handle of the lost store is bound, in fact; that does not hurt.
    assert_eq!(world.lock().unwrap().bound(), 2);
    put(&mut cache, b"b", b"22").unwrap();
    assert_eq!(get(&mut cache, b"b").unwrap(), b"22");
    world.lock().unwrap().crash();
    world.lock().unwrap().script.break_before = Some(0);
    let mut buffer = cache.client().register(BLOCK).unwrap();
    assert!(cache.get(b"a", &mut buffer).is_err());
    assert!(!cache.reconnect().unwrap().bindings_kept());
    assert!(!cache.contains(b"a"));
    assert_eq!((cache.stats().keys, cache.stats().octets), (0, 0));
    put(&mut cache, b"a", b"3").unwrap();
    assert_eq!(get(&mut cache, b"a").unwrap(), b"3");
}

#[test]
fn a_target_that_falls_silent_costs_no_key() {
    let (world, dial) = target(2);
    let options = options()
        .credits(1)
        .timeout(std::time::Duration::from_millis(20));
    let mut cache = BlockCache::new(Client::connect_with(dial, options).unwrap());
    put(&mut cache, b"a", b"1").unwrap();
    put(&mut cache, b"b", b"2").unwrap();
    world.lock().unwrap().script.silent = true;
    let mut buffer = cache.client().register(BLOCK).unwrap();
    // The first load takes the only credit with it.
    assert!(cache.get(b"a", &mut buffer).is_err());
    let late = put(&mut cache, b"c", b"3").unwrap_err();
    assert!(matches!(
        late,
        CacheError::Client(ClientError::Deadline { sent: false, .. })
    ));
    assert!(cache.contains(b"a") && cache.contains(b"b"));
    assert_eq!(cache.stats().evictions, 0);
    world.lock().unwrap().script.silent = false;
    assert_eq!(get(&mut cache, b"b").unwrap(), b"2");
}

#[test]
fn loads_can_be_direct() {
    let (world, dial) = target(4);
    let client = Client::connect_with(dial, options().direct_load(true)).unwrap();
    let mut cache = BlockCache::new(client).direct_loads(true);
    put(&mut cache, b"a", &pattern(5, 3000)).unwrap();
    assert_eq!(get(&mut cache, b"a").unwrap(), pattern(5, 3000));
    assert_eq!(world.lock().unwrap().count(Opcode::Load), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u16),
    Get(u8),
    Remove(u8),
    Fail,
    Break(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0_u8..12;
    prop_oneof![
        6 => (key.clone(), 0_u16..4096).prop_map(|(k, len)| Step::Put(k, len)),
        6 => key.clone().prop_map(Step::Get),
        1 => key.prop_map(Step::Remove),
        1 => Just(Step::Fail),
        1 => any::<bool>().prop_map(Step::Break),
    ]
}

/// What a key may hold: the last value that was put, if the put succeeded.
fn run(steps: &[Step]) {
    let (world, mut cache) = cache(5);
    let mut expected: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
    let mut seed = 0_u8;
    for step in steps {
        if !cache.client().is_connected() {
            assert!(cache.reconnect().unwrap().bindings_kept());
        }
        match *step {
            Step::Put(key, len) => {
                seed = seed.wrapping_add(1);
                let data = pattern(seed, usize::from(len));
                expected.remove(&key);
                if put(&mut cache, &[key], &data).is_ok() {
                    expected.insert(key, data);
                } else {
                    assert!(!cache.contains(&[key]));
                }
            }
            Step::Get(key) => {
                let mut buffer = cache.client().register(BLOCK).unwrap();
                if let Ok(Some(hit)) = cache.get(&[key], &mut buffer) {
                    let data = buffer.to_vec().unwrap();
                    assert_eq!(Some(&data), expected.get(&key), "key {key}");
                    assert_eq!(hit.len, buffer.len());
                }
            }
            Step::Remove(key) => {
                let known = cache.contains(&[key]);
                match cache.remove(&[key]) {
                    Ok(removed) => assert_eq!(removed, known),
                    Err(error) => assert!(known, "{error}"),
                }
                expected.remove(&key);
                assert!(!cache.contains(&[key]));
            }
            Step::Fail => world.lock().unwrap().script.fail_alloc = Some(Status::InternalError),
            Step::Break(before) => {
                let script = &mut world.lock().unwrap().script;
                if before {
                    script.break_before = Some(1);
                } else {
                    script.break_after = Some(1);
                }
            }
        }
        let stats = cache.stats();
        let known = (0..12).filter(|key| cache.contains(&[*key])).count();
        assert_eq!(stats.keys as usize, known);
        assert!(known <= 5);
        assert!(world.lock().unwrap().bound() <= 5);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Whatever fails, a hit has the data that was put last, and what the cache counts is what it holds.
    #[test]
    fn a_hit_is_never_wrong(steps in prop::collection::vec(step(), 0..80)) {
        run(&steps);
    }
}
