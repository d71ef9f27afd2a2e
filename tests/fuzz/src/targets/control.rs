//! Frames between agent and target.

use kbtp_control::limits::MAX_FRAME_LEN;
use kbtp_control::{Frame, FromAgent, HEADER_LEN, ToAgent};

/// A frame in either direction: the same octets may be one in both.
pub(super) fn frame(octets: &[u8]) {
    let to = Frame::<ToAgent>::decode(octets);
    if let Ok(frame) = &to {
        assert!((HEADER_LEN..=MAX_FRAME_LEN).contains(&octets.len()));
        let again = frame.encode().and_then(|octets| Frame::decode(&octets));
        assert_eq!(again.as_ref().ok(), Some(frame));
    }
    let from = Frame::<FromAgent>::decode(octets);
    if let Ok(frame) = &from {
        let again = frame.encode().and_then(|octets| Frame::decode(&octets));
        assert_eq!(again.as_ref().ok(), Some(frame));
    }
    // What is wrong with it goes into a log, in words.
    for error in [to.err(), from.err()].into_iter().flatten() {
        assert!(!error.to_string().is_empty());
    }
}
