//! Ring, table entries, free with loads under way, recovery, partitions: each over real regions.

use super::ring::{Deferred, Freed, Ring, RingMemory};
use super::*;
use crate::limits::CARVE_WINDOW;
use crate::limits::RANGE_RECORD_LEN;
use crate::pool::records::{RangeRecord, RecordSlot};
use kbtp_memory::PageOptions;
use kbtp_wire::{EntryFlags, Handle, RingCounter, RingOrder, RingSlot};
use std::sync::atomic::AtomicU64;

/// A ring in ordinary memory.
pub(super) struct Small {
    head: AtomicU64,
    tail: AtomicU64,
    words: Vec<AtomicU32>,
}

impl Small {
    fn new(order: RingOrder) -> Self {
        let words = order.slots() * 4;
        Self {
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            words: (0..words).map(|_| AtomicU32::new(0)).collect(),
        }
    }
}

impl RingMemory for &Small {
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    fn head(&self) -> &AtomicU64 {
        &self.head
    }
    fn tail(&self) -> &AtomicU64 {
        &self.tail
    }
    fn word(&self, slot: u32, word: u32) -> &AtomicU32 {
        &self.words[usize::try_from(slot * 4 + word).unwrap()]
    }
}

struct Fixture {
    memory: Small,
    deferred: Deferred<AtomicU32>,
    order: RingOrder,
    form: AtomicForm,
}

impl Fixture {
    fn new(n: u8, blocks: u32, form: AtomicForm) -> Self {
        let order = RingOrder::new(n).unwrap();
        let fixture = Self {
            memory: Small::new(order),
            deferred: Deferred::new(AtomicU32::new(0), 0),
            order,
            form,
        };
        fixture
            .ring()
            .format((0..blocks).map(|b| BlockOffset(u64::from(b) << 12)));
        fixture
    }

    fn ring(&self) -> Ring<'_, &Small> {
        Ring {
            memory: &self.memory,
            order: self.order,
            form: self.form,
            deferred: &self.deferred,
        }
    }
}

//= test kbtp-3.3-init-slots
//= test kbtp-3.3-init-counters
//= test kbtp-p10-native-counters
//= test kbtp-3.3-counter-memory-order
//= test kbtp-p10-big-endian-structures
#[test]
fn a_new_ring_is_as_the_draft_says() {
    let fixture = Fixture::new(2, 3, AtomicForm::Masked);
    let ring = fixture.ring();
    for s in 0..3 {
        let slot = ring.slot(Ticket(s));
        assert_eq!(
            (slot.sequence, slot.block),
            (Ticket(s), BlockOffset(u64::from(s) << 12))
        );
    }
    let last = ring.slot(Ticket(3));
    assert_eq!(
        (last.sequence, last.block),
        (Ticket(u32::MAX), BlockOffset::EMPTY)
    );
    assert_eq!(fixture.memory.head.load(Relaxed), 0);
    assert_eq!(fixture.memory.tail.load(Relaxed), 0x0000_0003_0000_0030);
    // Big-endian in memory (P10).
    assert_eq!(
        fixture.memory.words[4].load(Relaxed).to_ne_bytes(),
        [0, 0, 0, 1]
    );
    assert_eq!(
        fixture.memory.words[7].load(Relaxed).to_ne_bytes(),
        [0, 0, 0x10, 0]
    );
}

//= test kbtp-3.3-allocation-ticket
//= test kbtp-3.3-free-write
//= test kbtp-3.3-allocation-wait
//= test kbtp-3.3-mark-consumed
#[test]
fn allocations_take_blocks_in_order_and_mark_slots_consumed() {
    for form in [AtomicForm::Masked, AtomicForm::Unmasked] {
        let fixture = Fixture::new(2, 4, form);
        let ring = fixture.ring();
        // Often enough round for the slots to wrap many times.
        for turn in 0..100_u32 {
            let ticket = ring.take().unwrap();
            assert_eq!(ticket, Ticket(turn));
            let block = ring.consume(ticket).unwrap();
            assert!(ring.slot(ticket).is_consumed());
            assert_eq!(ring.available(), 3);
            assert_eq!(ring.free(block), Freed::Written);
        }
        let counter = RingCounter(fixture.memory.head.load(Relaxed));
        assert_eq!(counter.0 & 0xffff_ffff, 0, "100 mod 4 is slot 0");
        assert_eq!(counter.ticket(), Ticket(100));
    }
}

