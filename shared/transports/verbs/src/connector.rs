//! Setting up a stream as the initiator.

use crate::choice::{Candidate, NoChoice, Want, address, choose};
use crate::driver::Clock;
use crate::end::End;
use crate::limits::{REQUEST_DATA, RESOLVE_MS, RETRIES};
use crate::options::ConnectOptions;
use crate::probe::quirks_of;
use crate::stream::{Facts, VerbsStream};
use kbtp_fabric::Time;
use kbtp_verbs_sys::{CmEvent, CmEventKind, CmId, ConnectParameters, VerbsError, devices};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::BorrowedFd;

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No device reaches the peer.
    #[error(transparent)]
    NoChoice(#[from] NoChoice),
    /// A library, the system or the device refused.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The connection manager goes through another device than the rule names.
    #[error("the connection manager goes through {found}, not through {wanted}")]
    OtherDevice {
        /// What was chosen.
        wanted: String,
        /// What it takes.
        found: String,
    },
    /// The peer rejected the connection; on InfiniBand and RoCE also when nobody listens there.
    #[error("the peer rejected the connection (status {status})")]
    Rejected {
        /// What it said, padded with zeros on InfiniBand and RoCE.
        private_data: Box<[u8]>,
        /// The reason, a number of the connection manager's.
        status: i32,
    },
    /// There is no connection.
    #[error("{what} (status {status})")]
    Failed {
        /// What went wrong.
        what: &'static str,
        /// The system's error number, or the connection manager's reason.
        status: i32,
    },
    /// Time ran out.
    #[error("no connection within the time given")]
    TimedOut,
}

/// A stream and what its peer said when it was set up.
#[derive(Debug)]
pub struct Connected {
    /// The stream, established.
    pub stream: VerbsStream,
    /// Private Data of the peer's reply. InfiniBand and RoCE pad it with zeros to 196 octets.
    pub private_data: Box<[u8]>,
}

/// Where an attempt is.
#[derive(Debug)]
enum State {
    Address(CmId),
    Route(Box<End>),
    Reply(Box<End>),
    Over,
}

/// One attempt to set up a stream, step by step: [`progress`](Self::progress) when the descriptor is ready or the time has
/// come. Drop it to give up sooner. [`connect`] does it all in one call.
///
/// The first attempt through a device [tries out](crate::probe::probe) what the device does, and waits for that.
#[derive(Debug)]
pub struct Connector {
    state: State,
    options: ConnectOptions,
    private_data: Box<[u8]>,
    deadline: Time,
    /// The device of the rule.
    chosen: Option<String>,
}

/// All ways out of this machine.
///
/// # Errors
/// [`VerbsError`]: there is no library, or the kernel has no RDMA.
pub fn candidates() -> Result<Vec<Candidate>, VerbsError> {
    let mut found = Vec::new();
    for device in devices()? {
        let context = match &device.context {
            Ok(context) => context.get(),
            Err(error) => {
                tracing::warn!(device = %device.name, %error, "an RDMA device is passed over");
                continue;
            }
        };
        for number in 1..=context.attributes()?.ports {
            let port = context.port(number)?;
            for gid in context.gids(number)? {
                found.push(Candidate {
                    device: device.name.clone(),
                    port: number,
                    active: port.active,
                    iwarp: context.is_iwarp(),
                    infiniband: port.infiniband,
                    gid,
                });
            }
        }
    }
    Ok(found)
}

