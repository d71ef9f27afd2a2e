//! A target's session: any messages in, each answer judged by a reference model.
//!
//! The first octet of the input is a set of options: 1 lets RDMA Reads and Sends end late. The rest is a list of
//! messages, each with its length in two octets before it; Request IDs are put in, so that each answer finds its request.

mod model;

use kbtp_core::{
    Admission, AuthMode, Contents, Directory, DirectoryConfig, Exposer, Geometry, Intake, Pool,
    SessionConfig, SessionEnd, SessionId, Shared, StatsSnapshot, TargetSession, TenantConfig,
};
use kbtp_fabric::{
    Access, Atomics, Capabilities, LocalBuffer, LocalError, Time, WorkId, WorkOutcome, WorkRequest,
};
use kbtp_memory::{PageOptions, Region};
use kbtp_wire::{
    BlockOffset, ByteLen, Completion, Grant, Handle, Header, Hello, HelloAck, InitiatorId,
    KnownTlvs, Opcode, Operation, Request, RequestId, SessionCapabilities, Source, Stag, Status,
    TaggedOffset,
};
use model::{Model, Range};
use std::collections::{BTreeMap, VecDeque};
use std::ops;

const NOW: Time = Time(1_000);
const POOL_BASE: BlockOffset = BlockOffset(0x10_0000);
const GEOMETRY: Geometry = Geometry {
    block_size: 4096,
    blocks: 8,
    handles: 128,
    table_base_handle: Handle(16),
    pool_base: POOL_BASE,
};
const QUOTA: u32 = 5;
const MAX_INLINE: u32 = 256;
/// Messages of one input: each costs a few microseconds.
const MAX_MESSAGES: usize = 64;
/// With late ends, how much work may be under way; well under the credits.
const MAX_UNDER_WAY: usize = 12;

pub(super) fn target_session(octets: &[u8]) {
    run(octets);
}

/// Runs an input; what the target counted.
fn run(octets: &[u8]) -> Option<StatsSnapshot> {
    let (&options, mut rest) = octets.split_first()?;
    let Some(mut target) = Target::open(options & 1 != 0) else {
        unreachable!("a session is granted to the one initiator");
    };
    for id in 0..MAX_MESSAGES {
        let Some((len, after)) = rest.split_first_chunk() else {
            break;
        };
        let len = usize::from(u16::from_be_bytes(*len)).min(after.len());
        let (message, after) = after.split_at(len);
        rest = after;
        let mut message = message.to_vec();
        let id = u64::try_from(id).unwrap_or(0);
        if let Some(place) = message.get_mut(4..12) {
            place.copy_from_slice(&id.to_be_bytes());
        }
        if !target.give(id, message) {
            break;
        }
    }
    Some(target.close())
}

/// No session here has a direct mode.
struct NothingExposed;

impl Exposer for NothingExposed {
    fn expose(
        &mut self,
        _: &Region,
        _: ops::Range<u64>,
        _: TaggedOffset,
        _: Access,
    ) -> Result<Stag, LocalError> {
        Err(LocalError::UnknownStag { stag: Stag(0) })
    }

    fn revoke(&mut self, stag: Stag) -> Result<(), LocalError> {
        Err(LocalError::UnknownStag { stag })
    }
}

/// Work that was posted and has not ended.
#[derive(Debug)]
enum UnderWay {
    Read {
        id: WorkId,
        local: LocalBuffer,
        from: TaggedOffset,
    },
    Send {
        id: WorkId,
    },
}