#[test]
fn no_ticket_is_taken_without_a_block() {
    let fixture = Fixture::new(1, 1, AtomicForm::Masked);
    let ring = fixture.ring();
    let ticket = ring.take().unwrap();
    assert_eq!(ring.take(), None);
    assert_eq!(ring.head(), Ticket(1));
    let block = ring.consume(ticket).unwrap();
    assert_eq!(ring.take(), None);
    ring.free(block);
    assert_eq!(ring.take(), Some(Ticket(1)));
    assert_eq!(ring.consume(Ticket(1)), Some(block));
}

//= test kbtp-3.3-free-deferred
//= test kbtp-3.3-free-write
#[test]
fn a_free_waits_for_the_slot_and_for_its_turn() {
    let fixture = Fixture::new(2, 4, AtomicForm::Masked);
    let ring = fixture.ring();
    // Ticket 0 is taken and not read; the other three blocks go round.
    let slow = ring.take().unwrap();
    let blocks: Vec<_> = (0..3)
        .map(|_| ring.consume(ring.take().unwrap()).unwrap())
        .collect();
    assert_eq!(ring.free(blocks[0]), Freed::Deferred);
    assert_eq!(ring.free(blocks[1]), Freed::Written);
    assert_eq!(ring.free(blocks[2]), Freed::Written);
    // Ticket 4 waits behind the deferred free; 5 and 6 go on, and the next free is for slot 0 again.
    let waiting = ring.take().unwrap();
    assert_eq!(ring.consume(waiting), None);
    let more: Vec<_> = (0..2)
        .map(|_| ring.consume(ring.take().unwrap()).unwrap())
        .collect();
    assert_eq!(ring.free(more[0]), Freed::Written);
    assert_eq!(ring.free(more[1]), Freed::Deferred);
    assert_eq!(fixture.deferred.len(), 2);
    // The slot's content was not overwritten, and once it is read, ticket 4 gets the block freed for it.
    assert_eq!(ring.consume(slow), Some(BlockOffset(0)));
    assert_eq!(fixture.deferred.len(), 1);
    assert_eq!(ring.consume(waiting), Some(blocks[0]));
    assert_eq!(fixture.deferred.len(), 0);
    assert_eq!(ring.slot(Ticket(8)).block_for(Ticket(8)), Some(more[1]));
}

//= test kbtp-3.3-free-no-overwrite
#[test]
fn a_free_does_not_take_the_slot_of_an_earlier_free() {
    let fixture = Fixture::new(1, 2, AtomicForm::Masked);
    let ring = fixture.ring();
    // Slot 0 was consumed by ticket 0; tickets 2 and 4 are both for slot 0, and 4 looks first.
    let block = ring.consume(ring.take().unwrap()).unwrap();
    assert!(!ring.write_in_turn(Ticket(4), block));
    assert!(ring.slot(Ticket(0)).is_consumed());
    assert!(ring.write_in_turn(Ticket(2), block));
    assert!(!ring.write_in_turn(Ticket(4), block), "2 is not consumed");
}

pub(super) fn geometry(blocks: u32, handles: u64) -> Geometry {
    Geometry {
        block_size: 4096,
        blocks,
        handles,
        table_base_handle: Handle(1 << 20),
        pool_base: BlockOffset(0x4000_0000),
    }
}

pub(super) fn regions(geometry: &Geometry) -> (Region, Region) {
    let options = PageOptions::default();
    (
        Region::anonymous(geometry.meta_len(), &options).unwrap(),
        Region::anonymous(geometry.pool_len(), &options).unwrap(),
    )
}

pub(super) fn pool(blocks: u32) -> Pool {
    let geometry = geometry(blocks, 256);
    let (meta, data) = regions(&geometry);
    Pool::format(meta, data, geometry, [1; 16], Contents::Zeroed).unwrap()
}

pub(super) const OURS: Domain = Domain(1);
const THEIRS: Domain = Domain(2);

