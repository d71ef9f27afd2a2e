//! Sessions with a target: how the command line opens one, and what its errors mean to a user.

use crate::cli::TenantArgs;
use crate::failure::{Failure, chain};
use crate::files;
use kbtp_initiator::{Buffer, Client, ClientError, Options, SessionError, Status, Tcp};
use kbtp_target::TenantKey;
use kbtp_target::limits::{TENANT_KEY_MAX, TENANT_KEY_MIN};
use serde::Deserialize as _;
use serde::de::value::{Error as ValueError, StrDeserializer};
use std::net::SocketAddr;

/// Options for a session with `target` as `who`, named as this command in the target's log.
///
/// # Errors
/// [`Failure`] if the key file cannot be read or holds no key.
pub(crate) fn options(target: SocketAddr, who: &TenantArgs) -> Result<Options, Failure> {
    let options =
        Options::new(target.to_string()).software(concat!("kbtp ", env!("CARGO_PKG_VERSION")));
    let (Some(tenant), Some(path)) = (&who.tenant, &who.key_file) else {
        return Ok(options);
    };
    let text = files::read_text(path, files::SETTINGS_MAX)
        .map_err(|e| Failure::file("read the key", path, &e))?;
    // The target reads keys in this form too: one reader for both.
    let hex = StrDeserializer::<ValueError>::new(text.trim());
    let key = TenantKey::deserialize(hex).map_err(|e| {
        Failure::operation(
            format_args!("{} holds no key: {e}", path.display()),
            "write one there: openssl rand -hex 32",
        )
    })?;
    // No target takes another length: a tenant's key that is refused says less.
    if !(TENANT_KEY_MIN..=TENANT_KEY_MAX).contains(&key.as_bytes().len()) {
        return Err(Failure::operation(
            format_args!(
                "{} holds a key of {} octets, and targets take {TENANT_KEY_MIN} to {TENANT_KEY_MAX}",
                path.display(),
                key.as_bytes().len()
            ),
            "write the tenant's key there: openssl rand -hex 32",
        ));
    }
    Ok(options.tenant(tenant, key.as_bytes()))
}

/// A session over TCP.
pub(crate) type Session = Client<Tcp>;

/// Octets of the buffers of one command together at most.
const BUFFERS_LEN: u64 = 64 << 20;
/// Buffers at most: more requests in flight than this move no more octets a second.
const BUFFERS_MAX: u64 = 32;

/// Opens the session.
///
/// # Errors
/// [`Failure`] names the target and what it said.
pub(crate) fn open(options: Options) -> Result<Session, Failure> {
    Client::connect_with(Tcp::default(), options).map_err(|e| failed("no session", &e))
}

/// Buffers of a block each: as many as the session may have requests in flight, within bounds.
///
/// # Errors
/// [`Failure`] if memory is short.
pub(crate) fn buffers(session: &Session, block_size: u32) -> Result<Vec<Buffer>, Failure> {
    let fit = BUFFERS_LEN / u64::from(block_size.max(1));
    let count = fit
        .min(BUFFERS_MAX)
        .min(u64::from(session.terms().requests))
        .max(1);
    session
        .register_many(usize::try_from(count).unwrap_or(1), block_size)
        .map_err(|e| failed("no buffers", &e))
}

/// What an error of the client means, and what to do.
pub(crate) fn failed(doing: &str, error: &ClientError) -> Failure {
    let remedy = match error {
        ClientError::Connect { .. } => {
            "check that the target runs: kbtp serve, or name it with --target"
        }
        ClientError::Session {
            source: SessionError::KeyMissing,
            ..
        } => "name the tenant and its key: --tenant NAME --key-file FILE",
        ClientError::Session { .. } if error.status() == Some(Status::NotAuthorized) => {
            "check --tenant and --key-file"
        }
        _ if error.is_disconnected() => REMEDY_CUT_OFF,
        _ => error.status().map_or(REMEDY_OTHER, remedy),
    };
    Failure::operation(format_args!("{doing}: {}", chain(error)), remedy)
}

const REMEDY_CUT_OFF: &str = "the target ended, or ended this session: another one of the same owner takes its place (put, free and \
     get --owner are the owner's); see the target's log, and run the command again";
const REMEDY_OTHER: &str = "see the target's log";

fn remedy(status: Status) -> &'static str {
    match status {
        Status::NotAuthorized => {
            "the blocks are another initiator's or another tenant's: check the map, --tenant and --key-file"
        }
        Status::NotValid | Status::GenerationMismatch => {
            "the blocks are gone: freed, or their lease ran out; store them again"
        }
        Status::NoSpace => "free blocks, ask for less, or start the target with more --blocks",
        Status::ShuttingDown => "the target drains; try again, or another target",
        Status::VersionMismatch => "use a kbtp of the target's version",
        Status::LengthError => "use blocks no longer than the target's block size",
        _ => REMEDY_OTHER,
    }
}
