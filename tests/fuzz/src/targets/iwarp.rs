//! MPA, DDP and RDMAP structures.

use kbtp_wire::ddp::{DdpControl, QueueNumber, TaggedHeader, UntaggedHeader};
use kbtp_wire::mpa::{EnhancedData, FrameKind, MAX_PRIVATE_LEN, Marker, StartupFrame};
use kbtp_wire::rdmap::{
    AtomicRequest, AtomicResponse, ImmediateData, RdmapControl, ReadRequest, TerminateControl,
};

/// A Request or Reply Frame and what may follow it.
pub(super) fn startup(octets: &[u8]) {
    let Some((head, rest)) = octets.split_first_chunk() else {
        return;
    };
    let mut taken = 0;
    for kind in [FrameKind::Request, FrameKind::Reply] {
        if let Ok(frame) = StartupFrame::decode(head, kind) {
            taken += 1;
            assert_eq!(frame.kind, kind);
            assert!(frame.private_len <= MAX_PRIVATE_LEN);
            assert!(!frame.flags.enhanced || usize::from(frame.private_len) >= EnhancedData::LEN);
            assert_eq!(StartupFrame::decode(&frame.encode(), kind), Ok(frame));
        }
    }
    assert!(taken <= 1, "a frame is of one kind");
    if let Some(data) = rest.first_chunk() {
        let enhanced = EnhancedData::decode(*data);
        assert_eq!(EnhancedData::decode(enhanced.encode()), enhanced);
        let marker = Marker::decode(*data);
        assert_eq!(Marker::decode(marker.encode()), marker);
    }
}

/// One DDP segment: its header, the RDMAP control octet in it, and the RDMAP header its queue asks for.
pub(super) fn ddp_segment(octets: &[u8]) {
    let Some(&first) = octets.first() else {
        return;
    };
    let control = DdpControl::decode(first);
    assert_eq!(DdpControl::decode(control.encode()), control);
    if let Some(&second) = octets.get(1)
        && let Ok(opcode) = RdmapControl::decode(second).opcode
    {
        assert_eq!(
            RdmapControl::decode(RdmapControl::encode(opcode)).opcode,
            Ok(opcode)
        );
    }
    if let Some((head, _)) = octets.split_first_chunk() {
        let header = TaggedHeader::decode(head);
        assert_eq!(TaggedHeader::decode(&header.encode()), header);
    }
    if let Some((head, rest)) = octets.split_first_chunk() {
        let header = UntaggedHeader::decode(head);
        assert_eq!(UntaggedHeader::decode(&header.encode()), header);
        rdmap_header(header.queue, rest);
    }
}

fn rdmap_header(queue: QueueNumber, octets: &[u8]) {
    if let Some((head, _)) = octets.split_first_chunk() {
        let request = ReadRequest::decode(head);
        assert_eq!(ReadRequest::decode(&request.encode()), request);
    }
    if let Some((head, _)) = octets.split_first_chunk()
        && let Ok(request) = AtomicRequest::decode(head)
    {
        assert_eq!(AtomicRequest::decode(&request.encode()), Ok(request));
    }
    if let Some((head, _)) = octets.split_first_chunk() {
        let response = AtomicResponse::decode(head);
        assert_eq!(&response.encode(), head);
    }
    if let Some((head, _)) = octets.split_first_chunk() {
        assert_eq!(ImmediateData::decode(*head).encode(), *head);
    }
    if queue == QueueNumber::TERMINATE {
        terminate(octets);
    }
}

/// The control word of a Terminate, in words too: the peer's code goes into a log.
pub(super) fn terminate(octets: &[u8]) {
    if let Some((head, _)) = octets.split_first_chunk() {
        let head: &[u8; TerminateControl::LEN] = head;
        let control = TerminateControl::decode(*head);
        assert_eq!(TerminateControl::decode(control.encode()), control);
        let (layer, kind, code) = control.cause.triple();
        let [first, second, ..] = *head;
        assert_eq!(layer << 4 | kind, first);
        // The code of a catastrophic error of RDMAP or DDP means nothing.
        assert!(code == second || matches!(first, 0x00 | 0x10));
        assert!(!control.cause.to_string().is_empty());
    }
}
