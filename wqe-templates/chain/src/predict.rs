//! How long a request should take: a prediction from a few constants, which nobody has measured on a device of today.
//!
//! A WQE of a managed queue takes [`Timing::wave_ns`] to be fetched if a `SEND_EN` let it run and [`Timing::wqe_ns`] behind
//! another; an operation that has a reply takes [`Timing::loopback_ns`]; comparisons of one word are one after the other.
//! Data goes at the rate of the link. [`RequestCost`](crate::RequestCost) counts without any of these.

use crate::cost::{answering, ending};
use crate::element::{Queue, has_reply};
use crate::record::{Action, Record};
use crate::template::Template;
use crate::walk::{Clock, walk};
use kbtp_mlx5::Opcode;
use kbtp_wire::ByteLen;

/// What a device takes for things, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// From a `SEND_EN` to the first WQE that it lets run.
    pub wave_ns: u64,
    /// From one WQE to the next one behind it.
    pub wqe_ns: u64,
    /// From a READ, WRITE or atomic of a queue pair to itself to its CQE.
    pub loopback_ns: u64,
    /// How far two compare-and-swaps of one word are apart.
    pub same_word_ns: u64,
    /// From a request at the port to its CQE.
    pub receive_ns: u64,
    /// One way between the ports, both ends' memory included.
    pub propagation_ns: u64,
    /// Of the link.
    pub gigabits_per_second: u64,
}

impl Timing {
    /// What is known of ConnectX-7, and of BlueField-3, whose network part it is: the rate of the link. The rest is what research
    /// on such chains reports of ConnectX-5, quoted from memory, or is estimated.
    pub const CONNECTX_7: Self = Self {
        wave_ns: 540,
        wqe_ns: 170,
        loopback_ns: 1300,
        same_word_ns: 300,
        receive_ns: 300,
        propagation_ns: 800,
        gigabits_per_second: 400,
    };

    /// How long so many octets take on the link.
    #[must_use]
    pub fn transfer_ns(&self, len: ByteLen) -> u64 {
        u64::from(len.0).saturating_mul(8) / self.gigabits_per_second.max(1)
    }
}

/// How long a request should take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prediction {
    /// From the request at the port of the target to its completion at the client.
    pub answered_ns: u64,
    /// From one request to the next of the session.
    pub slot_ns: u64,
}

struct Nanoseconds<'a> {
    timing: &'a Timing,
    transfer: u64,
}

impl Clock for Nanoseconds<'_> {
    type Time = u64;

    fn turn(&self, first: bool) -> u64 {
        if first {
            self.timing.wave_ns
        } else {
            self.timing.wqe_ns
        }
    }

    fn run(&self, queue: Queue, opcode: Opcode) -> u64 {
        let replies = has_reply(opcode);
        match queue {
            Queue::Worker if replies || opcode == Opcode::RdmaWrite => self.timing.loopback_ns,
            Queue::Client if replies => 2 * self.timing.propagation_ns + self.transfer,
            _ => 0,
        }
    }

    fn apart(&self, opcode: Opcode) -> u64 {
        match opcode {
            Opcode::MaskedCs => self.timing.same_word_ns,
            _ => 0,
        }
    }

    fn arrival(&self) -> u64 {
        self.timing.receive_ns
    }
}

impl Prediction {
    /// Of a request with `len` octets of data that is served without software; `None` if the chain does not come to its end.
    #[must_use]
    pub fn of(template: &Template, action: Action, timing: &Timing, len: ByteLen) -> Option<Self> {
        let record = Record::of(template, Some(action));
        let transfer = timing.transfer_ns(len);
        let clock = Nanoseconds { timing, transfer };
        let [worker, client] = walk(template, &record, &clock)?;
        let sent = client.start(answering(template, &record)?)?;
        // A completion goes out behind the data that its request asked for.
        let before = match action {
            Action::Load { .. } => transfer,
            _ => 0,
        };
        Some(Self {
            answered_ns: sent + before + timing.propagation_ns,
            slot_ns: worker.start(ending(template)?)?,
        })
    }
}
