//! A control frame: one `SOCK_SEQPACKET` record.
//!
//! Octets: 0..4 Magic "KBTA", 4..6 Version, 6..8 Reserved (zero), 8..12 ID, 12..16 Length, then Length octets of
//! postcard. Integers of the header are big-endian. The ID of an answer is its request's, never zero; zero marks what
//! the agent says unasked. The length is redundant on a record socket and is checked all the same: the frame is to
//! serve on TCP too. Not checked here: whether the message fits the moment.

use crate::FrameError;
use crate::limits::{MAX_FRAME_LEN, MAX_TEXT_LEN};
use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

/// First four octets of each frame: "KBTA".
pub const MAGIC: u32 = u32::from_be_bytes(*b"KBTA");

/// Version of frames and messages.
pub const VERSION: u16 = 1;

/// Octets before the body.
pub const HEADER_LEN: usize = 16;

/// One frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame<M> {
    /// Ties an answer to its request; zero: unasked.
    pub id: u32,
    /// The message.
    pub message: M,
}

impl<M: Serialize> Frame<M> {
    /// The frame's octets. Allocates them.
    ///
    /// # Errors
    /// [`FrameError::Long`] or [`FrameError::Body`] if the message does not fit a frame.
    pub fn encode(&self) -> Result<Vec<u8>, FrameError> {
        let body = postcard::to_stdvec(&self.message).map_err(|e| FrameError::Body {
            reason: e.to_string(),
        })?;
        // There may be a key in it.
        let body = Zeroizing::new(body);
        let long = FrameError::Long {
            len: body.len().saturating_add(HEADER_LEN),
        };
        if body.len() > MAX_FRAME_LEN - HEADER_LEN {
            return Err(long);
        }
        let length = u32::try_from(body.len()).map_err(|_| long)?;
        let mut octets = Vec::with_capacity(HEADER_LEN + body.len());
        octets.extend_from_slice(&MAGIC.to_be_bytes());
        octets.extend_from_slice(&VERSION.to_be_bytes());
        octets.extend_from_slice(&0u16.to_be_bytes());
        octets.extend_from_slice(&self.id.to_be_bytes());
        octets.extend_from_slice(&length.to_be_bytes());
        octets.extend_from_slice(&body);
        Ok(octets)
    }
}

