//! Messages that no honest initiator sends, and the answers they must get.

use crate::client::{CEnd, Rogue};
use crate::marks::Mark;
use crate::plan::Step;
use crate::rng::Rng;
use crate::world::{World, tell};
use kbtp_core::initiator::Initiator;
use kbtp_fabric::{RemoteBuffer, WorkId, WorkRequest};
use kbtp_wire::RingCounter;

/// Their Request IDs have the top bit set.
pub(crate) const ROGUE: u64 = 1 << 63;
/// A name of work that names no slot, so that nobody minds what becomes of it.
pub(crate) const NO_SLOT: WorkId = WorkId(0xFFFF);
/// The target drains, and says so instead.
const DRAIN: u16 = 14;

/// A message to be.
struct Draft {
    version: u8,
    opcode: u8,
    flags: u16,
    status: u16,
    handle: u64,
    body: Vec<u8>,
    /// Statuses it may get; none: the session ends for it.
    may: &'static [u16],
}

impl Draft {
    fn encode(&self, id: u64) -> Vec<u8> {
        let mut octets = vec![self.version, self.opcode];
        octets.extend_from_slice(&self.flags.to_be_bytes());
        octets.extend_from_slice(&id.to_be_bytes());
        octets.extend_from_slice(&self.handle.to_be_bytes());
        octets.extend_from_slice(&0_u16.to_be_bytes());
        octets.extend_from_slice(&self.status.to_be_bytes());
        octets.extend_from_slice(&self.body);
        octets
    }
}

fn send(head: &[u8]) -> WorkRequest<'_> {
    WorkRequest::Send {
        head,
        tail: None,
        solicited: false,
        invalidate: None,
    }
}

fn descriptor(len: u32) -> Vec<u8> {
    let mut body = vec![0; 12];
    body.extend_from_slice(&len.to_be_bytes());
    body
}

fn bind(ticket: u32) -> Vec<u8> {
    let mut body = ticket.to_be_bytes().to_vec();
    body.extend_from_slice(&0_u32.to_be_bytes());
    body.extend_from_slice(&1_u64.to_be_bytes());
    body
}

impl World {
    /// Says something that no honest initiator says; false if it must wait.
    pub(crate) fn say_rogue(
        &mut self,
        link: usize,
        end: &mut CEnd,
        step: &Step,
        rng: &mut Rng,
    ) -> bool {
        let kind = rng.below(14);
        if kind == 0 && self.o.rogue >= 50 && rng.per_mille(200) {
            return self.end_session(link, end, step, rng);
        }
        if kind <= 2
            && end
                .session
                .as_ref()
                .is_some_and(Initiator::may_allocate_direct)
            && rng.per_mille(300)
        {
            return self.hoard(link, end);
        }
        let draft = match kind {
            3..=5 => self.draft_lie(link, end, rng),
            6 | 7 => self.draft_bind(link, end, rng),
            _ => self.draft_malformed(link, rng),
        };
        let id = ROGUE | step.number;
        let octets = draft.encode(id);
        if end.conn.post(NO_SLOT, &send(&octets), false).is_err() {
            return false;
        }
        self.out.ops += 1;
        let may = draft.may;
        tell!(
            self,
            "connection {link}: rogue {octets:x?}, may get {may:?}"
        );
        end.rogues.push(Rogue {
            id,
            may,
            many: false,
        });
        true
    }

    fn own_handle(&self, link: usize, rng: &mut Rng) -> u64 {
        let range = self.model.range(link).unwrap_or_else(|| self.lost_range());
        self.o.table_base + range.first + rng.below(self.o.hot_rows)
    }

    fn draft_malformed(&self, link: usize, rng: &mut Rng) -> Draft {
        let opcode = rng.pick(&[3, 6, 7]);
        let plain = Draft {
            version: 1,
            opcode,
            flags: 0,
            status: 0,
            handle: self.own_handle(link, rng),
            body: if opcode == 6 { Vec::new() } else { vec![0; 16] },
            may: &[1],
        };
        match rng.below(7) {
            0 => Draft {
                flags: 0x8000,
                ..plain
            },
            1 => Draft {
                opcode: rng.pick(&[0, 9, 0x33, 0x80, 0xFF]),
                may: &[2],
                ..plain
            },
            2 => Draft {
                version: 2,
                may: &[3],
                ..plain
            },
            3 => Draft { status: 5, ..plain },
            4 => Draft {
                body: [plain.body, vec![0]].concat(),
                ..plain
            },
            // A FREE with RECORD.
            5 => Draft {
                opcode: 6,
                flags: 4,
                body: vec![0; 16],
                may: &[2],
                ..plain
            },
            // A LOAD of what lies outside the table.
            _ => Draft {
                opcode: 3,
                body: vec![0; 16],
                handle: self.o.table_base.wrapping_sub(1 + rng.below(1000)),
                may: &[4, DRAIN],
                ..plain
            },
        }
    }

