//! What the directory tells and keeps: summaries, ranges found at recovery, the pool's trust domains.

use super::*;
use crate::pool::{Domain, Home};
use crate::{BlockIndex, Contents, Geometry, TenantKey};
use kbtp_memory::{PageOptions, Region, crc32c};
use kbtp_wire::{AtomicForm, BlockOffset, ByteLen, Nonce, Status};
use std::sync::atomic::Ordering::Relaxed;

const BLOCKS: u32 = 16;
const HANDLES: u64 = 1024;
const BASE: u64 = 1 << 20;

struct Memory {
    meta: Region,
    data: Region,
}

impl Memory {
    fn new() -> Self {
        let options = PageOptions::default();
        let geometry = Self::geometry();
        Self {
            meta: Region::anonymous(geometry.meta_len(), &options).unwrap(),
            data: Region::anonymous(geometry.pool_len(), &options).unwrap(),
        }
    }

    fn geometry() -> Geometry {
        Geometry {
            block_size: 4096,
            blocks: BLOCKS,
            handles: HANDLES,
            table_base_handle: Handle(BASE),
            pool_base: BlockOffset(0x4000_0000),
        }
    }

    fn format(&self) -> Shared {
        let (meta, data) = (self.meta.clone(), self.data.clone());
        let pool = Pool::format(meta, data, Self::geometry(), [7; 16], Contents::Zeroed);
        Shared::new(pool.unwrap())
    }

    /// A target that was killed is followed by another.
    fn recover(&self, config: DirectoryConfig) -> (Shared, Directory) {
        let (meta, data) = (self.meta.clone(), self.data.clone());
        let (pool, recovered) = Pool::recover(meta, data, [8; 16]).unwrap();
        let shared = Shared::new(pool);
        let directory = Directory::recover(config, &shared, recovered, Time(1)).unwrap();
        (shared, directory)
    }
}

fn tenant(name: &str) -> TenantConfig {
    TenantConfig {
        name: name.to_owned(),
        key: Some(TenantKey::new(name)),
        shared: false,
    }
}

fn config(tenants: &[&str]) -> DirectoryConfig {
    DirectoryConfig {
        tenants: tenants.iter().map(|name| tenant(name)).collect(),
        default_quota: 4,
        ..DirectoryConfig::default()
    }
}

fn opening(directory: &Directory, id: u64, name: &str, handles: u64) -> Opening {
    let initiator = InitiatorId([u8::try_from(id).unwrap(); 16]);
    let challenge = Challenge([0; 32]);
    let tenant = directory.authenticate(AuthMode::None, &challenge, &initiator, Some(name), None);
    Opening {
        id: SessionId(id),
        tenant: tenant.unwrap(),
        initiator,
        quota: 0,
        handles,
        direct_alloc: None,
    }
}

fn open(directory: &mut Directory, shared: &Shared, id: u64, name: &str, handles: u64) -> Opened {
    let opening = opening(directory, id, name, handles);
    directory.open(shared, &opening)
}

fn granted(opened: Opened) -> Allotment {
    match opened {
        Opened::Granted(allotment) => allotment,
        other => panic!("{other:?}"),
    }
}

fn hold(shared: &Shared, domain: Domain) -> BlockIndex {
    let ticket = shared.pool.take(Home::Shared).unwrap();
    let block = shared.pool.consume(Home::Shared, ticket, domain);
    block.unwrap()
}

fn store(shared: &Shared, row: u64, domain: Domain) -> BlockIndex {
    let block = hold(shared, domain);
    assert!(shared.pool.write(block, b"data"));
    shared.pool.bind(row, block, ByteLen(4), true);
    block
}

fn record(slot: u32, initiator: u8, first_row: u64, rows: u64) -> RangeRecord {
    RangeRecord {
        slot: RecordSlot(slot),
        tenant: "red".to_owned(),
        initiator: [initiator; 16],
        first_row,
        rows,
        given_up: false,
    }
}

#[test]
fn a_summary_says_whose_each_range_is_and_for_how_long() {
    let shared = Memory::new().format();
    let mut directory = Directory::new(config(&["red", "blue"]), &shared.pool).unwrap();
    let red = granted(open(&mut directory, &shared, 1, "red", 64));
    let blue = granted(open(&mut directory, &shared, 2, "blue", 100));
    store(&shared, red.first_row, red.domain);
    directory.close(Time(5), &shared, SessionId(1), 1);
    let of_red = RangeSummary {
        tenant: "red".to_owned(),
        initiator: [1; 16],
        base: Handle(BASE),
        count: 64,
        quota: 1,
        bound: Some(1),
        session: None,
        lease_ends: Some(Time(5).after_ms(60_000)),
    };
    let of_blue = RangeSummary {
        tenant: "blue".to_owned(),
        initiator: [2; 16],
        base: Handle(BASE + blue.first_row),
        count: 128,
        quota: 4,
        bound: None,
        session: Some(SessionId(2)),
        lease_ends: None,
    };
    assert_eq!(directory.ranges(), [of_red, of_blue]);
    let names = ["red", "blue"].map(|name| opening(&directory, 3, name, 1).tenant);
    assert_eq!(
        names.map(|tenant| directory.tenant_name(tenant)),
        ["red", "blue"]
    );
    let summary = directory.summary();
    assert_eq!(
        (summary.ranges, summary.sessions, summary.committed),
        (2, 1, 5)
    );
}

