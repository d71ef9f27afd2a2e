//! What a stream is set up with.

use crate::limits;
use kbtp_fabric::LocalError;
use kbtp_wire::mpa::{MAX_MULPDU, MIN_MULPDU, RtrKinds};

//= rfc6581-10-not-without-need
/// Which startup frames an initiator sends. A responder answers in the form of the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handshake {
    /// Revision 1 (RFC 5044): IRD and ORD are taken from the configuration, unnegotiated.
    Original,
    /// Revision 2 with enhanced data (RFC 6581), client-server model.
    Enhanced,
    /// Revision 2 with enhanced data, peer-to-peer: the initiator sends one of these RTR indications first.
    PeerToPeer(RtrKinds),
}

/// Which payload is copied before its CRC is computed.
///
/// Payload that is sent from where it lies is read twice, by the CRC and by the kernel; if another party changes it in
/// between, the peer sees a broken CRC and the stream ends. Copied first, the peer gets a mixture, which KBTP's
/// readers detect (draft, section 6.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyFirst {
    /// None: no source changes while it is sent.
    Nothing,
    /// What the peer reads with RDMA Read, for a party whose registered memory changes (a target with direct modes).
    ReadResponses,
    /// That, and what is sent from a registration that may be written, by the peer or by this party's own RDMA Reads:
    /// a source that stays as it is is registered without such a right, and sent from where it lies.
    Writable,
    /// All payload.
    Everything,
}

/// What a stream is set up with. All storage follows from it, at set-up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Work requests posted and not yet reported.
    pub send_queue: u16,
    /// Messages received and not yet released.
    pub receive_slots: u16,
    /// Longest message received, in octets.
    pub max_receive: u32,
    /// Registrations, retired ones included.
    pub registrations: u16,
    /// RDMA Reads and Atomics this party has outstanding at most (ORD).
    pub outbound_reads: u16,
    /// RDMA Reads and Atomics it lets the peer have outstanding (IRD).
    pub inbound_reads: u16,
    /// Whether CRCs are required here. They are off only if neither party requires them (RFC 5044, section 4.4).
    pub crc: bool,
    /// Whether this party wants Markers in what it receives; they cost a copy of all payload.
    pub markers: bool,
    /// Startup form of an initiator.
    pub handshake: Handshake,
    /// RTR indications a responder takes.
    pub rtr: RtrKinds,
    /// Longest ULPDU sent, 128 to 64,768 octets: see [`kbtp_wire::mpa::max_ulpdu_len`] for one that fits a segment.
    pub max_ulpdu: u16,
    /// What payload is copied before it is sent.
    pub copy_first: CopyFirst,
    /// Octets read ahead.
    pub staging_len: u32,
    /// Octets that wait in posted Sends (their heads).
    pub head_ring_len: u32,
    /// Limit on the startup, in milliseconds.
    pub startup_timeout_ms: u64,
    /// Limit on the peer's end of sending after ours, in milliseconds.
    pub close_timeout_ms: u64,
    /// An initiator's wait between the reply and its first FPDU, in milliseconds. Some peers (the kernel's siw) lose
    /// an FPDU that comes right behind their reply.
    pub first_send_delay_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            send_queue: 256,
            receive_slots: 128,
            max_receive: 8 << 10,
            registrations: 1024,
            outbound_reads: 64,
            inbound_reads: 64,
            //= rfc5044-4.4-crc-default
            //= rfc5044-4.4-crc-suppression
            crc: true,
            markers: false,
            //= kbtp-9.1-enhanced-connection
            handshake: Handshake::Enhanced,
            rtr: RtrKinds {
                send: true,
                write: true,
                read: true,
            },
            max_ulpdu: MAX_MULPDU,
            copy_first: CopyFirst::ReadResponses,
            staging_len: limits::DEFAULT_STAGING_LEN,
            head_ring_len: limits::DEFAULT_HEAD_RING_LEN,
            startup_timeout_ms: limits::DEFAULT_STARTUP_TIMEOUT_MS,
            close_timeout_ms: limits::DEFAULT_CLOSE_TIMEOUT_MS,
            first_send_delay_ms: 0,
        }
    }
}

impl Config {
    /// Octets of heap that a stream of this configuration may come to, at most. All of it but what an STag that is revoked
    /// while octets of it are framed needs for those is set aside when the stream is made.
    #[must_use]
    pub fn memory(&self) -> u64 {
        /// A slot: its state, its number in a list, its event, and whether it holds Immediate Data.
        const SLOT: u64 = 8 + 4 + EVENT + 4;
        const EVENT: u64 = 40;
        /// Posted work, and the event of its end.
        const WORK: u64 = 128 + EVENT;
        /// A Read or Atomic that waits for its answer, or to be answered.
        const REQUEST: u64 = 64;
        /// An STag: buffer and rights, how far its numbers are dealt out, its place in the list of free ones.
        const REGISTRATION: u64 = 96 + 8 + 2;
        /// A piece of what is framed ahead.
        const CHUNK: u64 = 64;
        /// Startup frames with their Private Data, an FPDU's headers, and what is there once.
        const REST: u64 = 4 << 10;
        let framed = limits::TX_RING_LEN as u64;
        let chunks = limits::MAX_CHUNKS as u64 * CHUNK;
        let slots = u64::from(self.receive_slots) * (u64::from(self.max_receive) + SLOT);
        let heads = u64::from(self.head_ring_len.next_power_of_two());
        let reads = u64::from(self.outbound_reads) + u64::from(self.inbound_reads) + 2;
        slots
            + heads
            + u64::from(self.staging_len)
            + u64::from(self.send_queue) * WORK
            + reads * REQUEST
            + u64::from(self.registrations) * REGISTRATION
            + 2 * framed
            + chunks
            + REST
    }

