//! What the startup frames say and what follows from them: pure functions.
//! Source: RFC 5044, section 7.1; RFC 6581, sections 6 to 9.

use crate::config::{Config, Handshake};
use kbtp_wire::mpa::{
    EnhancedData, FrameKind, MAX_PRIVATE_LEN, REVISION_ENHANCED, REVISION_ORIGINAL, ReadDepth,
    RtrKinds, StartupFlags, StartupFrame,
};
use kbtp_wire::rdmap::MpaCode;

/// The Ready To Receive indication of the peer-to-peer model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rtr {
    Write,
    Read,
    Send,
}

/// What both parties agreed to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "four independent outcomes of the negotiation"
)]
pub(crate) struct Agreed {
    pub(crate) crc: bool,
    /// Markers go out: the peer asked for them.
    pub(crate) markers_out: bool,
    /// Markers come in: this party asked for them.
    pub(crate) markers_in: bool,
    /// RDMA Reads and Atomics this party may have outstanding.
    pub(crate) ord: u16,
    /// RDMA Reads and Atomics the peer may have outstanding.
    pub(crate) ird: u16,
    /// Initiator: the indication to send first. Responder: `None`.
    pub(crate) rtr: Option<Rtr>,
    /// Responder: a zero-length Send that comes first is the indication, not a message.
    pub(crate) rtr_send_expected: bool,
}

/// Why an initiator cannot go on with a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Disagreed {
    /// The Terminate code (RFC 6581, section 8); `None` when the frame itself is wrong and the connection just closes.
    pub(crate) code: Option<MpaCode>,
    pub(crate) rule: &'static str,
}

/// The longest Private Data of the ULP in a frame of this form.
pub(crate) const fn private_room(enhanced: bool) -> usize {
    if enhanced {
        MAX_PRIVATE_LEN as usize - EnhancedData::LEN
    } else {
        MAX_PRIVATE_LEN as usize
    }
}

/// Octets of a frame as they go out: head, enhanced data if any, Private Data.
#[derive(Debug)]
pub(crate) struct FrameOctets {
    octets: [u8; StartupFrame::LEN + MAX_PRIVATE_LEN as usize],
    len: usize,
}

impl FrameOctets {
    pub(crate) fn as_slice(&self) -> &[u8] {
        self.octets.split_at(self.len).0
    }

    fn new(
        kind: FrameKind,
        flags: StartupFlags,
        revision: u8,
        enhanced: Option<EnhancedData>,
        private: &[u8],
    ) -> Option<Self> {
        let extra = enhanced.map_or(0, |_| EnhancedData::LEN);
        let private_len = extra.checked_add(private.len())?;
        let private_len = u16::try_from(private_len)
            .ok()
            .filter(|len| *len <= MAX_PRIVATE_LEN)?;
        let frame = StartupFrame {
            kind,
            flags,
            revision,
            private_len,
        };
        let mut out = Self {
            octets: [0; StartupFrame::LEN + MAX_PRIVATE_LEN as usize],
            len: 0,
        };
        out.push(&frame.encode())?;
        //= rfc6581-6-enhanced-data-first
        if let Some(data) = enhanced {
            out.push(&data.encode())?;
        }
        out.push(private)?;
        Some(out)
    }

    fn push(&mut self, from: &[u8]) -> Option<()> {
        let end = self.len.checked_add(from.len())?;
        self.octets.get_mut(self.len..end)?.copy_from_slice(from);
        self.len = end;
        Some(())
    }
}

