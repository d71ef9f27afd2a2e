//! The golden vectors of `tests/vectors/mpa-frames.txt` and `ddp-rdmap.txt`, both ways.
#[cfg(test)]
mod tests {
    use kbtp_wire::ddp::{Msn, QueueNumber, TaggedHeader, UntaggedHeader};
    use kbtp_wire::mpa::{
        EnhancedData, FrameKind, Marker, MarkerClock, ReadDepth, RtrKinds, StartupFlags,
        StartupFrame, fpdu_len,
    };
    use kbtp_wire::rdmap::{
        AtomicOperation, AtomicRequest, AtomicResponse, HeaderControl, ImmediateData, MpaCode,
        ProtectionCode, RdmapControl, RdmapOpcode, ReadRequest, TerminateCause, TerminateControl,
    };
    use kbtp_wire::{ByteLen, Stag, TaggedOffset};
    use std::collections::BTreeMap;

    /// The vectors of one file; each must be taken once.
    struct Vectors(BTreeMap<String, Vec<u8>>);

    impl Vectors {
        fn read(file: &str) -> Self {
            let path = format!("{}/../../tests/vectors/{file}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path).unwrap();
            let mut all = BTreeMap::<String, Vec<u8>>::new();
            let mut name = String::new();
            for line in text.lines() {
                let line = line.split('#').next().unwrap().trim();
                if let Some(rest) = line.strip_prefix('[') {
                    rest.strip_suffix(']').unwrap().clone_into(&mut name);
                    assert!(all.insert(name.clone(), Vec::new()).is_none());
                } else {
                    let digits: Vec<char> = line.chars().filter(|c| !c.is_whitespace()).collect();
                    for pair in digits.chunks(2) {
                        let pair: String = pair.iter().collect();
                        let octet = u8::from_str_radix(&pair, 16).unwrap();
                        all.get_mut(&name).unwrap().push(octet);
                    }
                }
            }
            Self(all)
        }

        fn take(&mut self, name: &str) -> Vec<u8> {
            self.0.remove(name).unwrap()
        }

        fn end(self) {
            assert_eq!(self.0.keys().collect::<Vec<_>>(), [""; 0], "no test names");
        }
    }

    fn startup(octets: &[u8], kind: FrameKind, flags: StartupFlags, revision: u8) -> &[u8] {
        let (head, private) = octets.split_first_chunk().unwrap();
        let frame = StartupFrame {
            kind,
            flags,
            revision,
            private_len: u16::try_from(private.len()).unwrap(),
        };
        assert_eq!(StartupFrame::decode(head, kind), Ok(frame));
        assert_eq!(frame.encode(), *head);
        private
    }

    #[test]
    fn startup_frames() {
        //= test rfc5044-7.1.1-res
        //= test rfc6581-9-network-order
        //= test rfc6581-6-enhanced-data-first
        let mut vectors = Vectors::read("mpa-frames.txt");
        let none = StartupFlags::default();
        let crc = StartupFlags { crc: true, ..none };
        let both = StartupFlags {
            enhanced: true,
            ..crc
        };
        let octets = vectors.take("request-rev1");
        assert_eq!(startup(&octets, FrameKind::Request, crc, 1), b"");

        let octets = vectors.take("request-rev2");
        let private = startup(&octets, FrameKind::Request, both, 2);
        let data = EnhancedData {
            ird: ReadDepth::clamped(8),
            ord: ReadDepth::clamped(16),
            peer_to_peer: None,
        };
        assert_eq!(EnhancedData::decode(*private.first_chunk().unwrap()), data);
        assert_eq!(data.encode()[..], private[..4]);
        assert_eq!(&private[4..], b"hi");

        let octets = vectors.take("request-p2p");
        let private = startup(&octets, FrameKind::Request, both, 2);
        let data = EnhancedData {
            ird: ReadDepth::clamped(1),
            ord: ReadDepth::clamped(2),
            peer_to_peer: Some(RtrKinds {
                send: true,
                write: true,
                read: true,
            }),
        };
        assert_eq!(EnhancedData::decode(*private.first_chunk().unwrap()), data);
        assert_eq!(data.encode()[..], *private);

        let octets = vectors.take("reply-rejected");
        let rejected = StartupFlags {
            markers: true,
            rejected: true,
            ..none
        };
        startup(&octets, FrameKind::Reply, rejected, 1);

        //= test rfc5044-4.1-fpdu-format
        let first = vectors.take("fpdu-first");
        assert_eq!(first.len(), fpdu_len(0x2A) + 4);
        assert_eq!(MarkerClock::START.wire_len(48), 0x34);
        let second = vectors.take("fpdu-second");
        assert_eq!(Marker { fpdu_pointer: 0x14 }.encode(), second[0x14..0x18]);
        vectors.end();
    }

    fn untagged(
        octets: &[u8],
        opcode: RdmapOpcode,
        ulp_word: u32,
        (queue, msn, message_offset): (u32, u32, u32),
    ) -> &[u8] {
        let (head, rest) = octets.split_first_chunk().unwrap();
        let header = UntaggedHeader {
            last: true,
            version: 1,
            ulp: RdmapControl::encode(opcode),
            ulp_word,
            queue: QueueNumber(queue),
            msn: Msn(msn),
            message_offset,
        };
        assert_eq!(UntaggedHeader::decode(head), header);
        assert_eq!(header.encode(), *head);
        rest
    }

