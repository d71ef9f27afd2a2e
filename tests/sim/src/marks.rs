//! Things that must happen sometimes: a run in which none of them came would test little.

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
