//! How software that sleeps is woken: a completion queue that tells of its next CQE, once each time it is asked.
//!
//! Software looks at its queues, then sets their alarms, then sleeps until [`Device::next_event`](crate::Device::next_event)
//! gives something. A CQE that came between look and alarm is an event at once, since the alarm says what was looked at.

use crate::{Device, DeviceEvent};
use kbtp_mlx5::{CqArm, CqeIndex, Cqn};

/// The alarm of a completion queue.
#[derive(Debug)]
pub(crate) struct Alarm {
    cqn: Cqn,
    /// Counts the events: a device takes a queue to be armed anew only with the count of the last one.
    rung: u8,
    set: bool,
}

impl Alarm {
    pub(crate) const fn new(cqn: Cqn) -> Self {
        Self {
            cqn,
            rung: 0,
            set: false,
        }
    }

    /// Asks for an event at CQE number `consumed` or one after it; once until it rings.
    pub(crate) fn set<D: Device>(&mut self, device: &mut D, consumed: u64) -> Result<(), D::Error> {
        if self.set {
            return Ok(());
        }
        let [.., a, b, c] = consumed.to_be_bytes();
        let how = CqArm {
            sequence: self.rung & 3,
            solicited_only: false,
            consumer: CqeIndex::truncate(u32::from_be_bytes([0, a, b, c])),
        };
        device.arm_cq(self.cqn, how)?;
        self.set = true;
        Ok(())
    }

    /// Whether an event is this queue's: it is to be looked at, and its alarm set again.
    pub(crate) fn rings(&mut self, event: DeviceEvent) -> bool {
        let own = matches!(
            event,
            DeviceEvent::Completion(cqn) | DeviceEvent::CqError(cqn) if cqn == self.cqn
        );
        if own && self.set {
            self.set = false;
            self.rung = self.rung.wrapping_add(1);
        }
        own
    }
}