/// The address that this machine's routes reach `to` from. No octet is sent.
pub(crate) fn source_of(to: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

/// Where to bind before connecting, and the device that is then expected.
fn way_out(to: SocketAddr, want: &Want) -> Result<(Option<SocketAddr>, String), ConnectError> {
    let source = source_of(to).map_err(|source| VerbsError::Os {
        what: "no route to the peer",
        source,
    })?;
    // To an address of its own a machine goes through its loopback interface, which has no device: the device is the
    // one that has that address.
    let all = candidates()?;
    let named = want.device.is_some() || want.port.is_some() || want.gid_index.is_some();
    let chosen = choose(&all, want, Some(source))?;
    let from = (named && !chosen.infiniband && !chosen.iwarp).then(|| address(&chosen.gid));
    let from = from.map(|ip| SocketAddr::new(ip, 0));
    let device = if named || !chosen.iwarp {
        chosen.device.clone()
    } else {
        // Which of several iWARP devices has the address, only the connection manager knows.
        String::new()
    };
    Ok((from, device))
}

impl Connector {
    /// Starts to connect to `addr`; `private_data` goes with the request (at most 56 octets).
    ///
    /// # Errors
    /// [`ConnectError`] if it fails at once.
    pub fn start(
        addr: SocketAddr,
        options: ConnectOptions,
        private_data: &[u8],
        now: Time,
    ) -> Result<Self, ConnectError> {
        if private_data.len() > REQUEST_DATA {
            return Err(VerbsError::Attribute {
                attribute: "private_data_len of a request",
                wanted: private_data.len() as u64,
                limit: REQUEST_DATA as u64,
            }
            .into());
        }
        let mut id = CmId::new()?;
        let (from, device) = way_out(addr, &options.want)?;
        id.resolve_address(from, addr, RESOLVE_MS)?;
        let deadline = now.after_ms(options.stream.startup_ms);
        Ok(Self {
            state: State::Address(id),
            options,
            private_data: private_data.into(),
            deadline,
            chosen: (!device.is_empty()).then_some(device),
        })
    }

    /// Goes on as far as it goes without waiting; the stream once it is established.
    ///
    /// # Errors
    /// [`ConnectError`] if the attempt has failed; it is over then.
    pub fn progress(&mut self, now: Time) -> Result<Option<Connected>, ConnectError> {
        loop {
            let mut state = std::mem::replace(&mut self.state, State::Over);
            let id = match &mut state {
                State::Address(id) => id,
                State::Route(end) | State::Reply(end) => &mut end.id,
                State::Over => return Err(ConnectError::TimedOut),
            };
            let Some(event) = id.next_event()? else {
                if now >= self.deadline {
                    return Err(ConnectError::TimedOut);
                }
                self.state = state;
                return Ok(None);
            };
            if let Some(connected) = self.step(state, event, now)? {
                return Ok(Some(connected));
            }
        }
    }

    fn step(
        &mut self,
        state: State,
        event: CmEvent,
        now: Time,
    ) -> Result<Option<Connected>, ConnectError> {
        match event.kind {
            CmEventKind::Failed(what) => {
                return Err(ConnectError::Failed {
                    what,
                    status: event.status,
                });
            }
            CmEventKind::Rejected => {
                return Err(ConnectError::Rejected {
                    private_data: event.private_data.into(),
                    status: event.status,
                });
            }
            CmEventKind::Disconnected | CmEventKind::DeviceRemoved => {
                return Err(ConnectError::Failed {
                    what: "the connection ended as it was set up",
                    status: event.status,
                });
            }
            _ => {}
        }
        match (state, event.kind) {
            (State::Address(mut id), CmEventKind::AddressResolved) => {
                let device = id.context()?.name();
                if let Some(wanted) = self.chosen.as_ref().filter(|wanted| **wanted != device) {
                    return Err(ConnectError::OtherDevice {
                        wanted: wanted.clone(),
                        found: device,
                    });
                }
                let quirks = quirks_of(&id)?;
                id.resolve_route(RESOLVE_MS)?;
                self.state = State::Route(Box::new(End::new(id, &self.options.stream, quirks)?));
            }
            (State::Route(mut end), CmEventKind::RouteResolved) => {
                let reads = reads(&end, &self.options)?;
                end.id.connect(&ConnectParameters {
                    private_data: &self.private_data,
                    responder_resources: reads.0,
                    initiator_depth: reads.1,
                    retry_count: RETRIES,
                    rnr_retry_count: RETRIES,
                })?;
                self.state = State::Reply(end);
            }
            (State::Reply(end), CmEventKind::Established) => {
                return self.established(*end, event, now).map(Some);
            }
            (state, _) => self.state = state,
        }
        Ok(None)
    }

    fn established(&self, end: End, event: CmEvent, now: Time) -> Result<Connected, ConnectError> {
        let (inbound, outbound) = reads(&end, &self.options)?;
        let iwarp = end.id.context()?.is_iwarp();
        let facts = Facts {
            device: end.id.context()?.name(),
            peer: end.id.peer_addr().ok_or(ConnectError::TimedOut)?,
            local: end.id.local_addr().ok_or(ConnectError::TimedOut)?,
            outbound_reads: u16::from(agreed(outbound, event.initiator_depth)),
            inbound_reads: u16::from(agreed(inbound, event.responder_resources)),
            receive_len: self.options.stream.receive_len,
            keepalive_ms: self.options.stream.keepalive_idle_ms,
            nudges: iwarp,
        };
        Ok(Connected {
            stream: VerbsStream::new(end, facts, now),
            private_data: event.private_data.into(),
        })
    }

    /// The descriptor to wait on for reading; `None` once the attempt is over.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Address(id) => Some(id.fd()),
            State::Route(end) | State::Reply(end) => Some(end.id.fd()),
            State::Over => None,
        }
    }

    /// When [`progress`](Self::progress) is due even if the descriptor is not ready.
    #[must_use]
    pub const fn deadline(&self) -> Time {
        self.deadline
    }
}