pub(super) fn hold(pool: &Pool, domain: Domain) -> BlockIndex {
    let ticket = pool.take(Home::Shared).unwrap();
    pool.consume(Home::Shared, ticket, domain).unwrap()
}

pub(super) fn store(pool: &Pool, row: u64, data: &[u8]) -> BlockIndex {
    let block = hold(pool, OURS);
    assert!(pool.write(block, data));
    pool.bind(
        row,
        block,
        ByteLen(u32::try_from(data.len()).unwrap()),
        true,
    );
    block
}

pub(super) fn clean(pool: &Pool) -> Audit {
    let audit = pool.audit();
    assert_eq!(audit.faults, Vec::<String>::new());
    audit
}

//= test kbtp-6.3-next-generation
//= test kbtp-6.4-clear-entry
//= test kbtp-3.2-generation-never-zero
#[test]
fn bind_and_free_count_the_generation_on_and_skip_zero() {
    let pool = pool(2);
    let mut expected = 0_u16;
    for _ in 0..33_000 {
        let block = store(&pool, 7, b"x");
        expected = if expected == u16::MAX {
            1
        } else {
            expected + 1
        };
        let entry = pool.entry(7);
        assert_eq!(entry.generation.map(Generation::get), Some(expected));
        assert_eq!(entry.flags, EntryFlags::VALID.union(EntryFlags::SEALED));
        let (generation, _) = pool.free(7, block);
        expected = if expected == u16::MAX {
            1
        } else {
            expected + 1
        };
        assert_eq!(generation.get(), expected);
        assert_eq!(pool.entry(7).flags, EntryFlags::NONE);
    }
    assert_eq!(clean(&pool).in_rings, 2);
}

//= test kbtp-6.4-entry-before-return
//= test kbtp-3.3-free-entry-first
#[test]
fn a_freed_block_waits_for_its_loads() {
    let pool = pool(2);
    let block = store(&pool, 0, b"mine");
    let (entry, pinned) = pool.entry_pinned(0);
    assert_eq!((entry.data_len, pinned), (ByteLen(4), Some(block)));
    pool.free(0, block);
    assert_eq!(clean(&pool).elsewhere, 1);
    assert_eq!(pool.entry_pinned(0).1, None);
    let other = hold(&pool, OURS);
    assert_ne!(other, block);
    assert_eq!(pool.take(Home::Shared), None);
    pool.unpin(block);
    assert_eq!(hold(&pool, OURS), block);
    assert_eq!(clean(&pool).elsewhere, 2);
}

//= test kbtp-6.4-clear-for-other-domain
//= test kbtp-p9-reads-as-zeros
#[test]
fn a_block_reads_as_zeros_for_the_next_trust_domain() {
    for isolate in [true, false] {
        let pool = pool(1);
        pool.set_isolation(isolate);
        let block = store(&pool, 0, &[9; 4096]);
        pool.free(0, block);
        let mut octets = [0; 4096];
        pool.blocks.read(0, &mut octets).unwrap();
        // Cleared before it goes back where another domain may come for it ...
        assert_eq!(octets == [0; 4096], isolate);
        hold(&pool, THEIRS);
        pool.blocks.read(0, &mut octets).unwrap();
        // ... and never later than when one does.
        assert_eq!(octets, [0; 4096]);
    }
}

#[test]
fn memory_of_unknown_contents_is_zeroed_before_use() {
    let geometry = geometry(2, 64);
    let (meta, data) = regions(&geometry);
    data.fill(0, geometry.pool_len(), 0xee).unwrap();
    meta.fill(0, geometry.meta_len(), 0xee).unwrap();
    let pool = Pool::format(meta, data, geometry, [1; 16], Contents::Unknown).unwrap();
    assert_eq!(clean(&pool).in_rings, 2);
    let block = hold(&pool, OURS);
    let mut octets = [1; 4096];
    pool.blocks
        .read(geometry.region_offset(block), &mut octets)
        .unwrap();
    assert_eq!(octets, [0; 4096]);
}

fn record(slot: u32, first_row: u64, rows: u64) -> RangeRecord {
    RangeRecord {
        slot: RecordSlot(slot),
        tenant: "t".to_owned(),
        initiator: [1; 16],
        first_row,
        rows,
        given_up: false,
    }
}

