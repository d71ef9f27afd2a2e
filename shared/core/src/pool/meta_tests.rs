//! What the metadata region holds beside table and ring, and how it is counted: superblock, range records, words of the
//! blocks, partitions.

use super::region_words::BlockWord;
use super::ring::RingMemory;
use super::tests::{OURS, clean, geometry, hold, pool, regions, store};
use super::*;
use crate::limits::{RANGE_RECORD_LEN, RANGES_MAX};

/// Octets of the superblock.
const SUPERBLOCK: u64 = 68;

/// Regions that were used before hold anything.
#[test]
fn a_pool_in_used_memory_binds_nothing_and_trusts_no_block() {
    let geometry = geometry(2, 64);
    let (meta, data) = regions(&geometry);
    for at in (0..geometry.meta_len()).step_by(4096) {
        let len = (geometry.meta_len() - at).min(4096);
        meta.write(at, &vec![0xff; usize::try_from(len).unwrap()])
            .unwrap();
    }
    let pool = Pool::format(meta, data, geometry, [1; 16], Contents::Unknown).unwrap();
    assert_eq!(clean(&pool).in_rings, 2);
    let end = pool.layout.records + u64::from(RANGES_MAX) * RANGE_RECORD_LEN;
    for at in [pool.layout.records, end - 4] {
        let mut octets = [1; 4];
        pool.meta.read(at, &mut octets).unwrap();
        assert_eq!(octets, [0; 4]);
    }
    let content = pool.block_word(BlockIndex(1), BlockWord::Content);
    assert_eq!(content.load(Relaxed), ANYBODY);
}

