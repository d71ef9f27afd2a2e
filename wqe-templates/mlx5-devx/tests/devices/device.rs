//! Each call: which commands it gives, in which order, and what it refuses.

use crate::fake::Fake;
use kbtp_device::{
    CqAttributes, Device, Domain, KeyAttributes, Layout, MemoryId, Peer, PeerAccess, Place,
    QpAttributes, Roles, Route,
};
use kbtp_memory::{PageOptions, Region};
use kbtp_mlx5::{AccessRights, CqArm, Cqn, Mkey, Qpn, RepeatEntry, UAR_CQ, UAR_SEND};
use kbtp_mlx5_devx::{Kernel, Mlx5Devx, Shared, Unfit, judge, route};
use kbtp_verbs_sys::PeerPath;

fn device() -> (Mlx5Devx<Fake>, MemoryId, Domain) {
    let mut device = Mlx5Devx::new(Fake::default());
    let region = Region::anonymous(1 << 16, &PageOptions::default()).unwrap();
    let memory = device.register(&region).unwrap();
    let domain = device.create_domain().unwrap();
    (device, memory, domain)
}

fn repeat(device: &mut Mlx5Devx<Fake>, domain: Domain) -> Result<Mkey, String> {
    let entry = |stride, len| RepeatEntry {
        stride,
        len,
        mkey: Mkey(0x100),
        address: 0x40,
    };
    let layout = Layout::Repeat {
        repetitions: 8,
        entries: &[entry(16, 16), entry(0, 240)],
    };
    let rights = AccessRights::REMOTE_READ;
    let attributes = KeyAttributes::new(domain, rights, 0x500, 0x800, layout);
    device
        .create_key(&attributes)
        .map_err(|error| error.to_string())
}

#[test]
fn a_repeat_block_is_a_key_and_a_umr() {
    let (mut device, _, domain) = device();
    let key = repeat(&mut device, domain).unwrap();
    // The key; then, the first time, a queue pair that is connected to itself.
    let kernel = device.kernel();
    assert_eq!(kernel.opcodes, [0x200, 0x400, 0x500, 0x502, 0x503, 0x504]);
    let [(UAR_SEND, first)] = kernel.rung[..] else {
        panic!("{:?}", kernel.rung)
    };
    // UMR, at the start, of seven segments and a list of four: eleven and one.
    assert_eq!(first[..4], [0, 0, 0, 0x25]);
    assert_eq!(first[7], 12);
    let memory = &kernel.memories[&2];
    let mut wqe = [0; 192];
    memory.read(4096, &mut wqe).unwrap();
    assert_eq!(wqe[12..16], key.0.to_be_bytes());
    // What counts is that the key is free no more; the list is in the WQE.
    assert_eq!(wqe[16], 0x80);
    assert_eq!(wqe[24..32], (1_u64 << 29).to_be_bytes());
    assert_eq!(
        wqe[128..144],
        [0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 0, 8, 0, 0, 0, 2]
    );
    assert_eq!(wqe[144..152], [0, 16, 0, 16, 0, 0, 1, 0]);
    assert_eq!(wqe[160..164], [0, 0, 0, 240]);
    // The second needs no queue pair, and none is left out when the ring ends.
    for _ in 0..40 {
        repeat(&mut device, domain).unwrap();
    }
    assert_eq!(device.kernel().opcodes.len(), 46);
    device.destroy_key(key).unwrap();
    assert!(device.destroy_key(key).is_err());
}

#[test]
fn a_key_whose_umr_fails_is_none() {
    let (mut device, _, domain) = device();
    repeat(&mut device, domain).unwrap();
    let made = device.kernel().made.len();
    for (syndrome, silent, word) in [(2, false, "0x02"), (0, true, "no CQE")] {
        let (mut device, _, domain) = self::device();
        repeat(&mut device, domain).unwrap();
        let mut kernel = Fake {
            syndrome,
            silent,
            ..Fake::default()
        };
        kernel
            .register(&Region::anonymous(4096, &PageOptions::default()).unwrap())
            .unwrap();
        let mut device = Mlx5Devx::new(kernel);
        let said = repeat(&mut device, domain).unwrap_err();
        assert!(said.contains(word), "{said}");
        // Its queue pair and completion queue stay, the key does not.
        assert_eq!(device.kernel().made.len(), made - 1);
    }
}

fn pair(domain: Domain, memory: MemoryId, receive: u64, send: u64) -> QpAttributes {
    let at = |offset| Place { memory, offset };
    QpAttributes {
        domain,
        send_cq: Cqn::truncate(1),
        receive_cq: Cqn::truncate(2),
        send_ring: at(send),
        log_send: 6,
        receive_ring: at(receive),
        log_receive: 6,
        log_stride: 6,
        doorbell: at(64),
        roles: Roles {
            master: true,
            managed_send: true,
            managed_receive: false,
        },
        access: PeerAccess::ALL,
        log_message: 12,
        rnr_retry: 7,
        max_reads: 16,
    }
}