//= test kbtp-p6-instance-changes
#[test]
fn a_recovered_pool_keeps_what_was_bound() {
    let geometry = geometry(8, 256);
    let (meta, data) = regions(&geometry);
    let pool = Pool::format(
        meta.clone(),
        data.clone(),
        geometry,
        [1; 16],
        Contents::Zeroed,
    )
    .unwrap();
    pool.write_record(&record(0, 64, 64)).unwrap();
    let kept: Vec<_> = (0..3)
        .map(|n| store(&pool, 64 + n, &[u8::try_from(n).unwrap(); 64]))
        .collect();
    // Killed with a block in hand, a ticket taken, a load under way and a freed block pinned.
    hold(&pool, OURS);
    pool.take(Home::Shared).unwrap();
    pool.entry_pinned(64);
    let gone = store(&pool, 70, b"gone");
    pool.entry_pinned(70);
    pool.free(70, gone);
    drop(pool);

    let (pool, recovered) = Pool::recover(meta, data, [2; 16]).unwrap();
    let report = recovered.report;
    assert_eq!(
        (report.bound, report.ranges, report.entries_dropped),
        (3, 1, 0)
    );
    assert!(!report.instance_changed);
    assert_eq!(pool.instance(), [1; 16]);
    let audit = clean(&pool);
    assert_eq!((audit.bound, audit.in_rings, audit.elsewhere), (3, 5, 0));
    for (n, block) in (0..).zip(kept) {
        let (entry, pinned) = pool.entry_pinned(64 + n);
        assert_eq!(
            (entry.generation, pinned),
            (Some(Generation::FIRST), Some(block))
        );
        let mut octets = [0xff; 64];
        pool.blocks
            .read(geometry.region_offset(block), &mut octets)
            .unwrap();
        assert_eq!(octets, [u8::try_from(n).unwrap(); 64]);
    }
    for _ in 0..5 {
        hold(&pool, OURS);
    }
}

#[test]
fn recovery_drops_entries_that_cannot_be_and_says_so() {
    let geometry = geometry(8, 256);
    let (meta, data) = regions(&geometry);
    let pool = Pool::format(
        meta.clone(),
        data.clone(),
        geometry,
        [1; 16],
        Contents::Zeroed,
    )
    .unwrap();
    pool.write_record(&record(0, 0, 64)).unwrap();
    pool.write_record(&record(1, 32, 64)).unwrap();
    let twice = store(&pool, 0, b"a");
    for row in [1, 2] {
        pool.bind(row, twice, ByteLen(1), true);
    }
    let good = store(&pool, 3, b"b");
    let long = store(&pool, 4, b"c");
    pool.bind(4, long, ByteLen(4097), true);
    let outside = TableEntry {
        block: BlockOffset(0x1000),
        ..pool.entry(3)
    };
    entry::bind(pool.entry_words(5), &outside);
    drop(pool);

    let (pool, recovered) = Pool::recover(meta, data, [2; 16]).unwrap();
    assert_eq!(recovered.report.entries_dropped, 5);
    assert_eq!(recovered.report.ranges_dropped, 1);
    assert!(recovered.report.instance_changed);
    assert_eq!(pool.instance(), [2; 16]);
    let audit = clean(&pool);
    assert_eq!((audit.bound, audit.in_rings), (1, 7));
    assert_eq!(pool.entry_pinned(3).1, Some(good));
    assert_eq!(pool.entry(0).generation.map(Generation::get), Some(2));
}