/// A session that was granted.
fn begin(
    shared: &Shared,
    directory: &mut Directory,
    id: u8,
    tenant: &str,
    quota: u32,
) -> Option<(TargetSession, Grant)> {
    let mut session = TargetSession::new(SessionConfig {
        id: SessionId(id.into()),
        auth: AuthMode::None,
        challenge: [0; 32],
        pool_stag: Stag(1),
        capabilities: Capabilities {
            atomics: Atomics::Masked,
            write_with_immediate: false,
            send_with_invalidate: true,
            outbound_reads: 64,
            inbound_reads: 64,
            max_receive: ByteLen(8192),
            max_message: ByteLen(u32::MAX),
        },
    });
    let hello = Hello {
        request_id: RequestId(7),
        min_version: 1,
        max_version: 1,
        credits: 64,
        capabilities: SessionCapabilities::NONE,
        quota,
        max_inline: ByteLen(MAX_INLINE),
        handles: 64,
        initiator: InitiatorId([id; 16]),
        tlvs: KnownTlvs {
            tenant: Some(tenant),
            ..KnownTlvs::default()
        },
    };
    let mut message = [0; 128];
    let len = hello.encode_into(&mut message).ok()?;
    let taken = session.handle_message(NOW, shared, message.get(..len)?);
    assert_eq!(taken, Ok(Intake::Admit));
    let admitted = session.admit(NOW, shared, directory, &mut NothingExposed);
    assert_eq!(admitted, Ok(Admission::Answered));
    let WorkRequest::Send { head, .. } = session.next_work()?.request else {
        return None;
    };
    let Ok(HelloAck::Granted {
        request_id, grant, ..
    }) = HelloAck::decode(head)
    else {
        return None;
    };
    assert_eq!((request_id, grant.quota), (hello.request_id, quota));
    assert!(grant.max_inline.0 <= MAX_INLINE && grant.handle_count >= 1);
    session.work_posted();
    Some((session, grant))
}

/// A session of another tenant with one block bound and sealed.
//= test kbtp-p9-own-blocks-only
fn neighbour(shared: &Shared, directory: &mut Directory) -> Option<TargetSession> {
    let (mut session, grant) = begin(shared, directory, 2, "theirs", 2)?;
    let request = Request {
        request_id: RequestId(1),
        handle: grant.handle_base,
        generation: None,
        record: None,
        operation: Operation::AllocStore {
            source: Source::Inline {
                declared: ByteLen(6),
                octets: b"secret",
            },
            seal: true,
        },
    };
    let mut message = [0; 64];
    let len = request.encode_into(&mut message).ok()?;
    let taken = session.handle_message(NOW, shared, message.get(..len)?);
    assert_eq!(taken, Ok(Intake::Taken));
    session.work_posted();
    Some(session)
}

/// The session under test, with a stream that does what it posts.
#[derive(Debug)]
struct Target {
    shared: Shared,
    directory: Directory,
    session: TargetSession,
    /// The session of another tenant, which has a block that is not for this one to see.
    neighbour: TargetSession,
    model: Model,
    late: bool,
    /// Messages that are not answered, by Request ID.
    unanswered: BTreeMap<u64, Vec<u8>>,
    /// Requests that are not answered, of each handle, in the order sent.
    in_order: BTreeMap<Handle, VecDeque<u64>>,
    under_way: VecDeque<UnderWay>,
    /// What the last RDMA Write carried; its completion comes next.
    written: Option<Vec<u8>>,
}

impl Target {
    fn open(late: bool) -> Option<Self> {
        let memory = |len| Region::anonymous(len, &PageOptions::default()).ok();
        let (meta, blocks) = (memory(GEOMETRY.meta_len())?, memory(GEOMETRY.pool_len())?);
        let pool = Pool::format(meta, blocks, GEOMETRY, [9; 16], Contents::Zeroed).ok()?;
        let tenant = |name: &str| TenantConfig {
            name: name.to_owned(),
            key: None,
            shared: false,
        };
        let config = DirectoryConfig {
            tenants: vec![tenant("ours"), tenant("theirs")],
            ..DirectoryConfig::default()
        };
        let mut directory = Directory::new(config, &pool).ok()?;
        let shared = Shared::new(pool);
        let (session, grant) = begin(&shared, &mut directory, 1, "ours", QUOTA)?;
        let range = Range {
            table: GEOMETRY.table_base_handle.0..GEOMETRY.table_base_handle.0 + GEOMETRY.handles,
            own: grant.handle_base.0..grant.handle_base.0 + grant.handle_count,
            block_size: GEOMETRY.block_size,
            max_inline: grant.max_inline.0,
            quota: grant.quota,
        };
        let neighbour = neighbour(&shared, &mut directory)?;
        Some(Self {
            shared,
            directory,
            session,
            neighbour,
            model: Model::new(range),
            late,
            unanswered: BTreeMap::new(),
            in_order: BTreeMap::new(),
            under_way: VecDeque::new(),
            written: None,
        })
    }