#[test]
fn rings_lie_where_a_device_wants_them() {
    let (mut device, memory, domain) = device();
    let apart = pair(domain, memory, 0, 8192);
    let said = device.create_qp(&apart).unwrap_err().to_string();
    assert!(said.contains("right behind its receive ring"), "{said}");
    let within = pair(domain, memory, 64, 64 + 4096);
    let said = device.create_qp(&within).unwrap_err().to_string();
    assert!(said.contains("within a page"), "{said}");
    let qpn = device.create_qp(&pair(domain, memory, 4096, 8192)).unwrap();
    assert_eq!(
        device.kernel().last[24 + 147] & 3,
        3,
        "managed, and a master"
    );
    device.connect(qpn, &Peer::Local(qpn)).unwrap();
    device.stop(qpn).unwrap();
    device.reset(qpn).unwrap();
    let opcodes = &device.kernel().opcodes;
    assert_eq!(opcodes[1..], [0x502, 0x503, 0x504, 0x507, 0x50a]);
    device.destroy_qp(qpn).unwrap();
    assert!(device.stop(qpn).is_err());
}

#[test]
fn a_peer_is_found_by_a_link_local_address() {
    let (mut device, memory, domain) = device();
    let qpn = device.create_qp(&pair(domain, memory, 4096, 8192)).unwrap();
    let route = Route {
        qpn: Qpn::truncate(9),
        gid: [
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x55,
        ],
        send_psn: 1,
        receive_psn: 2,
        path: None,
    };
    device.connect(qpn, &Peer::Remote(route)).unwrap();
    let other = Route {
        gid: [0; 16],
        ..route
    };
    let said = device.connect(qpn, &Peer::Remote(other)).unwrap_err();
    assert!(said.to_string().contains("hardware address"), "{said}");
}

#[test]
fn a_peer_is_reached_as_the_connection_manager_found_it() {
    let (mut device, memory, domain) = device();
    let qpn = device.create_qp(&pair(domain, memory, 4096, 8192)).unwrap();
    let found = PeerPath {
        queue_pair: 0x0012_3456,
        // An IPv4 address, which no hardware address can be made of.
        gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 7],
        mac: [0x0a, 1, 2, 3, 4, 5],
        gid_index: 3,
        port: 1,
        mtu: 4,
        hop_limit: 60,
        traffic_class: 0x10,
        send_psn: 0x0001_0203,
        receive_psn: 0x0004_0506,
        reads_out: 4,
        reads_in: 1,
    };
    device.connect(qpn, &Peer::Remote(route(&found))).unwrap();
    let kernel = device.kernel();
    let [.., init, ready, send] = &kernel.all[..] else {
        panic!("{:?}", kernel.opcodes)
    };
    assert_eq!((init[1], ready[1], send[1]), (2, 3, 4));
    for step in [init, ready, send] {
        assert_eq!(step[9..12], qpn.get().to_be_bytes()[1..]);
    }
    // No loopback; MTU 4 of 3 bits; peer, address, hardware address and the rest of the way.
    assert_eq!((ready[48], ready[32] >> 5), (0, 4));
    assert_eq!(ready[45..48], [0x12, 0x34, 0x56]);
    assert_eq!((ready[57], ready[59], ready[60]), (3, 60, 1));
    assert_eq!(ready[64..80], found.gid);
    assert_eq!(ready[86..92], found.mac);
    assert_eq!(ready[173..176], [4, 5, 6]);
    // One read from the peer, four to it: logarithms 0 and 2.
    assert_eq!((ready[169] >> 5, send[137] >> 5), (0, 2));
    assert_eq!(send[145..148], [1, 2, 3]);
}

#[test]
fn what_a_device_refuses_is_said() {
    let mut device = Mlx5Devx::new(Fake {
        refuse: Some(0x200),
        ..Fake::default()
    });
    let said = repeat(&mut device, Domain(1)).unwrap_err();
    assert!(
        said.contains("a key: ") && said.contains("bad resource"),
        "{said}"
    );
    let said = device.create_alias(1, 2, &[7; 32], Domain(3));
    assert_eq!(said.unwrap(), Mkey(0x102 << 8));
    device.allow_alias(Mkey(0x4500), &[7; 32]).unwrap();
    assert_eq!(device.kernel().last[20..24], [0, 0, 0, 0x45]);
}

#[test]
fn a_device_that_lacks_something_is_not_even_calibrated() {
    for (lacks, word) in [(0x22c, "wait for one another"), (0x90, "masked atomics")] {
        let mut device = Mlx5Devx::new(Fake {
            lacks: vec![lacks],
            ..Fake::default()
        });
        let judgement = judge(&mut device, &mut || 0).unwrap();
        let said = judgement.unfit.unwrap().to_string();
        assert!(said.contains(word), "{said}");
        assert_eq!(judgement.report, None);
        assert_eq!(device.kernel().opcodes, [0x100; 3]);
    }
}

