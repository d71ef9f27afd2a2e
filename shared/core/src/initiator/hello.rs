//! HELLO: what this party asks for, and how it proves its tenant.
//! Source: KBTP profile, P5 and P9.

use super::limits::{MAX_SOFTWARE, MAX_TENANT};
use super::types::{PeerError, SessionError, Settings};
use crate::auth::mac;
use kbtp_wire::{Auth, AuthMode, Hello, KnownTlvs, Nonce, PrivateData, RequestId, VERSION};

/// The HELLO message for a target that sent `private_data` with its reply.
pub(super) fn encode(
    settings: &Settings,
    private_data: &[u8],
    nonce: Nonce,
    request_id: RequestId,
) -> Result<Vec<u8>, SessionError> {
    fits("the tenant", settings.tenant.len(), MAX_TENANT)?;
    fits("the software's name", settings.software.len(), MAX_SOFTWARE)?;
    let target = private_data
        .as_array()
        .ok_or(PeerError::PrivateData("it has not 40 octets"))?;
    let target = PrivateData::decode(target).map_err(PeerError::Malformed)?;
    let initiator = settings.initiator_id;
    //= kbtp-p9-tenant-and-auth
    let auth = match (target.auth_mode, &settings.key) {
        (AuthMode::None, _) => None,
        (AuthMode::Hmac, Some(key)) => Some(Auth {
            nonce,
            mac: mac(key, &target.challenge, &nonce, &initiator, &settings.tenant),
        }),
        (AuthMode::Hmac, None) => return Err(SessionError::KeyMissing),
    };
    let hello = Hello {
        request_id,
        min_version: VERSION,
        max_version: VERSION,
        credits: settings.request_credits,
        capabilities: settings.capabilities,
        quota: settings.quota,
        max_inline: settings.max_inline,
        handles: settings.handles,
        initiator,
        tlvs: KnownTlvs {
            tenant: text(&settings.tenant),
            auth,
            software: text(&settings.software),
        },
    };
    let mut message = vec![0; hello.encoded_len()];
    let len = hello
        .encode_into(&mut message)
        .map_err(|short| SessionError::Setting {
            what: "HELLO",
            len: short.needed,
            limit: short.len,
        })?;
    message.truncate(len);
    Ok(message)
}

const fn text(value: &str) -> Option<&str> {
    if value.is_empty() { None } else { Some(value) }
}

const fn fits(what: &'static str, len: usize, limit: usize) -> Result<(), SessionError> {
    if len <= limit {
        Ok(())
    } else {
        Err(SessionError::Setting { what, len, limit })
    }
}
