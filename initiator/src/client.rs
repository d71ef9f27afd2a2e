//! The client: one session with a target, driven by the thread that calls it.

use crate::buffer::{Buffer, Returned};
use crate::dial::Dial;
use crate::entropy;
use crate::error::{ClientError, Ended};
use crate::limits;
use crate::link::Link;
use crate::options::{Options, Reconnect};
use crate::table::Table;
use crate::tcp::Tcp;
use kbtp_core::initiator::{Terms, Usage};
use kbtp_fabric::{Stream, Time};
use kbtp_iwarp_tcp::{Clock, Interest, Poller};
use kbtp_memory::Region;
use kbtp_wire::{ByteLen, Grant, Handle, InitiatorId, InstanceId, Nonce};
use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// The poller's name for the stream; it watches nothing else.
const STREAM: u64 = 0;

/// What a new connection found of the session before it (profile, P8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resumed {
    /// The Target Instance ID changed: bound blocks may have been lost.
    pub instance_changed: bool,
    /// The handle range is another one.
    pub range_changed: bool,
    /// Connections tried.
    pub attempts: u32,
}

impl Resumed {
    /// Whether what was bound is still bound, unless the lease ran out while there was no connection: the same range may
    /// have been granted anew then, and the target does not tell. A block lost so answers `NOT_VALID`.
    #[must_use]
    pub const fn bindings_kept(&self) -> bool {
        !self.instance_changed && !self.range_changed
    }
}

/// A session with a target.
///
/// The thread that calls drives the connection itself: there is no other thread, so that a load costs one round trip
/// and no hand-over. A waiting call looks for its answer a bounded time, then sleeps (see [`Options::spin`]). After
/// set-up, operations allocate nothing.
pub struct Client<D: Dial = Tcp> {
    pub(crate) options: Options,
    dial: D,
    id: InitiatorId,
    pub(crate) link: Link<D::Stream>,
    pub(crate) table: Table,
    pub(crate) returned: Arc<Returned>,
    poller: Poller,
    clock: Clock,
    watched: Option<Interest>,
    last: Identity,
    pub(crate) resumed: Option<Resumed>,
}

impl<D: Dial> fmt::Debug for Client<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("address", &self.options.address)
            .field("id", &self.id)
            .field("initiator", &self.link.initiator)
            .field("ended", &self.link.ended())
            .finish_non_exhaustive()
    }
}

/// What tells whether a range was resumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Identity {
    instance: InstanceId,
    base: Handle,
    count: u64,
}

impl Identity {
    const fn of(grant: &Grant) -> Self {
        Self {
            instance: grant.instance,
            base: grant.handle_base,
            count: grant.handle_count,
        }
    }
}

impl Client {
    /// Connects over TCP and sets the session up.
    ///
    /// # Errors
    /// [`ClientError`]: connecting failed, the target refused the session, or memory or descriptors are short.
    pub fn connect(options: Options) -> Result<Self, ClientError> {
        Self::connect_with(Tcp::default(), options)
    }
}

impl<D: Dial> Client<D> {
    /// Connects through `dial` and sets the session up.
    ///
    /// # Errors
    /// [`ClientError`]: connecting failed, the target refused the session, or memory or descriptors are short.
    pub fn connect_with(mut dial: D, mut options: Options) -> Result<Self, ClientError> {
        let id = options.settle_id()?;
        let mut poller = Poller::new(options.spin).map_err(no_poller)?;
        let clock = poller.clock();
        let mut watched = None;
        let deadline = after(clock.now(), Some(options.connect_timeout));
        let (link, terms) = open(&mut dial, &options, id, deadline, &mut poller, &mut watched)?;
        Ok(Self {
            dial,
            id,
            table: Table::new(&terms),
            returned: Arc::default(),
            poller,
            clock,
            watched,
            last: Identity::of(&terms.grant),
            resumed: None,
            link,
            options,
        })
    }

    /// The Initiator ID of its handle range.
    #[must_use]
    pub const fn initiator_id(&self) -> InitiatorId {
        self.id
    }

    /// The options it was made with.
    #[must_use]
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// The terms of the session: block size, quota, credits, direct modes. Those of the last session while there is
    /// none.
    ///
    /// # Panics
    /// Never: a client has had a session.
    #[must_use]
    #[expect(clippy::expect_used, reason = "made only once its session is open")]
    pub const fn terms(&self) -> &Terms {
        self.link.initiator.terms().expect("a session was set up")
    }