/// A freed block is cleared at once where others may get it, and only there: clearing costs a pass over it.
//= test kbtp-6.4-clear-for-other-domain
#[test]
fn freed_blocks_are_cleared_where_tenants_do_not_trust_each_other() {
    for (tenants, cleared) in [(&["red"][..], false), (&["red", "blue"][..], true)] {
        let memory = Memory::new();
        let shared = memory.format();
        let mut directory = Directory::new(config(tenants), &shared.pool).unwrap();
        let red = granted(open(&mut directory, &shared, 1, "red", 64));
        let block = store(&shared, red.first_row, red.domain);
        shared.pool.free(red.first_row, block);
        let mut found = [0xff; 4];
        let at = shared.pool.geometry().region_offset(block);
        memory.data.read(at, &mut found).unwrap();
        assert_eq!(found == [0; 4], cleared, "{tenants:?}");
    }
}

/// Rows that a recovered range covers are given to nobody else, and all others are.
//= test kbtp-p8-lease-keeps-bindings
#[test]
fn a_recovered_range_keeps_its_rows_and_no_others() {
    let memory = Memory::new();
    let shared = memory.format();
    // The third and fourth granule of sixteen.
    shared.pool.write_record(&record(3, 1, 128, 128)).unwrap();
    store(&shared, 130, Domain(1));
    drop(shared);
    let (shared, mut directory) = memory.recover(config(&["red"]));
    let mut taken: Vec<u64> = Vec::new();
    let mut id = 10;
    while let Opened::Granted(new) = open(&mut directory, &shared, id, "red", 64) {
        taken.extend(new.first_row..new.first_row + new.rows);
        // Something stays bound, and the quota is free for the next.
        directory.close(Time(1), &shared, SessionId(id), 1);
        id += 1;
    }
    taken.sort_unstable();
    let expected: Vec<u64> = (0..128).chain(256..HANDLES).collect();
    assert_eq!(taken, expected);
}

/// It cannot be, unless memory is damaged: then what is bound most stays, and the other goes block by block.
#[test]
fn of_two_ranges_of_one_pair_the_one_with_more_bound_stays() {
    for (first, second, kept) in [(2, 1, 0), (1, 2, 64), (2, 2, 64)] {
        let memory = Memory::new();
        let shared = memory.format();
        for (slot, row, bound) in [(0, 0, first), (1, 64, second)] {
            shared.pool.write_record(&record(slot, 1, row, 64)).unwrap();
            for n in 0..bound {
                store(&shared, row + n, Domain(1));
            }
        }
        drop(shared);
        let (shared, mut directory) = memory.recover(config(&["red"]));
        let most = first.max(second);
        assert_eq!(u64::from(shared.pool.audit().bound), most);
        assert_eq!(directory.summary().ranges, 1);
        let found = granted(open(&mut directory, &shared, 1, "red", 64));
        assert_eq!((found.first_row, u64::from(found.bound)), (kept, most));
    }
}