/// A record is written before its range binds anything and cleared after: a target that is killed meanwhile loses
/// nothing. If memory is damaged, what the record covered must not be found by who gets the rows next.
//= test kbtp-p6-instance-changes
#[test]
fn a_damaged_record_costs_only_what_it_covered() {
    for bound in [false, true] {
        let geometry = geometry(8, 256);
        let (meta, data) = regions(&geometry);
        let pool = Pool::format(
            meta.clone(),
            data.clone(),
            geometry,
            [1; 16],
            Contents::Zeroed,
        )
        .unwrap();
        pool.write_record(&record(0, 64, 64)).unwrap();
        let kept = store(&pool, 64, b"kept");
        pool.write_record(&record(1, 128, 64)).unwrap();
        if bound {
            store(&pool, 130, b"lost");
        }
        let torn = pool.layout.records + RANGE_RECORD_LEN + 20;
        meta.write(torn, &[0xff]).unwrap();
        drop(pool);

        let recover = |instance| Pool::recover(meta.clone(), data.clone(), instance).unwrap();
        let (pool, recovered) = recover([2; 16]);
        let report = recovered.report;
        assert_eq!((report.bound, report.ranges_dropped), (1, 1));
        assert_eq!(report.entries_dropped, u64::from(bound));
        assert_eq!(report.instance_changed, bound);
        let instance = if bound { [2; 16] } else { [1; 16] };
        assert_eq!(pool.instance(), instance);
        assert_eq!(pool.entry_pinned(64).1, Some(kept));
        assert!(!pool.entry(130).is_valid());
        let audit = clean(&pool);
        assert_eq!((audit.bound, audit.in_rings), (1, 7));
        drop(pool);
        let (pool, recovered) = recover([3; 16]);
        assert_eq!(recovered.report.ranges_dropped, 0);
        assert_eq!(pool.instance(), instance);
    }
}

#[test]
fn other_octets_are_no_pool() {
    let geometry = geometry(2, 64);
    let (meta, data) = regions(&geometry);
    let recover = |meta: &Region| Pool::recover(meta.clone(), data.clone(), [2; 16]);
    assert!(matches!(recover(&meta), Err(PoolError::NotAPool { .. })));
    Pool::format(
        meta.clone(),
        data.clone(),
        geometry,
        [1; 16],
        Contents::Zeroed,
    )
    .unwrap();
    recover(&meta).unwrap();
    for at in [0, 8, 15, 63, 67] {
        let mut octet = [0];
        meta.read(at, &mut octet).unwrap();
        meta.write(at, &[octet[0] ^ 1]).unwrap();
        assert!(
            matches!(recover(&meta), Err(PoolError::NotAPool { .. })),
            "octet {at}"
        );
        meta.write(at, &octet).unwrap();
    }
    let short = meta.sub(0..geometry.meta_len() - 1).unwrap();
    assert!(matches!(
        recover(&short),
        Err(PoolError::RegionTooShort { .. })
    ));
}

//= test kbtp-p8-contiguous-partition
#[test]
fn a_partition_that_cannot_be_takes_no_block_from_others() {
    let pool = pool(8);
    let blocks: Vec<_> = (0..8).map(|_| hold(&pool, OURS)).collect();
    for block in blocks.iter().filter(|block| block.0 != 3) {
        pool.put_back(*block);
    }
    let head = pool.ring(Home::Shared).head();
    assert!(pool.carve(5, AtomicForm::Masked, OURS).is_none());
    assert_eq!(pool.ring(Home::Shared).head(), head);
    let id = pool.carve(4, AtomicForm::Masked, OURS).unwrap();
    assert_eq!(pool.partition_place(id).first, BlockIndex(4));
}

/// Sessions that begin or end wait for it: it looks at a window and no further, however large the pool is.
#[test]
fn a_partition_is_looked_for_a_window_at_a_time() {
    let apart = CARVE_WINDOW;
    let pool = pool(2 * apart + 10);
    let blocks: Vec<_> = (0..2 * apart + 10).map(|_| hold(&pool, OURS)).collect();
    // First in the ring stand as many blocks as a window has, none beside another, and behind them a run of ten.
    let (lonely, run) = blocks.split_at(usize::try_from(2 * apart).unwrap());
    let head = || pool.ring(Home::Shared).head();
    let before = head();
    for block in lonely.iter().step_by(2) {
        pool.put_back(*block);
    }
    // All there is lies in the window: it is looked at, and nothing is taken.
    assert!(pool.carve(4, AtomicForm::Masked, OURS).is_none());
    assert_eq!(head(), before);
    for block in run {
        pool.put_back(*block);
    }
    assert!(pool.carve(4, AtomicForm::Masked, OURS).is_none());
    assert_eq!(head().distance(before), apart);
    assert_eq!(pool.usage().free, apart + 10, "all are back");
    let id = pool.carve(4, AtomicForm::Masked, OURS).unwrap();
    assert_eq!(pool.partition_place(id).first, run[0]);
    assert_eq!(head().distance(before), apart + 4);
}

