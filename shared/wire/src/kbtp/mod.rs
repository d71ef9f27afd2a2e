//! KBTP messages, version 1.
//! Source: KBTP draft, sections 5 and 6; profile, P1 to P9.

mod auth;
mod bind;
mod capabilities;
mod completion;
mod completion_descriptor;
mod completion_record;
mod data_descriptor;
mod flags;
mod header;
mod hello;
mod hello_ack;
mod limits;
mod opcode;
mod private_data;
mod request;
mod status;
mod tlv;

pub use auth::{Auth, Challenge, Nonce};
pub use bind::Bind;
pub use capabilities::SessionCapabilities;
pub use completion::Completion;
pub use completion_descriptor::CompletionDescriptor;
pub use completion_record::CompletionRecord;
pub use data_descriptor::DataDescriptor;
pub use flags::{EntryFlags, RequestFlags};
pub use header::{Header, VERSION};
pub use hello::{Hello, InitiatorId};
pub use hello_ack::{AtomicForm, Grant, HelloAck, InstanceId};
pub use limits::MAX_TLVS;
pub use opcode::Opcode;
pub use private_data::{AuthMode, PrivateData};
pub use request::{
    MAX_REQUEST_HEAD, Operation, Refusal, Request, RequestError, RequestHead, Source,
};
pub use status::Status;
pub use tlv::{KnownTlvs, Tlv, TlvError, Tlvs, tlv_type};