#[test]
fn a_device_that_does_nothing_is_refused_step_by_step() {
    // It says that it can do all, takes all commands, and then no CQE comes.
    let mut device = Mlx5Devx::new(Fake {
        silent: true,
        ..Fake::default()
    });
    let judgement = judge(&mut device, &mut || 0).unwrap();
    let Some(Unfit::Failed(steps)) = judgement.unfit else {
        panic!("{judgement:?}");
    };
    for step in ["step 1, ", "step 2, ", "step 5, ", "step 7, ", "step 13, "] {
        assert!(steps.iter().any(|said| said.starts_with(step)), "{steps:?}");
    }
    let needed = judgement.report.unwrap();
    let needed = needed.probes.iter().filter(|probe| probe.needed).count();
    assert_eq!(steps.len(), needed, "{steps:?}");
}

#[test]
fn a_device_that_does_not_answer_is_no_fit_one() {
    let mut device = Mlx5Devx::new(Fake {
        refuse: Some(0x100),
        ..Fake::default()
    });
    let said = judge(&mut device, &mut || 0).unwrap_err().to_string();
    assert!(said.contains("what it can do"), "{said}");
}

#[test]
fn memory_is_shared_by_a_key_of_pieces_and_taken_back_with_it() {
    // Larger than a piece; nobody touches it.
    let region = Region::anonymous(3 << 30, &PageOptions::default()).unwrap();
    let mut shared = Shared::new(Fake::default(), &region).unwrap();
    let rights = AccessRights::LOCAL_READ.with(AccessRights::LOCAL_WRITE);
    let allowed = shared.allow(rights, 1 << 40, &[7; 32]).unwrap();
    let kernel = shared.kernel();
    let [plain, pieces, allow] = &kernel.all[3..] else {
        panic!("{:?}", kernel.opcodes)
    };
    assert_eq!(plain[..2], [0x02, 0x00]);
    assert_eq!(pieces[..2], [0x02, 0x00]);
    assert_eq!(allow[..2], [0x0b, 0x16]);
    // It begins where it was agreed, is as long as the memory, and of three pieces of 2^30 octets.
    assert_eq!(pieces[32..40], (1_u64 << 40).to_be_bytes());
    assert_eq!(pieces[40..48], (3_u64 << 30).to_be_bytes());
    assert_eq!(pieces[16 + 59] & 31, 30);
    for piece in 0..3 {
        let at = 272 + piece * 16 + 8;
        let start = (piece as u64) << 30;
        assert_eq!(pieces[at..at + 8], start.to_be_bytes());
    }
    // No right that was not given: local write and read are the last two of five bits.
    assert_eq!(pieces[16 + 2] & 0x7c, 0x0c, "{:02x?}", &pieces[16..20]);
    assert_eq!(allowed.vhca_id, 0x0203);
    assert_eq!(allow[20..24], allowed.mkey_index.to_be_bytes());
    assert_eq!(allow[32..64], [7; 32]);
    assert_eq!(kernel.made.len(), 2);
    // Allowed anew, the old key is gone first.
    let again = shared.allow(rights, 1 << 40, &[8; 32]).unwrap();
    assert_ne!(again.mkey_index, allowed.mkey_index);
    assert_eq!(shared.kernel().made.len(), 2);
    shared.forbid().unwrap();
    assert_eq!(shared.kernel().made.len(), 0);
    shared.forbid().unwrap();
}

#[test]
fn memory_that_cannot_be_shared_leaves_no_key() {
    let region = Region::anonymous(4096, &PageOptions::default()).unwrap();
    let kernel = Fake {
        lacks: vec![0xe0],
        ..Fake::default()
    };
    let said = Shared::new(kernel, &region).unwrap_err().to_string();
    assert!(said.contains("alias of a key"), "{said}");
    let kernel = Fake {
        refuse: Some(0xb16),
        ..Fake::default()
    };
    let mut shared = Shared::new(kernel, &region).unwrap();
    let refused = shared.allow(AccessRights::LOCAL_READ, 0, &[7; 32]);
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("an alias to others"), "{said}");
    assert_eq!(shared.kernel().made.len(), 0);
}

#[test]
fn a_completion_queue_is_armed_in_its_record_and_rung() {
    let (mut device, memory, _) = device();
    let at = |offset| Place { memory, offset };
    let attributes = CqAttributes {
        ring: at(4096),
        log_size: 6,
        doorbell: at(128),
        overrun_ignored: true,
    };
    let cqn = device.create_cq(&attributes).unwrap();
    let how = CqArm {
        sequence: 1,
        solicited_only: true,
        ..CqArm::default()
    };
    device.arm_cq(cqn, how).unwrap();
    let kernel = device.kernel();
    let [(UAR_CQ, rung)] = kernel.rung[..] else {
        panic!("{:?}", kernel.rung)
    };
    let mut record = [0; 4];
    kernel.memories[&1].read(132, &mut record).unwrap();
    assert_eq!(record, rung[..4]);
    let within = CqAttributes {
        ring: at(4160),
        ..attributes
    };
    assert!(device.create_cq(&within).is_err());
    device.destroy_cq(cqn).unwrap();
    assert!(device.arm_cq(cqn, how).is_err());
    device.unregister(memory).unwrap();
    assert!(device.unregister(memory).is_err());
}