impl<M: DeserializeOwned> Frame<M> {
    /// Reads a frame. Every input gives a frame or a named error; what it allocates is at most the input's length.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn decode(octets: &[u8]) -> Result<Self, FrameError> {
        if octets.len() > MAX_FRAME_LEN {
            return Err(FrameError::Long { len: octets.len() });
        }
        let short = || FrameError::Short { len: octets.len() };
        let (magic, rest) = octets.split_first_chunk().ok_or_else(short)?;
        let (version, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (reserved, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (id, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (length, body) = rest.split_first_chunk().ok_or_else(short)?;
        check_header(*magic, *version, *reserved)?;
        let length = u32::from_be_bytes(*length);
        if usize::try_from(length) != Ok(body.len()) {
            return Err(FrameError::Length {
                says: length,
                has: body.len(),
            });
        }
        let id = u32::from_be_bytes(*id);
        match postcard::take_from_bytes(body) {
            Ok((message, [])) => Ok(Self { id, message }),
            Ok((_, rest)) => Err(FrameError::Body {
                reason: format!("{} octets follow the message", rest.len()),
            }),
            Err(e) => Err(FrameError::Body {
                reason: e.to_string(),
            }),
        }
    }
}

/// How many octets the first frame of a stream has, for a transport that keeps no records (TCP): `None` if its header is not
/// there yet. The frame is whole once so many octets are there; [`Frame::decode`] reads it.
///
/// # Errors
/// [`FrameError`] if no frame begins so.
pub fn first_len(octets: &[u8]) -> Result<Option<usize>, FrameError> {
    let Some((header, _)) = octets.split_first_chunk::<HEADER_LEN>() else {
        return Ok(None);
    };
    let [m0, m1, m2, m3, v0, v1, r0, r1, _, _, _, _, length @ ..] = *header;
    check_header([m0, m1, m2, m3], [v0, v1], [r0, r1])?;
    let body = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    let len = body.saturating_add(HEADER_LEN);
    if len > MAX_FRAME_LEN {
        return Err(FrameError::Long { len });
    }
    Ok(Some(len))
}

fn check_header(magic: [u8; 4], version: [u8; 2], reserved: [u8; 2]) -> Result<(), FrameError> {
    let magic = u32::from_be_bytes(magic);
    if magic != MAGIC {
        return Err(FrameError::Magic { got: magic });
    }
    let version = u16::from_be_bytes(version);
    if version != VERSION {
        return Err(FrameError::Version {
            got: version,
            speaks: VERSION,
        });
    }
    match u16::from_be_bytes(reserved) {
        0 => Ok(()),
        got => Err(FrameError::Reserved { got }),
    }
}

/// The first [`MAX_TEXT_LEN`] octets of a sentence, whole characters, so that a frame with it in it fits.
#[must_use]
pub fn clip(text: &str) -> String {
    let end = text
        .char_indices()
        .map(|(at, c)| at.saturating_add(c.len_utf8()))
        .take_while(|end| *end <= MAX_TEXT_LEN)
        .last();
    text.get(..end.unwrap_or(0)).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{MAX_NAME_LEN, MAX_SIDE_REGIONS};
    use crate::message::tests::{any_answer, any_request, report_with_rows};
    use crate::{FromAgent, ToAgent};
    use proptest::prelude::*;

    fn ping() -> Vec<u8> {
        Frame {
            id: 7,
            message: ToAgent::Ping,
        }
        .encode()
        .unwrap()
    }

    fn with(at: usize, octet: u8) -> Vec<u8> {
        let mut octets = ping();
        octets[at] = octet;
        octets
    }

    #[test]
    fn the_octets_of_a_ping_stay_what_they_are() {
        // Variant 4 of ToAgent; a change here is a change of the version.
        assert_eq!(
            ping(),
            [
                b'K', b'B', b'T', b'A', 0, 1, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1, 4
            ]
        );
    }

    #[test]
    fn each_field_of_the_header_is_checked() {
        let decode = |octets: &[u8]| Frame::<ToAgent>::decode(octets).unwrap_err();
        assert!(matches!(decode(&with(0, 0)), FrameError::Magic { .. }));
        assert!(matches!(
            decode(&with(5, 2)),
            FrameError::Version { got: 2, speaks: 1 }
        ));
        assert!(matches!(
            decode(&with(7, 1)),
            FrameError::Reserved { got: 1 }
        ));
        assert!(matches!(
            decode(&with(15, 2)),
            FrameError::Length { says: 2, has: 1 }
        ));
        assert!(matches!(decode(&with(16, 99)), FrameError::Body { .. }));
        assert!(matches!(decode(&[]), FrameError::Short { len: 0 }));
        assert!(matches!(
            decode(&vec![0; MAX_FRAME_LEN + 1]),
            FrameError::Long { .. }
        ));
        let mut trailing = ping();
        trailing.push(0);
        trailing[15] = 2;
        assert!(matches!(decode(&trailing), FrameError::Body { .. }));
    }

    /// Frames that come as a stream, cut anywhere, are the same frames.
    #[test]
    fn a_stream_is_cut_into_frames() {
        let mut stream = Vec::new();
        let one = |id, message| Frame { id, message }.encode().unwrap();
        let frames = [
            one(1, FromAgent::Exported(crate::export::tests::sample(9))),
            one(0, FromAgent::Revoke { epoch: 9 }),
            one(2, FromAgent::Pong),
        ];
        stream.extend(frames.iter().flatten());
        let mut at = 0;
        for frame in &frames {
            for have in 0..HEADER_LEN {
                assert_eq!(first_len(&stream[at..at + have]), Ok(None));
            }
            let len = first_len(&stream[at..]).unwrap().unwrap();
            assert_eq!(&stream[at..at + len], frame);
            at += len;
        }
        assert_eq!(at, stream.len());
        let mut long = ping();
        long[12..16].fill(0xff);
        assert!(matches!(first_len(&long), Err(FrameError::Long { .. })));
        for (at, octet) in [(0, 0), (5, 2), (7, 1)] {
            assert_eq!(
                first_len(&with(at, octet)).unwrap_err(),
                Frame::<ToAgent>::decode(&with(at, octet)).unwrap_err()
            );
        }
    }

    #[test]
    fn the_longest_report_fits_a_frame() {
        let name = "x".repeat(MAX_NAME_LEN);
        let text = "y".repeat(MAX_TEXT_LEN);
        let message = FromAgent::Status(report_with_rows(MAX_SIDE_REGIONS + 1, &name, &text));
        let octets = Frame { id: 1, message }.encode().unwrap();
        assert!(octets.len() <= MAX_FRAME_LEN);
    }

    #[test]
    fn a_message_over_the_limit_is_not_sent() {
        let message = "z".repeat(MAX_FRAME_LEN);
        let error = Frame { id: 1, message }.encode().unwrap_err();
        assert!(matches!(error, FrameError::Long { .. }));
    }

    #[test]
    fn clip_keeps_characters_whole() {
        assert_eq!(clip("kurz"), "kurz");
        let clipped = clip(&"ä".repeat(MAX_TEXT_LEN));
        assert_eq!(clipped.len(), MAX_TEXT_LEN);
        assert_eq!(
            clip(&format!("a{}", "ä".repeat(MAX_TEXT_LEN))).len(),
            MAX_TEXT_LEN - 1
        );
    }

    proptest! {
        #[test]
        fn requests_survive_the_wire(id: u32, message in any_request()) {
            let frame = Frame { id, message };
            prop_assert_eq!(Frame::decode(&frame.encode().unwrap()).unwrap(), frame);
        }

        #[test]
        fn answers_survive_the_wire(id: u32, message in any_answer()) {
            let frame = Frame { id, message };
            prop_assert_eq!(Frame::decode(&frame.encode().unwrap()).unwrap(), frame);
        }

        #[test]
        fn any_octets_give_a_frame_or_an_error(octets in proptest::collection::vec(any::<u8>(), 0..600)) {
            // What it accepts, it would also have said.
            if let Ok(frame) = Frame::<FromAgent>::decode(&octets) {
                prop_assert!(frame.encode().is_ok());
            }
            if let Ok(frame) = Frame::<ToAgent>::decode(&octets) {
                prop_assert!(frame.encode().is_ok());
            }
        }

        #[test]
        fn any_body_behind_a_good_header_gives_a_frame_or_an_error(
            body in proptest::collection::vec(any::<u8>(), 0..600),
        ) {
            let mut octets = ping();
            octets.truncate(HEADER_LEN);
            octets[12..16].copy_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes());
            octets.extend_from_slice(&body);
            if let Ok(frame) = Frame::<FromAgent>::decode(&octets) {
                prop_assert!(frame.encode().is_ok());
            }
            if let Ok(frame) = Frame::<ToAgent>::decode(&octets) {
                prop_assert!(frame.encode().is_ok());
            }
        }

        #[test]
        fn a_damaged_answer_gives_a_frame_or_an_error(
            message in any_answer(), at: proptest::sample::Index, octet: u8, cut: proptest::sample::Index,
        ) {
            let mut octets = Frame { id: 3, message }.encode().unwrap();
            let at = at.index(octets.len());
            octets[at] = octet;
            if let Ok(frame) = Frame::<FromAgent>::decode(&octets) {
                prop_assert!(frame.encode().is_ok());
            }
            octets.truncate(cut.index(octets.len()));
            prop_assert!(Frame::<FromAgent>::decode(&octets).is_err());
        }
    }
}
