//! What `rping` of librdmacm says, by its own text: a client names a buffer in a message, the server reads it with an RDMA
//! Read and says so; the client names another, the server writes the same octets there with an RDMA Write and says so; the
//! client compares. Messages are 16 octets: address, key and length of a buffer, big-endian.

use crate::party::Party;
use kbtp_fabric::{RemoteBuffer, Stream, StreamError};
use kbtp_wire::{Stag, TaggedOffset};
use std::error::Error;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Where the octets of a ping start out, and where they come back to.
const SOURCE: u64 = 0;
const SINK: u64 = 2 << 20;

fn named(buffer: RemoteBuffer, len: u32) -> [u8; 16] {
    let mut message = [0; 16];
    let (offset, rest) = message.split_at_mut(8);
    let (stag, length) = rest.split_at_mut(4);
    offset.copy_from_slice(&buffer.offset.0.to_be_bytes());
    stag.copy_from_slice(&buffer.stag.0.to_be_bytes());
    length.copy_from_slice(&len.to_be_bytes());
    message
}

fn name(message: &[u8]) -> Outcome<(RemoteBuffer, u32)> {
    let octets: [u8; 16] = message.try_into()?;
    let number = u128::from_be_bytes(octets);
    let offset = TaggedOffset(u64::try_from(number >> 64)?);
    let stag = Stag(u32::try_from((number >> 32) & 0xffff_ffff)?);
    let len = u32::try_from(number & 0xffff_ffff)?;
    Ok((RemoteBuffer { stag, offset }, len))
}

/// One ping of `len` octets, made of `seed`.
///
/// # Errors
/// The stream ends, or what comes back is not what went.
pub fn ping<S: Stream>(party: &mut Party<S>, len: u32, seed: u8) -> Outcome<()> {
    let size = usize::try_from(len)?;
    // The server takes the octets for a string: what it writes back ends with the first zero.
    let mut data: Vec<u8> = (0..size)
        .map(|i| {
            let mixed = i.wrapping_mul(0x9e37_79b1) >> 13;
            mixed.to_le_bytes().first().map_or(1, |o| (o ^ seed) | 1)
        })
        .collect();
    if let Some(last) = data.last_mut() {
        *last = 0;
    }
    party.region.write(SOURCE, &data)?;
    // One octet more, which nobody may touch.
    party.region.fill(SINK, u64::from(len) + 1, !seed)?;
    party.send(&named(party.advertised(SOURCE), len))?;
    party.receive()?;
    party.send(&named(party.advertised(SINK), len))?;
    party.receive()?;
    let mut back = vec![0; size + 1];
    party.region.read(SINK, &mut back)?;
    if back.split_last() != Some((&!seed, &data)) {
        return Err(format!("a ping of {len} octets came back changed").into());
    }
    Ok(())
}

/// Serves a client until it closes the stream. How many pings it made.
///
/// # Errors
/// The stream ends in another way, or in the middle of a ping.
pub fn serve<S: Stream>(party: &mut Party<S>) -> Outcome<u32> {
    let mut pings = 0;
    loop {
        let message = match party.receive() {
            Ok(message) => message,
            Err(error) => match error.downcast_ref::<StreamError>() {
                Some(StreamError::PeerClosed) => return Ok(pings),
                _ => return Err(error),
            },
        };
        let (source, len) = name(&message)?;
        party.read(source, SOURCE, len)?;
        party.send(&message)?;
        let (sink, len) = name(&party.receive()?)?;
        party.write(SOURCE, len, sink)?;
        party.send(&message)?;
        pings += 1;
    }
}

/// What no `rping` does, to see what the other end makes of it.
pub mod wrong {
    use super::{Outcome, SOURCE, name, named};
    use crate::party::Party;
    use kbtp_fabric::{RemoteBuffer, Stream};
    use kbtp_wire::Stag;

    /// Goes half way through a ping, to where the server has named its own buffer in its message.
    ///
    /// # Errors
    /// The stream ends.
    pub fn place_of_server<S: Stream>(party: &mut Party<S>) -> Outcome<RemoteBuffer> {
        party.send(&named(party.advertised(SOURCE), 64))?;
        Ok(name(&party.receive()?)?.0)
    }

    /// Names a buffer by an STag that was never given.
    ///
    /// # Errors
    /// The stream ends.
    pub fn name_foreign<S: Stream>(party: &mut Party<S>) -> Outcome<()> {
        let mut place = party.advertised(SOURCE);
        place.stag = Stag(place.stag.0 ^ 0x5555_5500);
        party.send(&named(place, 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streams::{accept, connect};
    use kbtp_iwarp_tcp::{ListenOptions, Listener, StreamOptions};

    #[test]
    fn client_and_server_understand_each_other() {
        let mut listener =
            Listener::bind("127.0.0.1:0".parse().unwrap(), ListenOptions::default()).unwrap();
        let to = listener.local_addr();
        std::thread::scope(|scope| {
            let server = scope.spawn(move || {
                let mut party = Party::new(accept(&mut listener).unwrap()).unwrap();
                serve(&mut party).unwrap()
            });
            let mut party = Party::new(connect(to, &StreamOptions::default()).unwrap()).unwrap();
            for (seed, len) in [(0, 0), (1, 1), (2, 1000), (3, 1 << 20)] {
                ping(&mut party, len, seed).unwrap();
            }
            party.close().unwrap();
            assert_eq!(server.join().unwrap(), 4);
        });
    }

    #[test]
    fn messages_name_buffers() {
        let buffer = RemoteBuffer {
            stag: Stag(0x0102_0304),
            offset: TaggedOffset(0x1122_3344_5566_7788),
        };
        let message = named(buffer, 0x0a0b_0c0d);
        let octets = [
            0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 1, 2, 3, 4, 10, 11, 12, 13,
        ];
        assert_eq!(message, octets);
        assert_eq!(name(&message).unwrap(), (buffer, 0x0a0b_0c0d));
        assert!(name(&octets[1..]).is_err());
    }
}
