//! What a target and its sessions need, made of commands: every ring lies where a device takes it, and all that a session made ends.

use crate::fake::Fake;
use kbtp_device::{
    Device as _, Master, PeerAccess, PoolPlace, Served, Session, SessionPlan, Target,
};
use kbtp_memory::{PageOptions, Region};
use kbtp_mlx5_devx::Mlx5Devx;
use kbtp_wire::{BlockOffset, ByteLen, Handle, RingOrder};

const BLOCK: u32 = 4096;
const BLOCKS: u32 = 8;
const HANDLES: u64 = 32;

fn pool() -> PoolPlace {
    let region = |len| Region::anonymous(len, &PageOptions::default()).unwrap();
    PoolPlace {
        meta: region(1 << 16),
        table_at: 8192,
        table_base: Handle(0x100),
        table_count: HANDLES,
        ring_at: 4096,
        ring: RingOrder::for_blocks(BLOCKS).unwrap(),
        counters_at: 0,
        blocks: region(u64::from(BLOCKS * BLOCK)),
        first_block: BlockOffset(1 << 40),
        block_size: ByteLen(BLOCK),
    }
}

fn count(kernel: &Fake, opcode: u16) -> usize {
    kernel.opcodes.iter().filter(|one| **one == opcode).count()
}

#[test]
fn a_target_and_its_sessions_are_made_of_commands() {
    let mut device = Mlx5Devx::new(Fake::default());
    let target = Target::create(&mut device, pool()).unwrap();
    let master = Master::create(&mut device, target.loopback_domain()).unwrap();
    let template = kbtp_chain::full(ByteLen(BLOCK)).with_capacity(4152);
    let profile = target.profile(&mut device, template).unwrap();
    target.headers(&mut device, Served::NOTHING).unwrap();
    // Software's own queue pair and that for UMRs, each connected to itself in three steps.
    assert_eq!(count(device.kernel(), 0x500), 2);
    let steps = [0x502, 0x503, 0x504].map(|opcode| count(device.kernel(), opcode));
    assert_eq!(steps, [2; 3]);
    // One of the keys has 65536 pieces: a command of 1 MiB and 272 octets.
    let longest = device.kernel().all.iter().map(Vec::len).max();
    assert_eq!(longest, Some(272 + (16 << 16)));
    let (made, memories) = (device.kernel().made.len(), device.kernel().memories.len());
    let plan = |id, own_count| SessionPlan {
        id,
        own_base: Handle(0x100),
        own_count,
        client_access: PeerAccess::default(),
    };
    let sessions: Vec<Session> = [(0, 8), (1, 0)]
        .into_iter()
        .map(|(id, own)| Session::create(&mut device, &target, &profile, &plan(id, own)).unwrap())
        .collect();
    assert_eq!(count(device.kernel(), 0x500), 2 + 2 * 2);
    // Of each only the loopback queue pair is connected: the client's is when there is one.
    assert_eq!(count(device.kernel(), 0x502), 2 + 2);
    let kernel = device.kernel();
    let pairs = kernel.all.iter().filter(|one| one[..2] == [0x05, 0x00]);
    for pair in pairs {
        // Rings at a page; no data in CQEs: bytes 24 + 198 and 199.
        assert_eq!(
            (pair[262] & 0x0f, pair[263]),
            (0, 0),
            "{:02x?}",
            &pair[256..272]
        );
        assert_eq!(pair[24 + 198..24 + 200], [0, 0]);
    }
    for session in sessions {
        session.destroy(&mut device).unwrap();
    }
    // What sessions made has ended.
    assert_eq!(device.kernel().made.len(), made);
    assert_eq!(device.kernel().memories.len(), memories);
    drop(master);
    device.barrier();
}

#[test]
fn a_session_that_the_device_refuses_is_an_error_that_says_what() {
    for (refuse, word) in [
        (0x200, "key"),
        (0x400, "completion queue"),
        (0x500, "queue pair"),
    ] {
        let mut device = Mlx5Devx::new(Fake {
            refuse: Some(refuse),
            ..Fake::default()
        });
        let target = Target::create(&mut device, pool());
        let said = match target {
            Err(error) => error.to_string(),
            Ok(target) => {
                let domain = target.loopback_domain();
                Master::create(&mut device, domain).unwrap_err().to_string()
            }
        };
        assert!(
            said.contains(word) && said.contains("bad resource"),
            "{said}"
        );
    }
}
