//! Random histories: whatever the order of things, each operation is reported once, and credits and memory add up.

use super::*;
use kbtp_wire::{RingCounter, RingSlot, Ticket};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Step {
    Submit(u8, bool),
    Post,
    Answer(u8, u8),
    Done(u8),
    GiveUp(u8),
    Later(u16),
    Take,
    Garbage(Vec<u8>),
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0_u8..6, any::<bool>()).prop_map(|(kind, late)| Step::Submit(kind, late)),
        8 => Just(Step::Post),
        6 => (any::<u8>(), 0_u8..16).prop_map(|(n, status)| Step::Answer(n, status)),
        8 => any::<u8>().prop_map(Step::Done),
        1 => any::<u8>().prop_map(Step::GiveUp),
        1 => (0_u16..400).prop_map(Step::Later),
        4 => Just(Step::Take),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        50 => step(),
        1 => prop::collection::vec(any::<u8>(), 0..64).prop_map(Step::Garbage),
        1 => Just(Step::Close),
    ]
}

/// Work that is posted and wants an answer.
enum Open {
    Request(Header),
    Read(WorkId, LocalBuffer, Stag),
    Atomic(WorkId),
    Local(WorkId),
}

struct History {
    rig: Rig,
    open: Vec<Open>,
    ops: Vec<OpId>,
    next_token: u64,
    reports: BTreeMap<u64, u32>,
    ticket: u32,
    capacity: [usize; 4],
}

impl History {
    fn new() -> Self {
        let rig = Rig::open();
        let capacity = capacity_of(&rig.initiator);
        Self {
            rig,
            open: Vec::new(),
            ops: Vec::new(),
            next_token: 0,
            reports: BTreeMap::new(),
            ticket: 0,
            capacity,
        }
    }

    fn submit(&mut self, kind: u8, late: bool) {
        let handle = Handle(100 + u64::from(kind));
        let generation = None;
        let request = match kind {
            0 => load(100),
            1 => Request::Store {
                handle,
                generation,
                from: Source::Inline(buffer(1, 8)),
                seal: true,
            },
            2 => Request::AllocStore {
                handle,
                from: Source::Read {
                    from: buffer(1, BLOCK),
                    invalidate: false,
                },
                seal: true,
            },
            3 => Request::Free { handle, generation },
            4 => Request::LoadDirect {
                handle,
                generation,
                into: buffer(1, BLOCK),
            },
            _ => Request::AllocDirect {
                handle,
                from: buffer(1, 8),
                seal: true,
            },
        };
        let deadline = if late {
            self.rig.now.after_ms(200)
        } else {
            NEVER
        };
        if let Ok(op) = self
            .rig
            .initiator
            .submit(request, self.next_token, deadline)
        {
            self.ops.push(op);
            self.reports.insert(self.next_token, 0);
            self.next_token += 1;
        }
    }

    fn post(&mut self) {
        let Some(work) = self.rig.initiator.work() else {
            return;
        };
        match work.request {
            WorkRequest::Send { head, tail, .. } => {
                self.open.push(Open::Request(Header::decode(
                    head[..24].try_into().unwrap(),
                )));
                if tail.is_some() {
                    self.open.push(Open::Local(work.id));
                }
            }
            WorkRequest::Write { .. } => self.open.push(Open::Local(work.id)),
            WorkRequest::Read { local, remote } => {
                self.open.push(Open::Read(work.id, local, remote.stag));
            }
            _ => self.open.push(Open::Atomic(work.id)),
        }
        self.rig.initiator.posted(self.rig.now);
    }

    //= test kbtp-p8-any-order
    fn answer(&mut self, n: u8, status: u8) {
        let requests: Vec<_> = (0..self.open.len())
            .filter(|i| matches!(self.open[*i], Open::Request(_)))
            .collect();
        if requests.is_empty() {
            return;
        }
        let Open::Request(header) = self.open.remove(requests[usize::from(n) % requests.len()])
        else {
            unreachable!("only requests were listed");
        };
        let message = match Status::from_wire(u16::from(status)).unwrap() {
            Status::Ok => ok(&header, 1, 8, 0),
            status => failed(&header, 1, status),
        };
        self.rig.receive(&message).unwrap();
    }