/// Dissolves a partition at once; whether that could be done.
fn dissolved(pool: &Pool, id: PartitionId) -> bool {
    let free = pool.dissolve(id);
    for block in free.iter().flatten() {
        pool.take_back(*block);
    }
    free.is_some()
}

/// What a partition leaves behind, a block that is being sent and one that is bound, goes to the shared ring, whoever
/// frees it and whatever the partition's blocks have become since.
//= test kbtp-6.4-return-to-its-ring
#[test]
fn blocks_that_outlive_their_partition_go_to_the_shared_ring() {
    let pool = pool(4);
    let id = pool.carve(2, AtomicForm::Masked, OURS).unwrap();
    let home = Home::Partition(id);
    let mut bound = [1, 2].map(|row| {
        let block = pool.consume(home, pool.take(home).unwrap(), OURS).unwrap();
        pool.bind(row, block, ByteLen(1), true);
        block
    });
    bound.sort_unstable();
    let sent = pool.entry_pinned(1).1.unwrap();
    pool.free(1, sent);
    assert!(dissolved(&pool, id));
    let next = pool.carve(2, AtomicForm::Masked, OURS).unwrap();
    assert_eq!(next, id, "its number is free again");
    pool.unpin(sent);
    let (generation, _) = pool.free(2, pool.geometry.block_at(pool.entry(2).block).unwrap());
    assert_eq!(generation.get(), 2);
    assert_eq!(pool.partition_ring(next).available(), 2);
    assert_eq!(pool.usage().free, 2);
    assert_eq!(clean(&pool).in_rings, 4);
    assert!(dissolved(&pool, next));
    assert_eq!(pool.usage().free, 4);
}

//= test kbtp-p8-contiguous-partition
//= test kbtp-6.4-return-to-its-ring
#[test]
fn a_partition_is_contiguous_and_goes_back_whole() {
    let pool = pool(8);
    let kept = store(&pool, 0, b"x");
    assert_eq!(kept, BlockIndex(0));
    assert!(pool.carve(8, AtomicForm::Masked, OURS).is_none());
    assert_eq!(clean(&pool).in_rings, 7);
    let id = pool.carve(3, AtomicForm::Masked, OURS).unwrap();
    let place = pool.partition_place(id);
    assert_eq!((place.blocks, place.order.get()), (3, 2));
    assert_eq!(pool.usage().partitioned, 3);
    let second = pool.carve(2, AtomicForm::Unmasked, OURS).unwrap();
    assert!(pool.carve(4, AtomicForm::Masked, OURS).is_none());

    // A block of the partition goes back to the partition, also when a load held it.
    let home = Home::Partition(id);
    let block = pool.consume(home, pool.take(home).unwrap(), OURS).unwrap();
    assert!((place.first.0..place.first.0 + 3).contains(&block.0));
    pool.bind(1, block, ByteLen(0), true);
    let pinned = pool.entry_pinned(1).1.unwrap();
    pool.free(1, block);
    assert_eq!(pool.partition_ring(id).available(), 2);
    pool.unpin(pinned);
    assert_eq!(pool.partition_ring(id).available(), 3);

    // Bound blocks outlive the partition and then belong to the shared ring; tickets taken do not matter.
    let block = pool.consume(home, pool.take(home).unwrap(), OURS).unwrap();
    pool.bind(1, block, ByteLen(0), true);
    pool.take(home).unwrap();
    assert!(dissolved(&pool, id));
    assert!(dissolved(&pool, second));
    let audit = clean(&pool);
    assert_eq!((audit.in_rings, audit.bound), (6, 2));
    pool.free(1, block);
    pool.free(0, kept);
    assert_eq!(
        pool.usage(),
        PoolUsage {
            blocks: 8,
            free: 8,
            deferred: 0,
            partitioned: 0
        }
    );
    assert!(pool.carve(8, AtomicForm::Masked, OURS).is_some());
}

