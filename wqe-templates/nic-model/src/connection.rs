//! What carries a queue pair's requests to a peer outside the model, and the peer's to it.

use crate::model::Model;
use crate::outside::{Kind, Outgoing};
use kbtp_fabric::Time;
use kbtp_mlx5::{Qpn, Syndrome};

/// A message of a peer that waits for a receive WQE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// Its octets.
    pub octets: &'a [u8],
    /// What else it is.
    pub kind: Kind,
}

/// What a peer answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FromPeer {
    /// Which request.
    pub id: u64,
    /// Its answer, as [`Model::answer`] takes it.
    pub answer: Result<Option<u64>, Syndrome>,
}

/// The peer is gone; nothing more comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended;

/// A connection of a queue pair to a peer outside. All calls return at once.
pub trait Connection {
    /// Takes a request, in order. `Some` gives it back: there is no room now.
    fn post(&mut self, model: &Model, work: Outgoing) -> Option<Outgoing>;

    /// Moves what was posted, and what the peer does. Returns whether anything moved.
    ///
    /// # Errors
    /// [`Ended`] once the peer is gone.
    fn progress(&mut self, model: &Model, now: Time) -> Result<bool, Ended>;

    /// The next answer, in the order of the requests; `None` if there is none now.
    fn answer(&mut self) -> Option<FromPeer>;

    /// The oldest message that was not taken; `None` if there is none.
    fn message(&self) -> Option<Message<'_>>;

    /// The oldest message was taken.
    fn taken(&mut self);
}

/// Carries everything that can be carried now between a queue pair and its peer. `held` keeps the request that found no room,
/// for the next call. Returns whether anything moved. When the peer is gone the queue pair goes to error.
pub fn exchange<C: Connection>(
    model: &mut Model,
    qpn: Qpn,
    connection: &mut C,
    held: &mut Option<Outgoing>,
    now: Time,
) -> bool {
    let mut moved = false;
    while let Some(work) = held.take().or_else(|| model.outgoing(qpn)) {
        *held = connection.post(model, work);
        if held.is_some() {
            break;
        }
        moved = true;
    }
    let ended = match connection.progress(model, now) {
        Ok(progress) => {
            moved |= progress;
            false
        }
        Err(Ended) => true,
    };
    while let Some(FromPeer { id, answer }) = connection.answer() {
        // A queue pair that is gone needs no answer.
        moved |= model.answer(qpn, id, answer).is_ok();
    }
    while let Some(message) = connection.message() {
        match model.deliver(qpn, message.octets, message.kind) {
            Ok(false) => break,
            Ok(true) => moved = true,
            // The queue pair is in error, or was; the message is lost as on the wire.
            Err(_) => {}
        }
        connection.taken();
    }
    if ended {
        moved |= model.failure(qpn).is_none() && model.disconnect(qpn).is_ok();
    }
    moved
}
