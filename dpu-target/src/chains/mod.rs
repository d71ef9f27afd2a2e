//! The chain engine: sessions whose requests a device serves by chains (`kbtp-chain`), and what software does for them.
//!
//! A device looks requests up, moves data and answers without software. What is left to do here, for each session by its
//! [`Seat`]:
//!
//! | duty | when |
//! |---|---|
//! | *arm*: write slots whose request is answered anew | some time after; a session has more slots than a turn needs |
//! | *punt*: have the core serve a request that no chain does, over the same table and rings | a slot rings |
//! | *trap*: the same for a request that ended the loopback queue, and start that again | the device says so |
//! | *watch*: end what waits for a block, or for the device, too long | requests are under way |
//! | *settle*: return freed blocks that no slot sends any more | blocks were freed, by a chain or by the core |
//!
//! It owns no thread and no clock, and knows no device but as [`Device`]. `docs/adr/0021` has the reasons.

mod counts;
mod link;
mod seat;
#[cfg(test)]
mod tests;

pub(crate) use counts::{ChainCounts, Punt};
pub(crate) use link::{Link, Nic};
pub(crate) use seat::Seat;

use crate::limits;
use kbtp_core::{Pool, Shared, TargetSession};
use kbtp_device::{
    Device, DeviceEvent, Master, PeerAccess, PoolPlace, Profile, Served, SessionPlan, SetUpError,
    Target,
};
use kbtp_fabric::Time;
use kbtp_mlx5::{Mkey, Qpn};
use kbtp_wire::{BlockOffset, ByteLen, SessionCapabilities};

/// Names a seat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SeatId(u16);

/// Header keys, by what slots serve with them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headers {
    /// All that chains serve here.
    pub(crate) all: Mkey,
    /// The same without `ALLOC_STORE`: the quota is spent, or could be by slots that are armed.
    pub(crate) no_alloc: Mkey,
    /// Nothing.
    pub(crate) nothing: Mkey,
}

/// A device that serves the sessions of a pool.
#[derive(Debug)]
pub(crate) struct Chains<D> {
    pub(crate) device: D,
    target: Target,
    master: Master,
    profile: Profile,
    headers: Headers,
    /// Octets of the longest request that a receive holds.
    capacity: usize,
    seats: Vec<Option<Seat>>,
    /// Blocks that slots send, while freed ones are looked at.
    sent: Vec<Option<BlockOffset>>,
    /// A chain ended that may have a ticket which nobody knows.
    lost: bool,
    draining: bool,
    /// How it stands with requests while a block of no octets is bound, which no chain can send.
    empty: Empty,
    /// The device did something since somebody asked.
    moved: bool,
}

/// A bound block of no octets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Empty {
    /// There is none, and none can come.
    None,
    /// One is to come: no slot begins to load or store by itself any more.
    Asked,
    /// One may come, or is there: none does.
    May,
}