#[test]
fn a_region_too_short_for_a_superblock_is_said_to_be() {
    let (meta, _) = regions(&geometry(2, 64));
    let reason = |len| match format::read_superblock(&meta.sub(0..len).unwrap()) {
        Err(PoolError::NotAPool { reason }) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(reason(SUPERBLOCK - 1), "it is too short");
    assert_eq!(reason(SUPERBLOCK), "it begins with other octets");
}

#[test]
fn every_block_is_counted_where_it_is() {
    let pool = pool(4);
    let slow = pool.take(Home::Shared).unwrap();
    store(&pool, 1, b"x");
    let back = hold(&pool, OURS);
    assert!(pool.put_back(back), "its slot is not consumed");
    let counts = |audit: Audit| {
        let places = [audit.in_rings, audit.awaited, audit.deferred, audit.bound];
        (audit.blocks, places, audit.elsewhere)
    };
    assert_eq!(counts(clean(&pool)), (4, [1, 1, 1, 1], 0));
    hold(&pool, OURS);
    assert_eq!(counts(clean(&pool)), (4, [0, 1, 1, 1], 1));
    pool.consume(Home::Shared, slow, OURS).unwrap();
    assert_eq!(counts(clean(&pool)), (4, [1, 0, 0, 1], 2));
}

#[test]
fn an_audit_lists_sixteen_faults_at_most() {
    let pool = pool(2);
    let block = hold(&pool, OURS);
    for row in 0..20 {
        pool.bind(row, block, ByteLen(1), true);
    }
    assert_eq!(pool.audit().faults.len(), 16);
}

/// A target that was killed had loads under way and a partition.
#[test]
fn a_recovered_pool_has_no_pins_and_no_partitions() {
    let before = pool(4);
    let id = before.carve(2, AtomicForm::Masked, OURS).unwrap();
    assert!(before.is_partitioned(BlockIndex(1)));
    store(&before, 1, b"x");
    before.entry_pinned(1).1.unwrap();
    let (meta, data) = (before.meta.clone(), before.blocks.clone());
    let (pool, _) = Pool::recover(meta, data, [2; 16]).unwrap();
    for block in (0..4).map(BlockIndex) {
        assert!(!pool.is_partitioned(block));
        let pins = pool.block_word(block, BlockWord::Pins);
        assert_eq!(pins.load(Relaxed), 0);
    }
    assert_eq!(id, PartitionId(0));
}

#[test]
fn ranges_that_cannot_be_are_not_recovered() {
    let pool = pool(2);
    let granule = pool.geometry.granule_handles();
    let end = pool.geometry.handles;
    let ranges = [
        (0, granule, true),
        // Shares a handle with the first.
        (granule / 2, granule, false),
        (granule, 0, false),
        // Does not begin where a granule does.
        (granule + 1, granule, false),
        (2 * granule, granule, true),
        (end - granule, granule + 1, false),
        (u64::MAX - granule + 1, granule, false),
    ];
    let records = ranges
        .iter()
        .zip(0..)
        .map(|((first_row, rows, _), slot)| RangeRecord {
            slot: RecordSlot(slot),
            tenant: String::new(),
            initiator: [0; 16],
            first_row: *first_row,
            rows: *rows,
            given_up: false,
        });
    let (kept, others) = pool.without_overlaps(records.collect());
    let slots = |good: bool| {
        let numbered = ranges.iter().zip(0..);
        let wanted = numbered.filter(move |((.., kept), _)| *kept == good);
        wanted.map(|(_, slot)| RecordSlot(slot)).collect::<Vec<_>>()
    };
    let kept: Vec<_> = kept.iter().map(|record| record.slot).collect();
    assert_eq!(kept, slots(true));
    assert_eq!(others, slots(false));
}

/// A second record of rows that the first has, though it begins with a granule.
#[test]
fn of_two_ranges_with_one_handle_one_is_recovered() {
    let pool = pool(2);
    let granule = pool.geometry.granule_handles();
    let record = |slot, first_row, rows| RangeRecord {
        slot: RecordSlot(slot),
        tenant: String::new(),
        initiator: [0; 16],
        first_row,
        rows,
        given_up: false,
    };
    let two = vec![record(0, 0, 2 * granule), record(1, granule, granule)];
    let (kept, others) = pool.without_overlaps(two);
    assert_eq!(kept.len(), 1);
    assert_eq!(others, [RecordSlot(1)]);
}

//= test kbtp-6.4-return-to-its-ring
#[test]
fn each_partition_has_counters_and_blocks_of_its_own() {
    let pool = pool(8);
    let forms = [AtomicForm::Masked, AtomicForm::Unmasked];
    let partitions = forms.map(|form| pool.carve(2, form, OURS).unwrap());
    for (id, form) in partitions.into_iter().zip(forms) {
        assert_eq!(pool.partition_ring(id).form, form);
        let home = Home::Partition(id);
        let block = pool.consume(home, pool.take(home).unwrap(), OURS).unwrap();
        assert_eq!(pool.partition_ring(id).available(), 1);
        pool.put_back(block);
        assert_eq!(pool.partition_ring(id).available(), 2);
    }
}

/// Its initiator consumes no slot; but whoever does, a free that waited for it is written when the target looks.
//= test kbtp-3.3-free-deferred
#[test]
fn a_free_that_waits_in_a_partition_is_written_when_it_is_settled() {
    let pool = pool(4);
    let id = pool.carve(2, AtomicForm::Masked, OURS).unwrap();
    let home = Home::Partition(id);
    pool.take(home).unwrap();
    let block = pool.consume(home, pool.take(home).unwrap(), OURS).unwrap();
    assert!(pool.put_back(block), "slot 0 is not consumed");
    let ring = pool.partition_ring(id);
    for word in [2, 3] {
        ring.memory.word(0, word).store(u32::MAX, Release);
    }
    pool.settle_partition(id);
    assert_eq!(ring.deferred.len(), 0);
    assert_eq!(
        ring.slot(Ticket(2)).block_for(Ticket(2)),
        Some(pool.geometry.offset_of(block))
    );
}

/// The first few blocks in the ring are looked at first, and the rest when they have no run.
//= test kbtp-p8-contiguous-partition
#[test]
fn a_run_behind_the_first_blocks_is_found() {
    let pool = pool(12);
    let blocks: Vec<_> = (0..12).map(|_| hold(&pool, OURS)).collect();
    let order = [0, 2, 4, 6, 8, 10, 11];
    for block in order.map(|at: usize| blocks[at]) {
        pool.put_back(block);
    }
    let id = pool.carve(2, AtomicForm::Masked, OURS).unwrap();
    assert_eq!(pool.partition_place(id).first, BlockIndex(10));
}
