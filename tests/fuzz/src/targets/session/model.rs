//! What a target must answer: the draft's section 6 and the profile's P3 and P7, for one session without direct modes,
//! as plainly as they can be written down.

use kbtp_wire::{
    BlockOffset, ByteLen, Completion, Generation, Handle, Operation, Request, RequestError, Source,
    Stag, Status, TaggedOffset,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops;

/// What the session was granted.
#[derive(Debug, Default)]
pub(super) struct Range {
    pub(super) table: ops::Range<u64>,
    pub(super) own: ops::Range<u64>,
    pub(super) block_size: u32,
    pub(super) max_inline: u32,
    pub(super) quota: u32,
}

#[derive(Clone, Debug)]
struct Bound {
    block: BlockOffset,
    sealed: bool,
    data: Vec<u8>,
}

/// The entries of the session's range.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) range: Range,
    generations: BTreeMap<u64, Generation>,
    bound: BTreeMap<u64, Bound>,
}

/// The data the peer's buffer at `from` holds.
pub(super) fn remote_data(from: TaggedOffset, len: ByteLen) -> Vec<u8> {
    let [.., seed] = from.0.to_be_bytes();
    let octets = (0..len.0).map(|at| at.to_be_bytes()[3] ^ (at >> 8).to_be_bytes()[3] ^ seed);
    octets.collect()
}

impl Model {
    pub(super) fn new(range: Range) -> Self {
        Self {
            range,
            ..Self::default()
        }
    }

    pub(super) fn bound(&self) -> u32 {
        u32::try_from(self.bound.len()).unwrap_or(u32::MAX)
    }

    /// Judges the answer to a message and follows what it did.
    ///
    /// With `late` ends of work an ALLOC_STORE may meet a quota that requests under way still hold.
    //= test kbtp-p3-header-of-request
    //= test kbtp-5.1-invalidate-data-descriptor
    pub(super) fn judge(
        &mut self,
        message: &[u8],
        answer: &Completion,
        invalidated: Option<Stag>,
        written: Option<Vec<u8>>,
        late: bool,
    ) {
        let request = match Request::decode(message) {
            Ok(request) => request,
            Err(RequestError::Refused(refusal)) => {
                self.failed(refusal.header.handle, answer, refusal.status, ByteLen(0));
                assert_eq!((invalidated, written), (None, None));
                return;
            }
            Err(error) => unreachable!("the session should have ended: {error}"),
        };
        assert_eq!(answer.handle, request.handle);
        assert_eq!(invalidated, request.operation.invalidate());
        match self.check(&request) {
            Err(status) => {
                assert_eq!(written, None, "a failed request wrote");
                let data_len = self.failed_len(&request, status);
                self.failed(request.handle, answer, status, data_len);
            }
            Ok(()) if late && answer.status == Status::NoSpace => {
                assert!(matches!(request.operation, Operation::AllocStore { .. }));
                self.failed(request.handle, answer, Status::NoSpace, ByteLen(0));
            }
            Ok(()) => {
                assert_eq!(answer.status, Status::Ok, "{request:?}");
                self.done(&request, answer, written);
            }
        }
    }

    /// P7, in its order.
    //= test kbtp-p7-check-order
    //= test kbtp-p7-unsupported
    //= test kbtp-p2-record-needs-capability
    //= test kbtp-6.5-record-not-on-rdmap
    //= test kbtp-p7-not-authorized
    //= test kbtp-p7-not-valid
    //= test kbtp-p7-already-valid
    //= test kbtp-p7-generation-mismatch
    //= test kbtp-p7-not-sealed
    //= test kbtp-p7-sealed
    //= test kbtp-p7-no-space
    //= test kbtp-3.4-over-quota-no-space
    //= test kbtp-3.4-usage-counted
    //= test kbtp-3.4-usage-released
    //= test kbtp-6.1-load-valid
    //= test kbtp-6.1-load-sealed
    //= test kbtp-6.1-load-length
    //= test kbtp-6.2-store-valid-unsealed
    //= test kbtp-6.2-store-in-range
    //= test kbtp-6.3-handle-in-range
    //= test kbtp-6.3-handle-not-valid
    //= test kbtp-6.4-handle-in-range-valid
    fn check(&self, request: &Request<'_>) -> Result<(), Status> {
        let handle = request.handle.0;
        let bound = self.bound.get(&handle);
        let fail = |when: bool, status| if when { Err(status) } else { Ok(()) };
        let bind = matches!(request.operation, Operation::Bind { .. });
        let load = matches!(request.operation, Operation::Load { .. });
        let alloc = matches!(request.operation, Operation::AllocStore { .. });
        fail(request.record.is_some() || bind, Status::Unsupported)?;
        let reach = if load {
            &self.range.table
        } else {
            &self.range.own
        };
        fail(!reach.contains(&handle), Status::NotAuthorized)?;
        fail(!alloc && bound.is_none(), Status::NotValid)?;
        fail(alloc && bound.is_some(), Status::AlreadyValid)?;
        let current = self.generations.get(&handle).copied();
        let expected = request.generation;
        fail(
            expected.is_some() && expected != current,
            Status::GenerationMismatch,
        )?;
        match request.operation {
            Operation::Load {
                sink,
                allow_unsealed,
                ..
            } => {
                let bound = bound.ok_or(Status::NotValid)?;
                fail(!bound.sealed && !allow_unsealed, Status::NotSealed)?;
                fail(len_of(&bound.data).0 > sink.len.0, Status::LengthError)
            }
            Operation::Store { source, .. } => {
                fail(bound.is_some_and(|bound| bound.sealed), Status::Sealed)?;
                fail(self.too_long(&source), Status::LengthError)
            }
            Operation::AllocStore { source, .. } => {
                fail(self.too_long(&source), Status::LengthError)?;
                fail(self.bound() >= self.range.quota, Status::NoSpace)
            }
            Operation::Free | Operation::Bind { .. } => Ok(()),
        }
    }