/// The request of an initiator; `None` if the Private Data is too long.
pub(crate) fn request(config: &Config, private: &[u8]) -> Option<FrameOctets> {
    //= rfc5044-7.1.2-initiator-sends-request
    //= rfc6581-9.2-initiator-flags
    //= rfc6581-9.2-client-server-zero
    let peer_to_peer = match config.handshake {
        Handshake::Original => {
            let flags = StartupFlags {
                markers: config.markers,
                crc: config.crc,
                rejected: false,
                enhanced: false,
            };
            return FrameOctets::new(FrameKind::Request, flags, REVISION_ORIGINAL, None, private);
        }
        Handshake::Enhanced => None,
        Handshake::PeerToPeer(kinds) => Some(kinds),
    };
    let flags = StartupFlags {
        markers: config.markers,
        crc: config.crc,
        rejected: false,
        enhanced: true,
    };
    let data = EnhancedData {
        ird: ReadDepth::clamped(config.inbound_reads),
        ord: ReadDepth::clamped(config.outbound_reads),
        peer_to_peer,
    };
    FrameOctets::new(
        FrameKind::Request,
        flags,
        REVISION_ENHANCED,
        Some(data),
        private,
    )
}

/// A responder's reply to `frame` with `data`, and what is agreed by it; `None` if the Private Data is too long.
pub(crate) fn reply(
    config: &Config,
    frame: StartupFrame,
    data: Option<EnhancedData>,
    private: &[u8],
    rejected: bool,
) -> Option<(FrameOctets, Agreed)> {
    let mut agreed = Agreed {
        //= rfc5044-7.1.1-c-bit
        crc: config.crc || frame.flags.crc,
        //= rfc5044-7.1.1-m-bit
        markers_out: frame.flags.markers,
        markers_in: config.markers,
        ord: config.outbound_reads,
        ird: config.inbound_reads,
        rtr: None,
        rtr_send_expected: false,
    };
    //= rfc6581-6-revision-1-accepted
    //= rfc6581-9.1-all-ones
    let answer = data.map(|asked| {
        //= rfc6581-9.1-responder-ird
        // As much as was asked for and there is; one for the indication if that is to be a Read.
        let for_rtr = u16::from(asked.peer_to_peer.is_some_and(|rtr| rtr.read) && config.rtr.read);
        let ird = asked
            .ord
            .negotiated()
            .map_or(ReadDepth::NOT_NEGOTIATED, |ord| {
                agreed.ird = ord.max(for_rtr).min(config.inbound_reads.max(for_rtr));
                ReadDepth::clamped(agreed.ird)
            });
        //= rfc6581-9.1-responder-ord
        let ord = asked
            .ird
            .negotiated()
            .map_or(ReadDepth::NOT_NEGOTIATED, |ird| {
                agreed.ord = config.outbound_reads.min(ird);
                ReadDepth::clamped(agreed.ord)
            });
        //= rfc6581-9.2-responder-flags
        let peer_to_peer = asked.peer_to_peer.map(|wanted| {
            //= rfc6581-9.2-each-common-rtr
            let common = RtrKinds {
                send: wanted.send && config.rtr.send,
                write: wanted.write && config.rtr.write,
                read: wanted.read && config.rtr.read,
            };
            if common == RtrKinds::default() {
                config.rtr
            } else {
                common
            }
        });
        agreed.rtr_send_expected = peer_to_peer.is_some_and(|rtr| rtr.send);
        EnhancedData {
            ird,
            ord,
            peer_to_peer,
        }
    });
    let flags = StartupFlags {
        markers: config.markers,
        crc: agreed.crc,
        //= rfc5044-7.1.2-reply-tells
        rejected,
        //= rfc6581-10-answer-in-kind
        enhanced: answer.is_some(),
    };
    let octets = FrameOctets::new(FrameKind::Reply, flags, frame.revision, answer, private)?;
    Some((octets, agreed))
}

