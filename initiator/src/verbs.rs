//! The transport of RDMA devices.

use crate::dial::{Dial, Dialled};
use crate::error::ClientError;
use crate::options::Options;
use kbtp_core::initiator::limits::MAX_REQUESTS;
use kbtp_fabric::Time;
use kbtp_iwarp_tcp::Clock;
use kbtp_verbs::{ConnectError, ConnectOptions, Connected, VerbsStream, connect};
use kbtp_wire::PrivateData;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// Octets of a receive slot: HELLO_ACK is the longest message a target sends, 168 octets and its TLVs.
const RECEIVE_LEN: u32 = 1024;

/// Connects to targets through the RDMA devices of this machine: RoCEv2, InfiniBand, iWARP. The libraries are loaded by the
/// first connect; without them, or without a device that reaches the target, it fails with an error that says so, and
/// [`Tcp`](crate::Tcp) is there.
///
/// Buffers are registered with the device as they are first used, which costs a system call and the pinning of their pages: use
/// the same ones again. An operation that is given up ends the connection, since a device cannot drop what the target may
/// still write.
#[derive(Clone, Debug, Default)]
pub struct Verbs {
    /// How to connect, and through which device; queues and receives are set from the client's needs.
    pub connect: ConnectOptions,
}

impl Dial for Verbs {
    type Stream = VerbsStream;

    fn dial(
        &mut self,
        options: &Options,
        _now: Time,
        deadline: Time,
    ) -> Result<Dialled<VerbsStream>, ClientError> {
        let failed = |source| ClientError::Connect {
            address: options.address().to_owned(),
            source,
        };
        let mut how = self.connect.clone();
        let stream = &mut how.stream;
        // An RDMA Write and a BIND for each request that can be in flight.
        stream.send_work = stream.send_work.max(2 * u32::from(MAX_REQUESTS));
        // Every request in flight may be answered before the answers are looked at.
        stream.receives = stream.receives.max(u32::from(MAX_REQUESTS) + 1);
        stream.receive_len = RECEIVE_LEN;
        let addresses: Vec<_> = options
            .address()
            .to_socket_addrs()
            .map_err(failed)?
            .collect();
        let connected = reach(&addresses, &how, deadline).map_err(failed)?;
        Ok(Dialled {
            stream: connected.stream,
            private_data: unpadded(connected.private_data.into()),
        })
    }
}

/// The target's words without the zeros that InfiniBand and RoCE pad them with.
fn unpadded(mut data: Vec<u8>) -> Vec<u8> {
    let padding = data.get(PrivateData::LEN..).unwrap_or_default();
    if padding.iter().all(|octet| *octet == 0) {
        data.truncate(PrivateData::LEN);
    }
    data
}

/// Connects to the first of `addresses` that answers. Each has its share of the time that is left until `deadline`.
fn reach(addresses: &[SocketAddr], how: &ConnectOptions, deadline: Time) -> io::Result<Connected> {
    let clock = Clock::new();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for (address, after) in addresses.iter().zip((0..addresses.len() as u64).rev()) {
        let left_ms = deadline.since_ns(clock.now()) / 1_000_000;
        let share_ms = left_ms / after.saturating_add(1);
        match connect(*address, how.clone(), &[], share_ms) {
            Ok(connected) => return Ok(connected),
            Err(ConnectError::TimedOut) => last = io::ErrorKind::TimedOut.into(),
            Err(error) => last = io::Error::other(error),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;

    #[test]
    fn padding_and_nothing_else_is_taken_off() {
        let words = vec![7; PrivateData::LEN];
        let padded = [words.clone(), vec![0; 156]].concat();
        assert_eq!(unpadded(padded), words);
        assert_eq!(unpadded(words.clone()), words);
        assert_eq!(unpadded(vec![7; 3]), [7; 3]);
        let more = vec![7; PrivateData::LEN + 1];
        assert_eq!(unpadded(more.clone()), more);
    }

    #[test]
    fn without_a_device_the_error_says_what_is_missing() {
        let options = Options::new("192.0.2.1:7471");
        let error = Client::connect_with(Verbs::default(), options).unwrap_err();
        let ClientError::Connect { source, .. } = error else {
            panic!("{error}");
        };
        assert!(!source.to_string().is_empty());
    }
}