#[test]
fn limits_may_be_reached() {
    let shared = Memory::new().format();
    let most = DirectoryConfig {
        credits_max: CREDITS_MAX,
        credits_default: CREDITS_MAX,
        inline_max: INLINE_MAX,
        default_quota: 1,
        ..config(&[])
    };
    Directory::new(most.clone(), &shared.pool).unwrap();
    let wrong = |change: fn(&mut DirectoryConfig)| {
        let mut config = most.clone();
        change(&mut config);
        match Directory::new(config, &shared.pool) {
            Err(DirectoryError::Config { key, value, .. }) => (key, value),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(wrong(|c| c.credits_max = 0), ("credits_max", 0));
    assert_eq!(wrong(|c| c.credits_max = 1025), ("credits_max", 1025));
    assert_eq!(wrong(|c| c.credits_default = 0), ("credits_default", 0));
    assert_eq!(
        wrong(|c| c.credits_default = 1025),
        ("credits_default", 1025)
    );
    assert_eq!(wrong(|c| c.inline_max = 65_537), ("inline_max", 65_537));
    assert_eq!(wrong(|c| c.default_quota = 0), ("default_quota", 0));
}

/// The number of a domain is kept with each block and in range records, so it follows from the name alone: the CRC32C of
/// it, unless that means something else or is another tenant's. The odd names have the CRC32C that is told.
#[test]
fn domains_follow_from_names_and_are_never_shared_by_chance() {
    let memory = Memory::new();
    let shared = memory.format();
    let domains = |names: &[&str]| {
        let mut directory = Directory::new(config(names), &shared.pool).unwrap();
        let number = |name: &&str| {
            let tenant = directory.tenants.of_record(name);
            directory.tenants.domain(tenant).0
        };
        names.iter().map(number).collect::<Vec<u32>>()
    };
    let red = crc32c::crc32c(b"red");
    let as_red = "THequICKbRoWNfOxJUmPSoVerTHelAzYdogs";
    let behind_red = "THequICkBRoWnFoXJuMpSOVERTHeLaZYdogs";
    assert_eq!(domains(&["red"]), [red]);
    assert_eq!(domains(&["red", as_red]), [red, red + 1]);
    assert_eq!(domains(&[as_red, "red"]), [red, red + 1]);
    assert_eq!(
        domains(&[behind_red, "red", as_red]),
        [red + 1, red, red + 2]
    );
    // 0 is nobody, 1 all that are marked shared, all ones anybody.
    let zero = "theQUIckbrowNfOXJuMpsOVERtHelAzYdogs";
    let one = "theQUIcKBrownFoxJUmPsoVertHeLaZYdogs";
    let ones = "theQuIcKbROWnFOXjumPSovErThELazydogs";
    for name in [zero, one, ones] {
        assert_eq!(domains(&[name]), [2], "{name}");
    }
}

/// Who has no key cannot prove to be anybody, and the key that stands in for it opens nothing.
//= test kbtp-p7-not-authorized-hello
#[test]
fn a_proof_needs_a_name_and_a_key() {
    let keyless = TenantConfig {
        key: None,
        ..tenant("keyless")
    };
    let tenants = vec![tenant("red"), tenant(""), keyless];
    let config = DirectoryConfig {
        tenants,
        ..config(&[])
    };
    let shared = Memory::new().format();
    let directory = Directory::new(config, &shared.pool).unwrap();
    let (initiator, challenge) = (InitiatorId([1; 16]), Challenge([2; 32]));
    let opens = |name: Option<&str>, key: TenantKey, named: &str| {
        let nonce = Nonce([3; 16]);
        let mac = crate::auth::mac(&key, &challenge, &nonce, &initiator, named);
        let auth = Auth { nonce, mac };
        let found =
            directory.authenticate(AuthMode::Hmac, &challenge, &initiator, name, Some(&auth));
        found.is_some()
    };
    let no_key = || TenantKey::new([0_u8; 32]);
    assert!(opens(Some("red"), TenantKey::new("red"), "red"));
    assert!(opens(Some(""), TenantKey::new(""), ""));
    assert!(!opens(None, TenantKey::new(""), ""), "no Tenant TLV");
    assert!(
        !opens(Some("red"), TenantKey::new("blue"), "red"),
        "another key"
    );
    assert!(
        !opens(Some("red"), TenantKey::new("red"), "blue"),
        "another name"
    );
    assert!(!opens(Some("keyless"), no_key(), "keyless"));
    assert!(!opens(Some("keyless"), TenantKey::new("red"), "keyless"));
    assert!(!opens(Some("nobody"), no_key(), "nobody"));
    let without = directory.authenticate(AuthMode::Hmac, &challenge, &initiator, Some("red"), None);
    assert_eq!(without, None);
}

/// The rows of a range in the middle go back where they were.
//= test kbtp-p8-empty-range-released
#[test]
fn rows_that_were_given_back_are_given_out_again() {
    let shared = Memory::new().format();
    let mut directory = Directory::new(config(&["red"]), &shared.pool).unwrap();
    let first_rows = |directory: &mut Directory, ids: &[u64], handles| {
        let rows = |id: &u64| granted(open(directory, &shared, *id, "red", handles)).first_row;
        ids.iter().map(rows).collect::<Vec<u64>>()
    };
    assert_eq!(first_rows(&mut directory, &[1, 2, 3], 128), [0, 128, 256]);
    let domain = granted_domain(&directory);
    assert!(shared.pool.is_of(128, domain) && shared.pool.is_of(255, domain));
    directory.close(Time(1), &shared, SessionId(2), 0);
    assert!(!shared.pool.is_of(128, domain) && !shared.pool.is_of(255, domain));
    assert!(shared.pool.is_of(127, domain) && shared.pool.is_of(256, domain));
    assert_eq!(first_rows(&mut directory, &[4], 128), [128]);
    directory.close(Time(1), &shared, SessionId(4), 0);
    // Half of it, and the other half.
    assert_eq!(first_rows(&mut directory, &[5], 64), [128]);
    directory.close(Time(1), &shared, SessionId(5), 0);
    assert_eq!(first_rows(&mut directory, &[6], 64), [128]);
}

fn granted_domain(directory: &Directory) -> Domain {
    let (tenant, _) = directory.ranges.keys().next().unwrap();
    directory.tenants.domain(*tenant)
}

/// Should a session tell of more than it has bound, nobody else's block is freed for it.
//= test kbtp-p8-lease-keeps-bindings
#[test]
fn a_range_that_is_released_ends_where_the_next_one_begins() {
    let shared = Memory::new().format();
    let mut directory = Directory::new(config(&["red"]), &shared.pool).unwrap();
    let first = granted(open(&mut directory, &shared, 1, "red", 64));
    let second = granted(open(&mut directory, &shared, 2, "red", 64));
    assert_eq!((first.first_row, second.first_row), (0, 64));
    store(&shared, 63, first.domain);
    store(&shared, 64, second.domain);
    directory.close(Time(1), &shared, SessionId(1), 2);
    let over = Time(1).after_ms(60_000);
    directory.poll(Time(over.0 - 1), &shared);
    assert_eq!(shared.pool.audit().bound, 2);
    directory.poll(over, &shared);
    assert!(!shared.pool.entry(63).is_valid());
    assert!(shared.pool.entry(64).is_valid());
    let summary = directory.summary();
    assert_eq!((summary.ranges, summary.committed), (1, 4));
    assert_eq!(directory.next_timeout(), None);
}

/// As many records are left for the other tenants as they may need for the ranges that are kept for them.
//= test rfc5042-3-resource-control
#[test]
fn the_last_records_are_kept_for_the_other_tenants() {
    let shared = Memory::new().format();
    let mut directory = Directory::new(config(&["red", "blue"]), &shared.pool).unwrap();
    // Of 16 granules, half are kept: four for each tenant.
    while directory.free_slots.len() > 5 {
        directory.free_slots.pop_last();
    }
    granted(open(&mut directory, &shared, 1, "red", 64));
    let second = open(&mut directory, &shared, 2, "red", 64);
    assert!(
        matches!(second, Opened::Refused(Status::NoSpace)),
        "{second:?}"
    );
    granted(open(&mut directory, &shared, 3, "blue", 64));
}

/// What a pair has bound counts against its quota but lies outside a new partition, which has to hold at least as much.
//= test kbtp-3.4-own-ring
#[test]
fn a_partition_is_not_smaller_than_what_is_bound() {
    for (others, quota, partition) in [(0, 3, true), (9, 4, true), (10, 3, true), (11, 3, false)] {
        let shared = Memory::new().format();
        let mut directory = Directory::new(config(&["red"]), &shared.pool).unwrap();
        let first = granted(open(&mut directory, &shared, 1, "red", 64));
        for row in 0..3 {
            store(&shared, first.first_row + row, first.domain);
        }
        directory.close(Time(1), &shared, SessionId(1), 3);
        if others > 0 {
            let wants = Opening {
                quota: others,
                ..opening(&directory, 2, "red", 64)
            };
            assert_eq!(granted(directory.open(&shared, &wants)).quota, others);
        }
        let again = Opening {
            id: SessionId(3),
            quota,
            direct_alloc: Some(AtomicForm::Masked),
            ..opening(&directory, 1, "red", 64)
        };
        let again = granted(directory.open(&shared, &again));
        assert!(again.resumed);
        assert_eq!((again.bound, again.quota), (3, quota), "beside {others}");
        assert_eq!(again.partition.is_some(), partition, "beside {others}");
        let reserved = if partition { quota + 3 } else { quota };
        assert_eq!(directory.summary().committed, others + reserved);
        let refused = shared.stats.partitions_refused.load(Relaxed);
        assert_eq!(refused, u64::from(!partition));
    }
}

#[test]
fn without_quota_no_partition_is_looked_for() {
    let shared = Memory::new().format();
    let mut directory = Directory::new(config(&["red"]), &shared.pool).unwrap();
    let all = Opening {
        quota: BLOCKS,
        ..opening(&directory, 1, "red", 64)
    };
    assert_eq!(granted(directory.open(&shared, &all)).quota, BLOCKS);
    let late = Opening {
        direct_alloc: Some(AtomicForm::Masked),
        ..opening(&directory, 2, "red", 64)
    };
    let late = directory.open(&shared, &late);
    assert!(matches!(late, Opened::Refused(Status::NoSpace)), "{late:?}");
    assert_eq!(shared.stats.partitions_refused.load(Relaxed), 1);
    let summary = directory.summary();
    assert_eq!((summary.ranges, summary.partitions), (1, 0));
    assert_eq!(shared.pool.audit().in_rings, BLOCKS);
}
