//! One end of a connection: its queue pair and everything around it, before and after it is connected.

use crate::keys::Keys;
use crate::limits::{
    BUFFERS, HEAD_LEN, LOOKS_PER_CALL, MESSAGE, POLL_BATCH, PROGRESS_COMPLETIONS, STAGING,
};
use crate::options::StreamOptions;
use crate::quirks::Quirks;
use crate::sends::{Gives, Posted, Sends};
use kbtp_fabric::{
    Event, LocalBuffer, LocalError, PostError, ReceiveSlot, RemoteBuffer, WorkId, WorkOutcome,
    WorkRequest,
};
use kbtp_memory::{PageOptions, Region};
use kbtp_verbs_sys::{
    CmEvent, CmId, Completion, CompletionQueue, Domain, Operation, QueuePair, Queues, Receives,
    Registration, Remote, Rights, Sge, Source, VerbsError, WindowRights, Work, status_text,
};
use kbtp_wire::ByteLen;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::Ordering;

/// Sends have this bit in their numbers, receives have not.
const SEND: u64 = 1 << 63;

/// A stream's own status of the completion that broke it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Broken {
    /// `enum ibv_wc_status`.
    pub(crate) status: u32,
    /// In words.
    pub(crate) text: String,
}

/// Everything a connection has.
#[derive(Debug)]
pub(crate) struct End {
    /// First: its queue pair ends before what the pair uses.
    pub(crate) id: CmId,
    queue: CompletionQueue,
    /// Both descriptors of the connection in one.
    epoll: Epoll,
    pub(crate) keys: Keys,
    pub(crate) quirks: Quirks,
    state: State,
    staging: Registration,
    atomics: Registration,
    max_message: u32,
    /// The queue is armed: the next completion makes its descriptor readable.
    armed: bool,
    /// Completions came while it was armed: its descriptor is, or becomes, readable.
    stirred: bool,
    /// Looks in vain since the descriptors were looked at.
    looks: u32,
}

/// What completions change.
#[derive(Debug)]
struct State {
    receives: Receives,
    sends: Sends,
    /// Places for the values of Atomics.
    free_values: Vec<u32>,
    values: Region,
    events: VecDeque<Event>,
    /// Slots whose receives brought no message.
    again: Vec<u32>,
    flag: u32,
    broken: Option<Broken>,
    /// Something has come from the peer.
    heard: bool,
}

/// What the connection manager's descriptor brought.
#[derive(Debug, Default)]
pub(crate) struct Stir {
    /// Completions were taken.
    pub(crate) moved: bool,
    /// Events of the connection.
    pub(crate) events: Vec<CmEvent>,
}

/// How long everything is, as asked for and as the device has it.
struct Sizes {
    send_work: u32,
    buffers: u32,
    piece_len: u64,
    max_message: u32,
}

impl Sizes {
    fn of(id: &CmId, options: &StreamOptions) -> Result<Self, VerbsError> {
        let context = id.context()?;
        let attributes = context.attributes()?;
        let port = context.port(id.port().max(1))?;
        if options.on_demand && !attributes.on_demand {
            return Err(VerbsError::Unsupported {
                what: "on-demand registrations (IBV_ODP_SUPPORT)",
            });
        }
        if options.receives > attributes.max_qp_wr {
            return Err(VerbsError::Attribute {
                attribute: "max_qp_wr",
                wanted: u64::from(options.receives),
                limit: u64::from(attributes.max_qp_wr),
            });
        }
        // Whole pages, and one at least.
        let longest = options.max_registration.min(attributes.max_mr_size);
        let piece_len = longest.max(4096) & !4095;
        let message = match port.max_msg_sz {
            0 => MESSAGE,
            octets => octets.min(MESSAGE),
        };
        Ok(Self {
            send_work: options.send_work.min(attributes.max_qp_wr),
            buffers: BUFFERS.min(attributes.max_sge),
            piece_len,
            // It lies in two pieces at most.
            max_message: message.min(u32::try_from(piece_len).unwrap_or(u32::MAX)),
        })
    }
}

