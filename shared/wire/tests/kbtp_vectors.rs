//! The golden vectors of `tests/vectors/kbtp-*.txt`, both ways.
#[cfg(test)]
mod tests {
    use kbtp_wire::*;
    use std::cell::RefCell;
    use std::collections::{BTreeMap, BTreeSet};

    /// The vectors of one file, and those no test has asked for yet.
    struct Vectors {
        all: BTreeMap<String, Vec<u8>>,
        unused: RefCell<BTreeSet<String>>,
    }

    impl Vectors {
        fn read(file: &str) -> Self {
            let path = format!("{}/../../tests/vectors/{file}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(&path).unwrap();
            let mut all = BTreeMap::<String, Vec<u8>>::new();
            let mut name = None;
            for line in text.lines() {
                let line = line.split('#').next().unwrap().trim();
                if let Some(rest) = line.strip_prefix('[') {
                    let new = rest.strip_suffix(']').unwrap().to_owned();
                    assert!(
                        all.insert(new.clone(), Vec::new()).is_none(),
                        "{new} comes twice"
                    );
                    name = Some(new);
                } else if !line.is_empty() {
                    let digits: String = line.split_whitespace().collect();
                    assert!(digits.len().is_multiple_of(2), "half an octet in {line}");
                    let octets = (0..digits.len()).step_by(2);
                    let octets =
                        octets.map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap());
                    all.get_mut(name.as_ref().unwrap()).unwrap().extend(octets);
                }
            }
            let unused = RefCell::new(all.keys().cloned().collect());
            Self { all, unused }
        }

        fn octets(&self, name: &str) -> &[u8] {
            self.unused.borrow_mut().remove(name);
            &self.all[name]
        }

        fn array<const N: usize>(&self, name: &str) -> &[u8; N] {
            self.octets(name).as_array().unwrap()
        }
    }