impl<D: Device> Chains<D> {
    /// For the sessions of a pool, whose requests have at most `max_inline` octets of inline data. From now on the pool keeps
    /// freed blocks.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub(crate) fn new(
        mut device: D,
        pool: &Pool,
        max_inline: u32,
    ) -> Result<Self, SetUpError<D::Error>> {
        let geometry = pool.geometry();
        let places = pool.places();
        let block_size = ByteLen(geometry.block_size);
        let place = PoolPlace {
            meta: pool.meta_region().clone(),
            table_at: places.table,
            table_base: geometry.table_base_handle,
            table_count: geometry.handles,
            ring_at: places.ring,
            ring: places.ring_order,
            counters_at: places.counters,
            blocks: pool.block_region().clone(),
            first_block: geometry.pool_base,
            block_size,
        };
        let target = Target::create(&mut device, place)?;
        let master = Master::create(&mut device, target.loopback_domain())?;
        let longest = max_inline.saturating_add(limits::REQUEST_HEAD_MAX);
        let template = kbtp_chain::full(block_size).with_capacity(longest);
        let capacity = usize::try_from(template.capacity).unwrap_or(usize::MAX);
        let profile = target.profile(&mut device, template)?;
        let mut headers = |served| target.headers(&mut device, served);
        let headers = Headers {
            all: headers(Served::ALL)?,
            no_alloc: headers(Served::ALL.without(Served::ALLOC_STORE))?,
            nothing: headers(Served::NOTHING)?,
        };
        pool.serve_by_device();
        Ok(Self {
            device,
            target,
            master,
            profile,
            headers,
            capacity,
            seats: Vec::new(),
            sent: Vec::with_capacity(2 * limits::CHAIN_SESSIONS),
            lost: false,
            draining: false,
            empty: Empty::None,
            moved: false,
        })
    }

    /// The pool's memory, as the device knows it.
    pub(crate) const fn pool_memory(&self) -> kbtp_device::MemoryId {
        self.target.pool_memory()
    }

    /// Octets of the longest request.
    pub(crate) const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Makes a seat for a session that was granted; its client's queue pair is to be connected. `None` if the session is not for
    /// chains: it allocates by itself, it has completion records, it is not alone in its trust domain, or there is no seat.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub(crate) fn seat(
        &mut self,
        shared: &Shared,
        core: &TargetSession,
    ) -> Result<Option<SeatId>, SetUpError<D::Error>> {
        let Some(grant) = core.grant() else {
            return Ok(None);
        };
        let apart = [
            SessionCapabilities::DIRECT_ALLOC,
            SessionCapabilities::RECORD_COMPLETION,
        ];
        if apart.iter().any(|capability| grant.has(*capability)) || !shared.pool.is_one_domain() {
            return Ok(None);
        }
        let free = self.seats.iter().position(Option::is_none);
        let at = free.unwrap_or(self.seats.len());
        let id = u16::try_from(at)
            .ok()
            .filter(|_| at < limits::CHAIN_SESSIONS);
        let Some(id) = id else { return Ok(None) };
        let plan = SessionPlan {
            id,
            own_base: grant.handle_base,
            own_count: grant.handle_count,
            client_access: PeerAccess::default(),
        };
        let device = &mut self.device;
        let session = kbtp_device::Session::create(device, &self.target, &self.profile, &plan)?;
        if u64::from(grant.credits) > session.credits() {
            session.destroy(device)?;
            return Ok(None);
        }
        let seat = Seat::new(session, grant.quota);
        match self.seats.get_mut(at) {
            Some(free) => *free = Some(seat),
            None => self.seats.push(Some(seat)),
        }
        Ok(Some(SeatId(id)))
    }

    /// Arms the slots of a seat whose client's queue pair is connected, and starts it.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub(crate) fn start(
        &mut self,
        id: SeatId,
        core: &TargetSession,
    ) -> Result<(), SetUpError<D::Error>> {
        let (headers, withheld) = (self.headers, self.withheld());
        let Some(seat) = self
            .seats
            .get_mut(usize::from(id.0))
            .and_then(Option::as_mut)
        else {
            return Ok(());
        };
        let usage = core.usage().total();
        seat.arm(&mut self.device, &headers, usage, withheld)?;
        seat.session.start(&mut self.device, &mut self.master)?;
        Ok(())
    }

    /// The queue pair of a seat's client.
    pub(crate) fn client_qpn(&self, id: SeatId) -> Option<Qpn> {
        Some(self.get(id)?.session.client_qpn())
    }

    /// Gives a seat that was just made another session, to see its indices wrap.
    #[cfg(test)]
    fn replace(
        &mut self,
        id: SeatId,
        with: impl FnOnce(&mut D, kbtp_device::Session) -> kbtp_device::Session,
    ) {
        let seat = self.seats.get_mut(usize::from(id.0)).and_then(Option::take);
        let replaced = seat.map(|seat| seat.with(|session| with(&mut self.device, session)));
        if let Some(place) = self.seats.get_mut(usize::from(id.0)) {
            *place = replaced;
        }
    }

    pub(crate) fn get(&self, id: SeatId) -> Option<&Seat> {
        self.seats.get(usize::from(id.0))?.as_ref()
    }

    /// Requests that came and are not answered.
    pub(crate) fn in_flight(&mut self, id: SeatId) -> u64 {
        let seat = self.seats.get_mut(usize::from(id.0));
        seat.and_then(Option::as_mut).map_or(0, Seat::in_flight)
    }

    /// From now on every request is for the core.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub(crate) fn drain(&mut self) -> Result<(), SetUpError<D::Error>> {
        self.draining = true;
        self.withhold()
    }

    pub(crate) const fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether slots are armed for software alone.
    const fn withheld(&self) -> bool {
        self.draining || !matches!(self.empty, Empty::None)
    }

    /// What is armed and has not begun is for software.
    fn withhold(&mut self) -> Result<(), SetUpError<D::Error>> {
        let headers = self.headers;
        for seat in self.seats.iter_mut().flatten() {
            seat.allow(&headers, 0, true)?;
        }
        self.device.barrier();
        Ok(())
    }

    /// Whether this request may be given to the core: if it could bind a block of no octets, only once no slot serves by itself.
    /// Otherwise ask again when the device has gone on.
    pub(crate) fn may_take(&mut self, message: &[u8]) -> bool {
        if !seat::may_make_empty(message) || self.empty == Empty::May {
            return true;
        }
        if self.empty == Empty::None {
            self.empty = Empty::Asked;
            if let Err(error) = self.withhold() {
                tracing::error!(%error, "slots could not be armed for software");
            }
        }
        if self.seats.iter_mut().flatten().all(Seat::has_looked) {
            self.empty = Empty::May;
        }
        self.empty == Empty::May
    }

    /// Takes what the device says: which slots rang, which queues failed.
    pub(crate) fn notice(&mut self) {
        while let Some((id, low)) = self.target.next_punt() {
            let seat = self.seats.get_mut(usize::from(id));
            if let Some(seat) = seat.and_then(Option::as_mut) {
                seat.rings(low);
            }
        }
        while let Some(event) = self.device.next_event() {
            let DeviceEvent::QpError(qpn) = event else {
                continue;
            };
            let mut seats = self.seats.iter_mut().flatten();
            if let Some(seat) = seats.find(|seat| seat.session.worker_qpn() == qpn) {
                seat.fails();
            }
        }
    }

    /// Does what software has to do for a seat now. Returns whether anything was done.
    ///
    /// # Errors
    /// [`SessionEnd`](kbtp_core::SessionEnd) if the session must end.
    pub(crate) fn work(
        &mut self,
        id: SeatId,
        core: &mut TargetSession,
        now: Time,
        shared: &Shared,
        counts: &ChainCounts,
    ) -> Result<bool, kbtp_core::SessionEnd> {
        let seat = self.seats.get_mut(usize::from(id.0));
        let Some(seat) = seat.and_then(Option::as_mut) else {
            return Ok(false);
        };
        if let Some(request) = seat.next_request()? {
            let may = self.may_take(request.as_octets());
            let seat = self.seats.get_mut(usize::from(id.0));
            let Some(seat) = seat.and_then(Option::as_mut) else {
                return Ok(false);
            };
            seat.offer(request, may);
        }
        let withheld = self.withheld();
        let seat = self.seats.get_mut(usize::from(id.0));
        let Some(seat) = seat.and_then(Option::as_mut) else {
            return Ok(false);
        };
        let mut hands = seat::Hands {
            device: &mut self.device,
            master: &mut self.master,
            headers: &self.headers,
            withheld,
            core,
            now,
            shared,
            counts,
        };
        seat.work(&mut hands)
    }

    /// Gives back a ticket that a chain which ended had taken and not told of, once no other chain may have one. A chain that
    /// took one of those that are open here has told of it, or is seen at it.
    fn find_lost(&mut self, pool: &Pool, counts: &ChainCounts) {
        let open = pool.open_tickets();
        let mut known = Vec::new();
        let mut takes = false;
        for seat in self.seats.iter_mut().flatten() {
            takes |= seat.tickets(&mut known);
        }
        if !takes {
            counts
                .recovered
                .add(pool.put_back_lost(open, &known).into());
            self.lost = false;
        }
    }

    /// Returns freed blocks that no slot sends any more, and what chains that ended took. Cost: a load if there is nothing.
    pub(crate) fn settle(&mut self, pool: &Pool, counts: &ChainCounts) {
        if self.lost {
            self.find_lost(pool, counts);
        }
        if pool.freed() == 0 {
            return;
        }
        let Self { seats, sent, .. } = self;
        sent.clear();
        for seat in seats.iter_mut().flatten() {
            seat.sends(sent);
        }
        // One that has not looked yet may come to send any.
        let unknown = sent.contains(&None);
        pool.return_freed(|block| unknown || sent.contains(&Some(block)));
        pool.settle();
    }

    /// Whether slots are kept from serving for a block of no octets that is not there any more: [`resume`](Self::resume) once no
    /// request that the core has can bind another.
    pub(crate) fn could_resume(&self, pool: &Pool) -> bool {
        self.empty == Empty::May && pool.empty() == 0
    }

    /// Slots that are armed from now on serve by themselves again.
    pub(crate) const fn resume(&mut self) {
        self.empty = Empty::None;
    }

    /// Whether freed blocks wait for slots, or slots for blocks: look again soon.
    pub(crate) fn waits(&mut self, pool: &Pool) -> bool {
        self.lost || pool.freed() > 0 || self.seats.iter_mut().flatten().any(Seat::may_wait)
    }

    /// Looks whether requests move on. Returns when one will have waited too long; [`work`](Self::work) for its seat then ends
    /// that. Cost: for each session with a request under way, its slot's CQEs.
    pub(crate) fn watch(&mut self, now: Time) -> Option<Time> {
        let seats = self.seats.iter_mut().flatten();
        let due = seats.filter_map(|seat| seat.watch(now)).min();
        self.moved |= due.is_some_and(|at| at <= now);
        due
    }

    /// Whether a request is under way: [`watch`](Self::watch) now and then.
    pub(crate) fn is_busy(&mut self) -> bool {
        self.seats
            .iter_mut()
            .flatten()
            .any(|seat| seat.in_flight() > 0)
    }

    /// The seat's client is gone, and its queue pair in error: stops what is left and gives back what a request that came to
    /// nothing took from the ring. The loopback queue must have come to rest.
    pub(crate) fn unseat(
        &mut self,
        id: SeatId,
        core: &mut TargetSession,
        shared: &Shared,
        counts: &ChainCounts,
    ) {
        let seat = self.seats.get_mut(usize::from(id.0));
        let Some(mut seat) = seat.and_then(Option::take) else {
            return;
        };
        self.lost |= seat.end(core, shared, counts);
        if self.lost {
            self.find_lost(&shared.pool, counts);
        }
        if let Err(error) = seat.session.destroy(&mut self.device) {
            tracing::error!(%error, "a session's part of the device could not be ended");
        }
        core.recount(shared);
    }
}