impl End {
    /// Makes all of it on the device of `id`, and posts every receive.
    pub(crate) fn new(
        mut id: CmId,
        options: &StreamOptions,
        quirks: Quirks,
    ) -> Result<Self, VerbsError> {
        let sizes = Sizes::of(&id, options)?;
        let (send_work, receives) = (sizes.send_work, options.receives);
        let domain = Domain::new(&id)?;
        let queue = CompletionQueue::new(&id, send_work.saturating_add(receives))?;
        let reads = u32::from(options.reads);
        let values = memory(u64::from(reads.max(1)).saturating_mul(8))?;
        let heads = memory(u64::from(STAGING))?;
        let written = Rights {
            local_write: true,
            ..Rights::default()
        };
        let atomics = domain.register(&values, 0..values.len(), None, written)?;
        let staging = domain.register(&heads, 0..heads.len(), None, Rights::default())?;
        let slots = Receives::new(&domain, receives, options.receive_len)?;
        id.create_queue_pair(&Queues {
            domain: &domain,
            send: &queue,
            receive: &queue,
            send_work,
            receives,
            buffers: sizes.buffers,
            inline_octets: options.inline_octets,
        })?;
        let epoll = watch(&id, &queue).map_err(|source| VerbsError::Os {
            what: "watching a connection",
            source,
        })?;
        let events = usize::try_from(send_work.saturating_add(receives)).unwrap_or(0);
        let mut end = Self {
            queue,
            epoll,
            keys: Keys::new(
                domain,
                quirks,
                options.registrations,
                sizes.piece_len,
                options.on_demand,
            ),
            quirks,
            state: State {
                receives: slots,
                sends: Sends::new(send_work, STAGING),
                free_values: (0..reads).collect(),
                values,
                events: VecDeque::with_capacity(events),
                again: Vec::with_capacity(usize::try_from(receives).unwrap_or(0)),
                flag: quirks.invalidated_flag,
                broken: None,
                heard: false,
            },
            staging,
            atomics,
            max_message: sizes.max_message,
            armed: false,
            stirred: false,
            looks: 0,
            id,
        };
        for slot in 0..receives {
            end.give_back(slot)?;
        }
        Ok(end)
    }

    pub(crate) const fn max_message(&self) -> u32 {
        self.max_message
    }