/// Where a partition's session is told to look is where its ring and its Head are.
//= test kbtp-3.4-own-ring
#[test]
fn partitions_have_rings_and_counters_of_their_own() {
    let pool = pool(16);
    let ids = [2, 4, 3].map(|blocks| pool.carve(blocks, AtomicForm::Masked, OURS).unwrap());
    let firsts = ids.map(|id| pool.partition_place(id).first.0);
    assert_eq!(firsts, [0, 2, 6]);
    for (taken, id) in (1..).zip(ids) {
        let place = pool.partition_place(id);
        for slot in 0..place.blocks {
            let mut octets = [0; 16];
            let at = place.ring + u64::from(slot) * 16;
            pool.meta.read(at, &mut octets).unwrap();
            let block = BlockIndex(place.first.0 + slot);
            let expected = RingSlot {
                sequence: Ticket(slot),
                block: pool.geometry.offset_of(block),
            };
            assert_eq!(RingSlot::decode(&octets), expected, "{id:?}");
        }
        for _ in 0..taken {
            pool.take(Home::Partition(id));
        }
        let head = pool.meta.u64_at(place.head).unwrap().load(Relaxed);
        assert_eq!(RingCounter(head).ticket(), Ticket(taken), "{id:?}");
        assert_eq!(pool.partition_head(id), Ticket(taken));
    }
    // Of two partitions of q and r blocks side by side, no slot is both's.
    let ends = ids.map(|id| {
        let place = pool.partition_place(id);
        (place.ring, place.ring + place.order.ring_len())
    });
    assert!(
        ends.windows(2).all(|pair| pair[0].1 <= pair[1].0),
        "{ends:?}"
    );
    assert!(ends[2].1 <= pool.layout.table);
}

/// A free that waits for its slot when the session ends has its block in no slot.
//= test kbtp-3.3-no-block-lost-or-twice
#[test]
fn a_partition_goes_back_with_what_waits_for_its_slots() {
    let pool = pool(4);
    let id = pool.carve(2, AtomicForm::Masked, OURS).unwrap();
    let home = Home::Partition(id);
    // Ticket 0 is never read, so that the free for its slot waits.
    pool.take(home).unwrap();
    let block = pool.consume(home, pool.take(home).unwrap(), OURS).unwrap();
    assert!(pool.put_back(block), "deferred");
    let audit = clean(&pool);
    assert_eq!((audit.in_rings, audit.awaited, audit.deferred), (2, 1, 1));
    assert!(dissolved(&pool, id));
    let audit = clean(&pool);
    assert_eq!((audit.in_rings, audit.deferred, audit.elsewhere), (4, 0, 0));
    // The next partition starts with nothing that waits.
    let id = pool.carve(4, AtomicForm::Masked, OURS).unwrap();
    assert_eq!(clean(&pool).in_rings, 4);
    assert!(dissolved(&pool, id));
}

#[test]
fn the_block_of_an_orphaned_ticket_comes_back() {
    let pool = pool(2);
    let ticket = pool.take(Home::Shared).unwrap();
    let slow = pool.take(Home::Shared).unwrap();
    let block = pool.consume(Home::Shared, ticket, OURS).unwrap();
    pool.put_back(block);
    let waits = pool.take(Home::Shared).unwrap();
    pool.orphan(slow);
    pool.orphan(waits);
    assert_eq!(pool.orphan_count.load(Relaxed), 0);
    let audit = clean(&pool);
    assert_eq!((audit.in_rings, audit.elsewhere), (2, 0));
    assert_eq!(pool.usage().free, 2);
}

/// Rows belong to a trust domain by the granule, 64 here.
//= test kbtp-p7-not-valid-foreign
#[test]
fn rows_belong_to_the_domain_they_were_given_to() {
    let pool = pool(1);
    let owners = || {
        let of = |row| [OURS, THEIRS].map(|domain| pool.is_of(row, domain));
        [0, 63, 64, 127, 128, 191, 192, 255].map(|row| match of(row) {
            [true, false] => 'o',
            [false, true] => 't',
            [false, false] => '-',
            [true, true] => panic!("row {row}"),
        })
    };
    assert_eq!(owners().iter().collect::<String>(), "--------");
    pool.set_domain(64, 65, Some(OURS));
    assert_eq!(owners().iter().collect::<String>(), "--oooo--");
    pool.set_domain(0, 1, Some(THEIRS));
    pool.set_domain(128, 64, None);
    assert_eq!(owners().iter().collect::<String>(), "ttoo----");
    // The last row is the table's end: nothing lies behind it.
    pool.set_domain(192, 64, Some(OURS));
    assert_eq!(owners().iter().collect::<String>(), "ttoo--oo");
    for beyond in [256, u64::MAX] {
        assert!(!pool.is_of(beyond, OURS));
    }
}