    impl Drop for Vectors {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                assert_eq!(
                    self.unused.borrow().len(),
                    0,
                    "no test names {:?}",
                    self.unused
                );
            }
        }
    }

    fn buffer(stag: u32, offset: u64, len: u32) -> DataDescriptor {
        DataDescriptor {
            stag: Stag(stag),
            offset: TaggedOffset(offset),
            len: ByteLen(len),
        }
    }

    fn request(id: u64, handle: u64, generation: u16, operation: Operation<'_>) -> Request<'_> {
        Request {
            request_id: RequestId(id),
            handle: Handle(handle),
            generation: Generation::new(generation),
            record: None,
            operation,
        }
    }

    fn recorded(request: Request<'_>, stag: u32, offset: u64) -> Request<'_> {
        let slot = CompletionDescriptor {
            stag: Stag(stag),
            offset: TaggedOffset(offset),
        };
        Request {
            record: Some(slot),
            ..request
        }
    }

    fn stores() -> Vec<(&'static str, Request<'static>)> {
        let remote = |stag, offset, len, invalidate| Source::Remote {
            buffer: buffer(stag, offset, len),
            invalidate,
        };
        let inline = |octets: &'static [u8]| Source::Inline {
            declared: ByteLen(u32::try_from(octets.len()).unwrap()),
            octets,
        };
        let store = |source, seal| Operation::Store { source, seal };
        let alloc = |source, seal| Operation::AllocStore { source, seal };
        vec![
            (
                "store",
                request(2, 3, 1, store(remote(0x100, 0x2000, 0x1000, true), true)),
            ),
            (
                "store-inline",
                request(3, 3, u16::MAX, store(inline(b"hello"), false)),
            ),
            (
                "alloc-store-inline-record",
                recorded(
                    request(4, 4, 0, alloc(inline(&[0xab, 0xcd]), true)),
                    0x200,
                    0x18,
                ),
            ),
            (
                "alloc-store-inline-empty",
                request(5, 5, 0, alloc(inline(&[]), false)),
            ),
            (
                "alloc-store",
                request(
                    6,
                    6,
                    0,
                    alloc(remote(0xdead_beef, u64::MAX << 12, 0xfff, false), false),
                ),
            ),
        ]
    }

    fn others() -> Vec<(&'static str, Request<'static>)> {
        let load = |sink, invalidate, allow_unsealed| Operation::Load {
            sink,
            invalidate,
            allow_unsealed,
        };
        let bind = |ticket, len, block, seal| Operation::Bind {
            bind: Bind {
                ticket: Ticket(ticket),
                data_len: ByteLen(len),
                block: BlockOffset(block),
            },
            seal,
        };
        let sink = buffer(0xa1b2_c3d4, 0x7f00_1234_5000, 0x1_0000);
        let empty = request(
            0xfedc_ba98_7654_3210,
            10,
            7,
            load(buffer(1, 0, 0), true, false),
        );
        vec![
            (
                "load",
                request(1, 0x1122_3344_5566_7788, 0, load(sink, false, true)),
            ),
            (
                "load-record-invalidate",
                recorded(empty, 0x0bad_cafe, 0x1018),
            ),
            ("free", request(7, 7, 0x102, Operation::Free)),
            (
                "free-record",
                recorded(request(8, 8, 0, Operation::Free), 0x300, 0x30),
            ),
            (
                "bind",
                request(9, 9, 0, bind(0x8000_0001, 0x800, 1 << 32, true)),
            ),
            (
                "bind-record",
                recorded(
                    request(10, 10, 0, bind(0, 0, 0x20_0000, false)),
                    0x400,
                    0x48,
                ),
            ),
        ]
    }

    //= test kbtp-5.1-header-layout
    //= test kbtp-5.1-generation-any
    //= test kbtp-5.1-version-one
    //= test kbtp-5.1-status-zero-in-requests
    //= test kbtp-5.2-data-descriptor
    //= test kbtp-5.2-completion-descriptor
    //= test kbtp-5.2-inline-descriptor-zero
    //= test kbtp-5.2-inline-data-follows
    //= test kbtp-p1-message-parts
    //= test kbtp-p4-bind-layout
    //= test kbtp-p7-zero-length-legal
    #[test]
    fn requests() {
        let vectors = Vectors::read("kbtp-requests.txt");
        for (name, request) in stores().into_iter().chain(others()) {
            let octets = vectors.octets(name);
            assert_eq!(Request::decode(octets), Ok(request), "{name}");
            let mut out = [0xee; 128];
            let len = request.encode_into(&mut out).unwrap();
            assert_eq!(&out[..len], octets, "{name}");
            assert_eq!(request.encoded_len(), len, "{name}");
            assert_eq!(out[len], 0xee);
        }
    }

    fn hello() -> Hello<'static> {
        let from = |first: u8| std::array::from_fn(|at| first + u8::try_from(at).unwrap());
        let auth = Auth {
            nonce: Nonce(from(0x10)[..16].try_into().unwrap()),
            mac: from(0x20),
        };
        Hello {
            request_id: RequestId(255),
            min_version: 1,
            max_version: 1,
            credits: 64,
            capabilities: SessionCapabilities::DIRECT_LOAD.union(SessionCapabilities::DIRECT_ALLOC),
            quota: 1024,
            max_inline: ByteLen(4096),
            handles: 2048,
            initiator: InitiatorId(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128.to_be_bytes()),
            tlvs: KnownTlvs {
                tenant: Some("red"),
                auth: Some(auth),
                software: Some("kbtp 0.1"),
            },
        }
    }

    //= test kbtp-p5-hello-layout
    //= test kbtp-p5-hello-header
    //= test kbtp-p9-auth-layout
    #[test]
    fn hellos() {
        let vectors = Vectors::read("kbtp-session.txt");
        let octets = vectors.octets("hello");
        assert_eq!(Hello::decode(octets), Ok(hello()));
        let mut out = [0xee; 256];
        let len = hello().encode_into(&mut out).unwrap();
        assert_eq!(&out[..len], octets);
        assert_eq!(
            hello().initiator.to_string(),
            "00112233-4455-6677-8899-aabbccddeeff"
        );

        let skipping = Hello::decode(vectors.octets("hello-unknown-tlv")).unwrap();
        assert_eq!(
            skipping.tlvs,
            KnownTlvs {
                tenant: Some("blue"),
                ..KnownTlvs::default()
            }
        );
        assert_eq!(skipping.max_version, 2);
        assert_eq!(
            skipping.initiator.0,
            std::array::from_fn(|at| u8::try_from(at).unwrap())
        );
        hello_acks(&vectors);
        private_data(&vectors);
    }

    fn grant() -> Grant {
        let first = 0xf0_u8;
        Grant {
            capabilities: SessionCapabilities(3),
            block_size: ByteLen(0x1_0000),
            pool_blocks: 0x10_0000,
            quota: 1024,
            handle_base: Handle(0x1000),
            handle_count: 0x800,
            table_base: Handle(0x10),
            table_count: 0x1_0000,
            credits: 64,
            ring_order: RingOrder::new(10).unwrap(),
            atomic_form: AtomicForm::Masked,
            max_inline: ByteLen(4096),
            ticket_timeout_ms: 30_000,
            table_stag: Stag(0x1111_1111),
            table_offset: TaggedOffset(0x2222_0000),
            pool_stag: Stag(0x3333_3333),
            partition_stag: Stag(0x4444_4444),
            partition_offset: TaggedOffset(0x55_5500_0000),
            partition_len: 0x400_0000,
            ring_stag: Stag(0x6666_6666),
            counter_stag: Stag(0x7777_7777),
            ring_offset: TaggedOffset(0x8888_0000),
            head_offset: TaggedOffset(0x9999_0008),
            instance: InstanceId(std::array::from_fn(|at| first + u8::try_from(at).unwrap())),
            lease_ms: 60_000,
        }
    }

    //= test kbtp-p6-hello-ack-layout
    //= test kbtp-p6-body-only-if-ok
    fn hello_acks(vectors: &Vectors) {
        let tlvs = KnownTlvs {
            software: Some("x"),
            ..KnownTlvs::default()
        };
        let request_id = RequestId(255);
        let granted = HelloAck::Granted {
            request_id,
            grant: grant(),
            tlvs,
        };
        let refused = HelloAck::Refused {
            request_id,
            status: Status::NotAuthorized,
        };
        for (name, ack) in [("hello-ack", granted), ("hello-ack-refused", refused)] {
            let octets = vectors.octets(name);
            assert_eq!(HelloAck::decode(octets), Ok(ack), "{name}");
            let mut out = [0xee; 256];
            let len = ack.encode_into(&mut out).unwrap();
            assert_eq!(&out[..len], octets, "{name}");
        }
    }

    //= test kbtp-p9-private-data
    fn private_data(vectors: &Vectors) {
        let octets = vectors.array("private-data");
        let data = PrivateData::decode(octets).unwrap();
        assert_eq!(data.auth_mode, AuthMode::Hmac);
        assert_eq!(
            data.challenge.0,
            std::array::from_fn(|at| u8::try_from(at).unwrap())
        );
        assert_eq!(&data.encode(), octets);
    }

    //= test kbtp-p3-completion-layout
    //= test kbtp-p3-zero-unless-ok
    //= test kbtp-6.5-record-layout
    //= test kbtp-p3-record-immediate
    #[test]
    fn completions() {
        let vectors = Vectors::read("kbtp-completions.txt");
        let ok = Completion {
            request_id: RequestId(1),
            handle: Handle(0x1122_3344_5566_7788),
            generation: Generation::new(7),
            status: Status::Ok,
            data_len: ByteLen(0x1_0000),
            block: BlockOffset(0x20_0000),
        };
        let failed = |id, generation, status| {
            Completion::failed(
                RequestId(id),
                Handle(9),
                Generation::new(generation),
                status,
            )
        };
        let long = Completion {
            data_len: ByteLen(0x2_0000),
            ..failed(2, 2, Status::LengthError)
        };
        for (name, completion) in [
            ("completion-ok", ok),
            ("completion-length-error", long),
            ("completion-not-valid", failed(3, 0, Status::NotValid)),
        ] {
            let octets = vectors.array(name);
            assert_eq!(Completion::decode(octets), Ok(completion), "{name}");
            assert_eq!(&completion.encode(), octets, "{name}");
        }

        let record = CompletionRecord {
            request_id: RequestId(0x0123_4567_89ab_cdef),
            status: Status::GenerationMismatch,
            generation: Generation::new(u16::MAX),
            data_len: ByteLen(0),
            block: BlockOffset(0),
        };
        let octets = vectors.array("record");
        assert_eq!(CompletionRecord::decode(octets), Ok(record));
        assert_eq!(&record.encode(), octets);
        assert_eq!(CompletionRecord::immediate(record.request_id), 0x89ab_cdef);
    }

    //= test kbtp-3.2-entry-layout
    //= test kbtp-3.3-slot-layout
    //= test kbtp-3.3-empty-all-ones
    //= test kbtp-p10-big-endian-structures
    #[test]
    fn memory() {
        let vectors = Vectors::read("kbtp-memory.txt");
        let sealed = TableEntry {
            flags: EntryFlags::VALID.union(EntryFlags::SEALED),
            generation: Generation::new(0x102),
            data_len: ByteLen(4096),
            block: BlockOffset(0x7f00_0040_0000),
        };
        for (name, entry) in [
            ("entry-sealed", sealed),
            ("entry-unbound", TableEntry::UNBOUND),
        ] {
            let octets = vectors.array(name);
            assert_eq!(TableEntry::decode(octets), entry);
            assert_eq!(&entry.encode(), octets);
            assert_eq!(TableEntry::from_words(entry.to_words()), entry);
            assert_eq!(
                entry.is_valid() && entry.is_sealed(),
                name == "entry-sealed"
            );
        }
        assert_eq!(sealed.to_words(), [0x0003_0102, 4096, 0x7f00, 0x40_0000]);

        let free = RingSlot {
            sequence: Ticket(3),
            block: BlockOffset(0x3_0000),
        };
        let consumed = RingSlot {
            sequence: Ticket(u32::MAX - 1),
            block: BlockOffset::EMPTY,
        };
        for (name, slot) in [("slot-free", free), ("slot-consumed", consumed)] {
            let octets = vectors.array(name);
            assert_eq!(RingSlot::decode(octets), slot);
            assert_eq!(&slot.encode(), octets);
        }
        assert!(consumed.is_consumed() && !free.is_consumed());
        assert_eq!(free.block_for(Ticket(3)), Some(BlockOffset(0x3_0000)));
        assert_eq!(free.block_for(Ticket(4)), None);
        assert_eq!(consumed.block_for(consumed.sequence), None);
    }
}
