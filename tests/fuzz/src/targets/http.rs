//! The admin endpoint: what a target is asked, and what `kbtp stat` is answered.

use kbtp::status;
use kbtp_target::http::{Head, Status, TEXT, parse_head, response};
use kbtp_target::limits::ADMIN_HEAD_LEN;

/// The head of a request, as it comes in: what its first octets are, all of them are too, and a whole one is answered.
pub(super) fn admin_head(octets: &[u8]) {
    let head = parse_head(octets);
    let ends = octets.windows(4).any(|four| four == b"\r\n\r\n");
    match head {
        Head::Partial => assert!(!ends && octets.len() < ADMIN_HEAD_LEN),
        Head::Get { path, .. } => {
            assert!(ends && path.starts_with('/'));
            let odd = |octet: u8| octet.is_ascii_control() || matches!(octet, b' ' | b'?');
            assert!(!path.bytes().any(odd), "{path:?}");
        }
        Head::Refused(Status::HeadTooLong) => assert!(!ends && octets.len() >= ADMIN_HEAD_LEN),
        Head::Refused(_) => assert!(ends),
    }
    // Where it is cut makes no difference, and what comes behind it neither.
    let half = octets.get(..octets.len() / 2).unwrap_or(octets);
    let early = parse_head(half);
    assert!(early == Head::Partial || early == head);
    // A body of any text says how long it is.
    if let Ok(body) = str::from_utf8(octets) {
        let reply = response(Status::Ok, TEXT, body, false);
        let bare = response(Status::Ok, TEXT, body, true);
        assert_eq!(reply.len(), bare.len() + body.len());
        let stated = format!("\r\nContent-Length: {}\r\n", body.len());
        assert!(bare.windows(stated.len()).any(|w| w == stated.as_bytes()));
    }
}

/// The answer to `kbtp stat`, from whoever listens at the address: a status that can be shown, or what it is instead.
pub(super) fn status_page(octets: &[u8]) {
    match status::read(octets) {
        Ok(found) => assert!(status::text(&found).contains("pool")),
        Err(what) => assert!(!what.is_empty()),
    }
}
