//! What a request finds and asks for, and what software answers where the chain leaves it the answer.

use super::rig::{BUFFER, FIRST_BLOCK, FIRST_HANDLE, HANDLES, KEY, OWN_HANDLES};
use crate::cli::wqe::{WqeCase, WqeOperation};
use crate::failure::Failure;
use kbtp_device::{Answer, SlotRequest};
use kbtp_wire::{
    BlockOffset, ByteLen, EntryFlags, Generation, Opcode, Operation, Request, RequestError,
    RequestFlags, Status, TableEntry, VERSION,
};

/// A request and what its handle is.
pub(super) struct Scene {
    pub(super) handle: u64,
    pub(super) entry: TableEntry,
    pub(super) message: Vec<u8>,
}

/// The Request ID: easily seen among other octets.
const REQUEST_ID: u64 = 0x1122_3344_5566_7788;

/// The Generation of an entry that has one.
const GENERATION: u16 = 7;

impl Scene {
    /// Of a case.
    pub(super) fn of(
        operation: WqeOperation,
        case: WqeCase,
        block_size: u32,
    ) -> Result<Self, Failure> {
        use WqeCase as Case;
        use WqeOperation::{Alloc, Free, Load, Store};
        let possible = match case {
            Case::Ok | Case::GenerationMismatch | Case::BadRequest | Case::NotAuthorized => true,
            Case::NotValid => operation != Alloc,
            Case::AlreadyValid => operation == Alloc,
            Case::NotSealed | Case::LongerBuffer => operation == Load,
            Case::Sealed => operation == Store,
            Case::LengthError => operation != Free,
        };
        if !possible {
            return Err(Failure::usage(
                "that case does not come with that request",
                "kbtp wqe run --help says which is of which",
            ));
        }
        let bound = match case {
            Case::NotValid => false,
            Case::AlreadyValid => true,
            _ => operation != Alloc,
        };
        let sealed = bound
            && match operation {
                Store => case == Case::Sealed,
                _ => case != Case::NotSealed,
            };
        let handle = match (case, operation) {
            (Case::NotAuthorized, Load) => FIRST_HANDLE + HANDLES,
            (Case::NotAuthorized, _) => FIRST_HANDLE + OWN_HANDLES,
            _ => FIRST_HANDLE,
        };
        let len = match (case, operation) {
            (Case::LengthError, Load) => block_size / 2,
            (Case::LengthError | Case::LongerBuffer, _) => 2 * block_size,
            _ => block_size,
        };
        let generation = match case {
            Case::GenerationMismatch => GENERATION + 1,
            // Any.
            _ if operation == Alloc => 0,
            _ => GENERATION,
        };
        let flags = match operation {
            Load | Free => RequestFlags::NONE,
            Store | Alloc => RequestFlags::SEAL,
        };
        // No request has both of these.
        let odd = RequestFlags::SEAL.union(RequestFlags::ALLOW_UNSEALED);
        let flags = flags.with(odd, case == Case::BadRequest && operation != Free);
        let with_data = operation != Free || case == Case::BadRequest;
        Ok(Self {
            handle,
            entry: entry(bound, sealed, block_size),
            message: message(opcode(operation), flags, handle, generation, with_data, len),
        })
    }
}

const fn opcode(operation: WqeOperation) -> Opcode {
    match operation {
        WqeOperation::Load => Opcode::Load,
        WqeOperation::Store => Opcode::Store,
        WqeOperation::Alloc => Opcode::AllocStore,
        WqeOperation::Free => Opcode::Free,
    }
}

fn entry(bound: bool, sealed: bool, block_size: u32) -> TableEntry {
    let flags = EntryFlags::NONE
        .with(EntryFlags::VALID, bound)
        .with(EntryFlags::SEALED, sealed);
    TableEntry {
        flags,
        generation: Generation::new(GENERATION),
        data_len: ByteLen(if bound { block_size } else { 0 }),
        block: BlockOffset(if bound { FIRST_BLOCK } else { 0 }),
    }
}

fn message(
    opcode: Opcode,
    flags: RequestFlags,
    handle: u64,
    generation: u16,
    with_data: bool,
    len: u32,
) -> Vec<u8> {
    let mut octets = vec![VERSION, opcode.to_wire()];
    octets.extend(flags.0.to_be_bytes());
    octets.extend(REQUEST_ID.to_be_bytes());
    octets.extend(handle.to_be_bytes());
    octets.extend(generation.to_be_bytes());
    octets.extend([0, 0]);
    if with_data {
        octets.extend(KEY.to_be_bytes());
        octets.extend(BUFFER.to_be_bytes());
        octets.extend(len.to_be_bytes());
    }
    octets
}

/// What software answers to a request that rang, given its handle's entry: it refuses it, or loads into a longer buffer. A
/// request that it would have to execute otherwise does not ring here.
pub(super) fn answer(request: &SlotRequest, entry: Option<&TableEntry>) -> Answer {
    let (status, data) = judge(request.as_octets(), entry);
    let found = entry.copied().unwrap_or(TableEntry::UNBOUND);
    let carries = data || status == Status::LengthError && is_load(request);
    Answer {
        status,
        generation: found.generation,
        data_len: if carries { found.data_len } else { ByteLen(0) },
        block: if data { found.block } else { BlockOffset(0) },
        data,
        invalidate: false,
    }
}

fn is_load(request: &SlotRequest) -> bool {
    request.as_octets().get(1) == Some(&Opcode::Load.to_wire())
}

/// The Status, in the order of the profile's section 7, and whether data goes to the client.
fn judge(octets: &[u8], entry: Option<&TableEntry>) -> (Status, bool) {
    let request = match Request::decode(octets) {
        Ok(request) => request,
        Err(RequestError::Refused(refusal)) => return (refusal.status, false),
        Err(_) => return (Status::BadRequest, false),
    };
    let Some(entry) = entry else {
        return (Status::NotAuthorized, false);
    };
    let unbound = matches!(request.operation, Operation::AllocStore { .. });
    let other = request.generation.is_some() && request.generation != entry.generation;
    let status = match request.operation {
        _ if !unbound && !entry.is_valid() => Status::NotValid,
        _ if unbound && entry.is_valid() => Status::AlreadyValid,
        _ if other => Status::GenerationMismatch,
        Operation::Load {
            sink,
            allow_unsealed,
            ..
        } => match (entry.is_sealed() || allow_unsealed, sink.len) {
            (false, _) => Status::NotSealed,
            (true, len) if len < entry.data_len => Status::LengthError,
            _ => return (Status::Ok, true),
        },
        Operation::Store { .. } if entry.is_sealed() => Status::Sealed,
        Operation::Store { .. } | Operation::AllocStore { .. } => Status::LengthError,
        _ => Status::Unsupported,
    };
    (status, false)
}