    /// Refuses what is over a bound of [`limits`], or zero where something is needed.
    pub(crate) fn check(&self) -> Result<(), LocalError> {
        let within = |what, value: u64, least: u64, limit: u64| {
            if (least..=limit).contains(&value) {
                Ok(())
            } else {
                Err(LocalError::Limit { what, limit })
            }
        };
        within(
            "send queue",
            self.send_queue.into(),
            1,
            limits::MAX_SEND_QUEUE.into(),
        )?;
        within(
            "receive slots",
            self.receive_slots.into(),
            1,
            limits::MAX_RECEIVE_SLOTS.into(),
        )?;
        within(
            "received message",
            self.max_receive.into(),
            8,
            limits::MAX_RECEIVE_LEN.into(),
        )?;
        within(
            "octets of all receive slots",
            u64::from(self.receive_slots) * u64::from(self.max_receive),
            8,
            limits::MAX_RECEIVE_OCTETS,
        )?;
        within(
            "registrations",
            self.registrations.into(),
            1,
            limits::MAX_REGISTRATIONS.into(),
        )?;
        let depth = limits::MAX_READ_DEPTH.into();
        within("outbound RDMA Reads", self.outbound_reads.into(), 0, depth)?;
        within("inbound RDMA Reads", self.inbound_reads.into(), 0, depth)?;
        within(
            "ULPDU",
            self.max_ulpdu.into(),
            MIN_MULPDU.into(),
            MAX_MULPDU.into(),
        )?;
        within(
            "staging",
            self.staging_len.into(),
            limits::MIN_STAGING_LEN.into(),
            limits::MAX_STAGING_LEN.into(),
        )?;
        within(
            "heads of Sends",
            self.head_ring_len.into(),
            1,
            limits::MAX_HEAD_RING_LEN.into(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_within_its_bounds_and_has_crcs() {
        //= test rfc5044-4.4-crc-default
        //= test rfc5044-4.4-crc-suppression
        let config = Config::default();
        assert!(config.check().is_ok());
        assert!(config.crc);
        //= test kbtp-9.1-enhanced-connection
        assert_eq!(config.handshake, Handshake::Enhanced);
    }

    /// (How it compares with what is allocated, a test of the hostile suite measures.)
    #[test]
    fn the_memory_bound_has_each_part_in_it() {
        type Change = fn(&mut Config);
        let base = Config::default();
        let octets = u64::from(base.receive_slots) * u64::from(base.max_receive);
        let rings = u64::from(base.staging_len) + u64::from(base.head_ring_len);
        assert!(base.memory() > octets + rings);
        assert!(base.memory() < 2 * (octets + rings) + (4 << 20));
        // What each thing more costs at least: its octets, or a record of it.
        let more: [(Change, u64); 8] = [
            (|c| c.receive_slots += 1, u64::from(base.max_receive) + 40),
            (|c| c.max_receive += 1, u64::from(base.receive_slots)),
            (|c| c.send_queue += 1, 128),
            (|c| c.outbound_reads += 1, 32),
            (|c| c.inbound_reads += 1, 32),
            (|c| c.registrations += 1, 64),
            (|c| c.staging_len += 1, 1),
            (|c| c.head_ring_len *= 2, u64::from(base.head_ring_len)),
        ];
        for (number, (change, least)) in (0..).zip(more) {
            let mut config = base.clone();
            change(&mut config);
            let grown = config.memory() - base.memory();
            assert!((least..=2 * least).contains(&grown), "{number}: {grown}");
        }
    }

    #[test]
    fn each_bound_holds() {
        let bad: [fn(&mut Config); 7] = [
            |c| c.send_queue = 0,
            |c| c.receive_slots = limits::MAX_RECEIVE_SLOTS + 1,
            |c| c.max_receive = 7,
            |c| c.registrations = limits::MAX_REGISTRATIONS + 1,
            |c| c.inbound_reads = limits::MAX_READ_DEPTH + 1,
            //= test rfc5044-3-ulpdu-not-over
            |c| c.max_ulpdu = 127,
            |c| c.max_ulpdu = 64_769,
        ];
        for change in bad {
            let mut config = Config::default();
            change(&mut config);
            assert!(config.check().is_err(), "{config:?}");
        }
    }
}
