//! The model of a NIC as the device, and streams as what its queue pairs are connected to.

use super::{Chains, SeatId};
use crate::limits;
use kbtp_core::{SessionEnd, Shared, TargetSession};
use kbtp_device::{Device as _, Peer, Route, SetUpError};
use kbtp_fabric::{ReceiveSlot, Stream, StreamError, Time};
use kbtp_mlx5::Qpn;
use kbtp_nic_model::{Connection as _, Ended, FromPeer, Model, ModelError, Outgoing, StreamLink};
use kbtp_wire::{Stag, TaggedOffset};

/// Chains on the model.
pub(crate) type Nic = Chains<Model>;

/// A seat, and what connects its client's queue pair with the stream.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) id: SeatId,
    qpn: Qpn,
    far: StreamLink,
    /// A request of the queue pair for which the stream had no room.
    held: Option<Outgoing>,
    credits: u16,
}

/// A stream has no queue pair number, and the model does not ask.
const FAR: Peer = Peer::Remote(Route {
    qpn: Qpn::truncate(1),
    gid: [0; 16],
    send_psn: 0,
    receive_psn: 0,
    path: None,
});

impl Link {
    /// Why the stream ended, if it has.
    pub(crate) const fn take_end(&mut self) -> Option<StreamError> {
        self.far.take_end()
    }
}

impl Nic {
    /// Makes a seat for a session and connects it with its stream, whose STag of the pool this is; `waiting` are messages that
    /// came already. `None` if the session is not for chains.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub(crate) fn open(
        &mut self,
        shared: &Shared,
        core: &TargetSession,
        pool_stag: Stag,
        waiting: impl Iterator<Item = ReceiveSlot>,
    ) -> Result<Option<Link>, SetUpError<ModelError>> {
        let Some(id) = self.seat(shared, core)? else {
            return Ok(None);
        };
        let qpn = self.client_qpn(id).unwrap_or_default();
        let connected = self.device.connect(qpn, &FAR);
        connected.map_err(|source| SetUpError::Device {
            what: "connecting a client's queue pair",
            source,
        })?;
        self.start(id, core)?;
        let mut far = StreamLink::default();
        let base = TaggedOffset(shared.pool.geometry().pool_base.0);
        far.add(self.pool_memory(), pool_stag, base);
        for slot in waiting {
            far.adopt(slot);
        }
        Ok(Some(Link {
            id,
            qpn,
            far,
            held: None,
            credits: core.grant().map_or(0, |grant| grant.credits),
        }))
    }

    /// Lets the model do what it can, and takes what it says. Returns whether it did anything.
    pub(crate) fn run(&mut self) -> bool {
        let steps = (0..limits::CHAIN_STEPS).take_while(|_| self.device.step());
        let ran = steps.count() > 0;
        if ran {
            self.notice();
            self.moved = true;
        }
        ran
    }

    /// Whether the model did anything since the last call.
    pub(crate) const fn take_moved(&mut self) -> bool {
        std::mem::replace(&mut self.moved, false)
    }

    /// Carries between a seat's queue pair and its stream what can be carried. Returns whether anything was. When the stream is
    /// over the queue pair goes to error.
    ///
    /// # Errors
    /// [`SessionEnd`] if the initiator broke a rule.
    pub(crate) fn carry<S: Stream>(
        &mut self,
        link: &mut Link,
        stream: &mut S,
        now: Time,
    ) -> Result<bool, SessionEnd> {
        let Link { qpn, held, .. } = link;
        let mut over = link.far.over(stream);
        let mut moved = false;
        while let Some(work) = held.take().or_else(|| self.device.outgoing(*qpn)) {
            *held = over.post(&self.device, work);
            if held.is_some() {
                break;
            }
            moved = true;
        }
        let is_over = match over.progress(&self.device, now) {
            Ok(progress) => {
                moved |= progress;
                false
            }
            Err(Ended) => true,
        };
        while let Some(FromPeer { id, answer }) = over.answer() {
            // A queue pair that is gone needs no answer.
            moved |= self.device.answer(*qpn, id, answer).is_ok();
        }
        if is_over {
            return Ok(moved);
        }
        self.deliver(link, stream, moved)
    }

    fn deliver<S: Stream>(
        &mut self,
        link: &mut Link,
        stream: &mut S,
        mut moved: bool,
    ) -> Result<bool, SessionEnd> {
        //= kbtp-p7-over-credits-ends-session
        if link.far.outstanding() > u64::from(link.credits) {
            return Err(SessionEnd::Credits(link.credits));
        }
        if self.get(link.id).is_some_and(super::Seat::restarts) {
            return Ok(moved);
        }
        let limit = self.capacity();
        let mut over = link.far.over(stream);
        while let Some(message) = over.message() {
            let len = message.octets.len();
            //= kbtp-p7-too-long-ends-session
            if len > limit {
                return Err(SessionEnd::TooLong { len, limit });
            }
            match self.device.deliver(link.qpn, message.octets, message.kind) {
                Ok(false) => break,
                Ok(true) => moved = true,
                // The queue pair is in error, or was; the message is lost as on the wire.
                Err(_) => {}
            }
            over.taken();
        }
        Ok(moved)
    }

    /// The stream is gone: the queue pair goes to error, and the session's chain comes to rest.
    pub(crate) fn disconnect(&mut self, link: &Link) {
        if self.device.failure(link.qpn).is_none()
            && let Err(error) = self.device.disconnect(link.qpn)
        {
            tracing::error!(%error, "a client's queue pair was not there");
        }
        while self.run() {}
    }
}
