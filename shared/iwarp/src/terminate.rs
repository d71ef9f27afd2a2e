//! Terminate messages: what this party says of a fault, and what the peer said.
//! Source: RFC 5040, section 4.8 (Figures 7 and 10) and section 7.1.

use kbtp_wire::ddp::{DdpControl, TaggedHeader, UntaggedHeader};
use kbtp_wire::rdmap::{HeaderControl, ReadRequest, TerminateCause, TerminateControl};

/// A rule the peer broke.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    /// What a Terminate says of it.
    pub(crate) cause: TerminateCause,
    /// The rule, in words.
    pub(crate) rule: &'static str,
}

impl Fault {
    pub(crate) const fn new(cause: TerminateCause, rule: &'static str) -> Self {
        Self { cause, rule }
    }
}

/// The segment a fault was found in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Culprit {
    /// The ULPDU Length.
    pub(crate) ulpdu_len: u16,
    /// Its DDP header, 14 or 18 octets.
    pub(crate) header: [u8; UntaggedHeader::LEN],
    pub(crate) header_len: u8,
    /// The header of the RDMA Read Request it was.
    pub(crate) read_request: Option<[u8; ReadRequest::LEN]>,
}

/// Octets of a Terminate header, at most.
pub(crate) const MAX_TERMINATE_LEN: usize =
    TerminateControl::LEN + 2 + UntaggedHeader::LEN + ReadRequest::LEN;

/// A Terminate header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TerminateOctets {
    octets: [u8; MAX_TERMINATE_LEN],
    len: usize,
}

impl TerminateOctets {
    /// The header that tells the peer of `cause` in `culprit`.
    pub(crate) fn new(cause: TerminateCause, culprit: Option<&Culprit>) -> Self {
        //= rfc5040-4.8-terminated-headers
        // Figure 10: which headers go with which error.
        let (ddp, rdmap) = match cause {
            TerminateCause::RdmapCatastrophic
            | TerminateCause::Mpa(_)
            | TerminateCause::Unassigned { .. } => (false, false),
            TerminateCause::Protection(_) => (true, true),
            TerminateCause::Operation(_)
            | TerminateCause::DdpCatastrophic
            | TerminateCause::DdpTagged(_)
            | TerminateCause::DdpUntagged(_) => (true, false),
        };
        let culprit = culprit.filter(|_| ddp);
        let request = culprit.and_then(|c| c.read_request).filter(|_| rdmap);
        let control = TerminateControl {
            cause,
            headers: HeaderControl {
                segment_len: culprit.is_some(),
                ddp_header: culprit.is_some(),
                rdmap_header: request.is_some(),
            },
        };
        let mut out = Self {
            octets: [0; MAX_TERMINATE_LEN],
            len: 0,
        };
        out.push(&control.encode());
        if let Some(culprit) = culprit {
            out.push(&culprit.ulpdu_len.to_be_bytes());
            let header = culprit.header.split_at(usize::from(culprit.header_len)).0;
            out.push(header);
        }
        if let Some(request) = request {
            out.push(&request);
        }
        out
    }

    /// Appends; the parts of a header fit by the size of the array.
    fn push(&mut self, from: &[u8]) {
        let end = self.len + from.len();
        if let Some(to) = self.octets.get_mut(self.len..end) {
            to.copy_from_slice(from);
            self.len = end;
        }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.octets.split_at(self.len).0
    }
}

/// What a Terminate header says, in words; `None` if it is too short to say anything.
pub(crate) fn describe(octets: &[u8]) -> Option<String> {
    let (control, rest) = octets.split_first_chunk()?;
    let control = TerminateControl::decode(*control);
    let cause = control.cause;
    // The rest is for people; a peer that fills it badly has still said what matters.
    let named = rest
        .split_first_chunk::<2>()
        .filter(|_| control.headers.ddp_header)
        .map(|(_, rest)| describe_segment(rest, control.headers.rdmap_header))
        .unwrap_or_default();
    Some(format!("{cause}{named}"))
}

/// The terminated headers in words.
fn describe_segment(octets: &[u8], has_request: bool) -> String {
    let is_tagged = octets
        .first()
        .is_some_and(|first| DdpControl::decode(*first).tagged);
    if is_tagged {
        return octets.first_chunk().map_or_else(String::new, |octets| {
            let header = TaggedHeader::decode(octets);
            format!(", for {} at {}", header.stag, header.offset)
        });
    }
    let Some((header, rest)) = octets.split_first_chunk() else {
        return String::new();
    };
    let header = UntaggedHeader::decode(header);
    let (queue, msn) = (header.queue.0, header.msn.0);
    match rest.first_chunk().filter(|_| has_request) {
        None => format!(", for message {msn} of queue {queue}"),
        Some(request) => {
            let ReadRequest {
                len,
                source_stag,
                source_offset,
                ..
            } = ReadRequest::decode(request);
            format!(", for a read of {len} octets of {source_stag} at {source_offset}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kbtp_wire::rdmap::{DdpTaggedCode, MpaCode, OperationCode, ProtectionCode};
    use proptest::prelude::*;

    fn culprit(read: bool) -> Culprit {
        Culprit {
            ulpdu_len: 46,
            header: [0x41; 18],
            header_len: if read { 18 } else { 14 },
            read_request: read.then_some([9; 28]),
        }
    }

    #[test]
    fn headers_go_with_the_errors_of_figure_10() {
        //= test rfc5040-4.8-terminated-headers
        let len = |cause, read| {
            TerminateOctets::new(cause, Some(&culprit(read)))
                .as_slice()
                .len()
        };
        let protection = TerminateCause::Protection(ProtectionCode::BaseOrBounds);
        let operation = TerminateCause::Operation(OperationCode::UnexpectedOpcode);
        let ddp = TerminateCause::DdpTagged(DdpTaggedCode::InvalidStag);
        assert_eq!(len(protection, true), 4 + 2 + 18 + 28);
        assert_eq!(len(protection, false), 4 + 2 + 14);
        assert_eq!(len(operation, true), 4 + 2 + 18);
        assert_eq!(len(ddp, false), 4 + 2 + 14);
        assert_eq!(len(TerminateCause::Mpa(MpaCode::Crc), true), 4);
        assert_eq!(len(TerminateCause::RdmapCatastrophic, true), 4);
        assert_eq!(
            TerminateOctets::new(protection, None).as_slice(),
            [0x01, 0x01, 0, 0]
        );
    }

    #[test]
    fn a_terminate_reads_as_words() {
        let cause = TerminateCause::Protection(ProtectionCode::BaseOrBounds);
        let octets = TerminateOctets::new(cause, Some(&culprit(true)));
        let text = describe(octets.as_slice()).unwrap();
        assert!(text.contains("base or bounds"), "{text}");
        assert!(text.contains("a read of"), "{text}");
        assert_eq!(describe(&[0, 0, 0]), None);
    }

    proptest! {
        #[test]
        fn describing_is_total(octets in proptest::collection::vec(any::<u8>(), 0..60)) {
            prop_assert_eq!(describe(&octets).is_some(), octets.len() >= 4);
        }
    }
}