    /// Octets of a block.
    #[must_use]
    pub const fn block_size(&self) -> u32 {
        self.terms().grant.block_size.0
    }

    /// The handles that this initiator may bind: first, and how many.
    #[must_use]
    pub const fn handles(&self) -> (Handle, u64) {
        let grant = &self.terms().grant;
        (grant.handle_base, grant.handle_count)
    }

    /// Blocks of the quota in use, as far as this party knows. What an earlier process left bound under the same
    /// Initiator ID is not known to it: tell it with [`set_bound`](Self::set_bound).
    #[must_use]
    pub const fn usage(&self) -> Usage {
        self.link.initiator.usage()
    }

    /// Tells how many handles are bound at the start, when a range is resumed that another process filled.
    pub fn set_bound(&mut self, blocks: u32) {
        self.link.initiator.set_usage(blocks, 0);
    }

    /// Whether the connection stands.
    #[must_use]
    pub const fn is_connected(&self) -> bool {
        self.link.ended().is_none()
    }

    /// How the connection ended, if it has.
    #[must_use]
    pub const fn ended(&self) -> Option<&Arc<Ended>> {
        self.link.ended()
    }

    /// A buffer of `len` octets in memory of its own.
    ///
    /// # Errors
    /// [`ClientError::Memory`], or [`ClientError::Length`] for zero octets.
    pub fn register(&self, len: u32) -> Result<Buffer, ClientError> {
        let region = Region::anonymous(u64::from(len), &self.options.pages)?;
        Ok(self.buffer(region, 0, ByteLen(len)))
    }

    /// `count` buffers of `len` octets each, side by side in one region.
    ///
    /// # Errors
    /// [`ClientError::Memory`].
    pub fn register_many(&self, count: usize, len: u32) -> Result<Vec<Buffer>, ClientError> {
        // Side by side, but each from a multiple of a cache line, so that no two share one.
        let stride = u64::from(len).next_multiple_of(64);
        let total = stride.saturating_mul(count as u64);
        if total == 0 {
            return Ok(Vec::new());
        }
        let region = Region::anonymous(total, &self.options.pages)?;
        let starts = (0..total).step_by(usize::try_from(stride).unwrap_or(usize::MAX));
        Ok(starts
            .map(|start| self.buffer(region.clone(), start, ByteLen(len)))
            .collect())
    }

    /// A buffer in memory that the caller has: a part of a pinned region, or of one shared with another process.
    ///
    /// # Errors
    /// [`ClientError::Length`] if the range is not within the region, or longer than a buffer can be.
    pub fn register_region(
        &self,
        region: &Region,
        range: Range<u64>,
    ) -> Result<Buffer, ClientError> {
        let len = range.end.checked_sub(range.start);
        match len.and_then(|len| u32::try_from(len).ok()) {
            Some(len) if range.end <= region.len() => {
                Ok(self.buffer(region.clone(), range.start, ByteLen(len)))
            }
            _ => Err(ClientError::Length {
                what: "a buffer's range",
                len: range.end,
                limit: region.len(),
            }),
        }
    }

    fn buffer(&self, region: Region, start: u64, len: ByteLen) -> Buffer {
        Buffer::new(region, start, len, Arc::clone(&self.returned))
    }

    /// Sets the session up anew over a new stream, with the same Initiator ID: what was bound is bound still, unless
    /// the answer says otherwise. Operations in flight end as [`ClientError::Disconnected`]. Tries once.
    ///
    /// # Errors
    /// [`ClientError`]: there is still no connection.
    pub fn reconnect(&mut self) -> Result<Resumed, ClientError> {
        self.reconnect_once(1, kbtp_core::initiator::NEVER)
    }

    /// What the automatic reconnects since the last call found, all together, once.
    pub const fn take_resumed(&mut self) -> Option<Resumed> {
        self.resumed.take()
    }