#[test]
fn a_block_takes_what_fits_and_nothing_else() {
    let pool = pool(2);
    let first = hold(&pool, OURS);
    assert!(pool.write(first, &[1; 4096]));
    assert!(!pool.write(first, &[2; 4097]));
    let mut octets = [0; 8192];
    pool.blocks.read(0, &mut octets).unwrap();
    let at = usize::try_from(first.0).unwrap() * 4096;
    for (n, octet) in octets.iter().enumerate() {
        assert_eq!(*octet == 1, (at..at + 4096).contains(&n), "octet {n}");
    }
}

/// Blocks that wait for a slot are free: who asks how many there are is told both.
#[test]
fn usage_counts_what_is_deferred() {
    let pool = pool(2);
    let slow = pool.take(Home::Shared).unwrap();
    let block = hold(&pool, OURS);
    assert!(pool.put_back(block), "deferred");
    let usage = pool.usage();
    assert_eq!((usage.free, usage.deferred, usage.partitioned), (1, 1, 0));
    assert!(pool.consume(Home::Shared, slow, OURS).is_some());
    let usage = pool.usage();
    assert_eq!((usage.free, usage.deferred), (1, 0));
}

//= test kbtp-3.3-no-block-lost-or-twice
#[test]
fn threads_that_allocate_bind_load_and_free_lose_no_block() {
    let pool = pool(8);
    std::thread::scope(|scope| {
        for worker in 0..4_u64 {
            let pool = &pool;
            scope.spawn(move || {
                let stamp = u8::try_from(worker).unwrap() + 1;
                for round in 0..3_000 {
                    let Some(ticket) = pool.take(Home::Shared) else {
                        std::thread::yield_now();
                        continue;
                    };
                    let block = loop {
                        if let Some(block) = pool.consume(Home::Shared, ticket, OURS) {
                            break block;
                        }
                        std::thread::yield_now();
                    };
                    assert!(pool.write(block, &[stamp; 64]));
                    pool.bind(worker, block, ByteLen(64), true);
                    // A load of a neighbour's block sends one owner's octets, whoever frees meanwhile.
                    let victim = (worker + round) % 4;
                    if let (_, Some(pinned)) = pool.entry_pinned(victim) {
                        let mut octets = [0; 64];
                        pool.blocks
                            .read(pool.geometry.region_offset(pinned), &mut octets)
                            .unwrap();
                        assert_eq!(octets, [u8::try_from(victim).unwrap() + 1; 64]);
                        pool.unpin(pinned);
                    }
                    pool.free(worker, block);
                }
            });
        }
    });
    pool.settle();
    let audit = clean(&pool);
    assert_eq!((audit.in_rings, audit.deferred, audit.elsewhere), (8, 0, 0));
}

/// The row goes from one domain to the other and back, each binding a block of its own while it is its.
//= test kbtp-p7-not-valid-foreign
//= test kbtp-p9-own-blocks-only
#[test]
fn a_load_finds_no_block_of_the_domain_that_gets_the_row_next() {
    const TURNS: u32 = 200_000;
    let pool = pool(2);
    let ours = hold(&pool, OURS);
    let theirs = hold(&pool, THEIRS);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..TURNS {
                for (domain, block) in [(OURS, ours), (THEIRS, theirs)] {
                    pool.set_domain(0, 1, Some(domain));
                    pool.bind(0, block, ByteLen(1), true);
                    entry::unbind(pool.entry_words(0));
                    pool.set_domain(0, 1, None);
                }
            }
            done.store(true, Release);
        });
        while !done.load(Acquire) {
            if let Some((_, Some(block))) = pool.entry_for(0, OURS) {
                assert_eq!(block, ours);
                pool.unpin(block);
            }
        }
    });
    for block in [ours, theirs] {
        let pins = pool.block_word(block, BlockWord::Pins).load(Relaxed);
        assert_eq!(pins, 0, "what is not the domain's stays pinned");
    }
}
