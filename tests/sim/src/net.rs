//! The network: one ordered pipe of octets for each direction of each connection.

use crate::forge::{Forgery, Framer};
use crate::options::{Cuts, Options};
use crate::rng::Rng;
use kbtp_fabric::Time;
use kbtp_iwarp::Connection;
use std::collections::VecDeque;

/// The far future.
pub const NEVER: Time = Time(u64::MAX);

#[derive(Debug)]
struct Segment {
    at: Time,
    octets: Vec<u8>,
    from: usize,
    /// Not of the sender.
    forged: bool,
}

/// One direction of a connection.
#[derive(Debug)]
pub struct Pipe {
    segments: VecDeque<Segment>,
    spare: Vec<Vec<u8>>,
    /// Octets on their way.
    pub in_flight: usize,
    last_at: Time,
    /// Nothing arrives before.
    pub held_until: Time,
    /// The sender has ended its sending; its end arrives then.
    fin: Option<Time>,
    fin_taken: bool,
    /// A reset arrives then.
    pub reset_at: Option<Time>,
    /// What is sent is lost, and nobody says so.
    pub void: bool,
    /// The sender found no room.
    pub blocked: bool,
    /// Damage an octet of what is sent next.
    pub damage: bool,
    /// Where its FPDUs are; without Markers.
    pub framer: Option<Framer>,
    /// To be put between two FPDUs.
    pub forgery: Option<Forgery>,
}

impl Default for Pipe {
    fn default() -> Self {
        Self {
            segments: VecDeque::new(),
            spare: Vec::new(),
            in_flight: 0,
            last_at: Time(0),
            held_until: Time(0),
            fin: None,
            fin_taken: false,
            reset_at: None,
            void: false,
            blocked: false,
            damage: false,
            framer: None,
            forgery: None,
        }
    }
}

/// What a receive came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Received {
    /// Octets.
    pub octets: usize,
    /// The peer's end, or a reset.
    pub ended: bool,
    /// All of a forged FPDU.
    pub forged: bool,
}

impl Pipe {
    fn latency(options: &Options, rng: &mut Rng) -> u64 {
        rng.within(options.latency_ns.0, options.latency_ns.1)
    }

    /// When there is something to receive next.
    #[must_use]
    pub fn next_at(&self, wants: bool) -> Time {
        let first = self.segments.front().map_or(NEVER, |s| s.at);
        let fin = match self.fin {
            Some(at) if self.segments.is_empty() && !self.fin_taken => at,
            _ => NEVER,
        };
        let data = if wants {
            Time(first.0.min(fin.0).max(self.held_until.0))
        } else {
            NEVER
        };
        Time(data.0.min(self.reset_at.map_or(u64::MAX, |at| at.0)))
    }

    /// Sends what `from` has, as far as there is room; whether anything went, and whether an octet was damaged.
    pub fn send(
        &mut self,
        from: &mut Connection,
        now: Time,
        options: &Options,
        rng: &mut Rng,
    ) -> (usize, bool) {
        let (mut sent, mut damaged) = (0, false);
        loop {
            let room = options.window.saturating_sub(self.in_flight);
            if room == 0 {
                self.blocked = true;
                return (sent, damaged);
            }
            sent += self.put_forged(now, options, rng);
            let list = from.send_vec(now);
            if list.is_empty() {
                return (sent, damaged);
            }
            let most = match &self.framer {
                Some(framer) if self.forgery.is_some() => framer.until_next(),
                _ => usize::MAX,
            };
            let most = list.octets().min(room).min(most);
            let len = match options.cuts {
                Cuts::Segments(len) => most.min(len),
                Cuts::Random if rng.per_mille(300) => rng.within(1, most as u64) as usize,
                Cuts::Whole | Cuts::Random => most,
            };
            let mut octets = self.spare.pop().unwrap_or_default();
            octets.resize(len, 0);
            let len = list.copy_to(&mut octets);
            from.handle_sent(len, now);
            sent += len;
            if let Some(framer) = &mut self.framer {
                framer.pass(&octets);
            }
            if self.void {
                self.spare.push(octets);
                continue;
            }
            if self.damage {
                self.damage = false;
                damaged = true;
                let at = rng.below(len as u64) as usize;
                octets[at] ^= 1 << rng.below(8);
            }
            let at = now.after_ns(Self::latency(options, rng)).max(self.last_at);
            self.last_at = at;
            self.in_flight += len;
            self.segments.push_back(Segment {
                at,
                octets,
                from: 0,
                forged: false,
            });
        }
    }

