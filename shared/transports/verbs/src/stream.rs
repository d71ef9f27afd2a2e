//! A reliable connection as a stream.

use crate::end::End;
use crate::limits::{CLOSE_MS, NUDGE_MAX_MS, NUDGE_MS};
use kbtp_fabric::{
    Access, Atomics, Capabilities, CloseReason, Event, LocalError, PostError, Readiness,
    ReceiveSlot, Stream, StreamError, Time, WorkId, WorkRequest,
};
use kbtp_memory::Region;
use kbtp_verbs_sys::{CmEventKind, VerbsError, raw};
use kbtp_wire::{ByteLen, Stag, TaggedOffset};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// Where a stream is. It only moves down the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Open,
    /// What is posted goes out, then the connection ends.
    Draining,
    /// The peer was told; it has until then to say so.
    Disconnecting(Time),
    Ended,
}

/// What is known of a stream once it is established.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) device: String,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) outbound_reads: u16,
    pub(crate) inbound_reads: u16,
    pub(crate) receive_len: u32,
    pub(crate) keepalive_ms: u64,
    /// This party is the one that must be heard first, on iWARP.
    pub(crate) nudges: bool,
}

/// An RDMA stream on a device: what [`Connector`](crate::Connector) and [`Listener`](crate::Listener) give.
///
/// Payload goes from and to the regions by the device; heads of messages are copied into a work request or beside it.
/// [`progress`](Stream::progress) takes completions from memory, without a system call while there are some, and its
/// descriptor is readable when the next one has come. Nothing is allocated once the stream is established, but by
/// registering memory.
///
/// Each stream has a protection domain of its own: its STags are worth nothing on any other. They are the device's keys, and
/// not as hard to guess as those of a stream over TCP; a peer that guesses one reaches what this stream registered for it,
/// and no more.
pub struct VerbsStream {
    end: End,
    facts: Facts,
    phase: Phase,
    error: Option<StreamError>,
    /// When something last came or went, as far as anybody looked.
    active: Time,
    asked: bool,
    nudge: Option<(Time, u64)>,
    /// This side asked for the end.
    closing: Option<CloseReason>,
    /// The queue pair was flushed, and by then whoever did it must have said why.
    silent_until: Option<Time>,
}

impl fmt::Debug for VerbsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsStream")
            .field("facts", &self.facts)
            .field("phase", &self.phase)
            .finish_non_exhaustive()
    }
}

impl VerbsStream {
    pub(crate) const fn new(end: End, facts: Facts, now: Time) -> Self {
        Self {
            end,
            facts,
            phase: Phase::Open,
            error: None,
            active: now,
            asked: false,
            nudge: None,
            closing: None,
            silent_until: None,
        }
    }

    /// The peer's address.
    #[must_use]
    pub const fn peer_addr(&self) -> SocketAddr {
        self.facts.peer
    }