    //= test kbtp-p7-length-error-store
    //= test kbtp-p7-length-error-inline
    fn too_long(&self, source: &Source<'_>) -> bool {
        let len = source.len().0;
        let inline = matches!(source, Source::Inline { .. });
        len > self.range.block_size
            || (inline && len > self.range.max_inline)
            || !source.is_as_declared()
    }

    /// A request that failed changed nothing; its answer says no more than it may.
    //= test kbtp-p7-failed-changes-nothing
    //= test kbtp-p3-zero-unless-ok
    //= test kbtp-5.1-generation-current
    //= test kbtp-p7-not-valid-foreign
    fn failed(&self, handle: Handle, answer: &Completion, status: Status, data_len: ByteLen) {
        assert_eq!((answer.status, answer.handle), (status, handle));
        // Another tenant's entry is none of this model's, so that nothing of it may show.
        assert_eq!(answer.generation, self.generations.get(&handle.0).copied());
        assert_eq!((answer.block, answer.data_len), (BlockOffset(0), data_len));
    }

    /// What a failed request's answer has as Data Length.
    //= test kbtp-p7-length-error-load
    fn failed_len(&self, request: &Request<'_>, status: Status) -> ByteLen {
        match (request.operation, self.bound.get(&request.handle.0)) {
            (Operation::Load { .. }, Some(bound)) if status == Status::LengthError => {
                len_of(&bound.data)
            }
            _ => ByteLen(0),
        }
    }

    //= test kbtp-6.1-load-write
    //= test kbtp-6.1-load-completion
    //= test kbtp-6.2-store-data
    //= test kbtp-6.2-update-entry
    //= test kbtp-6.3-allocate
    //= test kbtp-6.3-completion
    //= test kbtp-6.4-clear-entry
    //= test kbtp-p3-free-new-generation
    //= test kbtp-3.2-data-length
    //= test kbtp-p7-zero-length-legal
    //= test kbtp-p6-block-offset-always
    fn done(&mut self, request: &Request<'_>, answer: &Completion, written: Option<Vec<u8>>) {
        let handle = request.handle.0;
        match request.operation {
            Operation::Load { .. } => {
                let Some(bound) = self.bound.get(&handle) else {
                    unreachable!("checked");
                };
                // A block of no octets needs no Write.
                assert_eq!(written.unwrap_or_default(), bound.data);
            }
            Operation::Store { source, seal } => {
                if let Some(bound) = self.bound.get_mut(&handle) {
                    bound.data = data_of(&source);
                    bound.sealed |= seal;
                }
            }
            Operation::AllocStore { source, seal } => {
                let taken: BTreeSet<BlockOffset> =
                    self.bound.values().map(|bound| bound.block).collect();
                assert!(
                    !taken.contains(&answer.block),
                    "a block was handed out twice"
                );
                let bound = Bound {
                    block: answer.block,
                    sealed: seal,
                    data: data_of(&source),
                };
                self.bound.insert(handle, bound);
                self.count_up(handle);
            }
            Operation::Free => {
                self.bound.remove(&handle);
                self.count_up(handle);
            }
            Operation::Bind { .. } => unreachable!("BIND was not granted"),
        }
        assert_eq!(answer.generation, self.generations.get(&handle).copied());
        if let Some(bound) = self.bound.get(&handle) {
            assert_eq!(
                (answer.block, answer.data_len),
                (bound.block, len_of(&bound.data))
            );
        }
    }

    //= test kbtp-3.2-generation-never-zero
    //= test kbtp-6.3-next-generation
    fn count_up(&mut self, handle: u64) {
        let next = self
            .generations
            .get(&handle)
            .map_or(Generation::FIRST, |last| last.next());
        self.generations.insert(handle, next);
    }
}

fn data_of(source: &Source<'_>) -> Vec<u8> {
    match source {
        Source::Remote { buffer, .. } => remote_data(buffer.offset, buffer.len),
        Source::Inline { octets, .. } => octets.to_vec(),
    }
}

fn len_of(data: &[u8]) -> ByteLen {
    ByteLen(u32::try_from(data.len()).unwrap_or(u32::MAX))
}
