//! The initiator against a target that the test writes by hand, message by message.

mod direct;
mod random;
mod records;
mod requests;
mod session;

use super::*;
use kbtp_fabric::{LocalBuffer, WorkRequest};
use kbtp_wire::{
    BlockOffset, ByteLen, Completion, DataDescriptor, Generation, Grant, Handle, Header, HelloAck,
    InitiatorId, KnownTlvs, Opcode, RequestFlags, RequestId, Status, TableEntry,
};

pub(super) const BLOCK: u32 = 4096;
pub(super) const CREDITS: u16 = 4;
pub(super) const TABLE: Stag = Stag(0x7ab1e);
pub(super) const POOL: Stag = Stag(0x9001);
pub(super) const PARTITION: Stag = Stag(0x9a47);
pub(super) const RING: Stag = Stag(0x4146);
pub(super) const COUNTER: Stag = Stag(0xc047);
pub(super) const RECORDS: Stag = Stag(0x4ec0);
pub(super) const SCRATCH: Stag = Stag(0x5c4a);
pub(super) const NOW: Time = Time(1_000_000_000);

/// Work as it was posted, with its octets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Posted {
    Send {
        head: Vec<u8>,
        tail: Option<LocalBuffer>,
    },
    Write {
        local: LocalBuffer,
        to: (Stag, u64),
    },
    Read {
        local: LocalBuffer,
        from: (Stag, u64),
    },
    FetchAdd {
        at: (Stag, u64),
        add: u64,
        mask: u64,
    },
}

pub(super) fn buffer(stag: u32, len: u32) -> LocalBuffer {
    LocalBuffer {
        stag: Stag(stag),
        offset: TaggedOffset(0x1000),
        len: ByteLen(len),
    }
}

pub(super) fn private_data(auth_mode: u8) -> Vec<u8> {
    let mut octets = b"KBTP\x01".to_vec();
    octets.extend([auth_mode, 0, 0]);
    octets.extend([0xc4; 32]);
    octets
}

pub(super) fn settings() -> Settings {
    Settings {
        capabilities: SessionCapabilities::DIRECT_LOAD.union(SessionCapabilities::DIRECT_ALLOC),
        max_inline: ByteLen(64),
        max_direct_loads: 2,
        ..Settings::new(InitiatorId([7; 16]))
    }
}

/// 16 handles from 100, a table of 32 from 96, 16 blocks of the pool, a quota of 8 in a ring of 8.
pub(super) fn grant() -> Grant {
    Grant {
        capabilities: settings().capabilities,
        block_size: ByteLen(BLOCK),
        pool_blocks: 16,
        quota: 8,
        handle_base: Handle(100),
        handle_count: 16,
        table_base: Handle(96),
        table_count: 32,
        credits: CREDITS,
        ring_order: kbtp_wire::RingOrder::new(3).unwrap(),
        max_inline: ByteLen(64),
        ticket_timeout_ms: 1000,
        table_stag: TABLE,
        table_offset: TaggedOffset(0x100),
        pool_stag: POOL,
        partition_stag: PARTITION,
        partition_offset: TaggedOffset(0x10000),
        partition_len: 8 * u64::from(BLOCK),
        ring_stag: RING,
        counter_stag: COUNTER,
        ring_offset: TaggedOffset(0x200),
        head_offset: TaggedOffset(0x40),
        lease_ms: 60_000,
        ..Grant::default()
    }
}

pub(super) fn ack(request_id: RequestId, grant: Grant) -> Vec<u8> {
    let ack = HelloAck::Granted {
        request_id,
        grant,
        tlvs: KnownTlvs::default(),
    };
    let mut octets = vec![0; ack.encoded_len()];
    ack.encode_into(&mut octets).unwrap();
    octets
}

/// The initiator, the memory it reads into, and the time.
pub(super) struct Rig {
    pub(super) initiator: Initiator,
    scratch: Region,
    pub(super) records: Region,
    pub(super) now: Time,
    ids: Vec<WorkId>,
}

impl Rig {
    /// Nothing posted yet.
    pub(super) fn new(settings: Settings) -> Self {
        let memory = |len| Region::anonymous(len, &kbtp_memory::PageOptions::default()).unwrap();
        let scratch = memory(Initiator::SCRATCH_LEN);
        let records = memory(Initiator::RECORDS_LEN);
        let initiator = Initiator::new(
            settings,
            &private_data(0),
            Nonce([9; 16]),
            Atomics::Masked,
            Some(Scratch {
                region: scratch.clone(),
                stag: SCRATCH,
                base: TaggedOffset(0),
            }),
            Some(Records {
                region: records.clone(),
                stag: RECORDS,
                base: TaggedOffset(0x1000),
            }),
            NOW.after_ms(100),
        )
        .unwrap();
        Self {
            initiator,
            scratch,
            records,
            now: NOW,
            ids: Vec::new(),
        }
    }

