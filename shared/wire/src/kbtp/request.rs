//! Requests: LOAD, STORE, ALLOC_STORE, FREE, BIND.
//! Source: KBTP draft, sections 5.1, 5.2 and 6; profile, P1, P2, P4 and P7.
//! Octets: the common header; then by opcode a Data Descriptor (LOAD, STORE, ALLOC_STORE) or a BIND body; then a
//! Completion Descriptor if RECORD; then the data if INLINE.
//! Checked here, in P7's order: BAD_REQUEST, VERSION_MISMATCH, UNSUPPORTED, as far as the octets alone tell. Not checked
//! here: what a session granted (RECORD, extensions), and that inline data is as long as it says ([`Source::Inline`]),
//! because LENGTH_ERROR comes after the checks of handle, entry and generation.

use super::{
    Bind, CompletionDescriptor, DataDescriptor, Header, Opcode, RequestFlags, Status, VERSION,
};
use crate::octets::put_front;
use crate::{BufferTooSmall, ByteLen, Generation, Handle, RequestId, Stag, TaggedOffset};

/// Why a message is not a request to execute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// No common header: the session ends (P7).
    #[error("{len} octets are too few for a common header")]
    TooShort {
        /// Octets of the message.
        len: usize,
    },
    /// A first message that is not HELLO: the session ends (P5).
    #[error("the first message has opcode {opcode:#04x}, not HELLO")]
    WrongOpcode {
        /// Its opcode.
        opcode: u8,
    },
    /// The message is answered with a Status.
    #[error("{}: {}", .0.status, .0.reason)]
    Refused(Refusal),
}

/// The answer to a message that is refused for its octets alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Status of the answer.
    pub status: Status,
    /// The message's header: Request ID and Block Handle are echoed.
    pub header: Header,
    /// What is wrong, for a log.
    pub reason: &'static str,
}

/// Where the data of a store comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source<'a> {
    /// The target reads it with RDMA Read.
    Remote {
        /// The initiator's buffer.
        buffer: DataDescriptor,
        /// Complete with Send with Invalidate of the buffer's STag.
        invalidate: bool,
    },
    /// It follows the request.
    Inline {
        /// The descriptor's Length. Where it is not `octets.len()`, or is over Max Inline, the answer is
        /// LENGTH_ERROR once the earlier checks have passed: see [`is_as_declared`](Self::is_as_declared).
        declared: ByteLen,
        /// The octets that follow.
        octets: &'a [u8],
    },
}

impl Source<'_> {
    /// Octets of data, as the descriptor's Length says.
    #[must_use]
    pub const fn len(&self) -> ByteLen {
        match self {
            Self::Remote { buffer, .. } => buffer.len,
            Self::Inline { declared, .. } => *declared,
        }
    }

    /// Whether there is no data: a zero-length block is legal (P7).
    //= kbtp-p7-zero-length-legal
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len().0 == 0
    }

    /// Whether inline data is as long as its Length says; true for data to be read.
    //= kbtp-p7-length-error-inline
    #[must_use]
    pub const fn is_as_declared(&self) -> bool {
        match self {
            Self::Remote { .. } => true,
            Self::Inline { declared, octets } => declared.get() == octets.len() as u64,
        }
    }
}

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation<'a> {
    /// Block Load.
    Load {
        /// Where the block goes.
        sink: DataDescriptor,
        /// Complete with Send with Invalidate of the sink's STag.
        invalidate: bool,
        /// An unsealed block will do.
        allow_unsealed: bool,
    },
    /// Block Mapped Store.
    Store {
        /// The data.
        source: Source<'a>,
        /// Seal the block after the store.
        seal: bool,
    },
    /// Block Unmapped Store.
    AllocStore {
        /// The data.
        source: Source<'a>,
        /// Seal the block after the store.
        seal: bool,
    },
    /// Block Free.
    Free,
    /// End of a direct allocation.
    Bind {
        /// Ticket, Data Length, Block Offset.
        bind: Bind,
        /// Seal the block.
        seal: bool,
    },
}

impl Operation<'_> {
    /// Its opcode.
    #[must_use]
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Load { .. } => Opcode::Load,
            Self::Store { .. } => Opcode::Store,
            Self::AllocStore { .. } => Opcode::AllocStore,
            Self::Free => Opcode::Free,
            Self::Bind { .. } => Opcode::Bind,
        }
    }

    /// The STag the completion is to invalidate, if any.
    //= kbtp-5.1-invalidate-data-descriptor
    #[must_use]
    pub const fn invalidate(&self) -> Option<Stag> {
        match self {
            Self::Load {
                sink: buffer,
                invalidate: true,
                ..
            }
            | Self::Store {
                source:
                    Source::Remote {
                        buffer,
                        invalidate: true,
                    },
                ..
            }
            | Self::AllocStore {
                source:
                    Source::Remote {
                        buffer,
                        invalidate: true,
                    },
                ..
            } => Some(buffer.stag),
            _ => None,
        }
    }
}