    /// INLINE with a Length that is not that of the data, or a handle that is another's.
    fn draft_lie(&self, link: usize, end: &CEnd, rng: &mut Rng) -> Draft {
        let most = end.session.as_ref().and_then(Initiator::terms);
        let most = u64::from(most.map_or(0, |terms| terms.grant.max_inline.0));
        let present = rng.below(most.min(40) + 1);
        let declared = match rng.below(3) {
            0 if present > 0 => rng.below(present),
            _ => present + rng.within(1, 64),
        };
        let mut body = descriptor(declared as u32);
        body.resize(16 + present as usize, 0xD1);
        let opcode = rng.pick(&[4, 5]);
        let handle = if rng.per_mille(300) {
            // Of the range before or behind its own.
            let own = self.own_handle(link, rng);
            own.wrapping_add(if rng.per_mille(500) {
                64
            } else {
                0_u64.wrapping_sub(64)
            })
        } else {
            self.own_handle(link, rng)
        };
        Draft {
            version: 1,
            opcode,
            flags: 1,
            status: 0,
            handle,
            body,
            may: if opcode == 4 {
                &[4, 5, 8, 10, DRAIN]
            } else {
                &[4, 6, 10, DRAIN]
            },
        }
    }

    /// A BIND of a ticket that was never taken, or of one that is its own and whose slot holds no such block.
    fn draft_bind(&self, link: usize, end: &CEnd, rng: &mut Rng) -> Draft {
        let own = match end.hoarded.as_slice() {
            [] => None,
            some => Some(rng.pick(some)),
        };
        let faults = &self.o.faults;
        let punctual = faults.late_worker == 0 && faults.lost_wake == 0;
        let patience = u64::from(self.o.ticket_timeout_ms) * 2 + 50;
        let abandoned =
            own.is_some_and(|(_, since)| punctual && since.after_ms(patience) < self.now);
        Draft {
            version: 1,
            opcode: 7,
            flags: 0,
            status: 0,
            handle: self.own_handle(link, rng),
            body: bind(own.map_or_else(|| rng.next() as u32, |(ticket, _)| ticket.0)),
            may: if abandoned {
                &[2, 6, 11, 12, DRAIN]
            } else {
                &[2, 6, 11, 12, 13, DRAIN]
            },
        }
    }

    /// Takes a ticket and does nothing with it.
    fn hoard(&mut self, link: usize, end: &mut CEnd) -> bool {
        let Some(grant) = end
            .session
            .as_ref()
            .and_then(Initiator::terms)
            .map(|t| t.grant)
        else {
            return false;
        };
        let work = WorkRequest::FetchAdd {
            remote: RemoteBuffer {
                stag: grant.counter_stag,
                offset: grant.head_offset,
            },
            add: RingCounter::ADD_DATA,
            mask: RingCounter::add_mask(grant.ring_order),
        };
        if end.conn.post(NO_SLOT, &work, true).is_err() {
            return false;
        }
        self.out.ops += 1;
        self.out.marks.hit(Mark::Hoarded);
        self.model.ticket_stuck(link);
        // It may come to have more tickets than there are slots.
        self.links[link].fatal = true;
        tell!(self, "connection {link}: hoards a ticket");
        true
    }

    /// Says something for which the session ends.
    fn end_session(&mut self, link: usize, end: &mut CEnd, step: &Step, rng: &mut Rng) -> bool {
        let id = ROGUE | step.number;
        let grant = end
            .session
            .as_ref()
            .and_then(Initiator::terms)
            .map(|t| t.grant);
        let longest = 56 + grant.map_or(0, |grant| grant.max_inline.0 as usize);
        let mut octets = Draft {
            version: 1,
            opcode: 6,
            flags: 0,
            status: 0,
            handle: self.own_handle(link, rng),
            body: Vec::new(),
            may: &[],
        }
        .encode(id);
        let mut messages = 1;
        match rng.below(4) {
            // Too short for a header.
            0 => octets.truncate(rng.below(24) as usize),
            // Longer than what was promised to be received.
            1 => octets.resize(longest + 1, 0),
            // HELLO once more.
            2 => {
                octets[1] = 1;
                octets[12..20].fill(0);
                octets.resize(64, 0);
            }
            // Many more requests than there are credits for, all of one handle so that they wait for each other.
            _ => {
                octets[1] = 5;
                octets.extend_from_slice(&descriptor(64));
                messages = 2 * grant.map_or(1, |grant| u32::from(grant.credits)) + 2;
            }
        }
        self.links[link].fatal = true;
        for _ in 0..messages {
            if end.conn.post(NO_SLOT, &send(&octets), false).is_err() {
                break;
            }
        }
        tell!(self, "connection {link}: {messages} of {octets:x?}");
        end.rogues.push(Rogue {
            id,
            may: &[],
            many: messages > 1,
        });
        true
    }
}
