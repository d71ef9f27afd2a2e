//! What the decoders of KBTP messages take and refuse, and that no octets make them panic.
#[cfg(test)]
mod tests {
    use kbtp_wire::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn arbitrary_generation() -> impl Strategy<Value = Option<Generation>> {
        any::<u16>().prop_map(Generation::new)
    }

    prop_compose! {
        fn descriptor()(stag: u32, offset: u64, len: u32) -> DataDescriptor {
            DataDescriptor { stag: Stag(stag), offset: TaggedOffset(offset), len: ByteLen(len) }
        }
    }

    /// Kind of operation, its two switches, whether inline, whether recorded.
    type Shape = (u8, bool, bool, bool, bool);

    fn build(
        shape: Shape,
        buffer: DataDescriptor,
        octets: &[u8],
        handle: u64,
        generation: Option<Generation>,
    ) -> Request<'_> {
        let (kind, first, second, inline, record) = shape;
        let source = if inline {
            // The declared Length need not be the true one: it is handed on as it is.
            Source::Inline {
                declared: buffer.len,
                octets,
            }
        } else {
            Source::Remote {
                buffer,
                invalidate: first,
            }
        };
        let operation = match kind % 5 {
            0 => Operation::Load {
                sink: buffer,
                invalidate: first,
                allow_unsealed: second,
            },
            1 => Operation::Store {
                source,
                seal: second,
            },
            2 => Operation::AllocStore {
                source,
                seal: second,
            },
            3 => Operation::Free,
            _ => Operation::Bind {
                bind: Bind {
                    ticket: Ticket(buffer.stag.0),
                    data_len: buffer.len,
                    block: BlockOffset(buffer.offset.0),
                },
                seal: second,
            },
        };
        Request {
            request_id: RequestId(handle.rotate_left(17)),
            handle: Handle(handle),
            generation,
            record: record.then_some(CompletionDescriptor {
                stag: buffer.stag,
                offset: buffer.offset,
            }),
            operation,
        }
    }

    proptest! {
        #[test]
        fn requests_come_back(
            shape: Shape,
            buffer in descriptor(),
            octets in vec(any::<u8>(), 0..100),
            handle: u64,
            generation in arbitrary_generation(),
        ) {
            let request = build(shape, buffer, &octets, handle, generation);
            let mut out = [0; 256];
            let len = request.encode_into(&mut out).unwrap();
            prop_assert_eq!(Request::decode(&out[..len]), Ok(request));
            prop_assert_eq!(request.encode_into(&mut out[..len - 1]),
                Err(BufferTooSmall { needed: len, len: len - 1 }));
            let head = request.encode_head();
            prop_assert_eq!(head.octets(), &out[..head.octets().len()]);
        }

        // Whatever decodes encodes to the same octets: no field is dropped and none has two spellings.
        #[test]
        fn requests_have_one_spelling(
            mut octets in vec(any::<u8>(), 24..120),
            opcode in 3_u8..8,
            flags in 0_u8..32,
        ) {
            [octets[0], octets[1], octets[2], octets[3]] = [1, opcode, 0, flags];
            [octets[22], octets[23]] = [0, 0];
            if flags & 1 == 1 && octets.len() >= 36 {
                octets[24..36].fill(0);
            }
            if let Ok(request) = Request::decode(&octets) {
                let mut out = [0; 128];
                let len = request.encode_into(&mut out).unwrap();
                prop_assert_eq!(&out[..len], &octets[..]);
            }
        }

        #[test]
        fn no_octets_make_a_decoder_panic(octets in vec(any::<u8>(), 0..300), opcode in 0_u8..10) {
            let mut messages = [octets.clone(), octets];
            if let [version, second, ..] = &mut messages[1][..] {
                (*version, *second) = (1, opcode);
            }
            for message in &messages {
                let taken = [
                    Request::decode(message).is_ok(),
                    Hello::decode(message).is_ok(),
                    HelloAck::decode(message).is_ok(),
                    Completion::decode_message(message).is_ok(),
                ];
                // A message is of one kind.
                prop_assert!(taken.iter().filter(|taken| **taken).count() <= 1);
                if KnownTlvs::decode(message).is_ok() {
                    prop_assert!(Tlvs::new(message).all(|tlv| tlv.is_ok()));
                }
                let tlvs = Tlvs::new(message).count();
                prop_assert!(tlvs <= MAX_TLVS + 1);
                if let Some(head) = message.first_chunk() {
                    prop_assert_eq!(&Header::decode(head).encode(), head);
                }
            }
        }

        #[test]
        fn fixed_structures_come_back(octets: [u8; 40], status in 0..Status::ALL.len()) {
            let mut octets = octets;
            let entry: &[u8; 16] = octets.first_chunk().unwrap();
            prop_assert_eq!(&TableEntry::decode(entry).encode(), entry);
            prop_assert_eq!(TableEntry::from_words(TableEntry::decode(entry).to_words()),
                TableEntry::decode(entry));
            prop_assert_eq!(&DataDescriptor::decode(entry).encode(), entry);
            prop_assert_eq!(&Bind::decode(entry).encode(), entry);
            let slot = RingSlot::decode(entry);
            prop_assert_eq!(RingSlot::decode(&slot.encode()), slot);
            let [high, low] = [slot.block.0 >> 32, slot.block.0 & 0xffff_ffff];
            prop_assert_eq!(RingSlot::from_words(slot.sequence.0,
                u32::try_from(high).unwrap(), u32::try_from(low).unwrap()), slot);

            let status = Status::ALL[status];
            [octets[8], octets[9]] = status.to_wire().to_be_bytes();
            let record: &[u8; 24] = octets.first_chunk().unwrap();
            prop_assert_eq!(&CompletionRecord::decode(record).unwrap().encode(), record);

            [octets[0], octets[1], octets[2], octets[3]] = [1, 8, 0, 0];
            [octets[22], octets[23]] = status.to_wire().to_be_bytes();
            octets[28..32].fill(0);
            prop_assert_eq!(Completion::decode(&octets).unwrap().encode(), octets);
        }

        #[test]
        fn hellos_come_back(body: [u8; 40], tenant in ".{0,20}", mac: [u8; 32], which: [bool; 3]) {
            let mut message = [0; 400];
            [message[0], message[1]] = [1, 1];
            message[24..64].copy_from_slice(&body);
            [message[24], message[25]] = [0, 3];
            let mut hello = Hello::decode(&message[..64]).unwrap();
            hello.tlvs = KnownTlvs {
                tenant: which[0].then_some(&tenant),
                auth: which[1].then_some(Auth { nonce: Nonce([7; 16]), mac }),
                software: which[2].then_some("test"),
            };
            let mut out = [0; 400];
            let len = hello.encode_into(&mut out).unwrap();
            prop_assert_eq!(len, hello.encoded_len());
            //= test kbtp-p5-header-version
            prop_assert_eq!((out[0], out[24], out[25]), (1, 0, 3));
            prop_assert_eq!(Hello::decode(&out[..len]), Ok(hello));
            prop_assert_eq!(&out[26..64], &message[26..64]);
            prop_assert!(hello.encode_into(&mut out[..len - 1]).is_err());
        }

        #[test]
        fn hello_acks_come_back(body: [u8; 144], n in 0_u8..28, form in 0_u8..2, status in 1_u16..16) {
            let mut message = [0; 168];
            [message[0], message[1]] = [1, 2];
            message[24..].copy_from_slice(&body);
            [message[74], message[75]] = [n, form];
            message[164..].fill(0);
            let ack = HelloAck::decode(&message).unwrap();
            let mut out = [0; 168];
            prop_assert_eq!(ack.encode_into(&mut out), Ok(168));
            prop_assert_eq!(out, message);
            prop_assert!(ack.encode_into(&mut out[..167]).is_err());

            // Each field has a place of its own: no octet but the reserved ones may be lost.
            let refused = HelloAck::Refused {
                request_id: RequestId(9),
                status: Status::from_wire(status).unwrap(),
            };
            prop_assert_eq!(refused.encode_into(&mut out), Ok(24));
            prop_assert_eq!(HelloAck::decode(&out[..24]), Ok(refused));
        }

        #[test]
        fn private_data_comes_back(challenge: [u8; 32], hmac: bool, reserved: [u8; 2]) {
            let auth_mode = if hmac { AuthMode::Hmac } else { AuthMode::None };
            let data = PrivateData { auth_mode, challenge: Challenge(challenge) };
            let mut octets = data.encode();
            prop_assert_eq!([octets[6], octets[7]], [0, 0]);
            [octets[6], octets[7]] = reserved;
            prop_assert_eq!(PrivateData::decode(&octets), Ok(data));
        }
    }

    /// A request of one opcode, flags and length, all else zero.
    fn message(version: u8, opcode: u8, flags: u16, len: usize) -> Vec<u8> {
        let mut octets = vec![0; len];
        octets[0] = version;
        octets[1] = opcode;
        octets[2..4].copy_from_slice(&flags.to_be_bytes());
        octets[11] = 0x55;
        octets[19] = 0x66;
        octets
    }

    fn status(octets: &[u8]) -> Status {
        match Request::decode(octets) {
            Ok(_) => Status::Ok,
            Err(RequestError::Refused(refusal)) => {
                assert_eq!(refusal.header.request_id, RequestId(0x55));
                assert_eq!(refusal.header.handle, Handle(0x66));
                refusal.status
            }
            Err(other) => panic!("{other}"),
        }
    }

    //= test kbtp-p7-bad-request
    //= test kbtp-p1-message-parts
    //= test kbtp-p2-flags-by-opcode
    #[test]
    fn every_opcode_with_all_flags_has_exactly_its_lengths() {
        for opcode in Opcode::ALL {
            for flags in 0..64_u16 {
                let body = match opcode {
                    Opcode::Load | Opcode::Store | Opcode::AllocStore | Opcode::Bind => 16,
                    _ => 0,
                };
                let record = if flags & 4 == 4 { 16 } else { 0 };
                let head = 24 + body + record;
                let request = !matches!(
                    opcode,
                    Opcode::Hello | Opcode::HelloAck | Opcode::Completion
                );
                let allowed = request && RequestFlags(flags).allowed_with(opcode);
                for len in 24..80 {
                    let fits = len == head || (len > head && flags & 1 == 1);
                    let expected = if allowed && fits {
                        Status::Ok
                    } else {
                        Status::BadRequest
                    };
                    assert_eq!(
                        status(&message(1, opcode.to_wire(), flags, len)),
                        expected,
                        "{opcode} {flags:#x} {len}"
                    );
                }
            }
        }
    }

    //= test kbtp-p7-too-short-ends-session
    #[test]
    fn without_a_common_header_there_is_nothing_to_answer() {
        for len in 0..24 {
            let octets = vec![1; len];
            assert_eq!(
                Request::decode(&octets),
                Err(RequestError::TooShort { len })
            );
            assert_eq!(Hello::decode(&octets), Err(RequestError::TooShort { len }));
        }
    }

    //= test kbtp-p7-check-order
    //= test kbtp-p7-version-mismatch
    //= test kbtp-p1-reserved-unsupported
    #[test]
    fn of_several_faults_the_first_in_order_is_answered() {
        let load = Opcode::Load.to_wire();
        assert_eq!(status(&message(1, load, 0, 40)), Status::Ok);
        assert_eq!(status(&message(2, load, 0, 40)), Status::VersionMismatch);
        assert_eq!(status(&message(0, load, 0, 40)), Status::VersionMismatch);
        // Malformed and of another version: malformed first.
        assert_eq!(status(&message(2, load, 0, 41)), Status::BadRequest);
        assert_eq!(status(&message(2, load, 2, 40)), Status::BadRequest);
        // A reserved opcode has no length and no flags to be wrong.
        for opcode in (9..=u8::MAX).chain([0]) {
            assert_eq!(status(&message(1, opcode, 0xffff, 77)), Status::Unsupported);
            assert_eq!(status(&message(9, opcode, 0, 24)), Status::VersionMismatch);
            let mut failed = message(9, opcode, 0, 24);
            failed[23] = 1;
            assert_eq!(status(&failed), Status::BadRequest);
        }
    }

    //= test kbtp-5.1-status-zero-in-requests
    #[test]
    fn a_request_with_a_status_is_malformed() {
        for bit in 0..16 {
            let mut octets = message(1, Opcode::Free.to_wire(), 0, 24);
            octets[22..24].copy_from_slice(&(1_u16 << bit).to_be_bytes());
            assert_eq!(status(&octets), Status::BadRequest);
        }
    }

    //= test kbtp-p1-completion-descriptor-reserved
    #[test]
    fn reserved_bits_of_the_completion_descriptor_are_zero() {
        for at in 52..56 {
            let mut octets = message(1, Opcode::Load.to_wire(), 4, 56);
            octets[at] = 0x10;
            assert_eq!(status(&octets), Status::BadRequest);
        }
    }

    //= test kbtp-5.2-inline-descriptor-zero
    #[test]
    fn inline_data_has_no_stag_and_no_tagged_offset() {
        for at in 24..36 {
            let mut octets = message(1, Opcode::Store.to_wire(), 1, 40);
            octets[at] = 1;
            assert_eq!(status(&octets), Status::BadRequest);
        }
    }

    //= test kbtp-p7-length-error-inline
    #[test]
    fn a_wrong_inline_length_is_handed_on() {
        let mut octets = message(1, Opcode::AllocStore.to_wire(), 1, 43);
        for (declared, right) in [(0, false), (2, false), (3, true), (4, false)] {
            octets[39] = declared;
            let request = Request::decode(&octets).unwrap();
            let Operation::AllocStore { source, .. } = request.operation else {
                panic!("{request:?}");
            };
            assert_eq!(source.is_as_declared(), right);
            assert_eq!(source.len(), ByteLen(u32::from(declared)));
            assert_eq!(source.is_empty(), declared == 0);
        }
    }

    #[test]
    fn data_to_be_read_is_as_long_as_its_descriptor_says() {
        let mut octets = message(1, Opcode::Store.to_wire(), 0, 40);
        for len in [0, 9] {
            octets[39] = len;
            let request = Request::decode(&octets).unwrap();
            let Operation::Store { source, .. } = request.operation else {
                panic!("{request:?}");
            };
            assert!(source.is_as_declared());
            assert_eq!(source.len(), ByteLen(u32::from(len)));
            assert_eq!(source.is_empty(), len == 0);
        }
    }

    #[test]
    fn an_entry_is_bound_and_sealed_as_its_flags_say() {
        let (valid, sealed) = (EntryFlags::VALID, EntryFlags::SEALED);
        for (flags, expected) in [
            (EntryFlags::NONE, (false, false)),
            (valid, (true, false)),
            (sealed, (false, true)),
            (valid.union(sealed), (true, true)),
        ] {
            let entry = TableEntry {
                flags,
                ..TableEntry::UNBOUND
            };
            assert_eq!((entry.is_valid(), entry.is_sealed()), expected);
        }
    }

    #[test]
    fn a_record_of_no_known_status_is_none() {
        let mut octets = [0; CompletionRecord::LEN];
        for status in [16, u8::MAX] {
            octets[9] = status;
            let unknown = DecodeError::Unknown {
                field: "Status",
                value: u64::from(status),
            };
            assert_eq!(CompletionRecord::decode(&octets), Err(unknown));
        }
    }

    //= test kbtp-5.1-invalidate-data-descriptor
    #[test]
    fn invalidate_names_the_stag_of_the_data_descriptor() {
        for opcode in [Opcode::Load, Opcode::Store, Opcode::AllocStore] {
            for (flags, expected) in [(0, None), (8, Some(Stag(0x0700_0000)))] {
                let mut octets = message(1, opcode.to_wire(), flags, 40);
                octets[24] = 7;
                let request = Request::decode(&octets).unwrap();
                assert_eq!(request.operation.invalidate(), expected);
            }
        }
    }

    fn hello_status(octets: &[u8]) -> Status {
        match Hello::decode(octets) {
            Ok(_) => Status::Ok,
            Err(RequestError::Refused(refusal)) => refusal.status,
            Err(other) => panic!("{other}"),
        }
    }

    fn hello(min: u8, max: u8) -> Vec<u8> {
        let mut octets = message(1, 1, 0, 64);
        octets[19] = 0;
        (octets[24], octets[25]) = (min, max);
        octets
    }

    //= test kbtp-p5-hello-header
    //= test kbtp-p5-hello-first
    #[test]
    fn hello_has_a_header_of_zeros() {
        assert_eq!(hello_status(&hello(1, 1)), Status::Ok);
        // Flags, Block Handle, Generation, Status.
        for at in [2, 3].into_iter().chain(12..24) {
            let mut octets = hello(1, 1);
            octets[at] = 1;
            assert_eq!(hello_status(&octets), Status::BadRequest, "{at}");
        }
        for opcode in (0..=u8::MAX).filter(|opcode| *opcode != 1) {
            let mut octets = hello(1, 1);
            octets[1] = opcode;
            assert_eq!(
                Hello::decode(&octets),
                Err(RequestError::WrongOpcode { opcode })
            );
        }
    }

    //= test kbtp-p7-version-mismatch
    //= test kbtp-p5-tlv-once
    #[test]
    fn hello_names_a_common_version() {
        for (min, max, expected) in [
            (0, 1, Status::Ok),
            (1, 9, Status::Ok),
            (0, 0, Status::VersionMismatch),
            (2, 3, Status::VersionMismatch),
            (2, 1, Status::BadRequest),
        ] {
            assert_eq!(hello_status(&hello(min, max)), expected, "{min} to {max}");
        }
        let mut other = hello(1, 1);
        other[0] = 2;
        assert_eq!(hello_status(&other), Status::VersionMismatch);
        assert_eq!(hello_status(&other[..63]), Status::BadRequest);
        // The TLVs are judged before the versions: P7 puts BAD_REQUEST first.
        let mut twice = hello(2, 2);
        twice.extend([0, 1, 0, 0, 0, 1, 0, 0]);
        assert_eq!(hello_status(&twice), Status::BadRequest);
    }

    //= test kbtp-p6-body-only-if-ok
    #[test]
    fn the_length_of_hello_ack_goes_with_its_status() {
        let mut ok = message(1, 2, 0, 168);
        assert!(HelloAck::decode(&ok).is_ok());
        assert!(matches!(
            HelloAck::decode(&ok[..167]),
            Err(DecodeError::Length { .. })
        ));
        ok[23] = 4;
        assert!(matches!(
            HelloAck::decode(&ok),
            Err(DecodeError::Length { .. })
        ));
        assert!(HelloAck::decode(&ok[..24]).is_ok());
        ok[23] = 16;
        assert!(matches!(
            HelloAck::decode(&ok[..24]),
            Err(DecodeError::Unknown { .. })
        ));
    }

    //= test kbtp-p6-hello-ack-layout
    #[test]
    fn hello_ack_refuses_what_has_no_meaning() {
        for (at, value) in [
            (0, 2),
            (1, 8),
            (2, 1),
            (74, 28),
            (75, 2),
            (164, 1),
            (167, 1),
        ] {
            let mut octets = message(1, 2, 0, 168);
            octets[at] = value;
            assert!(HelloAck::decode(&octets).is_err(), "octet {at}");
        }
    }

    //= test kbtp-p3-completion-layout
    #[test]
    fn completion_refuses_what_has_no_meaning() {
        let good = message(1, 8, 0, 40);
        assert!(Completion::decode_message(&good).is_ok());
        for (at, value) in [(0, 2), (1, 3), (2, 1), (3, 1), (23, 16), (28, 1), (31, 1)] {
            let mut octets = good.clone();
            octets[at] = value;
            assert!(Completion::decode_message(&octets).is_err(), "octet {at}");
        }
        for len in (0..40).chain([41, 64]) {
            let octets = vec![0; len];
            assert_eq!(
                Completion::decode_message(&octets),
                Err(DecodeError::Length {
                    what: "COMPLETION",
                    len,
                    expected: 40
                })
            );
        }
    }

    //= test kbtp-3.3-slot-layout
    #[test]
    fn the_reserved_word_of_a_slot_is_zero_out_and_ignored_in() {
        let mut octets = RingSlot {
            sequence: Ticket(1),
            block: BlockOffset(2),
        }
        .encode();
        assert_eq!(octets[4..8], [0; 4]);
        octets[4..8].fill(0xff);
        assert_eq!(RingSlot::decode(&octets).sequence, Ticket(1));
    }

    //= test kbtp-p9-private-data
    #[test]
    fn private_data_of_another_kind_is_refused() {
        let data = PrivateData {
            auth_mode: AuthMode::None,
            challenge: Challenge([1; 32]),
        };
        for (at, value) in [(0, b'k'), (3, 0), (4, 2), (4, 0), (5, 2)] {
            let mut octets = data.encode();
            octets[at] = value;
            assert!(PrivateData::decode(&octets).is_err(), "octet {at}");
        }
    }
}