    /// The descriptor that is readable when something may have come.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    pub(crate) const fn broken(&self) -> Option<&Broken> {
        self.state.broken.as_ref()
    }

    pub(crate) const fn heard(&self) -> bool {
        self.state.heard
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.state.sends.is_empty()
    }

    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.state.events.pop_front()
    }

    pub(crate) fn message(&self, slot: ReceiveSlot) -> &[u8] {
        self.state.receives.message(slot.0)
    }

    fn pair(&self) -> Result<&QueuePair, VerbsError> {
        self.id.queue_pair().ok_or(VerbsError::Unsupported {
            what: "queue pair any more",
        })
    }

    /// Gives a receive slot to the device.
    pub(crate) fn give_back(&mut self, slot: u32) -> Result<(), VerbsError> {
        let pair = self.id.queue_pair().ok_or(VerbsError::Unsupported {
            what: "queue pair any more",
        })?;
        self.state.receives.post(pair, slot)
    }

    /// Takes completions, at most one call's share; whether there were any.
    pub(crate) fn take(&mut self) -> Result<bool, VerbsError> {
        let mut taken = 0_usize;
        while taken < PROGRESS_COMPLETIONS {
            let state = &mut self.state;
            let count = self
                .queue
                .poll::<POLL_BATCH>(|completion| state.complete(completion))?;
            taken = taken.saturating_add(count);
            if count < POLL_BATCH {
                break;
            }
        }
        // A queue pair that is in its error state takes no receives, and says so itself.
        while let Some(slot) = self.state.again.pop() {
            if self.state.broken.is_none() {
                self.give_back(slot)?;
            }
        }
        self.stirred |= taken > 0 && self.armed;
        if taken > 0 {
            self.looks = 0;
        }
        Ok(taken > 0)
    }

    /// Goes on as far as it goes without waiting, and sees to it that the descriptor tells of what comes next.
    pub(crate) fn stir(&mut self) -> Result<Stir, VerbsError> {
        if self.take()? {
            return Ok(Stir {
                moved: true,
                events: Vec::new(),
            });
        }
        let mut stir = Stir::default();
        if !self.armed {
            self.arm(&mut stir)?;
        }
        self.looks = self.looks.wrapping_add(1);
        if !self.looks.is_multiple_of(LOOKS_PER_CALL) && !self.stirred {
            return Ok(stir);
        }
        if self.stirred && self.queue.take_events()? {
            self.stirred = false;
            self.armed = false;
            self.arm(&mut stir)?;
        }
        let mut ready = [EpollEvent::empty(); 2];
        let found = match self.epoll.wait(&mut ready, EpollTimeout::ZERO) {
            Ok(found) => found,
            Err(nix::errno::Errno::EINTR) => 0,
            Err(errno) => {
                return Err(VerbsError::Os {
                    what: "watching a connection",
                    source: errno.into(),
                });
            }
        };
        for event in ready.iter().take(found) {
            match event.data() {
                QUEUE => self.stirred = true,
                _ => {
                    while let Some(event) = self.id.next_event()? {
                        stir.events.push(event);
                    }
                }
            }
        }
        if self.stirred && self.queue.take_events()? {
            self.stirred = false;
            self.armed = false;
            self.arm(&mut stir)?;
        }
        Ok(stir)
    }

    /// Arms the queue, and looks once more for what came just before.
    fn arm(&mut self, stir: &mut Stir) -> Result<(), VerbsError> {
        self.queue.arm()?;
        self.armed = true;
        stir.moved |= self.take()?;
        Ok(())
    }

    /// Ends the queue pair: every message that came is there, all that is still posted is flushed, and the device touches no
    /// memory any more.
    pub(crate) fn finish(&mut self) {
        let mut left = PROGRESS_COMPLETIONS;
        while left > 0 && self.take().unwrap_or(false) {
            left -= 1;
        }
        self.id.end_queue_pair();
        self.keys.clear();
        while let Some(posted) = self.state.sends.take() {
            self.state.flush(&posted);
        }
    }

    /// Posts `work`.
    pub(crate) fn post(
        &mut self,
        id: WorkId,
        work: &WorkRequest<'_>,
        signaled: bool,
    ) -> Result<(), PostError> {
        match *work {
            WorkRequest::Send {
                head,
                tail,
                solicited,
                invalidate,
            } => self.send(
                id,
                signaled,
                head,
                tail.as_ref(),
                solicited,
                invalidate.map(|s| s.0),
            ),
            WorkRequest::Write {
                local,
                remote,
                immediate,
            } => self.write(id, signaled, &local, of_peer(&remote), immediate),
            //= kbtp-9.2-record-with-immediate
            WorkRequest::WriteImmediate {
                octets,
                remote,
                immediate,
            } => self.write_octets(id, signaled, octets, of_peer(&remote), immediate),
            WorkRequest::Read { local, remote } => {
                self.read(id, signaled, &local, of_peer(&remote))
            }
            WorkRequest::FetchAdd { remote, add, mask } => {
                if mask != 0 {
                    return Err(PostError::Unsupported {
                        operation: "FetchAdd with an Add Mask",
                    });
                }
                let remote = of_peer(&remote);
                self.atomic(id, signaled, |sink| Operation::FetchAdd {
                    sink,
                    remote,
                    add,
                })
            }
            WorkRequest::CmpSwap {
                remote,
                compare,
                compare_mask,
                swap,
                swap_mask,
            } => {
                if (compare_mask, swap_mask) != (u64::MAX, u64::MAX) {
                    return Err(PostError::Unsupported {
                        operation: "CmpSwap with masks",
                    });
                }
                let remote = of_peer(&remote);
                self.atomic(id, signaled, |sink| Operation::CompareSwap {
                    sink,
                    remote,
                    compare,
                    swap,
                })
            }
        }
    }

    fn write(
        &mut self,
        id: WorkId,
        signaled: bool,
        local: &LocalBuffer,
        remote: Remote,
        immediate: Option<u32>,
    ) -> Result<(), PostError> {
        if immediate.is_some() {
            self.needs_immediate()?;
        }
        let pieces = self.keys.find(local, false)?;
        let (buffers, count) = flat(pieces, None);
        let operation = Operation::Write {
            source: Source::Registered(buffers.get(..count).unwrap_or_default()),
            remote,
            immediate,
        };
        self.push(Some(id), signaled, operation, Gives::Nothing, None)
    }

    const fn needs_immediate(&self) -> Result<(), PostError> {
        if self.quirks.immediate {
            Ok(())
        } else {
            Err(PostError::Unsupported {
                operation: "RDMA Write with Immediate",
            })
        }
    }

    /// Writes octets that are copied now.
    fn write_octets(
        &mut self,
        id: WorkId,
        signaled: bool,
        octets: &[u8],
        remote: Remote,
        immediate: u32,
    ) -> Result<(), PostError> {
        self.needs_immediate()?;
        let write = |source| Operation::Write {
            source,
            remote,
            immediate: Some(immediate),
        };
        if octets.len() <= self.inline_octets() {
            let operation = write(Source::Inline(octets));
            return self.push(Some(id), signaled, operation, Gives::Nothing, None);
        }
        let (head, staged) = self.stage_head(octets)?;
        let (buffers, count) = flat([None; 2], head);
        let operation = write(Source::Registered(buffers.get(..count).unwrap_or_default()));
        self.push(Some(id), signaled, operation, Gives::Nothing, Some(staged))
    }

    fn inline_octets(&self) -> usize {
        usize::try_from(self.pair().map_or(0, QueuePair::inline_octets)).unwrap_or(0)
    }

    fn send(
        &mut self,
        id: WorkId,
        signaled: bool,
        head: &[u8],
        tail: Option<&LocalBuffer>,
        solicited: bool,
        invalidate: Option<u32>,
    ) -> Result<(), PostError> {
        let pieces = match tail {
            Some(tail) => self.keys.find(tail, false)?,
            None => [None; 2],
        };
        if head.len() <= self.inline_octets() && pieces == [None; 2] {
            let operation = Operation::Send {
                source: Source::Inline(head),
                invalidate,
            };
            return self.push_with(
                Some(id),
                signaled,
                solicited,
                operation,
                Gives::Nothing,
                None,
            );
        }
        let (first, staged) = self.stage_head(head)?;
        let (buffers, count) = flat(pieces, first);
        let operation = Operation::Send {
            source: Source::Registered(buffers.get(..count).unwrap_or_default()),
            invalidate,
        };
        self.push_with(
            Some(id),
            signaled,
            solicited,
            operation,
            Gives::Nothing,
            Some(staged),
        )
    }

    /// Copies octets to memory of this end that the device reads: where they lie, and what is to be given back when they are sent.
    fn stage_head(&mut self, head: &[u8]) -> Result<(Option<Sge>, u64), PostError> {
        let len = head.len() as u64;
        let limit = HEAD_LEN.min(usize::try_from(STAGING).unwrap_or(usize::MAX));
        let length = u32::try_from(head.len())
            .ok()
            .filter(|_| head.len() <= limit);
        let Some(length) = length else {
            return Err(PostError::Local(LocalError::Limit {
                what: "octets of a message's head",
                limit: limit as u64,
            }));
        };
        let Some((place, staged)) = self.state.sends.stage(len) else {
            return Err(PostError::QueueFull);
        };
        if !self.state.sends.has_room(1) {
            return Err(PostError::QueueFull);
        }
        let first = if length == 0 {
            None
        } else {
            Some(self.stage(place, length, head)?)
        };
        Ok((first, staged))
    }

    /// Copies a head to its place.
    fn stage(&self, place: u64, length: u32, head: &[u8]) -> Result<Sge, LocalError> {
        let outside = || LocalError::Range {
            what: "the memory for heads",
            start: place,
            end: place.saturating_add(u64::from(length)),
            len: u64::from(STAGING),
        };
        let region = self.staging.region().ok_or_else(outside)?;
        region.write(place, head).map_err(|_| outside())?;
        self.staging.buffer(place, length).map_err(|_| outside())
    }

    /// Reads into one buffer, or where it lies in two pieces, into both, with as many requests as the device needs.
    fn read(
        &mut self,
        id: WorkId,
        signaled: bool,
        local: &LocalBuffer,
        remote: Remote,
    ) -> Result<(), PostError> {
        let pieces = self.keys.find(local, true)?;
        let (buffers, count) = flat(pieces, None);
        let buffers = buffers.get(..count).unwrap_or_default();
        let (true, [first, second]) = (self.quirks.read_buffers < 2, buffers) else {
            let operation = Operation::Read {
                sink: buffers,
                remote,
            };
            return self.push(Some(id), signaled, operation, Gives::Data, None);
        };
        if !self.state.sends.has_room(2) {
            return Err(PostError::QueueFull);
        }
        let operation = Operation::Read {
            sink: std::slice::from_ref(first),
            remote,
        };
        self.push(None, false, operation, Gives::Data, None)?;
        let remote = Remote {
            address: remote.address.wrapping_add(u64::from(first.len())),
            ..remote
        };
        let operation = Operation::Read {
            sink: std::slice::from_ref(second),
            remote,
        };
        self.push(Some(id), signaled, operation, Gives::Data, None)
    }

    fn atomic(
        &mut self,
        id: WorkId,
        signaled: bool,
        operation: impl FnOnce(Sge) -> Operation<'static>,
    ) -> Result<(), PostError> {
        if !self.quirks.atomics {
            return Err(PostError::Unsupported {
                operation: "Atomics",
            });
        }
        let Some(place) = self.state.free_values.pop() else {
            return Err(PostError::QueueFull);
        };
        let sink = self
            .atomics
            .buffer(u64::from(place).saturating_mul(8), 8)
            .map_err(|error| crate::keys::local("the place of an Atomic's value", error));
        let posted = match sink {
            Ok(sink) => self.push(
                Some(id),
                signaled,
                operation(sink),
                Gives::Value(place),
                None,
            ),
            Err(error) => Err(error.into()),
        };
        if posted.is_err() {
            self.state.free_values.push(place);
        }
        posted
    }

    /// Asks the device for an empty Write: the peer's device answers it, and nobody else hears of it.
    pub(crate) fn ask_for_life(&mut self) -> Result<(), PostError> {
        let operation = Operation::Write {
            source: Source::Registered(&[]),
            remote: Remote { address: 0, key: 0 },
            immediate: None,
        };
        self.push(None, true, operation, Gives::Nothing, None)
    }

    /// Binds the window of a registration that is not among the others yet.
    pub(crate) fn bind(
        &mut self,
        entry: &mut crate::keys::Entry,
        access: kbtp_fabric::Access,
    ) -> Result<(), PostError> {
        let Some(mut window) = entry.window.take() else {
            return Ok(());
        };
        if !self.state.sends.has_room(1) {
            entry.window = Some(window);
            return Err(PostError::QueueFull);
        }
        let sequence = self.state.sends.next();
        let bound = match (self.id.queue_pair(), entry.whole()) {
            (Some(pair), Some(memory)) => pair.bind(
                SEND | sequence,
                &mut window,
                memory,
                memory.base(),
                memory.len(),
                WindowRights {
                    write: access.remote_write,
                    read: access.remote_read,
                },
            ),
            _ => Err(VerbsError::Unsupported {
                what: "queue pair any more",
            }),
        };
        entry.window = Some(window);
        bound.map_err(|error| {
            PostError::Local(crate::keys::local("binding a memory window", error))
        })?;
        let posted = Posted {
            sequence,
            id: None,
            signaled: false,
            requests: 1,
            staged: self.state.sends.staged(),
            gives: Gives::Nothing,
            reported: true,
            done: false,
        };
        self.state.sends.posted(posted);
        Ok(())
    }

    fn push(
        &mut self,
        id: Option<WorkId>,
        signaled: bool,
        operation: Operation<'_>,
        gives: Gives,
        staged: Option<u64>,
    ) -> Result<(), PostError> {
        self.push_with(id, signaled, false, operation, gives, staged)
    }

    fn push_with(
        &mut self,
        id: Option<WorkId>,
        signaled: bool,
        solicited: bool,
        operation: Operation<'_>,
        gives: Gives,
        staged: Option<u64>,
    ) -> Result<(), PostError> {
        let sends = &mut self.state.sends;
        if !sends.has_room(1) {
            return Err(PostError::QueueFull);
        }
        // A Send follows nearly every Write: its report is one on the Write too.
        let quiet =
            matches!(operation, Operation::Write { .. }) && !signaled && !sends.must_report();
        let sequence = sends.next();
        let work = Work {
            id: SEND | sequence,
            signaled: !quiet,
            solicited,
            fence: false,
            operation,
        };
        let pair = self.id.queue_pair().ok_or(PostError::Closed)?;
        if let Err(error) = pair.post(&work) {
            return Err(match error.errno() {
                Some(nix::libc::ENOMEM) => PostError::QueueFull,
                // The pair is in its error state, which its completions tell of.
                Some(nix::libc::ENOTCONN | nix::libc::EINVAL) if self.state.broken.is_some() => {
                    PostError::Closed
                }
                _ => PostError::Local(crate::keys::local("posting work to the device", error)),
            });
        }
        let staged = staged.unwrap_or_else(|| sends.staged());
        let posted = Posted {
            sequence,
            id,
            signaled,
            requests: 1,
            staged,
            gives,
            reported: !quiet,
            done: false,
        };
        sends.posted(posted);
        Ok(())
    }
}

