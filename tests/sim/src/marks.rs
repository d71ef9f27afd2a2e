//! Things that must happen sometimes: a run in which none of them came would test little.

use kbtp_wire::rdmap::{
    DdpTaggedCode, DdpUntaggedCode, MpaCode, OperationCode, ProtectionCode, TerminateCause,
};

macro_rules! marks {
    ($($name:ident: $text:literal,)*) => {
        /// Something worth having met.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        pub enum Mark { $(#[doc = $text] $name,)* }

        impl Mark {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// In words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

marks! {
    TicketWrap: "the tickets of the shared ring wrapped",
    GenerationWrap: "a Generation wrapped past zero",
    RingFull: "every block was free in the shared ring",
    RingEmpty: "no block was free in the shared ring",
    Deferred: "a free was deferred",
    DeferredSome: "more than one free was deferred at once",
    FreedPinned: "a block was freed while a load sent it",
    Parked: "an allocation had to wait for its block",
    Replaced: "a session was replaced",
    Resumed: "a range was resumed",
    LeaseExpired: "a lease ended with handles bound",
    Abandoned: "a ticket was abandoned",
    PartitionGranted: "a partition was carved",
    PartitionRefused: "no partition was left",
    TerminateSent: "the target sent a Terminate",
    TerminateReceived: "the target received a Terminate",
    RecoverBound: "a pool was recovered with handles bound",
    RecoverInFlight: "a pool was recovered with stores in flight",
    NewInstance: "an initiator met a new instance",
    Corrupted: "damaged octets ended a stream",
    GivenUp: "an operation was given up and answered later",
    TornUnsealed: "an unsealed load mixed two stores",
    Unstable: "a direct load saw the entry change each time",
    TicketTimeout: "a ticket ran out at the initiator",
    TicketUnbound: "a BIND failed and left its ticket open",
    Keepalive: "a half-open stream was noticed",
    Watchdog: "an initiator gave a silent stream up",
    RingWrap: "the shared ring wrapped",
    PartitionWrap: "the ring of a partition wrapped",
    MsnWrap: "a Message Sequence Number wrapped",
    TornEntry: "a peer read while an entry was written",
    TornSlot: "a peer read while a ring slot was written",
    DiedWithin: "the target died between two writes of a call",
    Stable: "a direct load found its entry unchanged",
    BoundDirect: "a direct allocation was bound",
    DomainChange: "a block went from one trust domain to another",
    Zeroed: "a block that went to another trust domain was zeroed",
    Hoarded: "a ticket was taken and left",
    WakeLost: "a wake-up was lost",
    EndTooShort: "a session ended for a message that is too short",
    EndTooLong: "a session ended for a message that is too long",
    EndCredits: "a session ended for requests over its credits",
    EndHelloOrder: "a session ended for a second HELLO",
    EndTickets: "a session ended for too many tickets",
    Cause0: "Terminate: DDP, tagged, invalid STag",
    Cause1: "Terminate: DDP, tagged, base or bounds",
    Cause2: "Terminate: DDP, tagged, offset wraps",
    Cause3: "Terminate: DDP, tagged, invalid version",
    Cause4: "Terminate: DDP, untagged, invalid queue",
    Cause5: "Terminate: DDP, untagged, no buffer",
    Cause6: "Terminate: DDP, untagged, MSN out of range",
    Cause7: "Terminate: DDP, untagged, invalid Message Offset",
    Cause8: "Terminate: DDP, untagged, message too long",
    Cause9: "Terminate: DDP, untagged, invalid version",
    Cause10: "Terminate: RDMAP, protection, invalid STag",
    Cause11: "Terminate: RDMAP, protection, base or bounds",
    Cause12: "Terminate: RDMAP, protection, access rights",
    Cause13: "Terminate: RDMAP, protection, offset wraps",
    Cause14: "Terminate: RDMAP, protection, STag cannot be invalidated",
    Cause15: "Terminate: RDMAP, operation, invalid version",
    Cause16: "Terminate: RDMAP, operation, unexpected opcode",
    Cause17: "Terminate: RDMAP, operation, catastrophic for the stream",
    Cause18: "Terminate: RDMAP, operation, unspecified",
    Cause19: "Terminate: MPA, CRC",
    Status0: "status OK",
    Status1: "status BAD_REQUEST",
    Status2: "status UNSUPPORTED",
    Status3: "status VERSION_MISMATCH",
    Status4: "status NOT_AUTHORIZED",
    Status5: "status NOT_VALID",
    Status6: "status ALREADY_VALID",
    Status7: "status NOT_SEALED",
    Status8: "status SEALED",
    Status9: "status GENERATION_MISMATCH",
    Status10: "status LENGTH_ERROR",
    Status11: "status NO_SPACE",
    Status12: "status TICKET_ABANDONED",
    Status13: "status BAD_TICKET",
    Status14: "status SHUTTING_DOWN",
}

/// The causes of Terminates that honest sockets let happen, in the order of their marks. Others cannot come: an STag that
/// is not of the stream is unknown here, and a Marker is only ever wrong where its CRC is too.
const CAUSES: [TerminateCause; 20] = [
    TerminateCause::DdpTagged(DdpTaggedCode::InvalidStag),
    TerminateCause::DdpTagged(DdpTaggedCode::BaseOrBounds),
    TerminateCause::DdpTagged(DdpTaggedCode::OffsetWrap),
    TerminateCause::DdpTagged(DdpTaggedCode::InvalidVersion),
    TerminateCause::DdpUntagged(DdpUntaggedCode::InvalidQueue),
    TerminateCause::DdpUntagged(DdpUntaggedCode::NoBuffer),
    TerminateCause::DdpUntagged(DdpUntaggedCode::MsnRange),
    TerminateCause::DdpUntagged(DdpUntaggedCode::InvalidMessageOffset),
    TerminateCause::DdpUntagged(DdpUntaggedCode::MessageTooLong),
    TerminateCause::DdpUntagged(DdpUntaggedCode::InvalidVersion),
    TerminateCause::Protection(ProtectionCode::InvalidStag),
    TerminateCause::Protection(ProtectionCode::BaseOrBounds),
    TerminateCause::Protection(ProtectionCode::AccessRights),
    TerminateCause::Protection(ProtectionCode::OffsetWrap),
    TerminateCause::Protection(ProtectionCode::StagCannotBeInvalidated),
    TerminateCause::Operation(OperationCode::InvalidVersion),
    TerminateCause::Operation(OperationCode::UnexpectedOpcode),
    TerminateCause::Operation(OperationCode::CatastrophicStream),
    TerminateCause::Operation(OperationCode::Unspecified),
    TerminateCause::Mpa(MpaCode::Crc),
];

/// Marks met, and how often.
#[derive(Clone, Debug)]
pub struct Marks(Vec<u64>);

impl Default for Marks {
    fn default() -> Self {
        Self(vec![0; Mark::ALL.len()])
    }
}

impl Marks {
    /// It happened.
    pub fn hit(&mut self, mark: Mark) {
        self.0[mark as usize] += 1;
    }

    /// The mark of a status, if it is one that an initiator may meet.
    pub fn status(&mut self, status: u16) {
        if status <= 14 {
            self.0[Mark::Status0 as usize + usize::from(status)] += 1;
        }
    }

    /// The marks of the causes of Terminates that are named in `reason`.
    pub fn cause(&mut self, reason: &str) {
        for (cause, count) in CAUSES.iter().zip(&mut self.0[Mark::Cause0 as usize..]) {
            *count += u64::from(reason.contains(&cause.to_string()));
        }
    }

    /// How often it happened.
    #[must_use]
    pub fn count(&self, mark: Mark) -> u64 {
        self.0[mark as usize]
    }

    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine += theirs;
        }
    }

    /// Those that never happened.
    #[must_use]
    pub fn missing(&self) -> Vec<Mark> {
        Mark::ALL
            .iter()
            .copied()
            .filter(|mark| self.count(*mark) == 0)
            .collect()
    }
}