/// One request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// Chosen by the initiator, echoed in the completion.
    pub request_id: RequestId,
    /// The handle it is about.
    pub handle: Handle,
    /// The Generation the initiator expects; `None`: any.
    pub generation: Option<Generation>,
    /// Where to write a completion record, if RECORD is set.
    pub record: Option<CompletionDescriptor>,
    /// What it asks for.
    pub operation: Operation<'a>,
}

/// Octets of a request before its inline data, at most: header, Data Descriptor or BIND body, Completion Descriptor.
pub const MAX_REQUEST_HEAD: usize = Header::LEN + DataDescriptor::LEN + CompletionDescriptor::LEN;

impl<'a> Request<'a> {
    /// The request in a received message. Copies nothing: inline data is a part of `message`.
    ///
    /// Of several faults the first in P7's order is answered. A reserved opcode has neither a length nor flags of its
    /// own, so that only a non-zero Status makes it BAD_REQUEST. HELLO, HELLO_ACK and COMPLETION are no requests:
    /// BAD_REQUEST.
    ///
    /// # Errors
    /// [`RequestError::TooShort`] ends the session; [`RequestError::Refused`] names the Status to answer with.
    //= kbtp-p7-check-order
    pub fn decode(message: &'a [u8]) -> Result<Self, RequestError> {
        //= kbtp-p7-too-short-ends-session
        let Some((head, rest)) = message.split_first_chunk() else {
            return Err(RequestError::TooShort { len: message.len() });
        };
        let header = Header::decode(head);
        let refuse = |status, reason| {
            RequestError::Refused(Refusal {
                status,
                header,
                reason,
            })
        };
        let bad = |reason| refuse(Status::BadRequest, reason);
        //= kbtp-p7-bad-request
        if header.status != 0 {
            return Err(bad("Status is not zero"));
        }
        let operation = match Opcode::from_wire(header.opcode) {
            None => None,
            Some(opcode) => {
                if !header.flags.allowed_with(opcode) {
                    return Err(bad("a flag is not allowed"));
                }
                Some(decode_rest(opcode, header.flags, rest).map_err(bad)?)
            }
        };
        //= kbtp-p7-version-mismatch
        if header.version != VERSION {
            return Err(refuse(Status::VersionMismatch, "the Version is not 1"));
        }
        //= kbtp-p1-reserved-unsupported
        let Some((operation, record)) = operation else {
            return Err(refuse(Status::Unsupported, "the opcode is reserved"));
        };
        Ok(Self {
            request_id: header.request_id,
            handle: header.handle,
            generation: header.generation,
            record,
            operation,
        })
    }

    /// The flags this request has on the wire.
    #[must_use]
    pub const fn flags(&self) -> RequestFlags {
        let flags = match self.operation {
            Operation::Load {
                invalidate,
                allow_unsealed,
                ..
            } => RequestFlags::NONE
                .with(RequestFlags::INVALIDATE, invalidate)
                .with(RequestFlags::ALLOW_UNSEALED, allow_unsealed),
            Operation::Store { source, seal } | Operation::AllocStore { source, seal } => {
                let flags = match source {
                    Source::Remote { invalidate, .. } => {
                        RequestFlags::NONE.with(RequestFlags::INVALIDATE, invalidate)
                    }
                    Source::Inline { .. } => RequestFlags::INLINE,
                };
                flags.with(RequestFlags::SEAL, seal)
            }
            Operation::Free => RequestFlags::NONE,
            Operation::Bind { seal, .. } => RequestFlags::NONE.with(RequestFlags::SEAL, seal),
        };
        flags.with(RequestFlags::RECORD, self.record.is_some())
    }

    /// The octets before the inline data, for a sender that gathers the data from elsewhere.
    #[must_use]
    pub fn encode_head(&self) -> RequestHead {
        let header = Header::request(
            self.operation.opcode(),
            self.flags(),
            self.request_id,
            self.handle,
            self.generation,
        );
        let body = match self.operation {
            Operation::Load { sink, .. } => Some(sink.encode()),
            Operation::Store { source, .. } | Operation::AllocStore { source, .. } => {
                Some(source_descriptor(&source).encode())
            }
            Operation::Free => None,
            Operation::Bind { bind, .. } => Some(bind.encode()),
        };
        let mut head = RequestHead {
            octets: [0; MAX_REQUEST_HEAD],
            len: 0,
        };
        head.push(&header.encode());
        if let Some(body) = body {
            head.push(&body);
        }
        if let Some(record) = self.record {
            head.push(&record.encode());
        }
        head
    }