    /// Gives the session a message; whether it goes on.
    //= test kbtp-p7-too-short-ends-session
    //= test kbtp-p7-too-long-ends-session
    fn give(&mut self, id: u64, message: Vec<u8>) -> bool {
        while self.under_way.len() >= MAX_UNDER_WAY || !self.session.ready() {
            assert!(self.end_one(), "not ready with nothing under way");
        }
        let longest = Header::LEN + 32 + usize::try_from(self.model.range.max_inline).unwrap_or(0);
        let taken = self.session.handle_message(NOW, &self.shared, &message);
        let opcode = message.get(1).copied();
        match taken {
            Ok(Intake::Taken) => {
                assert!((Header::LEN..=longest).contains(&message.len()));
                if let Ok(request) = Request::decode(&message) {
                    self.in_order
                        .entry(request.handle)
                        .or_default()
                        .push_back(id);
                }
                self.unanswered.insert(id, message);
                self.post();
                while !self.late && self.end_one() {}
                true
            }
            Err(SessionEnd::TooShort(len)) => {
                assert!(len == message.len() && len < Header::LEN);
                false
            }
            Err(SessionEnd::TooLong { len, limit }) => {
                assert!(len == message.len() && limit == longest && len > longest);
                false
            }
            Err(SessionEnd::HelloOrder) => {
                assert_eq!(opcode, Some(Opcode::Hello.to_wire()));
                false
            }
            other => unreachable!("{other:?}"),
        }
    }

    /// Does what the session posts.
    //= test kbtp-1.3-one-completion
    //= test kbtp-5.1-request-id-echoed
    //= test kbtp-9.1-loads-write-stores-read
    //= test kbtp-9.1-sends
    //= test kbtp-6.5-record-only-ordered
    fn post(&mut self) {
        while let Some(work) = self.session.next_work() {
            let (id, signaled) = (work.id, work.signaled);
            match work.request {
                WorkRequest::Send {
                    head,
                    tail: None,
                    invalidate,
                    ..
                } => {
                    let completion = Completion::decode_message(head);
                    let Ok(completion) = completion else {
                        unreachable!("not a COMPLETION: {completion:?}");
                    };
                    let Some(message) = self.unanswered.remove(&completion.request_id.0) else {
                        unreachable!("answered twice, or never asked: {completion:?}");
                    };
                    self.check_order(&completion);
                    let written = self.written.take();
                    self.model
                        .judge(&message, &completion, invalidate, written, self.late);
                    if signaled {
                        self.under_way.push_back(UnderWay::Send { id });
                    }
                }
                WorkRequest::Write {
                    local,
                    immediate: None,
                    ..
                } => {
                    assert!(self.written.is_none() && local.len.0 > 0);
                    let mut octets = vec![0; usize::try_from(local.len.get()).unwrap_or(0)];
                    let read = self
                        .shared
                        .pool
                        .block_region()
                        .read(place(&local), &mut octets);
                    assert!(read.is_ok(), "a Write from outside the pool: {local:?}");
                    self.written = Some(octets);
                }
                WorkRequest::Read { local, remote } => {
                    assert!(signaled && local.len.0 > 0);
                    self.under_way.push_back(UnderWay::Read {
                        id,
                        local,
                        from: remote.offset,
                    });
                }
                other => unreachable!("a session without direct modes posted {other:?}"),
            }
            self.session.work_posted();
        }
    }

    /// Requests on one handle take effect, and here end, in the order sent; what was not granted is told at once.
    //= test kbtp-p8-order-per-handle
    fn check_order(&mut self, completion: &Completion) {
        let Some(waiting) = self.in_order.get_mut(&completion.handle) else {
            return;
        };
        let id = completion.request_id.0;
        if completion.status == Status::Unsupported {
            waiting.retain(|waiting| *waiting != id);
        } else if waiting.contains(&id) {
            assert_eq!(
                waiting.pop_front(),
                Some(id),
                "answered before an earlier request"
            );
        }
    }

