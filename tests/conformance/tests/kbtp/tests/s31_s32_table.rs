//! Draft, sections 3.1 and 3.2; profile, P10: the pool and the block table, as DIRECT_LOAD shows them.

use super::subject;
use kbtp_harness::{Session, Who, alloc_store, pattern, remote};
use kbtp_wire::{Generation, Handle, SessionCapabilities, Status};

fn reader() -> Who {
    Who::new(1).with(SessionCapabilities::DIRECT_LOAD)
}

/// The octets of an entry, put together here.
fn entry(flags: u16, generation: u16, len: u32, block: u64) -> [u8; 16] {
    let mut octets = [0; 16];
    octets[..2].copy_from_slice(&flags.to_be_bytes());
    octets[2..4].copy_from_slice(&generation.to_be_bytes());
    octets[4..8].copy_from_slice(&len.to_be_bytes());
    octets[8..].copy_from_slice(&block.to_be_bytes());
    octets
}

//= test kbtp-3.2-entry-layout
//= test kbtp-3.2-data-length
//= test kbtp-6.4-clear-entry
//= test kbtp-p10-big-endian-structures
#[test]
fn an_entry_has_its_octets_through_its_life() {
    let target = subject();
    let mut s = Session::open(&*target, &reader());
    let h = s.h(5);
    assert_eq!(s.entry_octets(h), [0; 16], "never bound");
    let stored = s.alloc(h, &pattern(1, 0x123), false);
    assert_eq!(s.entry_octets(h), entry(1, 1, 0x123, stored.block.0));
    s.store(h, &pattern(2, 0x321), false);
    assert_eq!(s.entry_octets(h), entry(1, 1, 0x321, stored.block.0));
    s.store(h, &pattern(3, 0x77), true);
    assert_eq!(s.entry_octets(h), entry(3, 1, 0x77, stored.block.0));
    s.free(h);
    assert_eq!(s.entry_octets(h)[..4], entry(0, 2, 0, 0)[..4]);
    let again = s.alloc(h, b"", true);
    assert_eq!(s.entry_octets(h), entry(3, 3, 0, again.block.0));
}

//= test kbtp-3.2-entry-address
#[test]
fn an_entry_lies_sixteen_octets_after_the_one_before() {
    let target = subject();
    let mut first = Session::open(&*target, &reader());
    let mut s = Session::open(
        &*target,
        &Who {
            initiator: [2; 16],
            ..reader()
        },
    );
    assert!(s.grant.handle_base > first.grant.handle_base);
    let mut expected = Vec::new();
    for n in 0..4_u32 {
        let len = 100 * (n + 1);
        let stored = s.put(n.into(), &pattern(n.into(), len.try_into().unwrap()));
        expected.extend(entry(3, 1, len, stored.block.0));
    }
    let row = s.grant.handle_base.0 - s.grant.table_base.0;
    let at = s.grant.table_offset.0 + 16 * row;
    let octets = s.raw.read(remote(s.grant.table_stag, at), 64).unwrap();
    assert_eq!(octets, expected);
    // Another session sees the same entry at the same place.
    assert_eq!(first.entry_octets(s.h(3)), expected[48..]);
    // The table ends where Table Handle Count says.
    let last = Handle(s.grant.table_base.0 + s.grant.table_count - 1);
    assert_eq!(s.entry_octets(last), [0; 16]);
    let beyond = s.grant.table_offset.0 + 16 * s.grant.table_count;
    s.raw
        .read(remote(s.grant.table_stag, beyond), 16)
        .expect_err("no entry");
}

//= test kbtp-3.1-equal-blocks
//= test kbtp-3.1-block-offset-is-address
//= test kbtp-p6-block-offset-tagged
#[test]
fn blocks_are_equal_and_block_offsets_address_them() {
    let target = subject();
    let mut s = Session::open(&*target, &reader().quota(64));
    let size = u64::from(s.grant.block_size.0);
    assert_eq!((size, s.grant.pool_blocks, s.grant.quota), (4096, 64, 64));
    let mut offsets: Vec<_> = (0..64)
        .map(|n| s.put(n, &pattern(n, 4096)).block.0)
        .collect();
    for n in 0..64 {
        let block = s.entry(s.h(n)).block;
        assert_eq!(
            s.block(block, 4096),
            pattern(n, 4096),
            "as it stands, with the Pool STag"
        );
    }
    offsets.sort_unstable();
    let first = offsets[0];
    let expected: Vec<_> = (0..64).map(|n| first + n * size).collect();
    assert_eq!(offsets, expected, "F blocks side by side");
    let end = first + 64 * size;
    s.raw
        .read(remote(s.grant.pool_stag, end), 1)
        .expect_err("the pool ends after F blocks");
}

//= test kbtp-3.2-generation-never-zero
//= test kbtp-6.3-next-generation
#[test]
fn generations_wrap_past_zero() {
    let target = subject();
    let mut s = Session::open(&*target, &reader());
    let h = s.h(0);
    // A store and a free count one each. In batches, since requests on one handle keep their order.
    let mut expected = 0_u16;
    let mut next = || {
        expected = expected.wrapping_add(1).max(1);
        expected
    };
    let batch = u32::from(s.grant.credits) / 2;
    for _ in 0..65_540_u32.div_ceil(2 * batch) {
        for _ in 0..batch {
            let source = Session::inline(b"g");
            let store = s.request(h, alloc_store(source, true));
            s.send(&store);
            let free = s.request(h, kbtp_wire::Operation::Free);
            s.send(&free);
        }
        for _ in 0..2 * batch {
            let completion = s.completion();
            assert_eq!(completion.status, Status::Ok);
            assert_eq!(completion.generation.map(Generation::get), Some(next()));
        }
    }
    assert!(expected < 1000, "it has wrapped: {expected}");
    assert_eq!(s.entry(h).generation.map(Generation::get), Some(expected));
}