    /// Octets of this request, inline data included.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        self.encode_head()
            .octets()
            .len()
            .saturating_add(self.inline().len())
    }

    /// Puts this request at the front of `out` and returns how many octets it took.
    ///
    /// # Errors
    /// [`BufferTooSmall`] if it does not fit.
    pub fn encode_into(&self, out: &mut [u8]) -> Result<usize, BufferTooSmall> {
        let head = self.encode_head();
        let inline = self.inline();
        let short = BufferTooSmall {
            needed: head.octets().len().saturating_add(inline.len()),
            len: out.len(),
        };
        let out = put_front(out, head.octets()).ok_or(short)?;
        put_front(out, inline).ok_or(short)?;
        Ok(short.needed)
    }

    const fn inline(&self) -> &'a [u8] {
        match self.operation {
            Operation::Store {
                source: Source::Inline { octets, .. },
                ..
            }
            | Operation::AllocStore {
                source: Source::Inline { octets, .. },
                ..
            } => octets,
            _ => &[],
        }
    }
}

/// The octets of a request before its inline data: 24 to 56.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestHead {
    octets: [u8; MAX_REQUEST_HEAD],
    len: usize,
}

impl RequestHead {
    /// The octets.
    #[must_use]
    pub fn octets(&self) -> &[u8] {
        self.octets.get(..self.len).unwrap_or(&self.octets)
    }

    fn push(&mut self, part: &[u8]) {
        let end = self.len.saturating_add(part.len());
        if let Some(place) = self.octets.get_mut(self.len..end) {
            place.copy_from_slice(part);
            self.len = end;
        }
    }
}

impl AsRef<[u8]> for RequestHead {
    fn as_ref(&self) -> &[u8] {
        self.octets()
    }
}

//= kbtp-5.2-inline-descriptor-zero
//= kbtp-5.2-inline-data-follows
const fn source_descriptor(source: &Source<'_>) -> DataDescriptor {
    match source {
        Source::Remote { buffer, .. } => *buffer,
        Source::Inline { declared, .. } => DataDescriptor {
            stag: Stag(0),
            offset: TaggedOffset(0),
            len: *declared,
        },
    }
}

type Rest<'a> = (Operation<'a>, Option<CompletionDescriptor>);

/// What follows the header, by opcode and flags; the error says why it is a BAD_REQUEST.
//= kbtp-p1-message-parts
fn decode_rest(opcode: Opcode, flags: RequestFlags, rest: &[u8]) -> Result<Rest<'_>, &'static str> {
    const SHORT: &str = "the message is too short for its opcode and flags";
    let (body, rest) = match opcode {
        Opcode::Load | Opcode::Store | Opcode::AllocStore | Opcode::Bind => {
            rest.split_first_chunk().ok_or(SHORT)?
        }
        Opcode::Free => (&[0; 16], rest),
        Opcode::Hello | Opcode::HelloAck | Opcode::Completion => return Err("not a request"),
    };
    let (record, rest) = if flags.contains(RequestFlags::RECORD) {
        let (record, rest) = rest.split_first_chunk().ok_or(SHORT)?;
        let record = CompletionDescriptor::decode(record)
            .map_err(|_| "Reserved of the Completion Descriptor is not zero")?;
        (Some(record), rest)
    } else {
        (None, rest)
    };
    if !rest.is_empty() && !flags.contains(RequestFlags::INLINE) {
        return Err("the message is too long for its opcode and flags");
    }
    let seal = flags.contains(RequestFlags::SEAL);
    let invalidate = flags.contains(RequestFlags::INVALIDATE);
    let operation = match opcode {
        Opcode::Load => Operation::Load {
            sink: DataDescriptor::decode(body),
            invalidate,
            allow_unsealed: flags.contains(RequestFlags::ALLOW_UNSEALED),
        },
        Opcode::Store => Operation::Store {
            source: decode_source(flags, DataDescriptor::decode(body), rest)?,
            seal,
        },
        Opcode::AllocStore => Operation::AllocStore {
            source: decode_source(flags, DataDescriptor::decode(body), rest)?,
            seal,
        },
        Opcode::Bind => Operation::Bind {
            bind: Bind::decode(body),
            seal,
        },
        Opcode::Free | Opcode::Hello | Opcode::HelloAck | Opcode::Completion => Operation::Free,
    };
    Ok((operation, record))
}

fn decode_source(
    flags: RequestFlags,
    buffer: DataDescriptor,
    octets: &[u8],
) -> Result<Source<'_>, &'static str> {
    if !flags.contains(RequestFlags::INLINE) {
        return Ok(Source::Remote {
            buffer,
            invalidate: flags.contains(RequestFlags::INVALIDATE),
        });
    }
    //= kbtp-5.2-inline-descriptor-zero
    if buffer.stag.0 != 0 || buffer.offset.0 != 0 {
        return Err("STag or Tagged Offset is not zero with INLINE");
    }
    Ok(Source::Inline {
        declared: buffer.len,
        octets,
    })
}
