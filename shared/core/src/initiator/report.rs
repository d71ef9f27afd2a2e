//! How operations end: reported once, their slot and credit given back, the quota kept.

use super::bindings::Known;
use super::slot::{Phase, Report, Slot};
use super::types::{Done, Failure, Finished, Request};
use super::{Initiator, State};
use crate::plants::{Plant, planted};
use kbtp_wire::Status;

impl Initiator {
    /// Reports the operation of `index` as given up; what it left at the peer is waited for.
    pub(super) fn abandon(&mut self, index: u16, deadline: bool) {
        let Some(slot) = self.slots.get_mut(usize::from(index)) else {
            return;
        };
        let started = slot.posted
            || !matches!(
                slot.phase,
                Phase::Queued | Phase::Entry { attempt: 1, .. } | Phase::Taking { .. }
            );
        let failure = Failure::GivenUp {
            sent: slot.awaits_completion() || slot.answer.is_some(),
            deadline,
        };
        slot.report = Report::TakenAway;
        slot.reading = false;
        let report = Finished {
            op: slot.op,
            token: slot.token,
            operation: slot.request.operation(),
            handle: slot.request.handle(),
            result: Err(failure),
            invalidated: false,
        };
        let answer = slot.answer;
        self.finished.push_back(report);
        if let Some((result, invalidated)) = answer {
            self.conclude(index, result, invalidated);
        } else if !started {
            self.conclude(index, Err(failure), false);
        } else {
            self.leave_direct(index);
        }
    }

    /// Ends the operation of `index`: reports it unless it is given up, and frees the slot.
    pub(super) fn conclude(
        &mut self,
        index: u16,
        result: Result<Done, Failure>,
        invalidated: bool,
    ) {
        let Some(slot) = self.slots.get_mut(usize::from(index)) else {
            return;
        };
        if slot.phase == Phase::Idle {
            return;
        }
        let was = *slot;
        let allocation = slot.request.allocates();
        slot.phase = Phase::Idle;
        if was.holds_credit() {
            self.credits_held = self.credits_held.saturating_sub(1);
        } else {
            self.direct_loads = self.direct_loads.saturating_sub(1);
        }
        self.account(&was, allocation, result);
        self.idle.push(index);
        if was.report == Report::TakenAway && self.state == State::Open {
            self.released.extend(was.request.stag());
        }
        if !was.given_up() || planted(Plant::ReportedTwice) {
            self.finished.push_back(Finished {
                op: was.op,
                token: was.token,
                operation: was.request.operation(),
                handle: was.request.handle(),
                result,
                invalidated,
            });
        }
    }

    /// Keeps the usage of the quota (draft, section 3.4).
    fn account(&mut self, slot: &Slot, allocation: bool, result: Result<Done, Failure>) {
        let lost = matches!(result, Err(Failure::Lost { sent: true }));
        if allocation {
            self.usage.pending = self.usage.pending.saturating_sub(1);
            let tidied = matches!(slot.phase, Phase::Tidying(..) | Phase::Freeing);
            // The target counts a ticket until it is bound or reclaimed.
            //= kbtp-3.4-quota-not-exceeded
            let ticket_open = slot.holds_ticket()
                && matches!(result, Err(Failure::Status { status, .. }) if status != Status::TicketAbandoned);
            if lost {
                self.note(slot, Known::Doubt);
                self.usage.unsure = self.usage.unsure.saturating_add(1);
            } else if ticket_open {
                self.usage.unsure = self.usage.unsure.saturating_add(1);
            } else if result.is_ok() && !tidied {
                self.note(slot, Known::Bound);
                self.usage.bound = self.usage.bound.saturating_add(1);
            }
        } else if matches!(slot.request, Request::Free { .. }) {
            let absent = matches!(
                result,
                Err(Failure::Status { status, .. }) if status == Status::NotValid
            );
            if lost {
                self.account_lost_free(slot);
            } else if result.is_ok() || absent {
                // Of a handle that was in doubt NOT_VALID says that it is bound no more, or never was.
                let known = self.note(slot, Known::Nothing);
                if result.is_ok() && !matches!(known, Some(Known::Bound | Known::Doubt)) {
                    self.account_unknown_free();
                }
            }
        }
    }

    /// Notes what is known of the handle now, and counts what was known no more; what was known.
    fn note(&mut self, slot: &Slot, now: Known) -> Option<Known> {
        let known = self.bindings.replace(slot.request.handle(), now);
        let usage = &mut self.usage;
        match known {
            Some(Known::Bound) => usage.bound = usage.bound.saturating_sub(1),
            Some(Known::Doubt) => usage.unsure = usage.unsure.saturating_sub(1),
            Some(Known::Nothing) | None => {}
        }
        known
    }

    /// A free was lost: what was bound is in doubt.
    fn account_lost_free(&mut self, slot: &Slot) {
        let known = self.note(slot, Known::Doubt);
        let was_counted = match known {
            Some(Known::Bound | Known::Doubt) => true,
            Some(Known::Nothing) | None => {
                let counted = self.usage.bound > 0;
                self.usage.bound = self.usage.bound.saturating_sub(1);
                if !counted {
                    self.bindings.replace(slot.request.handle(), Known::Nothing);
                }
                counted
            }
        };
        self.usage.unsure = self.usage.unsure.saturating_add(u32::from(was_counted));
    }

    /// A handle was freed of which only the count was known.
    fn account_unknown_free(&mut self) {
        let usage = &mut self.usage;
        if usage.bound > 0 {
            usage.bound -= 1;
        } else {
            usage.unsure = usage.unsure.saturating_sub(1);
        }
    }
}