impl State {
    fn complete(&mut self, completion: Completion) {
        if completion.work() & SEND == 0 {
            self.received(completion);
            return;
        }
        let sequence = completion.work() & !SEND;
        let ok = completion.is_ok();
        if !ok {
            self.note(&completion);
        }
        let Self {
            sends,
            events,
            free_values,
            values,
            ..
        } = self;
        sends.ended(sequence, |posted, exact| {
            let (outcome, tell) = if exact && !ok {
                (WorkOutcome::Flushed, true)
            } else {
                (
                    posted.outcome(|place| value(values, place)),
                    posted.signaled,
                )
            };
            tell_of(events, free_values, posted, outcome, tell);
        });
    }

    fn flush(&mut self, posted: &Posted) {
        let (events, values) = (&mut self.events, &mut self.free_values);
        tell_of(events, values, posted, WorkOutcome::Flushed, true);
    }

    fn received(&mut self, completion: Completion) {
        let ok = completion.is_ok();
        if !ok {
            self.note(&completion);
        }
        let immediate = completion
            .immediate()
            .filter(|_| ok && completion.is_write_with_immediate());
        let invalidated = completion.invalidated(self.flag).filter(|_| ok);
        let len = completion.len();
        let Some(slot) = self.receives.complete(completion) else {
            return;
        };
        self.heard = true;
        if let Some(data) = immediate {
            self.again.push(slot);
            self.events.push_back(Event::Immediate { data });
            return;
        }
        self.events.push_back(Event::Received {
            slot: ReceiveSlot(slot),
            len: ByteLen(len),
            // The completion does not say.
            solicited: false,
            invalidated: invalidated.map(kbtp_wire::Stag),
        });
    }