    /// Puts what is forged into the stream, if it is between two FPDUs; how many octets that are.
    fn put_forged(&mut self, now: Time, options: &Options, rng: &mut Rng) -> usize {
        let Some((forgery, framer)) = self.forgery.zip(self.framer.as_ref()) else {
            return 0;
        };
        if !framer.between() || framer.fpdus == 0 || self.void || self.fin.is_some() {
            return 0;
        }
        let Some(octets) = forgery.octets(framer, options.crc()) else {
            return 0;
        };
        let len = octets.len();
        self.forgery = None;
        let at = now.after_ns(Self::latency(options, rng)).max(self.last_at);
        self.last_at = at;
        self.in_flight += len;
        self.segments.push_back(Segment {
            at,
            octets,
            from: 0,
            forged: true,
        });
        len
    }

    /// What is on its way arrives now, if nothing holds it; whether there is something.
    pub fn hurry(&mut self, now: Time) -> bool {
        if self.held_until > now || self.reset_at.is_some() {
            return false;
        }
        for segment in &mut self.segments {
            segment.at = segment.at.min(now);
        }
        !self.segments.is_empty()
    }

    /// The sender ends its sending.
    pub fn end(&mut self, now: Time, options: &Options, rng: &mut Rng) {
        if self.fin.is_none() && !self.void {
            let at = now.after_ns(Self::latency(options, rng)).max(self.last_at);
            self.fin = Some(at);
        }
    }

    /// The sender resets the connection.
    pub fn reset(&mut self, now: Time, options: &Options, rng: &mut Rng) {
        if self.reset_at.is_none() && !self.void {
            self.reset_at = Some(now.after_ns(Self::latency(options, rng)));
        }
    }

    /// Gives `to` what has arrived.
    pub fn receive(
        &mut self,
        to: &mut Connection,
        now: Time,
        options: &Options,
        rng: &mut Rng,
    ) -> Received {
        let mut got = Received::default();
        if self.reset_at.is_some_and(|at| at <= now) {
            self.reset_at = None;
            self.segments.clear();
            self.in_flight = 0;
            to.handle_broken(std::io::ErrorKind::ConnectionReset.into());
            got.ended = true;
            return got;
        }
        if self.held_until > now {
            return got;
        }
        while let Some(segment) = self.segments.front_mut() {
            if segment.at > now || !to.wants_read() {
                return got;
            }
            let rest = &segment.octets[segment.from..];
            let take = match options.cuts {
                Cuts::Random if rng.per_mille(150) => rng.within(1, rest.len() as u64) as usize,
                _ => rest.len(),
            };
            let mut list = to.recv_vec();
            if list.is_empty() {
                return got;
            }
            let taken = list.copy_from(&rest[..take]);
            to.handle_received(taken, now);
            segment.from += taken;
            self.in_flight -= taken;
            got.octets += taken;
            if segment.from == segment.octets.len()
                && let Some(done) = self.segments.pop_front()
            {
                got.forged |= done.forged;
                self.spare.push(done.octets);
            }
        }
        if self.fin.is_some_and(|at| at <= now) && !self.fin_taken && to.wants_read() {
            self.fin_taken = true;
            to.handle_end(now);
            got.ended = true;
        }
        got
    }
}
