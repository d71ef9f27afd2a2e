//! The transport of this library by itself: RDMAP on TCP sockets.

use crate::dial::{Dial, Dialled};
use crate::error::ClientError;
use crate::options::Options;
use kbtp_core::initiator::limits::MAX_REQUESTS;
use kbtp_fabric::Time;
use kbtp_iwarp_tcp::{ConnectError, ConnectOptions, CopyFirst, TcpRdmaStream, connect};
use std::io;
use std::net::ToSocketAddrs;

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
        now: Time,
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
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        let left_ms = deadline.since_ns(now) / 1_000_000;
        for address in options.address().to_socket_addrs().map_err(failed)? {
            match connect(address, how.clone(), &[], left_ms) {
                Ok(connected) => {
                    return Ok(Dialled {
                        stream: connected.stream,
                        private_data: connected.private_data.into(),
                    });
                }
                Err(error) => last = io_error(error),
            }
        }
        Err(failed(last))
    }
}

fn io_error(error: ConnectError) -> io::Error {
    match error {
        ConnectError::Os { source, .. } => source,
        ConnectError::TimedOut => io::ErrorKind::TimedOut.into(),
        other => io::Error::other(other),
    }
}