    /// Ends the oldest work that is under way; whether there was any.
    fn end_one(&mut self) -> bool {
        let Some(work) = self.under_way.pop_front() else {
            return false;
        };
        let (id, outcome) = match work {
            UnderWay::Send { id } => (id, WorkOutcome::Sent),
            UnderWay::Read { id, local, from } => {
                let octets = model::remote_data(from, local.len);
                let written = self
                    .shared
                    .pool
                    .block_region()
                    .write(place(&local), &octets);
                assert!(written.is_ok(), "a Read to outside the pool: {local:?}");
                (id, WorkOutcome::Read)
            }
        };
        let done = self.session.handle_done(NOW, &self.shared, id, outcome);
        assert_eq!(done, Ok(()));
        self.post();
        true
    }

    /// Ends the session as its stream ends: what is under way is flushed. Then every block must be in one place.
    //= test kbtp-p7-read-failure
    //= test kbtp-p8-lease-keeps-bindings
    //= test kbtp-3.3-no-block-lost-or-twice
    fn close(mut self) -> StatsSnapshot {
        if !self.late {
            assert!(
                self.unanswered.is_empty(),
                "not answered: {:?}",
                self.unanswered.keys()
            );
        }
        // The neighbour has one.
        let bound = self.model.bound() + 1;
        while let Some(work) = self.under_way.pop_front() {
            let (UnderWay::Read { id, .. } | UnderWay::Send { id }) = work;
            // Each may say that the stream ended; none may do more.
            let done = self
                .session
                .handle_done(NOW, &self.shared, id, WorkOutcome::Flushed);
            assert!(matches!(done, Ok(()) | Err(SessionEnd::Flushed)));
        }
        self.session.finish(NOW, &self.shared, &mut self.directory);
        self.neighbour
            .finish(NOW, &self.shared, &mut self.directory);
        let audit = self.shared.pool.audit();
        assert_eq!(audit.faults, Vec::<String>::new());
        assert_eq!((audit.elsewhere, audit.bound), (0, bound));
        // The lease keeps the bindings, then frees them.
        self.directory.poll(NOW.after_ms(1), &self.shared);
        assert_eq!(self.shared.pool.audit().bound, bound);
        self.directory.poll(NOW.after_ms(1 << 40), &self.shared);
        let audit = self.shared.pool.audit();
        assert_eq!(
            (audit.elsewhere, audit.bound, audit.in_rings),
            (0, 0, GEOMETRY.blocks)
        );
        self.shared.stats.snapshot()
    }
}

/// Where in the pool's region a buffer lies: its Tagged Offset is a Block Offset.
//= test kbtp-3.1-block-offset-is-address
fn place(local: &LocalBuffer) -> u64 {
    assert_eq!(local.stag, Stag(1));
    local.offset.0 - POOL_BASE.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    //= test kbtp-3.4-shared-ring
    #[test]
    fn both_tenants_take_blocks_from_one_ring() {
        let mut target = Target::open(false).unwrap();
        let usage = target.shared.pool.usage();
        assert_eq!((usage.free, usage.partitioned), (GEOMETRY.blocks - 1, 0));
        let corpus = format!(
            "{}/corpus/kbtp_request/alloc-store",
            env!("CARGO_MANIFEST_DIR")
        );
        let mut message = std::fs::read(corpus).unwrap();
        message[12..20].copy_from_slice(&GEOMETRY.table_base_handle.0.to_be_bytes());
        message[4..12].fill(0);
        assert!(target.give(0, message));
        let usage = target.shared.pool.usage();
        assert_eq!((usage.free, usage.partitioned), (GEOMETRY.blocks - 2, 0));
        target.close();
    }

    /// Every status that a session without direct modes can give comes up in the corpus: else its mutations would
    /// test little.
    #[test]
    fn the_corpus_reaches_every_status() {
        let folder = format!("{}/corpus/target_session", env!("CARGO_MANIFEST_DIR"));
        let mut seen = BTreeSet::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let stats = run(&std::fs::read(entry.unwrap().path()).unwrap()).unwrap();
            for (opcode, counts) in stats.by_status.iter().enumerate() {
                let statuses = counts.iter().enumerate().filter(|(_, count)| **count > 0);
                seen.extend(statuses.map(|(status, _)| (opcode, status)));
            }
        }
        let statuses: BTreeSet<usize> = seen.iter().map(|(_, status)| *status).collect();
        assert_eq!(
            statuses,
            BTreeSet::from([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
        );
        for opcode in 3..=6 {
            assert!(seen.contains(&(opcode, 0)), "no success of opcode {opcode}");
        }
    }
}
