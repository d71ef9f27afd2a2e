//! The target's session: requests in, work out. The fabric is left out: work is done as soon as it is posted.

use super::Failure;
use core::ops::Range;
use kbtp_core::{
    Admission, AuthMode, Contents, Directory, DirectoryConfig, Exposer, Geometry, Intake, Pool,
    SessionConfig, SessionId, Shared, TargetSession,
};
use kbtp_fabric::{
    Access, Atomics, Capabilities, LocalError, Time, WorkId, WorkOutcome, WorkRequest,
};
use kbtp_memory::{PageOptions, Region};
use kbtp_wire::{
    BlockOffset, ByteLen, DataDescriptor, Handle, Hello, InitiatorId, KnownTlvs, Operation,
    Request, RequestId, SessionCapabilities, Source, Stag, TaggedOffset,
};

const BLOCK: u32 = 4096;
const NOW: Time = Time(0);

/// Where a COMPLETION says how the request ended.
const STATUS: Range<usize> = 22..24;

/// Nothing is exposed: no direct modes.
struct Nothing;

impl Exposer for Nothing {
    fn expose(
        &mut self,
        _: &Region,
        _: Range<u64>,
        _: TaggedOffset,
        _: Access,
    ) -> Result<Stag, LocalError> {
        Err(LocalError::Limit {
            what: "registrations",
            limit: 0,
        })
    }

    fn revoke(&mut self, stag: Stag) -> Result<(), LocalError> {
        Err(LocalError::UnknownStag { stag })
    }
}

/// A target with one open session.
struct Target {
    shared: Shared,
    session: TargetSession,
    handle: u64,
}

impl Target {
    fn new() -> Result<Self, Failure> {
        let geometry = Geometry {
            block_size: BLOCK,
            blocks: 64,
            handles: 1024,
            table_base_handle: Handle(0),
            pool_base: BlockOffset(1 << 40),
        };
        let pages = PageOptions::default();
        let meta = Region::anonymous(geometry.meta_len(), &pages)?;
        let blocks = Region::anonymous(geometry.pool_len(), &pages)?;
        let pool = Pool::format(meta, blocks, geometry, [1; 16], Contents::Zeroed)?;
        let mut directory = Directory::new(DirectoryConfig::default(), &pool)?;
        let shared = Shared::new(pool);
        let mut session = TargetSession::new(SessionConfig {
            id: SessionId(1),
            auth: AuthMode::None,
            challenge: [0; 32],
            pool_stag: Stag(1),
            capabilities: Capabilities {
                atomics: Atomics::None,
                write_with_immediate: false,
                send_with_invalidate: true,
                outbound_reads: 16,
                inbound_reads: 0,
                max_receive: ByteLen(1 << 16),
                max_message: ByteLen(u32::MAX),
            },
        });
        let hello = Hello {
            request_id: RequestId(0),
            min_version: 1,
            max_version: 1,
            credits: 16,
            capabilities: SessionCapabilities::NONE,
            quota: 16,
            max_inline: ByteLen(512),
            handles: 64,
            initiator: InitiatorId([7; 16]),
            tlvs: KnownTlvs::default(),
        };
        let mut message = vec![0; hello.encoded_len()];
        hello.encode_into(&mut message)?;
        if session.handle_message(NOW, &shared, &message)? != Intake::Admit {
            return Err("HELLO was not taken".into());
        }
        let admission = session.admit(NOW, &shared, &mut directory, &mut Nothing)?;
        if admission != Admission::Answered {
            return Err("HELLO was not answered".into());
        }
        // The HELLO_ACK is sent.
        session.work_posted();
        let grant = session.grant().ok_or("no session was granted")?;
        let handle = grant.handle_base.0;
        Ok(Self {
            shared,
            session,
            handle,
        })
    }

    /// A request as it comes from the wire.
    fn message(&self, operation: Operation<'_>) -> Result<Vec<u8>, Failure> {
        let request = Request {
            request_id: RequestId(1),
            handle: Handle(self.handle),
            generation: None,
            record: None,
            operation,
        };
        let mut message = vec![0; request.encoded_len()];
        request.encode_into(&mut message)?;
        Ok(message)
    }

    /// From the arrival of a request to the end of its last work.
    fn serve(&mut self, message: &[u8]) -> Result<(), Failure> {
        if self.session.handle_message(NOW, &self.shared, message)? != Intake::Taken {
            return Err("a request was not taken".into());
        }
        let mut answered = false;
        while let Some(work) = self.session.next_work() {
            let outcome = match work.request {
                WorkRequest::Send { head, .. } => {
                    answered = head.get(STATUS).is_some_and(|status| status == [0, 0]);
                    WorkOutcome::Sent
                }
                WorkRequest::Read { .. } => WorkOutcome::Read,
                _ => WorkOutcome::Sent,
            };
            let done: Option<(WorkId, WorkOutcome)> = work.signaled.then_some((work.id, outcome));
            self.session.work_posted();
            if let Some((id, outcome)) = done {
                self.session.handle_done(NOW, &self.shared, id, outcome)?;
            }
        }
        if answered {
            Ok(())
        } else {
            Err("a request was not answered with OK".into())
        }
    }
}

const BUFFER: DataDescriptor = DataDescriptor {
    stag: Stag(9),
    offset: TaggedOffset(0),
    len: ByteLen(BLOCK),
};

const REMOTE: Source<'static> = Source::Remote {
    buffer: BUFFER,
    invalidate: false,
};

pub(super) fn load(times: u32) -> Result<(), Failure> {
    let mut target = Target::new()?;
    let bind = target.message(Operation::AllocStore {
        source: REMOTE,
        seal: true,
    })?;
    target.serve(&bind)?;
    let load = target.message(Operation::Load {
        sink: BUFFER,
        invalidate: false,
        allow_unsealed: false,
    })?;
    (0..times).try_for_each(|_| target.serve(&load))
}

pub(super) fn inline(times: u32) -> Result<(), Failure> {
    let octets = [7; 512];
    let source = Source::Inline {
        declared: ByteLen(512),
        octets: &octets,
    };
    stores(source, times)
}

pub(super) fn store(times: u32) -> Result<(), Failure> {
    stores(REMOTE, times)
}

fn stores(source: Source<'_>, times: u32) -> Result<(), Failure> {
    let mut target = Target::new()?;
    let bind = target.message(Operation::AllocStore {
        source: REMOTE,
        seal: false,
    })?;
    target.serve(&bind)?;
    let store = target.message(Operation::Store {
        source,
        seal: false,
    })?;
    (0..times).try_for_each(|_| target.serve(&store))
}

pub(super) fn alloc_free(times: u32) -> Result<(), Failure> {
    let mut target = Target::new()?;
    let bind = target.message(Operation::AllocStore {
        source: Source::Inline {
            declared: ByteLen(0),
            octets: &[],
        },
        seal: true,
    })?;
    let free = target.message(Operation::Free)?;
    for _ in 0..times {
        target.serve(&bind)?;
        target.serve(&free)?;
    }
    Ok(())
}
