//! KBTP messages and the structures in a target's memory.

use kbtp_wire::{
    Completion, CompletionRecord, Hello, HelloAck, KnownTlvs, MAX_TLVS, PrivateData, Request,
    RequestError, RingCounter, RingOrder, RingSlot, Status, TableEntry, Tlvs,
};

/// Room for what is encoded anew: no input is longer than a mutation can make it.
const ROOM: usize = 8192;

pub(super) fn request(octets: &[u8]) {
    match Request::decode(octets) {
        Ok(request) => {
            // A request has one spelling: what was taken is written the same.
            let mut out = [0; ROOM];
            let len = request.encode_into(&mut out).unwrap_or(0);
            assert_eq!(out.get(..len), Some(octets));
        }
        Err(RequestError::Refused(refusal)) => {
            assert!(matches!(
                refusal.status,
                Status::BadRequest | Status::VersionMismatch | Status::Unsupported
            ));
            assert_eq!(octets.get(..24), Some(&refusal.header.encode()[..]));
        }
        Err(other) => assert_eq!(other, RequestError::TooShort { len: octets.len() }),
    }
}

pub(super) fn hello(octets: &[u8]) {
    if let Ok(hello) = Hello::decode(octets) {
        let mut out = [0; ROOM];
        let len = hello.encode_into(&mut out).unwrap_or(0);
        // Unknown TLVs are dropped, so that the octets may differ; the meaning may not.
        assert!(len <= octets.len() && len == hello.encoded_len());
        assert_eq!(out.get(..64), octets.get(..64));
        assert_eq!(out.get(..len).map(Hello::decode), Some(Ok(hello)));
    }
}

pub(super) fn hello_ack(octets: &[u8]) {
    if let Ok(ack) = HelloAck::decode(octets) {
        let mut out = [0; ROOM];
        let len = ack.encode_into(&mut out).unwrap_or(0);
        assert!(len <= octets.len() && len == ack.encoded_len());
        assert_eq!(out.get(..len).map(HelloAck::decode), Some(Ok(ack)));
    }
}

pub(super) fn completion(octets: &[u8]) {
    if let Ok(completion) = Completion::decode_message(octets) {
        assert_eq!(completion.encode(), octets);
    }
}

pub(super) fn record(octets: &[u8]) {
    if let Some(octets) = octets.as_array()
        && let Ok(record) = CompletionRecord::decode(octets)
    {
        assert_eq!(&record.encode(), octets);
    }
}

pub(super) fn private_data(octets: &[u8]) {
    if let Some(octets) = octets.as_array()
        && let Ok(data) = PrivateData::decode(octets)
    {
        assert_eq!(PrivateData::decode(&data.encode()), Ok(data));
    }
}

pub(super) fn tlvs(octets: &[u8]) {
    let mut taken = 0;
    let mut failed = false;
    for tlv in Tlvs::new(octets) {
        assert!(!failed, "the iterator went on after an error");
        match tlv {
            Ok(tlv) => taken += 4 + tlv.value.len().next_multiple_of(4),
            Err(_) => failed = true,
        }
    }
    assert!(failed || taken == octets.len());
    assert!(Tlvs::new(octets).count() <= MAX_TLVS + 1);
    if let Ok(known) = KnownTlvs::decode(octets) {
        assert!(!failed);
        let mut out = [0; ROOM];
        let len = known.encode_into(&mut out).unwrap_or(0);
        assert_eq!(out.get(..len).map(KnownTlvs::decode), Some(Ok(known)));
    }
}

/// A table entry, a ring slot and a counter; the first octet picks the ring's order.
pub(super) fn memory(octets: &[u8]) {
    let Some((&n, rest)) = octets.split_first() else {
        return;
    };
    if let Some(octets) = rest.first_chunk() {
        let entry = TableEntry::decode(octets);
        assert_eq!(&entry.encode(), octets);
        assert_eq!(TableEntry::from_words(entry.to_words()), entry);
        let slot = RingSlot::decode(octets);
        assert_eq!(RingSlot::decode(&slot.encode()), slot);
        assert_eq!(slot.block_for(slot.sequence).is_none(), slot.is_consumed());
    }
    if let (Some(octets), Some(order)) = (rest.first_chunk(), RingOrder::new(n % 28)) {
        let counter = RingCounter(u64::from_be_bytes(*octets));
        let next = counter.advanced(order);
        assert_eq!(next.ticket(), counter.ticket().next());
        assert!(u64::from(counter.slot_offset(order).0) < order.ring_len());
    }
}