    /// This end's address.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.facts.local
    }

    /// The kernel's name for its device.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.facts.device
    }

    /// Largest packet payload of its path, in octets; none on iWARP, and none once it has ended.
    #[must_use]
    pub fn path_mtu(&self) -> Option<u32> {
        let pair = self.end.id.queue_pair()?;
        pair.path_mtu().ok().flatten()
    }

    /// Ends it, for this reason. What came before is there; the rest is flushed.
    fn finish(&mut self, error: StreamError) {
        if self.phase == Phase::Ended {
            return;
        }
        self.end.finish();
        self.phase = Phase::Ended;
        self.error = Some(error);
    }

    /// The connection is told to end. It may be gone already.
    fn disconnect(&mut self) {
        if let Err(error) = self.end.id.disconnect() {
            tracing::debug!(peer = %self.facts.peer, %error, "could not disconnect");
        }
    }

    fn act(&mut self, kind: CmEventKind, status: i32) {
        let connection = |what: &'static str, kind| StreamError::Connection {
            source: io::Error::new(kind, what),
        };
        match kind {
            CmEventKind::Disconnected => {
                self.disconnect();
                let error = match (self.closing, self.end.broken()) {
                    (Some(_), _) => StreamError::ClosedHere,
                    (None, Some(broken)) if is_telling(broken.status) => {
                        of_status(broken.status, &broken.text)
                    }
                    (None, _) => StreamError::PeerClosed,
                };
                self.finish(error);
            }
            CmEventKind::DeviceRemoved => {
                self.finish(connection(
                    "the device was removed",
                    io::ErrorKind::NotConnected,
                ));
            }
            CmEventKind::AddressChanged => {
                tracing::warn!(device = %self.facts.device, "the address of a connection's interface has changed");
            }
            CmEventKind::Failed(what) => {
                tracing::debug!(status, what, "a connection failed");
                self.finish(connection(what, io::ErrorKind::ConnectionAborted));
            }
            _ => {}
        }
    }

    fn failed(&mut self, error: VerbsError) {
        self.disconnect();
        self.finish(StreamError::Connection {
            source: io::Error::other(error),
        });
    }

    /// One step of [`progress`](Stream::progress).
    fn pump(&mut self, now: Time) -> bool {
        let stir = match self.end.stir() {
            Ok(stir) => stir,
            Err(error) => {
                self.failed(error);
                return true;
            }
        };
        for event in &stir.events {
            self.act(event.kind, event.status);
        }
        if self.phase == Phase::Ended {
            return true;
        }
        if stir.moved {
            self.active = now;
            self.asked = false;
        }
        // A queue pair that is broken for no reason of its own tells of a peer that ends: the connection manager says so.
        let broken = self.end.broken().filter(|b| is_telling(b.status)).cloned();
        if let Some(broken) = broken {
            self.disconnect();
            self.finish(match self.closing {
                Some(_) => StreamError::ClosedHere,
                None => of_status(broken.status, &broken.text),
            });
            return true;
        }
        self.timers(now);
        stir.moved
    }

    fn timers(&mut self, now: Time) {
        match self.phase {
            Phase::Draining if self.end.is_idle() || self.end.broken().is_some() => {
                self.disconnect();
                self.phase = Phase::Disconnecting(now.after_ms(CLOSE_MS));
            }
            Phase::Disconnecting(until) if until <= now => self.finish(StreamError::ClosedHere),
            Phase::Open if self.end.broken().is_some() => self.flushed(now),
            Phase::Open => self.signs_of_life(now),
            _ => {}
        }
    }

    /// The queue pair is in its error state and the connection manager has not said why yet: it says so soon, or never.
    fn flushed(&mut self, now: Time) {
        let until = *self
            .silent_until
            .get_or_insert_with(|| now.after_ms(CLOSE_MS));
        if until <= now {
            self.disconnect();
            self.finish(StreamError::Connection {
                source: io::Error::new(
                    io::ErrorKind::ConnectionReset,
                    "the queue pair went into its error state",
                ),
            });
        }
    }

    /// The time at which something is sent even so.
    fn life_at(&self) -> Option<Time> {
        if self.phase != Phase::Open {
            return None;
        }
        if self.silent_until.is_some() {
            return self.silent_until;
        }
        let idle = self.active.after_ms(self.facts.keepalive_ms);
        // One that was asked for is answered, or the device gives the peer up.
        let idle = (!self.asked).then_some(idle);
        match (idle, self.nudge) {
            (Some(idle), Some((nudge, _))) => Some(idle.min(nudge)),
            (idle, nudge) => idle.or_else(|| nudge.map(|(at, _)| at)),
        }
    }

    fn signs_of_life(&mut self, now: Time) {
        if self.end.heard() {
            self.nudge = None;
        }
        if self.life_at().is_none_or(|at| at > now) {
            return;
        }
        if let Some((_, pause)) = self.nudge {
            let pause = pause.saturating_mul(2).min(NUDGE_MAX_MS);
            self.nudge = Some((now.after_ms(pause), pause));
        } else {
            self.asked = true;
        }
        self.active = now;
        if let Err(error) = self.end.ask_for_life() {
            tracing::debug!(peer = %self.facts.peer, %error, "no sign of life was asked for");
        }
    }
}

/// A status that says more than that something else was the reason.
const fn is_telling(status: u32) -> bool {
    status != raw::IBV_WC_SUCCESS && status != raw::IBV_WC_WR_FLUSH_ERR
}

/// How a stream ended, from the status of the completion that ended it.
fn of_status(status: u32, text: &str) -> StreamError {
    match status {
        // Its device refused what was asked of its memory, as an RDMAP peer does with a Terminate.
        raw::IBV_WC_REM_INV_REQ_ERR | raw::IBV_WC_REM_ACCESS_ERR | 11 => {
            StreamError::PeerTerminated {
                reason: text.to_owned(),
            }
        }
        raw::IBV_WC_RETRY_EXC_ERR | raw::IBV_WC_RNR_RETRY_EXC_ERR => StreamError::Connection {
            source: io::Error::new(io::ErrorKind::TimedOut, text),
        },
        // Longer than the receive it went to, and the like.
        1..=4 | 8 => StreamError::Protocol {
            reason: text.to_owned(),
        },
        _ => StreamError::Connection {
            source: io::Error::other(text.to_owned()),
        },
    }
}

