//! Messages that no honest initiator sends, and the answers they must get.

use crate::client::{CEnd, Rogue};
use crate::plan::Step;
use crate::rng::Rng;
use crate::world::{World, tell};
use kbtp_fabric::{WorkId, WorkRequest};

/// Their Request IDs have the top bit set.
pub(crate) const ROGUE: u64 = 1 << 63;
/// A name of work that names no slot, so that nobody minds what becomes of it.
const NO_SLOT: WorkId = WorkId(0xFFFF);
/// The target drains, and says so instead.
const DRAIN: u16 = 14;

impl World {
    /// Says something that no honest initiator says; false if it must wait.
    #[expect(clippy::too_many_lines, reason = "a table of messages")]
    pub(crate) fn say_rogue(
        &mut self,
        link: usize,
        end: &mut CEnd,
        step: &Step,
        rng: &mut Rng,
    ) -> bool {
        let range = self.model.range(link).unwrap_or_else(|| self.lost_range());
        let id = ROGUE | step.number;
        let own = self.o.table_base + range.first + rng.below(self.o.hot_rows);
        let (mut version, opcode, mut flags, mut status): (u8, u8, u16, u16) =
            (1, rng.pick(&[3, 6, 7]), 0, 0);
        let mut handle = own;
        let mut body: Vec<u8> = match opcode {
            6 => Vec::new(),
            _ => vec![0; 16],
        };
        let mut op = opcode;
        let may: &'static [u16] = match rng.below(9) {
            0 => {
                flags = 0x8000;
                &[1]
            }
            1 => {
                op = rng.pick(&[0, 9, 0x33, 0x80, 0xFF]);
                &[2]
            }
            2 => {
                version = 2;
                &[3]
            }
            3 => {
                status = 5;
                &[1]
            }
            4 => {
                body.push(0);
                &[1]
            }
            5 => {
                op = 6;
                flags = 4;
                body = vec![0; 16];
                &[2]
            }
            6 => {
                // A load of what lies outside the table.
                op = 3;
                body = vec![0; 16];
                handle = self.o.table_base.wrapping_sub(1 + rng.below(1000));
                &[4, DRAIN]
            }
            7 if self.o.rogue >= 50 && rng.per_mille(100) => {
                // Too short for a header: the session ends.
                let octets = [1, 3, 0, 0];
                let message = WorkRequest::Send {
                    head: &octets,
                    tail: None,
                    solicited: false,
                    invalidate: None,
                };
                tell!(self, "connection {link}: a message of 4 octets");
                return end.conn.post(NO_SLOT, &message, false).is_ok();
            }
            _ => {
                // A ticket that was never taken, or whose slot holds no such block.
                op = 7;
                body = Vec::with_capacity(16);
                body.extend_from_slice(&(rng.next() as u32).to_be_bytes());
                body.extend_from_slice(&0_u32.to_be_bytes());
                body.extend_from_slice(&1_u64.to_be_bytes());
                &[2, 6, 11, 12, 13, DRAIN]
            }
        };
        let mut octets = vec![version, op];
        octets.extend_from_slice(&flags.to_be_bytes());
        octets.extend_from_slice(&id.to_be_bytes());
        octets.extend_from_slice(&handle.to_be_bytes());
        octets.extend_from_slice(&0_u16.to_be_bytes());
        octets.extend_from_slice(&status.to_be_bytes());
        octets.extend_from_slice(&body);
        let message = WorkRequest::Send {
            head: &octets,
            tail: None,
            solicited: false,
            invalidate: None,
        };
        if end.conn.post(NO_SLOT, &message, false).is_err() {
            return false;
        }
        self.out.ops += 1;
        tell!(
            self,
            "connection {link}: rogue {octets:x?}, may get {may:?}"
        );
        end.rogues.push(Rogue { id, may });
        true
    }
}