/// Reads and Atomics that this party takes at a time, and has outstanding: what the options ask for and the device has.
pub(crate) fn reads(end: &End, options: &ConnectOptions) -> Result<(u8, u8), VerbsError> {
    limited_reads(end, options.stream.reads)
}

/// See [`reads`].
pub(crate) fn limited_reads(end: &End, most: u8) -> Result<(u8, u8), VerbsError> {
    let attributes = end.id.context()?.attributes()?;
    let least = |has: u32| most.min(u8::try_from(has).unwrap_or(u8::MAX));
    Ok((
        least(attributes.max_qp_rd_atom),
        least(attributes.max_qp_init_rd_atom),
    ))
}

/// What both sides have; a peer that says nothing (iWARP without enhanced startup) leaves it to this one.
pub(crate) const fn agreed(own: u8, event: u8) -> u8 {
    if event == 0 || event > own {
        own
    } else {
        event
    }
}

/// Connects to `addr` and waits for the stream, at most `timeout_ms` milliseconds.
///
/// # Errors
/// [`ConnectError`].
pub fn connect(
    addr: SocketAddr,
    mut options: ConnectOptions,
    private_data: &[u8],
    timeout_ms: u64,
) -> Result<Connected, ConnectError> {
    let clock = Clock::new();
    options.stream.startup_ms = timeout_ms;
    let mut connector = Connector::start(addr, options, private_data, clock.now())?;
    loop {
        let now = clock.now();
        if let Some(connected) = connector.progress(now)? {
            return Ok(connected);
        }
        let Some(fd) = connector.descriptor() else {
            return Err(ConnectError::TimedOut);
        };
        let left = connector.deadline().since_ns(now).div_ceil(1_000_000);
        let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], wait) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => {
                return Err(VerbsError::Os {
                    what: "waiting for a connection",
                    source: errno.into(),
                }
                .into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lesser_of_both_is_agreed() {
        assert_eq!(agreed(16, 4), 4);
        assert_eq!(agreed(4, 16), 4);
        assert_eq!(agreed(4, 0), 4);
    }

    #[test]
    fn the_route_to_loopback_begins_there() {
        let to = "127.0.0.1:9".parse().unwrap();
        assert_eq!(source_of(to).unwrap(), IpAddr::from([127, 0, 0, 1]));
    }

    #[test]
    fn without_a_device_connecting_fails_with_words() {
        let to = "192.0.2.1:7471".parse().unwrap();
        match connect(to, ConnectOptions::default(), b"", 200) {
            Ok(_) => panic!("nobody is there"),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        let long = [0; REQUEST_DATA + 1];
        let error = connect(to, ConnectOptions::default(), &long, 200).unwrap_err();
        assert!(error.to_string().contains("private_data_len"), "{error}");
    }
}