/// What an initiator concludes from a reply that accepts.
pub(crate) fn conclude(
    config: &Config,
    frame: StartupFrame,
    data: Option<EnhancedData>,
) -> Result<Agreed, Disagreed> {
    let wrong = |rule| Disagreed { code: None, rule };
    let asked_enhanced = config.handshake != Handshake::Original;
    let mut agreed = Agreed {
        crc: config.crc || frame.flags.crc,
        markers_out: frame.flags.markers,
        markers_in: config.markers,
        ord: config.outbound_reads,
        ird: config.inbound_reads,
        rtr: None,
        rtr_send_expected: false,
    };
    let data = match (asked_enhanced, data) {
        (false, None) if frame.revision == REVISION_ORIGINAL => return Ok(agreed),
        (true, Some(data)) => data,
        (false, _) => return Err(wrong("the reply has a form that was not asked for")),
        (true, None) => return Err(wrong("the reply to an enhanced request is not enhanced")),
    };
    //= rfc6581-9.1-initiator-adjusts
    if let Some(ird) = data.ird.negotiated() {
        agreed.ord = agreed.ord.min(ird);
    }
    //= rfc6581-9.1-insufficient-ird
    if let Some(ord) = data.ord.negotiated() {
        if ord > config.inbound_reads {
            return Err(Disagreed {
                code: Some(MpaCode::InsufficientIrd),
                rule: "the responder's ORD is above the IRD of this initiator",
            });
        }
        agreed.ird = ord;
    }
    if let Handshake::PeerToPeer(mine) = config.handshake {
        //= rfc6581-9.2-rtr-generated
        let theirs = data.peer_to_peer.unwrap_or_default();
        agreed.rtr = Some(if mine.write && theirs.write {
            Rtr::Write
        } else if mine.read && theirs.read && agreed.ord > 0 {
            Rtr::Read
        } else if mine.send && theirs.send {
            Rtr::Send
        } else {
            return Err(Disagreed {
                code: Some(MpaCode::NoMatchingRtr),
                rule: "the responder takes none of the RTR indications of this initiator",
            });
        });
    } else if data.peer_to_peer.is_some() {
        return Err(wrong(
            "the reply is peer-to-peer, the request was client-server",
        ));
    }
    Ok(agreed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL_RTR: RtrKinds = RtrKinds {
        send: true,
        write: true,
        read: true,
    };

    fn parse(octets: &FrameOctets, kind: FrameKind) -> (StartupFrame, Option<EnhancedData>) {
        let octets = octets.as_slice();
        let frame = StartupFrame::decode(octets[..20].try_into().unwrap(), kind).unwrap();
        let data = frame
            .flags
            .enhanced
            .then(|| EnhancedData::decode(octets[20..24].try_into().unwrap()));
        (frame, data)
    }

    /// Runs a handshake and gives what each side holds for agreed.
    fn shake(initiator: &Config, responder: &Config) -> (Agreed, Result<Agreed, Disagreed>) {
        let (frame, data) = parse(&request(initiator, b"hello").unwrap(), FrameKind::Request);
        let (octets, theirs) = reply(responder, frame, data, b"welcome", false).unwrap();
        let (frame, data) = parse(&octets, FrameKind::Reply);
        (theirs, conclude(initiator, frame, data))
    }

    #[test]
    fn the_form_of_the_reply_follows_the_request() {
        //= test rfc6581-10-answer-in-kind
        let config = Config {
            handshake: Handshake::Original,
            ..Config::default()
        };
        let (frame, data) = parse(&request(&config, b"").unwrap(), FrameKind::Request);
        assert_eq!((frame.revision, data), (1, None));
        let (octets, _) = reply(&config, frame, data, b"", false).unwrap();
        let (frame, data) = parse(&octets, FrameKind::Reply);
        assert_eq!((frame.revision, data), (1, None));
        // An enhanced request that is answered unenhanced is wrong.
        assert!(conclude(&Config::default(), frame, data).is_err());
    }

    #[test]
    fn too_many_reads_for_the_initiator_is_insufficient_ird() {
        //= test rfc6581-9.1-insufficient-ird
        let config = Config {
            inbound_reads: 4,
            ..Config::default()
        };
        let frame = parse(&request(&config, b"").unwrap(), FrameKind::Request).0;
        let data = EnhancedData {
            ird: ReadDepth::clamped(1),
            ord: ReadDepth::clamped(5),
            peer_to_peer: None,
        };
        assert_eq!(
            conclude(&config, frame, Some(data)).unwrap_err().code,
            Some(MpaCode::InsufficientIrd)
        );
    }

    #[test]
    fn no_common_rtr_is_said() {
        //= test rfc6581-9.2-rtr-generated
        let config = Config {
            handshake: Handshake::PeerToPeer(RtrKinds {
                write: true,
                ..RtrKinds::default()
            }),
            ..Config::default()
        };
        let responder = Config {
            rtr: RtrKinds {
                read: true,
                ..RtrKinds::default()
            },
            ..Config::default()
        };
        let (_, mine) = shake(&config, &responder);
        assert_eq!(mine.unwrap_err().code, Some(MpaCode::NoMatchingRtr));
    }

    #[test]
    fn depths_that_are_not_negotiated_stay() {
        //= test rfc6581-9.1-all-ones
        let config = Config::default();
        let (frame, _) = parse(&request(&config, b"").unwrap(), FrameKind::Request);
        let asked = EnhancedData {
            ird: ReadDepth::NOT_NEGOTIATED,
            ord: ReadDepth::NOT_NEGOTIATED,
            peer_to_peer: None,
        };
        let (octets, agreed) = reply(&config, frame, Some(asked), b"", false).unwrap();
        assert_eq!((agreed.ird, agreed.ord), (64, 64));
        let (frame, data) = parse(&octets, FrameKind::Reply);
        assert_eq!(data, Some(asked));
        let mine = conclude(&config, frame, data).unwrap();
        assert_eq!((mine.ird, mine.ord), (64, 64));
    }

    #[test]
    fn a_read_indication_gets_a_place_in_an_empty_queue() {
        //= test rfc6581-9.1-responder-ird
        let initiator = Config {
            handshake: Handshake::PeerToPeer(RtrKinds {
                read: true,
                ..RtrKinds::default()
            }),
            ..Config::default()
        };
        let responder = Config {
            inbound_reads: 0,
            ..Config::default()
        };
        let (theirs, mine) = shake(&initiator, &responder);
        assert_eq!(theirs.ird, 1);
        assert_eq!(mine.unwrap().rtr, Some(Rtr::Read));
    }

    #[test]
    fn private_data_is_bounded() {
        let config = Config::default();
        assert!(request(&config, &[0; 508]).is_some());
        assert!(request(&config, &[0; 509]).is_none());
        assert_eq!(private_room(true), 508);
        assert_eq!(private_room(false), 512);
    }

    proptest! {
        #[test]
        fn both_sides_agree(
            crc in any::<[bool; 2]>(), markers in any::<[bool; 2]>(),
            depths in any::<[u8; 4]>(), original in any::<bool>(),
        ) {
            //= test rfc5044-7.1.1-c-bit
            //= test rfc5044-7.1.1-m-bit
            //= test rfc6581-9.1-responder-ord
            //= test rfc6581-9.1-initiator-adjusts
            let side = |n: usize| Config {
                crc: crc[n],
                markers: markers[n],
                inbound_reads: depths[n].into(),
                outbound_reads: depths[n + 2].into(),
                handshake: if original { Handshake::Original } else { Handshake::Enhanced },
                rtr: ALL_RTR,
                ..Config::default()
            };
            let (theirs, mine) = shake(&side(0), &side(1));
            let mine = mine.unwrap();
            prop_assert_eq!(mine.crc, crc[0] || crc[1]);
            prop_assert_eq!(theirs.crc, mine.crc);
            prop_assert_eq!((mine.markers_in, mine.markers_out), (markers[0], markers[1]));
            prop_assert_eq!((theirs.markers_in, theirs.markers_out), (markers[1], markers[0]));
            if !original {
                prop_assert!(mine.ord <= theirs.ird && theirs.ord <= mine.ird);
                prop_assert_eq!(mine.ord, u16::from(depths[2].min(depths[1])));
                prop_assert_eq!(theirs.ord, u16::from(depths[3].min(depths[0])));
            }
        }
    }
}