    fn reconnect_once(&mut self, attempts: u32, until: Time) -> Result<Resumed, ClientError> {
        self.link.end(Ended::Closed);
        self.settle();
        self.unwatch();
        let deadline = after(self.clock.now(), Some(self.options.connect_timeout));
        let (mut link, terms) = open(
            &mut self.dial,
            &self.options,
            self.id,
            deadline.min(until),
            &mut self.poller,
            &mut self.watched,
        )?;
        let identity = Identity::of(&terms.grant);
        let resumed = Resumed {
            instance_changed: identity.instance != self.last.instance,
            range_changed: (identity.base, identity.count) != (self.last.base, self.last.count),
            attempts,
        };
        if resumed.bindings_kept() {
            // The lease may have run out all the same, which the target does not say (profile, P8): what was bound may
            // be, and is not held against allocations that the target judges itself.
            link.initiator.inherit_usage(&self.link.initiator);
        }
        tracing::info!(address = %self.options.address, ?resumed, "connected again");
        self.last = identity;
        self.link = link;
        self.table.fit(&terms);
        Ok(resumed)
    }

    /// A session is open, or is set up anew if the options say so; for operations that begin.
    /// Gives what it found if it was set up anew.
    pub(crate) fn ensure_open(&mut self, deadline: Time) -> Result<Option<Resumed>, ClientError> {
        let Some(cause) = self.link.ended() else {
            return Ok(None);
        };
        let Reconnect::Automatic {
            attempts,
            first_pause,
            longest_pause,
        } = self.options.reconnect
        else {
            return Err(ClientError::NotConnected {
                cause: Arc::clone(cause),
            });
        };
        let mut pause = first_pause;
        let mut attempt = 1;
        loop {
            let error = match self.reconnect_once(attempt, deadline) {
                Ok(resumed) => {
                    // What one connection lost, the next does not bring back.
                    self.resumed = Some(self.resumed.map_or(resumed, |before| Resumed {
                        instance_changed: before.instance_changed || resumed.instance_changed,
                        range_changed: before.range_changed || resumed.range_changed,
                        attempts: resumed.attempts,
                    }));
                    return Ok(Some(resumed));
                }
                Err(error) => error,
            };
            tracing::debug!(address = %self.options.address, attempt, %error, "still not connected");
            let next = after(self.clock.now(), Some(pause));
            // A refusal is an answer: asking again would get it again.
            if attempt >= attempts || next >= deadline || error.status().is_some() {
                return Err(error);
            }
            while self.poller.wait(Some(next)).map_err(no_poller)? < next {}
            pause = pause.saturating_mul(2).min(longest_pause);
            attempt = attempt.saturating_add(1);
        }
    }

    /// Ends the session in order. Handles stay bound as long as the target's lease says.
    ///
    /// # Errors
    /// [`ClientError::Os`] if waiting fails; the connection is closed all the same.
    pub fn close(mut self) -> Result<(), ClientError> {
        let until = after(self.clock.now(), Some(limits::CLOSE_TIMEOUT));
        loop {
            let now = self.clock.now();
            if self.link.ended().is_some() || now >= until || self.link.close(now) {
                return Ok(());
            }
            watch(&self.poller, &mut self.watched, &self.link)?;
            self.poller.wait(Some(until)).map_err(no_poller)?;
        }
    }

    /// The time on the client's clock.
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// When an operation that begins now is to be over.
    pub(crate) fn deadline(&self, timeout: Option<Duration>) -> Time {
        after(self.clock.now(), timeout.or(self.options.timeout))
    }

    /// Moves everything as far as it goes without waiting, and takes what ended; whether there is more to move.
    pub(crate) fn pump(&mut self) -> bool {
        self.pump_at(self.clock.now())
    }

    fn pump_at(&mut self, now: Time) -> bool {
        let epoch = self.link.epoch;
        if let Some(stream) = self.link.stream() {
            self.returned.invalidate(stream, epoch);
        }
        let more = self.link.pump(now);
        self.settle();
        more
    }

    /// As [`pump`](Self::pump); waits for something to happen, until `until` at most, if nothing has ended.
    pub(crate) fn turn(&mut self, until: Time) -> Result<(), ClientError> {
        let before = self.table.ended();
        let more = self.pump();
        if more || self.table.ended() != before || self.link.ended().is_some() {
            return Ok(());
        }
        watch(&self.poller, &mut self.watched, &self.link)?;
        let at = self.link.wake_at().map_or(until, |at| at.min(until));
        let until = (at != kbtp_core::initiator::NEVER).then_some(at);
        let link = &mut self.link;
        let now = self
            .poller
            .wait_or(until, |now| link.attempt(now))
            .map_err(no_poller)?;
        self.pump_at(now);
        Ok(())
    }

    /// Ends the connection where it can no longer be driven, and with it all that is in flight.
    pub(crate) fn cut_off(&mut self) {
        self.link.end(Ended::Closed);
        self.settle();
    }

