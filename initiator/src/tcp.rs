//! The transport of this library by itself: RDMAP on TCP sockets.

use crate::dial::{Dial, Dialled};
use crate::error::ClientError;
use crate::options::Options;
use kbtp_core::initiator::limits::MAX_REQUESTS;
use kbtp_fabric::Time;
use kbtp_iwarp_tcp::{
    Clock, ConnectError, ConnectOptions, Connected, CopyFirst, TcpRdmaStream, connect,
};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// Octets of a receive slot: HELLO_ACK is the longest message a target sends, 168 octets and its TLVs.
const RECEIVE_LEN: u32 = 1024;

/// Registrations of a connection: two for each buffer that is both loaded into and stored from.
const REGISTRATIONS: u16 = 4096;

/// Connects to targets with the user-space iWARP of `kbtp-iwarp-tcp`.
#[derive(Clone, Debug, Default)]
pub struct Tcp {
    /// How to connect; queues, receives, registrations and CRC are set from the client's needs and options.
    pub connect: ConnectOptions,
}

impl Dial for Tcp {
    type Stream = TcpRdmaStream;

    fn dial(
        &mut self,
        options: &Options,
        _now: Time,
        deadline: Time,
    ) -> Result<Dialled<TcpRdmaStream>, ClientError> {
        let failed = |source| ClientError::Connect {
            address: options.address().to_owned(),
            source,
        };
        let mut how = self.connect.clone();
        let rdma = &mut how.stream.rdma;
        rdma.crc = options.wants_crc();
        // An RDMA Write and a BIND for each request that can be in flight.
        rdma.send_queue = rdma.send_queue.max(2 * MAX_REQUESTS);
        // Every request in flight may be answered before the answers are looked at.
        rdma.receive_slots = rdma.receive_slots.max(MAX_REQUESTS + 1);
        rdma.max_receive = RECEIVE_LEN;
        // A buffer that is lent to an operation is out of its owner's reach until the operation ends.
        rdma.copy_first = CopyFirst::Nothing;
        rdma.registrations = rdma.registrations.max(REGISTRATIONS);
        let addresses: Vec<_> = options
            .address()
            .to_socket_addrs()
            .map_err(failed)?
            .collect();
        let connected = reach(&addresses, &how, deadline).map_err(failed)?;
        Ok(Dialled {
            stream: connected.stream,
            private_data: connected.private_data.into(),
        })
    }
}

/// Connects to the first of `addresses` that answers. Each has its share of the time that is left until `deadline`, so
/// that one that is silent leaves some to those after it, and to the session.
fn reach(addresses: &[SocketAddr], how: &ConnectOptions, deadline: Time) -> io::Result<Connected> {
    let clock = Clock::new();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for (address, after) in addresses.iter().zip((0..addresses.len() as u64).rev()) {
        let left_ms = deadline.since_ns(clock.now()) / 1_000_000;
        let share_ms = left_ms / after.saturating_add(1);
        match connect(*address, how.clone(), &[], share_ms) {
            Ok(connected) => return Ok(connected),
            Err(error) => last = io_error(error),
        }
    }
    Err(last)
}

fn io_error(error: ConnectError) -> io::Error {
    match error {
        ConnectError::Os { source, .. } => source,
        ConnectError::TimedOut => io::ErrorKind::TimedOut.into(),
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kbtp_iwarp_tcp::{Answer, ListenOptions, Listener};
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_silent_address_leaves_time_for_the_next() {
        let here = "127.0.0.1:0".parse().unwrap();
        // The system takes its connections, and nobody answers them.
        let silent = TcpListener::bind(here).unwrap();
        let mut target = Listener::bind(here, ListenOptions::default()).unwrap();
        let addresses = [silent.local_addr().unwrap(), target.local_addr()];
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let clock = Clock::new();
                let mut streams = Vec::new();
                while !done.load(Ordering::Acquire) {
                    let mut accept = |_: &kbtp_iwarp_tcp::Request<'_>| Answer::Accept {
                        private_data: b"here".to_vec(),
                    };
                    streams.extend(target.progress(clock.now(), &mut accept).unwrap());
                    std::thread::yield_now();
                }
            });
            let clock = Clock::new();
            let deadline = clock.now().after_ms(2_000);
            let connected = reach(&addresses, &ConnectOptions::default(), deadline);
            let now = clock.now();
            done.store(true, Ordering::Release);
            assert_eq!(&*connected.unwrap().private_data, b"here");
            assert!(now < deadline, "no time is left for the session");
        });
    }
}
