//! Whatever is encoded is decoded as it was, and whatever octets are decoded give a value or a named error.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use kbtp_mlx5::{
        AccessRights, Atomic, Body, ByteCount, Comparison, Completed, Control, CqArm, CqDoorbell,
        Cqe, CqeIndex, CqeOpcode, Cqn, DataList, DataSegment, DecodeError, Enable, Failed, Fence,
        Field, Klm, KsmEntry, Mkey, MkeyContext, OnMismatch, OpOwn, Opcode, Payload, QpDoorbell,
        Qpn, RemoteAddress, RepeatBlock, RepeatEntry, Signal, Syndrome, UmrControl, UmrFlags,
        UmrMask, WaitCqe, WaitData, WaitFor, Wqe, WqeBuffer, WqeIndex, context, encode_receive,
        limits, owner_of, receive_list,
    };
    use proptest::prelude::*;
    use proptest::sample::select;

    prop_compose! {
        fn qpn()(value in 0..=Qpn::MAX) -> Qpn { Qpn::truncate(value) }
    }

    prop_compose! {
        fn data()(len in 1..=ByteCount::MAX, lkey: u32, address: u64) -> DataSegment {
            DataSegment::new(len, Mkey(lkey), address).expect("a length")
        }
    }

    prop_compose! {
        fn remote()(address: u64, rkey: u32) -> RemoteAddress {
            RemoteAddress { address, rkey: Mkey(rkey) }
        }
    }

    prop_compose! {
        fn control(opcode: Opcode, modifier: u8)(
            index: u16,
            qpn in qpn(),
            signature: u8,
            stream: u16,
            fence in select(&[
                Fence::None,
                Fence::InitiatorSmall,
                Fence::Fence,
                Fence::StrongOrdering,
                Fence::FenceAndSmall,
            ][..]),
            signal in select(&[
                Signal::OnError,
                Signal::OnFirstError,
                Signal::Always,
                Signal::AlwaysWithEvent,
            ][..]),
            solicited: bool,
            immediate: u32,
        ) -> Control {
            let index = WqeIndex(index);
            Control {
                modifier, signature, stream, fence, signal, solicited, immediate,
                ..Control::new(opcode, qpn, index)
            }
        }
    }

    fn atomic() -> impl Strategy<Value = Atomic> {
        prop_oneof![
            any::<(u64, u64)>().prop_map(|(swap, compare)| Atomic::CompareSwap { swap, compare }),
            any::<u64>().prop_map(|add| Atomic::FetchAdd { add }),
            any::<[u64; 4]>().prop_map(|[swap, compare, swap_mask, compare_mask]| {
                Atomic::MaskedCompareSwap8 {
                    swap,
                    compare,
                    swap_mask,
                    compare_mask,
                }
            }),
            any::<[u32; 4]>().prop_map(|[swap, compare, swap_mask, compare_mask]| {
                Atomic::MaskedCompareSwap4 {
                    swap,
                    compare,
                    swap_mask,
                    compare_mask,
                }
            }),
            any::<(u64, u64)>()
                .prop_map(|(add, boundary)| Atomic::MaskedFetchAdd8 { add, boundary }),
            any::<(u32, u32)>()
                .prop_map(|(add, boundary)| Atomic::MaskedFetchAdd4 { add, boundary }),
        ]
    }

    prop_compose! {
        fn wait_data()(
            comparison in select(&[
                Comparison::AlwaysTrue,
                Comparison::Equal,
                Comparison::Bigger,
                Comparison::Smaller,
                Comparison::CyclicBigger,
                Comparison::CyclicSmaller,
            ][..]),
            invert: bool,
            lkey: u32,
            address: u64,
            on_mismatch in select(&[OnMismatch::Retry, OnMismatch::Error][..]),
            data: [u8; 8],
            mask: [u8; 8],
        ) -> WaitData {
            WaitData {
                comparison, invert, lkey: Mkey(lkey), address: address & !7, on_mismatch, data, mask
            }
        }
    }

    prop_compose! {
        fn key_context()(
            free: bool,
            rights: u8,
            qpn in qpn(),
            tag: u8,
            flags: u8,
            pd in 0..1u32 << 24,
            start: u64,
            len: u64,
            list_segments: u32,
            log_page_size: u8,
        ) -> MkeyContext {
            let rights = AccessRights(rights);
            MkeyContext { free, rights, qpn, tag, flags, pd, start, len, list_segments, log_page_size }
        }
    }

    prop_compose! {
        fn umr_control()(flags: u8, list_segments: u16, offset: u16, mask: u64) -> UmrControl {
            UmrControl { flags: UmrFlags(flags), list_segments, offset, mask: UmrMask(mask) }
        }
    }

    prop_compose! {
        fn op_own(opcodes: &'static [CqeOpcode])(
            opcode in select(opcodes),
            format in 0..4u8,
            solicited: bool,
            owner: bool,
        ) -> OpOwn {
            OpOwn { opcode, format, solicited, owner }
        }
    }

    const GOOD: [CqeOpcode; 9] = [
        CqeOpcode::Request,
        CqeOpcode::ReceivedWriteImmediate,
        CqeOpcode::ReceivedSend,
        CqeOpcode::ReceivedSendImmediate,
        CqeOpcode::ReceivedSendInvalidate,
        CqeOpcode::Resize,
        CqeOpcode::NoPacket,
        CqeOpcode::SignatureError,
        CqeOpcode::Invalid,
    ];
    const BAD: [CqeOpcode; 2] = [CqeOpcode::RequestError, CqeOpcode::ResponderError];

    prop_compose! {
        fn completed()(
            op_own in op_own(&GOOD),
            halves: [u16; 3],
            words: [u32; 4],
            timestamp: u64,
            octets: [u8; 3],
            qpn in qpn(),
        ) -> Cqe {
            let [wqe_id, slid, wqe_counter] = halves;
            let [flags_rqpn, srqn_uidx, immediate, byte_count] = words;
            let [ml_path, send_opcode, signature] = octets;
            Cqe::Completed(Completed {
                wqe_id, ml_path, slid, flags_rqpn, srqn_uidx, immediate, byte_count, timestamp,
                send_opcode, qpn, wqe_counter, signature, op_own,
            })
        }
    }

    prop_compose! {
        fn failed()(
            op_own in op_own(&BAD),
            srqn: u32,
            octets: [u8; 4],
            wqe_counter: u16,
            qpn in qpn(),
        ) -> Cqe {
            let [vendor_syndrome, syndrome, send_opcode, signature] = octets;
            Cqe::Failed(Failed {
                srqn, vendor_syndrome, syndrome: Syndrome(syndrome), send_opcode, qpn, wqe_counter,
                signature, op_own,
            })
        }
    }

    /// That `body` under `control` comes back, with the length counted.
    fn comes_back(control: Control, body: &Body<'_>) -> Result<(), TestCaseError> {
        let buffer = WqeBuffer::encode(&control, body)
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        let octets = buffer.as_octets();
        prop_assert_eq!(octets.len() % limits::SEGMENT, 0);
        prop_assert_eq!(buffer.basic_blocks(), octets.len().div_ceil(64));
        let segments = u8::try_from(octets.len() / limits::SEGMENT).unwrap_or(u8::MAX);
        let expected = Wqe {
            control: Control {
                segments,
                ..control
            },
            body: *body,
        };
        prop_assert_eq!(Wqe::decode(octets), Ok(expected));
        // What lies behind it does not matter; what is missing does.
        let mut longer = octets.to_vec();
        longer.extend([0xff; 64]);
        prop_assert_eq!(Wqe::decode(&longer), Ok(expected));
        let cut = &octets[..octets.len() - 1];
        let short = matches!(Wqe::decode(cut), Err(DecodeError::Length { .. }));
        prop_assert!(short);
        Ok(())
    }

    proptest! {
        #[test]
        fn sends_and_rdma(
            case in select(&[
                Opcode::Send,
                Opcode::SendImmediate,
                Opcode::SendInvalidate,
                Opcode::RdmaWrite,
                Opcode::RdmaWriteImmediate,
                Opcode::RdmaRead,
            ][..]).prop_flat_map(|opcode| control(opcode, 0)),
            remote in remote(),
            list in prop::collection::vec(data(), 0..61),
            inline in prop::collection::vec(any::<u8>(), 1..960),
        ) {
            let segments = DataList::new(&list);
            prop_assert_eq!(segments.len(), list.len());
            prop_assert_eq!(segments.octets(), list.iter().map(|one| u64::from(one.len.get())).sum());
            let (gathered, inline) = (Payload::List(segments), Payload::Inline(&inline));
            match case.opcode {
                Opcode::RdmaRead => comes_back(case, &Body::Read(remote, segments))?,
                Opcode::RdmaWrite | Opcode::RdmaWriteImmediate => {
                    comes_back(case, &Body::Write(remote, gathered))?;
                    comes_back(case, &Body::Write(remote, inline))?;
                }
                _ => {
                    comes_back(case, &Body::Send(gathered))?;
                    comes_back(case, &Body::Send(inline))?;
                }
            }
        }

        #[test]
        fn atomics((atomic, control) in atomic().prop_flat_map(|atomic| {
            (Just(atomic), control(atomic.opcode(), atomic.modifier()))
        }), remote in remote(), reply in data()) {
            comes_back(control, &Body::Atomic(remote, atomic, reply))?;
            let long = matches!(atomic, Atomic::MaskedCompareSwap8 { .. });
            let wqe = WqeBuffer::encode(&control, &Body::Atomic(remote, atomic, reply)).expect("short");
            prop_assert_eq!(wqe.basic_blocks(), if long { 2 } else { 1 });
        }

        #[test]
        fn waits_and_enables(
            cqe in control(Opcode::Wait, WaitFor::Cqe.to_wire()),
            data in control(Opcode::Wait, WaitFor::Data.to_wire()),
            send in control(Opcode::SendEnable, 0),
            receive in control(Opcode::ReceiveEnable, 0),
            qpn in qpn(),
            cqn in 0..=Cqn::MAX,
            index in 0..=CqeIndex::MAX,
            up_to: u16,
            wait in wait_data(),
        ) {
            let (cqn, index) = (Cqn::truncate(cqn), CqeIndex::truncate(index));
            comes_back(cqe, &Body::WaitCqe(WaitCqe { cqn, index }))?;
            comes_back(data, &Body::WaitData(wait))?;
            let enable = Enable { qpn, up_to: WqeIndex(up_to) };
            comes_back(send, &Body::Enable(enable))?;
            comes_back(receive, &Body::Enable(enable))?;
        }

        #[test]
        fn nops_and_umrs(
            nop in control(Opcode::Nop, 0),
            umr in control(Opcode::Umr, 0),
            ignored in prop::collection::vec(any::<[u8; 16]>(), 0..62),
            umr_control in umr_control(),
            context in key_context(),
            list in prop::collection::vec(any::<[u8; 16]>(), 0..55),
        ) {
            comes_back(nop, &Body::Ignored(ignored.as_flattened()))?;
            comes_back(umr, &Body::Umr(umr_control, context, &list))?;
        }

        #[test]
        fn entries_of_keys(len: u32, key: u32, address: u64, repetitions: u32, halves: [u16; 3]) {
            let mkey = Mkey(key);
            let [stride, short, entries] = halves;
            let klm = Klm { len, mkey, address };
            prop_assert_eq!(Klm::decode(&klm.encode()), klm);
            let ksm = KsmEntry { mkey, address };
            prop_assert_eq!(KsmEntry::decode(&ksm.encode()), ksm);
            prop_assert_eq!(&ksm.encode()[..4], [0; 4]);
            let entry = RepeatEntry { stride, len: short, mkey, address };
            prop_assert_eq!(RepeatEntry::decode(&entry.encode()), entry);
            let block = RepeatBlock { len, repetitions, entries };
            prop_assert_eq!(RepeatBlock::decode(&block.encode()), Ok(block));
            let mut other = block.encode();
            other[7] ^= 1;
            prop_assert!(RepeatBlock::decode(&other).is_err());
        }

        #[test]
        fn completions(cqe in prop_oneof![completed(), failed()]) {
            prop_assert_eq!(Cqe::decode(&cqe.encode()), Ok(cqe));
        }

        #[test]
        fn doorbells(receive: u16, send: u16, index: u32, sequence in 0..4u8, solicited_only: bool) {
            let qp = QpDoorbell { receive, send: WqeIndex(send) };
            prop_assert_eq!(QpDoorbell::decode(&qp.encode()), qp);
            let consumer = CqeIndex::truncate(index);
            let arm = CqArm { sequence, solicited_only, consumer };
            let cq = CqDoorbell { consumer, arm };
            prop_assert_eq!(CqDoorbell::decode(&cq.encode()), cq);
            let ring = arm.ring(Cqn::truncate(0x1234));
            prop_assert_eq!(&ring[..4], &cq.encode()[4..]);
            prop_assert_eq!(&ring[4..], [0, 0, 0x12, 0x34]);
        }

        #[test]
        fn receive_lists(list in prop::collection::vec(data(), 0..16)) {
            // A list that holds the terminator ends there.
            let ended = |one: &DataSegment| one.encode() == DataSegment::TERMINATOR;
            prop_assume!(!list.iter().any(ended));
            let mut stride = [0xaa; 256];
            prop_assert_eq!(encode_receive(&mut stride, &list), Ok(()));
            let back: Vec<_> = receive_list(&stride).map(|one| one.expect("a segment")).collect();
            prop_assert_eq!(back, list);
        }

        /// Whatever the octets, and whatever comes out goes in again.
        #[test]
        fn any_octets(octets in prop::collection::vec(any::<u8>(), 0..200), opcode: u8, length: u8) {
            let mut octets = octets;
            for (at, value) in [(3, opcode & 0x3f), (7, length & 0x0f)] {
                if let Some(octet) = octets.get_mut(at) {
                    *octet = value;
                }
            }
            if let Ok(wqe) = Wqe::decode(&octets)
                && let Ok(again) = WqeBuffer::encode(&wqe.control, &wqe.body)
            {
                let back = Wqe::decode(again.as_octets()).expect("just encoded");
                prop_assert_eq!(back.body, wqe.body);
            }
            if let Some(first) = octets.first_chunk() && let Ok(cqe) = Cqe::decode(first) {
                prop_assert_eq!(Cqe::decode(&cqe.encode()), Ok(cqe));
            }
            for one in receive_list(&octets) {
                let inline = matches!(one, Err(DecodeError::Unknown { field: "Byte count", .. }));
                prop_assert!(one.is_ok() || inline);
            }
        }

        #[test]
        fn bit_fields(at in 0..200usize, bits in 1..=64u8, value: u64, mut context: [u8; 40]) {
            let field = context::BitField { at, bits };
            let before = context;
            let value = if bits == 64 { value } else { value & ((1 << bits) - 1) };
            prop_assert_eq!(field.set(&mut context, value), Some(()));
            prop_assert_eq!(field.get(&context), Some(value));
            // Nothing else changed.
            let old = field.get(&before).expect("it fits");
            prop_assert_eq!(field.set(&mut context, old), Some(()));
            prop_assert_eq!(context, before);
            if bits < 64 {
                prop_assert_eq!(field.set(&mut context, 1 << bits), None);
            }
            prop_assert_eq!(field.get(&context[..(at + usize::from(bits) - 1) / 8]), None);
        }

        #[test]
        fn key_context_and_its_bits(key in key_context()) {
            use context::mkc;
            let octets = key.encode();
            prop_assert_eq!(MkeyContext::decode(&octets), key);
            let get = |field: context::BitField| field.get(&octets).expect("64 octets");
            prop_assert_eq!(get(mkc::FREE), u64::from(key.free));
            prop_assert_eq!(get(mkc::QPN), u64::from(key.qpn.get()));
            prop_assert_eq!(get(mkc::TAG), u64::from(key.tag));
            prop_assert_eq!(get(mkc::PD), u64::from(key.pd));
            prop_assert_eq!(get(mkc::START), key.start);
            prop_assert_eq!(get(mkc::LENGTH), key.len);
            prop_assert_eq!(get(mkc::LIST_SEGMENTS), u64::from(key.list_segments));
            prop_assert_eq!(get(mkc::REMOTE_INVALIDATE), u64::from(key.flags & 1));
            for (field, right) in [
                (mkc::UMR_ENABLED, AccessRights::UMR),
                (mkc::ATOMIC, AccessRights::ATOMIC),
                (mkc::REMOTE_WRITE, AccessRights::REMOTE_WRITE),
                (mkc::REMOTE_READ, AccessRights::REMOTE_READ),
                (mkc::LOCAL_WRITE, AccessRights::LOCAL_WRITE),
                (mkc::LOCAL_READ, AccessRights::LOCAL_READ),
            ] {
                prop_assert_eq!(get(field) == 1, key.rights.contains(right));
            }
        }
    }

    #[test]
    fn what_has_no_meaning_is_named() {
        let control = Control::new(Opcode::Send, Qpn::truncate(1), WqeIndex(2));
        let good = WqeBuffer::encode(&control, &Body::Send(Payload::Inline(b"x"))).expect("short");
        for (field, value) in [
            (Field::OPCODE, 0x02),  // no such opcode
            (Field::OPCODE, 0x0e),  // TSO is not decoded
            (Field::MODES, 5 << 5), // no such fence
            (Field::MODIFIER, 1),   // a Send has none
        ] {
            let mut wqe = good.clone();
            wqe.put(field, &[value]);
            let error = Wqe::decode(wqe.as_octets()).expect_err("no meaning");
            assert!(matches!(error, DecodeError::Unknown { .. }), "{error}");
        }
        // Inline data of no octets: none is written, so none is read.
        let mut octets = good.as_octets().to_vec();
        octets[19] = 0;
        let error = Wqe::decode(&octets).expect_err("inline data of nothing");
        assert!(matches!(error, DecodeError::Unknown { .. }), "{error}");
        for segments in [0, 3] {
            let mut wqe = good.clone();
            wqe.put(Field::LENGTH, &[segments]);
            let error = Wqe::decode(wqe.as_octets()).expect_err("length");
            assert!(matches!(error, DecodeError::Length { .. }), "{error}");
        }
        let atomic = Control::new(Opcode::MaskedCs, Qpn::truncate(1), WqeIndex(2));
        let wqe = WqeBuffer::encode(&atomic, &Body::Ignored(&[0; 64])).expect("short");
        let error = Wqe::decode(wqe.as_octets()).expect_err("modifier 0 of a masked atomic");
        assert!(matches!(error, DecodeError::Unknown { .. }), "{error}");
        let mut wait = WaitData {
            comparison: Comparison::Equal,
            invert: false,
            lkey: Mkey(0),
            address: 8,
            on_mismatch: OnMismatch::Retry,
            data: [0; 8],
            mask: [0; 8],
        }
        .encode();
        wait[15] |= 2;
        assert!(WaitData::decode(&wait).is_err());
        wait[15] = 0;
        wait[3] = 6;
        assert!(WaitData::decode(&wait).is_err());
        assert!(OpOwn::decode(0x70).is_err());
    }

    /// A WQE whose opcode has yet to be written keeps the fields of its later self.
    #[test]
    fn a_body_sleeps_under_a_nop() {
        let list = [DataSegment::new(8, Mkey(5), 0x40).expect("a length")];
        let remote = RemoteAddress {
            address: 0x1000,
            rkey: Mkey(9),
        };
        let control = Control::new(Opcode::Nop, Qpn::truncate(1), WqeIndex(2));
        let mut wqe =
            WqeBuffer::encode(&control, &Body::Read(remote, DataList::new(&list))).expect("short");
        let nop = Wqe::decode(wqe.as_octets()).expect("a NOP");
        assert!(matches!(nop.body, Body::Ignored(octets) if octets.len() == 32));
        wqe.put(Field::OPCODE, &[Opcode::RdmaRead.to_wire()]);
        let read = Wqe::decode(wqe.as_octets()).expect("a read");
        assert_eq!(read.body, Body::Read(remote, DataList::new(&list)));
        wqe.put(Field::REMOTE_ADDRESS.part(7, 1).expect("8 octets"), &[0xff]);
        let read = Wqe::decode(wqe.as_octets()).expect("a read");
        let remote = RemoteAddress {
            address: 0x10ff,
            ..remote
        };
        assert_eq!(read.body, Body::Read(remote, DataList::new(&list)));
    }

    #[test]
    fn lengths_have_limits() {
        let one = DataSegment::new(1, Mkey(0), 0).expect("a length");
        let control = Control::new(Opcode::Send, Qpn::truncate(1), WqeIndex(0));
        let send = |n: usize| {
            let list = vec![one; n];
            WqeBuffer::encode(&control, &Body::Send(Payload::List(DataList::new(&list))))
                .map(|wqe| wqe.basic_blocks())
        };
        assert_eq!(send(62), Ok(limits::MAX_BASIC_BLOCKS));
        assert!(send(63).is_err());
        assert!(WqeBuffer::encode(&control, &Body::Send(Payload::Inline(&[]))).is_err());
        assert!(DataSegment::new(0, Mkey(0), 0).is_none());
        assert!(DataSegment::new(ByteCount::MAX + 1, Mkey(0), 0).is_none());
        let count = DataSegment::decode(&[0; 16]).expect("a segment").len;
        assert_eq!(count.get(), 1 << 31, "a byte count of zero is 2 GiB");
        let mut stride = [7; 32];
        assert!(encode_receive(&mut stride, &[one; 3]).is_err());
        assert_eq!(stride, [7; 32]);
        assert_eq!(encode_receive(&mut stride, &[one; 2]), Ok(()));
        assert_eq!(receive_list(&stride).count(), 2);
    }

    #[test]
    fn indices_wrap() {
        let index = CqeIndex::truncate;
        assert!(!index(0).is_reached(0), "nothing came yet");
        assert!(index(0).is_reached(1));
        assert!(!index(1).is_reached(1));
        assert!(
            !index(0).is_reached(1 << 24),
            "the first CQE of the next lap"
        );
        assert!(index(0).is_reached((1 << 24) + 1));
        assert!(index(CqeIndex::MAX).is_reached(1 << 24));
        assert!(index(CqeIndex::MAX).is_reached((1 << 24) + 5));
        assert_eq!(WqeIndex(3).distance(WqeIndex(0xfffe)), 5);
        assert!(Qpn::new(1 << 24).is_none());
        // The owner toggles at each lap of a queue of 2^4.
        assert_eq!(
            [0, 15, 16, 31, 32].map(|n| owner_of(n, 4)),
            [false, false, true, true, false]
        );
        let valid = OpOwn::new(CqeOpcode::ReceivedSend, true);
        assert!(valid.is_ready(16, 4) && !valid.is_ready(15, 4));
        let initial = OpOwn::decode(OpOwn::INITIAL).expect("invalid");
        assert!(!initial.is_ready(0, 4) && !initial.is_ready(16, 4));
    }

    #[test]
    fn values_are_told_apart() {
        for opcode in Opcode::ALL {
            assert_eq!(Opcode::from_wire(opcode.to_wire()), Some(*opcode));
        }
        for opcode in CqeOpcode::ALL {
            assert_eq!(
                OpOwn::decode(OpOwn::new(opcode, true).encode()),
                Ok(OpOwn::new(opcode, true))
            );
        }
        for syndrome in Syndrome::ALL {
            assert!(
                !syndrome.to_string().contains("0x"),
                "{syndrome:?} has a text"
            );
        }
        assert_eq!(Syndrome(0x77).to_string(), "syndrome 0x77");
        let field = Field::new(16, 8);
        assert!(field.contains(Field::new(23, 1)) && !field.contains(Field::new(23, 2)));
        assert!(field.overlaps(Field::new(23, 2)) && !field.overlaps(Field::new(24, 1)));
        let access = |mode| {
            let mut context = [0; context::mkc::LEN];
            context::mkc::set_access_mode(&mut context, mode).map(|()| context)
        };
        // KSM is the low two bits beside the rights; 6 has one bit in the first octet.
        assert_eq!(
            access(context::mkc::MODE_KSM).expect("a mode")[..4],
            [0, 0, 3, 0]
        );
        assert_eq!(
            access(context::mkc::MODE_CROSSING).expect("a mode")[..4],
            [4, 0, 2, 0]
        );
        assert!(access(32).is_none());
    }
}