    /// Ends some signalled work, the first of its kind at times out of order.
    fn done(&mut self, n: u8) {
        let Some(at) = self
            .open
            .iter()
            .position(|o| !matches!(o, Open::Request(_)))
        else {
            return;
        };
        let now = self.rig.now;
        let (id, outcome) = match self.open.remove(at) {
            Open::Local(id) => (id, WorkOutcome::Sent),
            Open::Atomic(id) => {
                self.ticket += 1;
                let head = RingCounter::at(Ticket(self.ticket), grant().ring_order);
                (id, WorkOutcome::Atomic(head.0))
            }
            Open::Read(id, local, stag) => {
                let octets = if stag == TABLE {
                    entry(u16::from(n % 4), u16::from(n % 3) + 1, 8, 0)
                } else {
                    // Any recent ticket's slot; the block is the one of its place.
                    let ticket = self.ticket.wrapping_sub(u32::from(n % 3));
                    RingSlot {
                        sequence: Ticket(ticket),
                        block: BlockOffset(0x10000 + u64::from(ticket % 8) * u64::from(BLOCK)),
                    }
                    .encode()
                };
                if local.stag == SCRATCH {
                    self.rig.scratch.write(local.offset.0, &octets).unwrap();
                }
                (id, WorkOutcome::Read)
            }
            Open::Request(_) => unreachable!("requests were left out"),
        };
        self.rig.initiator.handle_done(now, id, outcome).unwrap();
    }

    fn take_reports(&mut self) {
        while self.rig.initiator.poll_released().is_some() {}
        for finished in self.rig.finished() {
            *self.reports.get_mut(&finished.token).unwrap() += 1;
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Submit(kind, late) => self.submit(kind, late),
            Step::Post => self.post(),
            Step::Answer(n, status) => self.answer(n, status),
            Step::Done(n) => self.done(n),
            Step::GiveUp(n) => {
                if let Some(op) = self.ops.get(usize::from(n) % self.ops.len().max(1)) {
                    self.rig.initiator.give_up(*op);
                }
            }
            Step::Later(ms) => self.rig.after_ms(u64::from(ms)),
            Step::Take => self.take_reports(),
            Step::Garbage(octets) => {
                // Garbage is no completion of anything: it ends an open session.
                assert!(self.rig.receive(&octets).is_err() || !self.rig.initiator.is_open());
            }
            Step::Close => self.rig.initiator.handle_closed(),
        }
        if self.rig.initiator.is_open() {
            assert_eq!(
                capacity_of(&self.rig.initiator),
                self.capacity,
                "nothing grew"
            );
            let held = u32::from(CREDITS) - self.rig.initiator.free_credits();
            assert!(usize::try_from(held).unwrap() <= self.rig.initiator.in_flight());
        }
        assert!(
            self.reports.values().all(|n| *n <= 1),
            "at most one report each"
        );
    }

    fn end(mut self) {
        self.rig.initiator.handle_closed();
        self.take_reports();
        assert!(self.reports.values().all(|n| *n == 1), "{:?}", self.reports);
        assert_eq!(self.rig.initiator.in_flight(), 0);
        assert_eq!(self.rig.initiator.credits_held, 0);
        assert_eq!(self.rig.initiator.direct_loads, 0);
        assert_eq!(self.rig.initiator.usage().pending, 0);
    }
}

fn capacity_of(initiator: &Initiator) -> [usize; 4] {
    [
        initiator.steps.capacity(),
        initiator.finished.capacity(),
        initiator.released.capacity(),
        initiator.idle.capacity(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_operation_is_reported_once(steps in prop::collection::vec(any_step(), 0..300)) {
        let mut history = History::new();
        for step in steps {
            history.take(step);
        }
        history.end();
    }

    /// With a target that answers everything, everything is over in the end without closing.
    #[test]
    fn everything_ends_when_everything_is_answered(steps in prop::collection::vec(step(), 0..200)) {
        let mut history = History::new();
        for step in steps {
            history.take(step);
        }
        // Tickets whose slots this target forgets run out.
        for round in 0..2000 {
            history.post();
            history.answer(0, 0);
            history.done(3);
            if round % 100 == 0 {
                history.take(Step::Later(400));
            }
            history.take_reports();
        }
        prop_assert_eq!(history.rig.initiator.in_flight(), 0);
        prop_assert!(history.reports.values().all(|n| *n == 1));
        history.end();
    }
}