    /// The first completion that failed says why: those after it are only flushed.
    fn note(&mut self, completion: &Completion) {
        let worth = |status| status != kbtp_verbs_sys::raw::IBV_WC_WR_FLUSH_ERR;
        let status = completion.status();
        let better = self
            .broken
            .as_ref()
            .is_none_or(|broken| !worth(broken.status) && worth(status));
        if better {
            self.broken = Some(Broken {
                status,
                text: status_text(status),
            });
        }
    }
}

const fn of_peer(remote: &RemoteBuffer) -> Remote {
    Remote {
        address: remote.offset.0,
        key: remote.stag.0,
    }
}

/// The value of an Atomic.
fn value(values: &Region, place: u32) -> u64 {
    let word = values.u64_at(u64::from(place).saturating_mul(8));
    word.map_or(0, |word| word.load(Ordering::Acquire))
}

fn tell_of(
    events: &mut VecDeque<Event>,
    free_values: &mut Vec<u32>,
    posted: &Posted,
    outcome: WorkOutcome,
    tell: bool,
) {
    if let Gives::Value(place) = posted.gives {
        free_values.push(place);
    }
    if let (Some(id), true) = (posted.id, tell) {
        events.push_back(Event::Done { id, outcome });
    }
}

/// The token of the completion queue's descriptor; the connection manager's is the other.
const QUEUE: u64 = 1;

fn watch(id: &CmId, queue: &CompletionQueue) -> io::Result<Epoll> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(queue.fd(), EpollEvent::new(EpollFlags::EPOLLIN, QUEUE))?;
    epoll.add(id.fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    Ok(epoll)
}

/// Memory of this crate's own.
fn memory(octets: u64) -> Result<Region, VerbsError> {
    Region::anonymous(octets, &PageOptions::default()).map_err(|error| VerbsError::Os {
        what: "memory for a connection",
        source: io::Error::other(error),
    })
}

/// The buffers there are, side by side, and how many.
fn flat(pieces: crate::keys::Pieces, first: Option<Sge>) -> ([Sge; 3], usize) {
    let mut buffers = [Sge::EMPTY; 3];
    let mut count = 0;
    for (place, buffer) in buffers
        .iter_mut()
        .zip(first.into_iter().chain(pieces.into_iter().flatten()))
    {
        *place = buffer;
        count += 1;
    }
    (buffers, count)
}
