//! How a client gets its stream.

use crate::error::ClientError;
use crate::options::Options;
use kbtp_fabric::{Stream, Time};

/// An established stream and what the target said when it accepted it.
#[derive(Debug)]
pub struct Dialled<S> {
    /// The stream.
    pub stream: S,
    /// The private data of the target's reply (profile, P9).
    pub private_data: Vec<u8>,
}

/// Sets streams up: the transport of a client, asked again for each reconnect.
pub trait Dial {
    /// Its streams.
    type Stream: Stream;

    /// A new stream to the target of `options`, established before `deadline`.
    ///
    /// # Errors
    /// [`ClientError`]: there is none.
    fn dial(
        &mut self,
        options: &Options,
        now: Time,
        deadline: Time,
    ) -> Result<Dialled<Self::Stream>, ClientError>;
}
