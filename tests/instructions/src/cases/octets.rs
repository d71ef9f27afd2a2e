//! Octets to values and back, and the CRC.

use super::Failure;
use kbtp_memory::{PageOptions, Region, crc32c};
use kbtp_wire::ddp::{Msn, QueueNumber, TaggedHeader, UntaggedHeader};
use kbtp_wire::{
    BlockOffset, ByteLen, Completion, DataDescriptor, EntryFlags, Generation, Handle, Operation,
    Request, RequestId, RingSlot, Stag, Status, TableEntry, TaggedOffset, Ticket,
};
use std::hint::black_box;
use std::io::Write;

pub(super) fn request(times: u32) -> Result<(), Failure> {
    let mut octets = [0; 64];
    for n in 0..times {
        let request = Request {
            request_id: RequestId(n.into()),
            handle: Handle(7),
            generation: None,
            record: None,
            operation: Operation::Load {
                sink: DataDescriptor {
                    stag: Stag(9),
                    offset: TaggedOffset(0x1000),
                    len: ByteLen(4096),
                },
                invalidate: false,
                allow_unsealed: false,
            },
        };
        let len = black_box(&request).encode_into(&mut octets)?;
        let message = octets.get(..len).unwrap_or_default();
        let back = Request::decode(black_box(message)).map_err(|error| format!("{error:?}"))?;
        same(back.request_id.0, n.into())?;
    }
    Ok(())
}

pub(super) fn completion(times: u32) -> Result<(), Failure> {
    for n in 0..times {
        let completion = Completion {
            request_id: RequestId(n.into()),
            handle: Handle(7),
            generation: Some(Generation::FIRST),
            status: Status::Ok,
            data_len: ByteLen(4096),
            block: BlockOffset(1 << 40),
        };
        let octets = black_box(&completion).encode();
        let back = Completion::decode_message(black_box(&octets))?;
        same(back.request_id.0, n.into())?;
    }
    Ok(())
}

pub(super) fn headers(times: u32) -> Result<(), Failure> {
    for n in 0..times {
        let tagged = TaggedHeader {
            last: true,
            version: 1,
            ulp: 0x40,
            stag: Stag(n),
            offset: TaggedOffset(0x1000),
        };
        let octets = black_box(&tagged).encode();
        same(
            TaggedHeader::decode(black_box(&octets)).stag.0.into(),
            n.into(),
        )?;
        let untagged = UntaggedHeader {
            last: true,
            version: 1,
            ulp: 0x43,
            ulp_word: 0,
            queue: QueueNumber(0),
            msn: Msn(n),
            message_offset: 0,
        };
        let octets = black_box(&untagged).encode();
        same(
            UntaggedHeader::decode(black_box(&octets)).msn.0.into(),
            n.into(),
        )?;
    }
    Ok(())
}

pub(super) fn entry(times: u32) -> Result<(), Failure> {
    for n in 0..times {
        let entry = TableEntry {
            flags: EntryFlags::VALID,
            generation: Some(Generation::FIRST),
            data_len: ByteLen(n),
            block: BlockOffset(1 << 40),
        };
        let octets = black_box(&entry).encode();
        same(
            TableEntry::decode(black_box(&octets)).data_len.0.into(),
            n.into(),
        )?;
        let slot = RingSlot {
            sequence: Ticket(n),
            block: BlockOffset(1 << 40),
        };
        let octets = black_box(&slot).encode();
        same(
            RingSlot::decode(black_box(&octets)).sequence.0.into(),
            n.into(),
        )?;
    }
    Ok(())
}

pub(super) fn crc(times: u32) -> Result<(), Failure> {
    let region = Region::anonymous(4096, &PageOptions::default())?;
    let mut crc = 0;
    for _ in 0..times {
        crc = black_box(&region).crc32c(0, 4096, crc)?;
    }
    black_box(crc);
    Ok(())
}

/// What this processor has that decides how octets are copied and summed.
pub(super) fn processor(_times: u32) -> Result<(), Failure> {
    #[cfg(target_arch = "x86_64")]
    let wide = std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    let wide = false;
    let wide = if wide { ", avx2" } else { "" };
    writeln!(std::io::stdout(), "crc by {}{wide}", crc32c::method())?;
    Ok(())
}

/// What came back is what was sent.
pub(super) fn same(found: u64, expected: u64) -> Result<(), Failure> {
    if found == expected {
        Ok(())
    } else {
        Err(format!("{found} where {expected} belongs").into())
    }
}