//= kbtp-9.2-messages
impl Stream for VerbsStream {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            atomics: if self.end.quirks.atomics {
                Atomics::Unmasked
            } else {
                Atomics::None
            },
            write_with_immediate: self.end.quirks.immediate,
            send_with_invalidate: self.end.quirks.windows,
            outbound_reads: self.facts.outbound_reads,
            inbound_reads: self.facts.inbound_reads,
            max_receive: ByteLen(self.facts.receive_len),
            max_message: ByteLen(self.end.max_message()),
        }
    }

    fn stags(&self) -> Option<u64> {
        Some(self.end.keys.len())
    }

    fn tagged_base(&self, region: &Region, start: u64, wanted: TaggedOffset) -> TaggedOffset {
        self.end.keys.tagged_base(region, start, wanted)
    }

    fn register(
        &mut self,
        region: &Region,
        range: Range<u64>,
        base: TaggedOffset,
        access: Access,
    ) -> Result<Stag, LocalError> {
        let mut entry = self.end.keys.prepare(region, range, base, access)?;
        self.end
            .bind(&mut entry, access)
            .map_err(|error| match error {
                PostError::Local(error) => error,
                other => LocalError::Os {
                    what: "binding a memory window",
                    source: io::Error::other(other),
                },
            })?;
        self.end.keys.insert(entry)
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), LocalError> {
        self.end.keys.remove(stag)
    }

    /// The device cannot drop what is written to a key that is gone: the stream is closed.
    fn retire(&mut self, stag: Stag) -> Result<(), LocalError> {
        self.end.keys.remove(stag)?;
        self.close(CloseReason::Abort);
        Ok(())
    }

    fn post(
        &mut self,
        id: WorkId,
        work: &WorkRequest<'_>,
        signaled: bool,
    ) -> Result<(), PostError> {
        if self.phase != Phase::Open || self.end.broken().is_some() {
            return Err(PostError::Closed);
        }
        self.end.post(id, work, signaled)?;
        if self.facts.nudges && !self.end.heard() && self.nudge.is_none() {
            self.nudge = Some((self.active.after_ms(NUDGE_MS), NUDGE_MS));
        }
        Ok(())
    }

    fn progress(&mut self, now: Time) -> Result<bool, StreamError> {
        let moved = self.phase != Phase::Ended && self.pump(now);
        self.error.take().map_or(Ok(moved), Err)
    }

    fn next_event(&mut self) -> Option<Event> {
        self.end.next_event()
    }

    fn message(&self, slot: ReceiveSlot) -> &[u8] {
        self.end.message(slot)
    }

    fn release(&mut self, slot: ReceiveSlot) {
        if self.phase == Phase::Ended || self.end.broken().is_some() {
            return;
        }
        if let Err(error) = self.end.give_back(slot.0) {
            tracing::debug!(peer = %self.facts.peer, %error, "a receive was not posted again");
        }
    }

    fn readiness(&self) -> Readiness {
        Readiness {
            read: self.phase != Phase::Ended,
            write: false,
            at: match self.phase {
                Phase::Disconnecting(until) => Some(until),
                _ => self.life_at(),
            },
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.end.descriptor()
    }

    fn close(&mut self, how: CloseReason) {
        if self.phase == Phase::Ended {
            return;
        }
        self.closing = Some(how);
        match how {
            CloseReason::Abort => {
                self.disconnect();
                self.finish(StreamError::ClosedHere);
            }
            CloseReason::Graceful if self.phase == Phase::Open => self.phase = Phase::Draining,
            CloseReason::Graceful => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_say_who_ended_it() {
        let ends = |status| of_status(status, "text");
        assert!(matches!(ends(10), StreamError::PeerTerminated { .. }));
        assert!(matches!(ends(9), StreamError::PeerTerminated { .. }));
        assert!(matches!(ends(1), StreamError::Protocol { .. }));
        for status in [12, 13] {
            let StreamError::Connection { source } = ends(status) else {
                panic!("{status}");
            };
            assert_eq!(source.kind(), io::ErrorKind::TimedOut);
        }
        assert!(matches!(ends(21), StreamError::Connection { .. }));
        assert!(!is_telling(5) && !is_telling(0) && is_telling(12));
    }
}