    fn tagged(octets: &[u8], opcode: RdmapOpcode, last: bool) {
        let header = TaggedHeader {
            last,
            version: 1,
            ulp: RdmapControl::encode(opcode),
            stag: Stag(0x0102_0304),
            offset: TaggedOffset(0x1112_1314_1516_1718),
        };
        assert_eq!(TaggedHeader::decode(octets.as_array().unwrap()), header);
        assert_eq!(header.encode(), octets);
    }

    #[test]
    fn segments() {
        //= test rfc5041-4.2-tagged-header
        //= test rfc5041-4.3-untagged-header
        //= test rfc5040-4.1-control-field
        //= test rfc5040-4.1-version
        //= test rfc5040-4.1-invalidate-stag-place
        //= test rfc5040-4.4-read-request-header
        //= test rfc5040-4.8-terminate-header
        let mut vectors = Vectors::read("ddp-rdmap.txt");
        tagged(&vectors.take("write"), RdmapOpcode::Write, true);
        tagged(
            &vectors.take("read-response"),
            RdmapOpcode::ReadResponse,
            false,
        );
        untagged(&vectors.take("send"), RdmapOpcode::Send, 0, (0, 2, 256));
        untagged(
            &vectors.take("send-se-invalidate"),
            RdmapOpcode::SendSolicitedInvalidate,
            0xA1A2_A3A4,
            (0, 1, 0),
        );
        let octets = vectors.take("read-request");
        let rest = untagged(&octets, RdmapOpcode::ReadRequest, 0, (1, 3, 0));
        let request = ReadRequest {
            sink_stag: Stag(0xB1B2_B3B4),
            sink_offset: TaggedOffset(0x1000),
            len: ByteLen(0x1_0000),
            source_stag: Stag(0xC1C2_C3C4),
            source_offset: TaggedOffset(0x2000),
        };
        assert_eq!(ReadRequest::decode(rest.as_array().unwrap()), request);
        assert_eq!(request.encode(), *rest);

        let terminate = vectors.take("terminate-read");
        let rest = untagged(&terminate, RdmapOpcode::Terminate, 0, (2, 1, 0));
        let control = TerminateControl {
            cause: TerminateCause::Protection(ProtectionCode::BaseOrBounds),
            headers: HeaderControl {
                segment_len: true,
                ddp_header: true,
                rdmap_header: true,
            },
        };
        assert_eq!(control.encode()[..], rest[..4]);
        assert_eq!(rest[4..6], u16::to_be_bytes(46));
        assert_eq!(rest[6..], octets);

        let octets = vectors.take("terminate-crc");
        let rest = untagged(&octets, RdmapOpcode::Terminate, 0, (2, 1, 0));
        let control = TerminateControl {
            cause: TerminateCause::Mpa(MpaCode::Crc),
            headers: HeaderControl::default(),
        };
        assert_eq!(TerminateControl::decode(*rest.as_array().unwrap()), control);
        vectors_of_extensions(vectors);
    }

    /// RFC 7306.
    fn vectors_of_extensions(mut vectors: Vectors) {
        //= test rfc7306-4.1-version
        let octets = vectors.take("fetch-add");
        let rest = untagged(&octets, RdmapOpcode::AtomicRequest, 0, (1, 1, 0));
        let request = AtomicRequest {
            request_id: 9,
            stag: Stag(0xD1D2_D3D4),
            offset: TaggedOffset(0x40),
            operation: AtomicOperation::FetchAdd {
                add: 0x0000_0001_0000_0010,
                mask: 0x8000_0000_8000_0040,
            },
        };
        assert_eq!(AtomicRequest::decode(rest.as_array().unwrap()), Ok(request));
        assert_eq!(request.encode(), *rest);

        let octets = vectors.take("cmp-swap");
        let rest = untagged(&octets, RdmapOpcode::AtomicRequest, 0, (1, 2, 0));
        let request = AtomicRequest {
            request_id: 10,
            stag: Stag(0xD1D2_D3D4),
            offset: TaggedOffset(0x48),
            operation: AtomicOperation::CmpSwap {
                compare: 0xCD,
                compare_mask: u64::MAX,
                swap: 0xAB,
                swap_mask: 0xFF,
            },
        };
        assert_eq!(AtomicRequest::decode(rest.as_array().unwrap()), Ok(request));
        assert_eq!(request.encode(), *rest);

        let octets = vectors.take("atomic-response");
        let rest = untagged(&octets, RdmapOpcode::AtomicResponse, 0, (3, 1, 0));
        let response = AtomicResponse {
            request_id: 9,
            original: 0x0000_0005_0000_0070,
        };
        assert_eq!(AtomicResponse::decode(rest.as_array().unwrap()), response);
        assert_eq!(response.encode(), *rest);

        let octets = vectors.take("immediate");
        let rest = untagged(&octets, RdmapOpcode::Immediate, 0, (0, 1, 0));
        let data = ImmediateData::decode(*rest.as_array().unwrap());
        assert_eq!(data, ImmediateData(0xDEAD_BEEF));
        assert_eq!(data.encode(), *rest);
        vectors.end();
    }
}
