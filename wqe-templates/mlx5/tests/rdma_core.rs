//! The layouts here are those of rdma-core's `mlx5dv.h`: a C program prints that header's offsets, sizes and constants.
#![forbid(unsafe_code)]

#[cfg(test)]
#[expect(
    clippy::too_many_lines,
    reason = "tables, a few lines for each field of a structure"
)]
mod tests {
    use kbtp_mlx5::{
        AccessRights, Atomic, ByteCount, Completed, Control, CqArm, CqDoorbell, Cqe, CqeIndex,
        CqeOpcode, DataSegment, Failed, Fence, InlineHeader, Klm, Mkey, MkeyContext, OpOwn, Opcode,
        QpDoorbell, Qpn, RemoteAddress, RepeatBlock, RepeatEntry, Signal, Syndrome, UAR_CQ,
        UmrControl, UmrFlags, UmrMask, WqeIndex, limits,
    };
    use std::collections::BTreeMap;
    use std::process::Command;

    /// What the header says: `(kind, name)` to the numbers. An `Err` says why it cannot be asked.
    fn header() -> Result<BTreeMap<String, Vec<u64>>, String> {
        let program = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("rdma_core_{}", std::process::id()));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rdma_core.c");
        let compiled = Command::new("cc")
            .args(["-Wall", "-Werror", "-o"])
            .arg(&program)
            .arg(source)
            .output()
            .map_err(|error| format!("no C compiler: {error}"))?;
        if !compiled.status.success() {
            let why = String::from_utf8_lossy(&compiled.stderr).into_owned();
            assert!(
                why.contains("No such file or directory"),
                "the program does not compile:\n{why}"
            );
            return Err(format!("no infiniband/mlx5dv.h: {why}"));
        }
        Ok(facts(&program))
    }

    /// What the program prints; it is removed then.
    fn facts(program: &std::path::Path) -> BTreeMap<String, Vec<u64>> {
        let ran = Command::new(program).output().expect("it was just built");
        std::fs::remove_file(program).expect("it was just built");
        assert!(ran.status.success());
        let text = String::from_utf8(ran.stdout).expect("ASCII");
        let mut facts = BTreeMap::new();
        for line in text.lines() {
            let mut words = line.split(' ');
            let kind = words.next().expect("a kind");
            let name = words.next().expect("a name");
            let numbers = words.map(|word| word.parse().expect("a number")).collect();
            facts.insert(format!("{kind} {name}"), numbers);
        }
        facts
    }

    /// What is still unasked: every line of the header's is compared, or the test fails.
    struct Header(BTreeMap<String, Vec<u64>>);

    impl Header {
        fn take(&mut self, what: &str) -> Vec<u64> {
            self.0
                .remove(what)
                .unwrap_or_else(|| panic!("the header does not say: {what}"))
        }

        fn constant(&mut self, name: &str, ours: u64) {
            assert_eq!(self.take(&format!("constant {name}")), [ours], "{name}");
        }

        /// That the octets in which `one` and `other` differ are those of the member; `None` where the member begins or
        /// ends with bits that no field here uses.
        fn member<const N: usize>(&mut self, name: &str, one: [u8; N], other: [u8; N]) {
            let differs: Vec<u64> = (0..)
                .zip(one.iter().zip(other))
                .filter(|(_, (a, b))| **a != *b)
                .map(|(at, _)| at)
                .collect();
            let theirs = self.take(&format!("field {name}"));
            let expected: Vec<u64> = (theirs[0]..theirs[0] + theirs[1]).collect();
            assert_eq!(differs, expected, "{name}");
        }

        fn size(&mut self, name: &str, ours: usize) {
            let ours = u64::try_from(ours).expect("small");
            assert_eq!(self.take(&format!("size {name}")), [ours], "{name}");
        }
    }

    fn control(header: &mut Header) {
        let zero = Control::new(Opcode::Nop, Qpn::default(), WqeIndex(0));
        let base = zero.encode();
        header.size("mlx5_wqe_ctrl_seg", Control::LEN);
        let mut place = |name: &str, changed: Control| {
            header.member(&format!("mlx5_wqe_ctrl_seg.{name}"), base, changed.encode());
        };
        place(
            "opmod_idx_opcode",
            Control {
                modifier: 0xff,
                index: WqeIndex(u16::MAX),
                opcode: Opcode::LocalMmo,
                ..zero
            },
        );
        place(
            "qpn_ds",
            Control {
                qpn: Qpn::truncate(u32::MAX),
                segments: 63,
                ..zero
            },
        );
        place(
            "signature",
            Control {
                signature: 0xff,
                ..zero
            },
        );
        place(
            "dci_stream_channel_id",
            Control {
                stream: u16::MAX,
                ..zero
            },
        );
        place(
            "fm_ce_se",
            Control {
                solicited: true,
                ..zero
            },
        );
        place(
            "imm",
            Control {
                immediate: u32::MAX,
                ..zero
            },
        );
        let modes = |control: Control| u64::from(control.encode()[11]);
        let signal = Signal::Always;
        header.constant("MLX5_WQE_CTRL_CQ_UPDATE", modes(Control { signal, ..zero }));
        header.constant(
            "MLX5_WQE_CTRL_SOLICITED",
            modes(Control {
                solicited: true,
                ..zero
            }),
        );
        let fence = Fence::FenceAndSmall;
        header.constant("MLX5_WQE_CTRL_FENCE", modes(Control { fence, ..zero }));
        let fence = Fence::InitiatorSmall;
        header.constant(
            "MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE",
            modes(Control { fence, ..zero }),
        );
        for (name, opcode) in [
            ("NOP", Opcode::Nop),
            ("SEND_INVAL", Opcode::SendInvalidate),
            ("RDMA_WRITE", Opcode::RdmaWrite),
            ("RDMA_WRITE_IMM", Opcode::RdmaWriteImmediate),
            ("SEND", Opcode::Send),
            ("SEND_IMM", Opcode::SendImmediate),
            ("TSO", Opcode::Tso),
            ("RDMA_READ", Opcode::RdmaRead),
            ("ATOMIC_CS", Opcode::AtomicCs),
            ("ATOMIC_FA", Opcode::AtomicFa),
            ("ATOMIC_MASKED_CS", Opcode::MaskedCs),
            ("ATOMIC_MASKED_FA", Opcode::MaskedFa),
            ("UMR", Opcode::Umr),
            ("MMO", Opcode::Mmo),
        ] {
            header.constant(&format!("MLX5_OPCODE_{name}"), u64::from(opcode.to_wire()));
        }
    }

    fn segments(header: &mut Header) {
        let remote = |address, rkey| {
            RemoteAddress {
                address,
                rkey: Mkey(rkey),
            }
            .encode()
        };
        header.size("mlx5_wqe_raddr_seg", RemoteAddress::LEN);
        header.member(
            "mlx5_wqe_raddr_seg.raddr",
            remote(0, 0),
            remote(u64::MAX, 0),
        );
        header.member("mlx5_wqe_raddr_seg.rkey", remote(0, 0), remote(0, u32::MAX));

        // 2^31 is written as zero.
        let data = |len, lkey, address| {
            DataSegment::new(len, Mkey(lkey), address)
                .expect("a length")
                .encode()
        };
        let none = ByteCount::MAX;
        header.size("mlx5_wqe_data_seg", DataSegment::LEN);
        header.member(
            "mlx5_wqe_data_seg.byte_count",
            data(none, 0, 0),
            data(none - 1, 0, 0),
        );
        header.member(
            "mlx5_wqe_data_seg.lkey",
            data(none, 0, 0),
            data(none, u32::MAX, 0),
        );
        header.member(
            "mlx5_wqe_data_seg.addr",
            data(none, 0, 0),
            data(none, 0, u64::MAX),
        );
        header.constant("MLX5_INVALID_LKEY", u64::from(Mkey::INVALID.0));
        assert_eq!(DataSegment::TERMINATOR, data(none, Mkey::INVALID.0, 0));

        header.size("mlx5_wqe_inl_data_seg", InlineHeader::LEN);
        let inline = InlineHeader::new(0).expect("short").encode();
        header.constant("MLX5_INLINE_SEG", u64::from(u32::from_be_bytes(inline)));

        let atomic = |swap, compare| {
            let octets = Atomic::CompareSwap { swap, compare }.encode();
            *octets.first_chunk::<16>().expect("32 octets")
        };
        header.size("mlx5_wqe_atomic_seg", 16);
        header.member(
            "mlx5_wqe_atomic_seg.swap_add",
            atomic(0, 0),
            atomic(u64::MAX, 0),
        );
        header.member(
            "mlx5_wqe_atomic_seg.compare",
            atomic(0, 0),
            atomic(0, u64::MAX),
        );

        header.constant(
            "MLX5_SEND_WQE_BB",
            u64::try_from(limits::BASIC_BLOCK).expect("64"),
        );
        // Indices of words of four octets.
        let at = |octets: usize| u64::try_from(octets / 4).expect("small");
        header.constant("MLX5_RCV_DBR", at(QpDoorbell::RECEIVE_AT));
        header.constant("MLX5_SND_DBR", at(QpDoorbell::SEND_AT));
        header.constant("MLX5_CQ_DOORBELL", u64::try_from(UAR_CQ).expect("small"));
        let arm = CqArm {
            solicited_only: true,
            ..CqArm::default()
        };
        let consumer = CqeIndex::default();
        let record = CqDoorbell { consumer, arm }.encode();
        let word = *record.last_chunk().expect("8 octets");
        header.constant(
            "MLX5_CQ_DB_REQ_NOT_SOL",
            u64::from(u32::from_be_bytes(word)),
        );
    }

    fn umr(header: &mut Header) {
        let zero = UmrControl {
            flags: UmrFlags(0),
            list_segments: 0,
            offset: 0,
            mask: UmrMask(0),
        };
        header.size("mlx5_wqe_umr_ctrl_seg", UmrControl::LEN);
        let mut place = |name: &str, changed: UmrControl| {
            let name = format!("mlx5_wqe_umr_ctrl_seg.{name}");
            header.member(&name, zero.encode(), changed.encode());
        };
        place(
            "flags",
            UmrControl {
                flags: UmrFlags(0xff),
                ..zero
            },
        );
        place(
            "klm_octowords",
            UmrControl {
                list_segments: u16::MAX,
                ..zero
            },
        );
        place(
            "translation_offset",
            UmrControl {
                offset: u16::MAX,
                ..zero
            },
        );
        place(
            "mkey_mask",
            UmrControl {
                mask: UmrMask(u64::MAX),
                ..zero
            },
        );
        for (name, flag) in [
            ("INLINE", UmrFlags::INLINE),
            ("CHECK_FREE", UmrFlags::CHECK_FREE),
            ("TRNSLATION_OFFSET", UmrFlags::TRANSLATION_OFFSET),
            ("CHECK_QPN", UmrFlags::CHECK_QPN),
        ] {
            header.constant(&format!("MLX5_WQE_UMR_CTRL_FLAG_{name}"), u64::from(flag.0));
        }
        for (name, mask) in [
            ("LEN", UmrMask::LEN),
            ("START_ADDR", UmrMask::START_ADDRESS),
            ("MKEY", UmrMask::MKEY),
            ("QPN", UmrMask::QPN),
            ("ACCESS_LOCAL_WRITE", UmrMask::LOCAL_WRITE),
            ("ACCESS_REMOTE_READ", UmrMask::REMOTE_READ),
            ("ACCESS_REMOTE_WRITE", UmrMask::REMOTE_WRITE),
            ("ACCESS_ATOMIC", UmrMask::ATOMIC),
            ("FREE", UmrMask::FREE),
        ] {
            header.constant(&format!("MLX5_WQE_UMR_CTRL_MKEY_MASK_{name}"), mask.0);
        }

        let klm = |len, mkey, address| {
            Klm {
                len,
                mkey: Mkey(mkey),
                address,
            }
            .encode()
        };
        header.size("mlx5_wqe_umr_klm_seg", Klm::LEN);
        header.member(
            "mlx5_wqe_umr_klm_seg.byte_count",
            klm(0, 0, 0),
            klm(u32::MAX, 0, 0),
        );
        header.member(
            "mlx5_wqe_umr_klm_seg.mkey",
            klm(0, 0, 0),
            klm(0, u32::MAX, 0),
        );
        header.member(
            "mlx5_wqe_umr_klm_seg.address",
            klm(0, 0, 0),
            klm(0, 0, u64::MAX),
        );

        let entry = |stride, len, mkey, address| {
            RepeatEntry {
                stride,
                len,
                mkey: Mkey(mkey),
                address,
            }
            .encode()
        };
        let (none, name) = (entry(0, 0, 0, 0), "mlx5_wqe_umr_repeat_ent_seg");
        header.size(name, RepeatEntry::LEN);
        header.member(&format!("{name}.stride"), none, entry(u16::MAX, 0, 0, 0));
        header.member(
            &format!("{name}.byte_count"),
            none,
            entry(0, u16::MAX, 0, 0),
        );
        header.member(&format!("{name}.memkey"), none, entry(0, 0, u32::MAX, 0));
        header.member(&format!("{name}.va"), none, entry(0, 0, 0, u64::MAX));

        let block = |len, repetitions, entries| {
            RepeatBlock {
                len,
                repetitions,
                entries,
            }
            .encode()
        };
        let (none, name) = (block(0, 0, 0), "mlx5_wqe_umr_repeat_block_seg");
        header.size(name, RepeatBlock::LEN);
        header.member(&format!("{name}.byte_count"), none, block(u32::MAX, 0, 0));
        header.member(&format!("{name}.repeat_count"), none, block(0, u32::MAX, 0));
        header.member(&format!("{name}.num_ent"), none, block(0, 0, u16::MAX));
        let [at, len] = header.take(&format!("field {name}.op"))[..] else {
            panic!("place and size of the operation")
        };
        assert_eq!((at, len), (4, 4));
        assert_eq!(none[4..8], RepeatBlock::OPERATION.to_be_bytes());
    }

    fn key_context(header: &mut Header) {
        let zero = MkeyContext {
            free: false,
            rights: AccessRights(0),
            qpn: Qpn::default(),
            tag: 0,
            flags: 0,
            pd: 0,
            start: 0,
            len: 0,
            list_segments: 0,
            log_page_size: 0,
        };
        header.size("mlx5_wqe_mkey_context_seg", MkeyContext::LEN);
        let mut place = |name: &str, changed: MkeyContext| {
            let name = format!("mlx5_wqe_mkey_context_seg.{name}");
            header.member(&name, zero.encode(), changed.encode());
        };
        place("free", MkeyContext { free: true, ..zero });
        place(
            "access_flags",
            MkeyContext {
                rights: AccessRights(0xff),
                ..zero
            },
        );
        let qpn = Qpn::truncate(u32::MAX);
        place(
            "qpn_mkey",
            MkeyContext {
                qpn,
                tag: 0xff,
                ..zero
            },
        );
        place(
            "flags_pd",
            MkeyContext {
                flags: 0xff,
                pd: u32::MAX,
                ..zero
            },
        );
        place(
            "start_addr",
            MkeyContext {
                start: u64::MAX,
                ..zero
            },
        );
        place(
            "len",
            MkeyContext {
                len: u64::MAX,
                ..zero
            },
        );
        place(
            "translations_octword_size",
            MkeyContext {
                list_segments: u32::MAX,
                ..zero
            },
        );
        place(
            "log_page_size",
            MkeyContext {
                log_page_size: 0xff,
                ..zero
            },
        );
        let free = u64::from(MkeyContext { free: true, ..zero }.encode()[0]);
        header.constant("MLX5_WQE_MKEY_CONTEXT_FREE", free);
        for (name, right) in [
            ("ATOMIC", AccessRights::ATOMIC),
            ("REMOTE_WRITE", AccessRights::REMOTE_WRITE),
            ("REMOTE_READ", AccessRights::REMOTE_READ),
            ("LOCAL_WRITE", AccessRights::LOCAL_WRITE),
            ("LOCAL_READ", AccessRights::LOCAL_READ),
        ] {
            let name = format!("MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_{name}");
            header.constant(&name, u64::from(right.0));
        }
    }

    fn completed() -> Completed {
        Completed {
            wqe_id: 0,
            ml_path: 0,
            slid: 0,
            flags_rqpn: 0,
            srqn_uidx: 0,
            immediate: 0,
            byte_count: 0,
            timestamp: 0,
            send_opcode: 0,
            qpn: Qpn::default(),
            wqe_counter: 0,
            signature: 0,
            op_own: OpOwn::new(CqeOpcode::Request, false),
        }
    }

    fn cqe(header: &mut Header) {
        let zero = completed();
        let (base, qpn) = (Cqe::Completed(zero).encode(), Qpn::truncate(u32::MAX));
        header.size("mlx5_cqe64", Cqe::LEN);
        let mut place = |name: &str, changed: Completed| {
            let changed = Cqe::Completed(changed).encode();
            header.member(&format!("mlx5_cqe64.{name}"), base, changed);
        };
        place(
            "wqe_id",
            Completed {
                wqe_id: u16::MAX,
                ..zero
            },
        );
        place(
            "ml_path",
            Completed {
                ml_path: 0xff,
                ..zero
            },
        );
        place(
            "slid",
            Completed {
                slid: u16::MAX,
                ..zero
            },
        );
        place(
            "flags_rqpn",
            Completed {
                flags_rqpn: u32::MAX,
                ..zero
            },
        );
        place(
            "srqn_uidx",
            Completed {
                srqn_uidx: u32::MAX,
                ..zero
            },
        );
        place(
            "imm_inval_pkey",
            Completed {
                immediate: u32::MAX,
                ..zero
            },
        );
        place(
            "byte_cnt",
            Completed {
                byte_count: u32::MAX,
                ..zero
            },
        );
        place(
            "timestamp",
            Completed {
                timestamp: u64::MAX,
                ..zero
            },
        );
        place(
            "sop_drop_qpn",
            Completed {
                send_opcode: 0xff,
                qpn,
                ..zero
            },
        );
        place(
            "wqe_counter",
            Completed {
                wqe_counter: u16::MAX,
                ..zero
            },
        );
        place(
            "signature",
            Completed {
                signature: 0xff,
                ..zero
            },
        );
        let op_own = OpOwn::new(CqeOpcode::Request, true);
        header.constant("MLX5_CQE_OWNER_MASK", u64::from(op_own.encode()));
        let mut place = |name: &str, changed: Completed| {
            let changed = Cqe::Completed(changed).encode();
            header.member(&format!("mlx5_cqe64.{name}"), base, changed);
        };
        place("op_own", Completed { op_own, ..zero });
    }

    fn error_cqe(header: &mut Header) {
        let op_own = OpOwn::new(CqeOpcode::RequestError, false);
        let zero = Failed {
            srqn: 0,
            vendor_syndrome: 0,
            syndrome: Syndrome(0),
            send_opcode: 0,
            qpn: Qpn::default(),
            wqe_counter: 0,
            signature: 0,
            op_own,
        };
        let qpn = Qpn::truncate(u32::MAX);
        header.size("mlx5_err_cqe", Cqe::LEN);
        let mut place = |name: &str, changed: Failed| {
            let name = format!("mlx5_err_cqe.{name}");
            header.member(
                &name,
                Cqe::Failed(zero).encode(),
                Cqe::Failed(changed).encode(),
            );
        };
        place(
            "srqn",
            Failed {
                srqn: u32::MAX,
                ..zero
            },
        );
        place(
            "vendor_err_synd",
            Failed {
                vendor_syndrome: 0xff,
                ..zero
            },
        );
        place(
            "syndrome",
            Failed {
                syndrome: Syndrome(0xff),
                ..zero
            },
        );
        place(
            "s_wqe_opcode_qpn",
            Failed {
                send_opcode: 0xff,
                qpn,
                ..zero
            },
        );
        place(
            "wqe_counter",
            Failed {
                wqe_counter: u16::MAX,
                ..zero
            },
        );
        place(
            "signature",
            Failed {
                signature: 0xff,
                ..zero
            },
        );
        let op_own = OpOwn::new(CqeOpcode::ResponderError, true);
        place("op_own", Failed { op_own, ..zero });
        for (name, opcode) in [
            ("REQ", CqeOpcode::Request),
            ("RESP_WR_IMM", CqeOpcode::ReceivedWriteImmediate),
            ("RESP_SEND", CqeOpcode::ReceivedSend),
            ("RESP_SEND_IMM", CqeOpcode::ReceivedSendImmediate),
            ("RESP_SEND_INV", CqeOpcode::ReceivedSendInvalidate),
            ("RESIZE_CQ", CqeOpcode::Resize),
            ("NO_PACKET", CqeOpcode::NoPacket),
            ("SIG_ERR", CqeOpcode::SignatureError),
            ("REQ_ERR", CqeOpcode::RequestError),
            ("RESP_ERR", CqeOpcode::ResponderError),
            ("INVALID", CqeOpcode::Invalid),
        ] {
            let octet = OpOwn::new(opcode, false).encode();
            header.constant(&format!("MLX5_CQE_{name}"), u64::from(octet >> 4));
        }
        for (name, syndrome) in [
            ("LOCAL_LENGTH", Syndrome::LOCAL_LENGTH),
            ("LOCAL_QP_OP", Syndrome::LOCAL_QP_OPERATION),
            ("LOCAL_PROT", Syndrome::LOCAL_PROTECTION),
            ("WR_FLUSH", Syndrome::FLUSHED),
            ("MW_BIND", Syndrome::WINDOW_BIND),
            ("BAD_RESP", Syndrome::BAD_RESPONSE),
            ("LOCAL_ACCESS", Syndrome::LOCAL_ACCESS),
            ("REMOTE_INVAL_REQ", Syndrome::REMOTE_INVALID_REQUEST),
            ("REMOTE_ACCESS", Syndrome::REMOTE_ACCESS),
            ("REMOTE_OP", Syndrome::REMOTE_OPERATION),
            ("TRANSPORT_RETRY_EXC", Syndrome::TRANSPORT_RETRY_EXCEEDED),
            ("RNR_RETRY_EXC", Syndrome::RNR_RETRY_EXCEEDED),
            ("REMOTE_ABORTED", Syndrome::REMOTE_ABORTED),
        ] {
            let name = format!("MLX5_CQE_SYNDROME_{name}_ERR");
            header.constant(&name, u64::from(syndrome.0));
        }
    }

    #[test]
    fn the_layouts_are_those_of_rdma_core() {
        let mut header = match header() {
            Ok(facts) => Header(facts),
            Err(why) => {
                let ci = std::env::var("CI").is_ok_and(|value| value == "true");
                assert!(!ci, "{why}");
                println!("skipped: {why}");
                return;
            }
        };
        control(&mut header);
        segments(&mut header);
        umr(&mut header);
        key_context(&mut header);
        cqe(&mut header);
        error_cqe(&mut header);
        assert_eq!(header.0, BTreeMap::new(), "not compared with anything here");
    }
}