    /// An open session with the terms of [`grant`].
    pub(super) fn open() -> Self {
        Self::granted(grant())
    }

    pub(super) fn granted(grant: Grant) -> Self {
        let mut rig = Self::new(settings());
        assert_eq!(rig.post().len(), 1);
        rig.receive(&ack(Initiator::HELLO_ID, grant)).unwrap();
        assert!(rig.initiator.is_open());
        rig
    }

    /// Posts everything there is.
    pub(super) fn post(&mut self) -> Vec<Posted> {
        let mut all = Vec::new();
        while let Some(posted) = self.post_one() {
            all.push(posted);
        }
        all
    }

    /// Posts one piece of work.
    pub(super) fn post_one(&mut self) -> Option<Posted> {
        let work = self.initiator.work()?;
        let posted = match work.request {
            WorkRequest::Send {
                head,
                tail,
                invalidate: None,
                solicited: false,
            } => Posted::Send {
                head: head.to_vec(),
                tail,
            },
            WorkRequest::Write {
                local,
                remote,
                immediate: None,
            } => Posted::Write {
                local,
                to: (remote.stag, remote.offset.0),
            },
            WorkRequest::Read { local, remote } => Posted::Read {
                local,
                from: (remote.stag, remote.offset.0),
            },
            WorkRequest::FetchAdd { remote, add, mask } => Posted::FetchAdd {
                at: (remote.stag, remote.offset.0),
                add,
                mask,
            },
            other => panic!("unexpected work {other:?}"),
        };
        if work.signaled {
            self.ids.push(work.id);
        }
        self.initiator.posted(self.now);
        Some(posted)
    }

    /// The next single message that is posted, as a header and what follows.
    pub(super) fn message(&mut self) -> (Header, Vec<u8>, Option<LocalBuffer>) {
        match self.post_one() {
            Some(Posted::Send { head, tail }) => {
                let (header, body) = head.split_first_chunk().unwrap();
                (Header::decode(header), body.to_vec(), tail)
            }
            other => panic!("a message was expected, not {other:?}"),
        }
    }

    pub(super) fn receive(&mut self, message: &[u8]) -> Result<(), SessionError> {
        self.initiator.handle_received(message, None)
    }

    /// The oldest signalled work ended.
    pub(super) fn done(&mut self, outcome: WorkOutcome) -> Result<(), SessionError> {
        let id = self.ids.remove(0);
        self.initiator.handle_done(self.now, id, outcome)
    }

    /// The oldest signalled work was a read into scratch memory and brought these octets.
    pub(super) fn read(&mut self, local: LocalBuffer, octets: &[u8]) -> Result<(), SessionError> {
        assert_eq!((local.stag, local.len.0), (SCRATCH, 16));
        let written = self.scratch.write(local.offset.0, octets);
        assert!(written.is_ok());
        self.done(WorkOutcome::Read)
    }

    pub(super) fn after_ms(&mut self, ms: u64) {
        self.now = self.now.after_ms(ms);
        self.initiator.handle_timeout(self.now).unwrap();
    }

    pub(super) fn finished(&mut self) -> Vec<Finished> {
        std::iter::from_fn(|| self.initiator.poll_finished()).collect()
    }

    /// The one operation that ended.
    pub(super) fn result(&mut self) -> Result<Done, Failure> {
        let finished = self.finished();
        assert_eq!(finished.len(), 1, "{finished:?}");
        finished[0].result
    }
}

/// A COMPLETION with status OK.
pub(super) fn ok(header: &Header, generation: u16, len: u32, block: u64) -> Vec<u8> {
    Completion {
        request_id: header.request_id,
        handle: header.handle,
        generation: Generation::new(generation),
        status: Status::Ok,
        data_len: ByteLen(len),
        block: BlockOffset(block),
    }
    .encode()
    .to_vec()
}

pub(super) fn failed(header: &Header, generation: u16, status: Status) -> Vec<u8> {
    Completion::failed(
        header.request_id,
        header.handle,
        Generation::new(generation),
        status,
    )
    .encode()
    .to_vec()
}

pub(super) fn entry(flags: u16, generation: u16, len: u32, block: u64) -> [u8; 16] {
    TableEntry {
        flags: kbtp_wire::EntryFlags(flags),
        generation: Generation::new(generation),
        data_len: ByteLen(len),
        block: BlockOffset(block),
    }
    .encode()
}

pub(super) fn load(handle: u64) -> Request {
    Request::Load {
        handle: Handle(handle),
        generation: None,
        into: buffer(1, BLOCK),
        allow_unsealed: false,
        invalidate: false,
    }
}

pub(super) fn status_of(result: Result<Done, Failure>) -> Status {
    match result {
        Err(Failure::Status { status, .. }) => status,
        other => panic!("a Status was expected, not {other:?}"),
    }
}