    /// Takes what ended out of the initiator into the table.
    fn settle(&mut self) {
        while let Some(finished) = self.link.initiator.poll_finished() {
            let cause = self.link.ended();
            if let Some(stag) = self.table.settle(&finished, cause) {
                self.link.retire(stag);
            }
        }
        while let Some(stag) = self.link.initiator.poll_released() {
            self.link.invalidate(stag);
        }
    }

    /// Has the descriptor of [`AsFd`] report what the connection waits for; when to move again by itself. For callers
    /// with an event loop of their own. What the last move left in the socket need not be reported once more to one
    /// that is told of changes only: then the time has come already.
    #[cfg(feature = "tokio")]
    pub(crate) fn arm(&mut self) -> Result<Option<Time>, ClientError> {
        if self.link.ended().is_some() {
            return Ok(None);
        }
        watch(&self.poller, &mut self.watched, &self.link)?;
        let now = self.poller.wait(Some(Time(0))).map_err(no_poller)?;
        if self.poller.ready().len() > 0 {
            return Ok(Some(now));
        }
        Ok(self.link.wake_at())
    }

    fn unwatch(&mut self) {
        forget(&self.poller, &mut self.watched, &self.link);
    }
}

impl<D: Dial> AsFd for Client<D> {
    /// Readable when the connection has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

/// A connection with an open session.
fn open<D: Dial>(
    dial: &mut D,
    options: &Options,
    id: InitiatorId,
    deadline: Time,
    poller: &mut Poller,
    watched: &mut Option<Interest>,
) -> Result<(Link<D::Stream>, Terms), ClientError> {
    let dialled = dial.dial(options, poller.clock().now(), deadline)?;
    let nonce = Nonce(entropy::octets()?);
    let mut link = Link::new(
        dialled.stream,
        &dialled.private_data,
        options.settings(id),
        nonce,
        deadline,
    )
    .map_err(|error| error.at(&options.address))?;
    loop {
        let more = link.pump(poller.clock().now());
        if let Some(terms) = link.initiator.terms() {
            let terms = *terms;
            return Ok((link, terms));
        }
        if link.ended().is_some() {
            forget(poller, watched, &link);
            return Err(not_set_up(link, &options.address));
        }
        if more {
            continue;
        }
        watch(poller, watched, &link)?;
        poller.wait(link.wake_at()).map_err(no_poller)?;
    }
}

/// Watches the stream for what it waits for; a system call only if that changed.
fn watch<S: Stream>(
    poller: &Poller,
    watched: &mut Option<Interest>,
    link: &Link<S>,
) -> Result<(), ClientError> {
    let Some((descriptor, readiness)) = link.waits() else {
        return Ok(());
    };
    let interest = Interest::from(readiness);
    match *watched {
        Some(before) if before == interest => return Ok(()),
        Some(_) => poller.modify(descriptor, STREAM, interest),
        None => poller.add(descriptor, STREAM, interest),
    }
    .map_err(no_poller)?;
    *watched = Some(interest);
    Ok(())
}

fn forget<S: Stream>(poller: &Poller, watched: &mut Option<Interest>, link: &Link<S>) {
    // A descriptor that is closed already is not watched any more.
    if watched.take().is_some()
        && let Some((descriptor, _)) = link.waits()
    {
        drop(poller.remove(descriptor));
    }
}

/// Why a session was not set up over `link`.
fn not_set_up<S: Stream>(link: Link<S>, address: &str) -> ClientError {
    let address = address.to_owned();
    match link.into_ended().map(Arc::try_unwrap) {
        Some(Ok(Ended::Session(source))) => ClientError::Session { address, source },
        Some(Ok(Ended::Stream(source))) => ClientError::Stream { address, source },
        Some(Ok(other)) => ClientError::NotConnected {
            cause: Arc::new(other),
        },
        Some(Err(cause)) => ClientError::NotConnected { cause },
        None => ClientError::NotConnected {
            cause: Arc::new(Ended::Closed),
        },
    }
}

const fn no_poller(source: std::io::Error) -> ClientError {
    ClientError::Os {
        what: "waiting for the connection",
        source,
    }
}

/// The time `timeout` after `now`; never, without one.
pub(crate) fn after(now: Time, timeout: Option<Duration>) -> Time {
    timeout.map_or(kbtp_core::initiator::NEVER, |timeout| {
        now.after_ns(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX))
    })
}
