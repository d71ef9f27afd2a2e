//! A sans-IO RDMAP Stream: MPA (RFC 5044, RFC 6581), DDP (RFC 5041) and RDMAP (RFC 5040, RFC 7306) in one object.
//!
//! It owns no socket, clock, thread or randomness. A transport asks where the next octets go, reads them there and
//! says how many came; asks what to send, writes it and says how many went. Above it stands `kbtp-iwarp-tcp`; beside
//! it `kbtp-fabric` gives the types.
//!
//! The shape of [`Connection`], for the transport that drives it:
//!
//! ```text
//! Connection::initiator(config: &Config, seed: [u8; 32], private_data: &[u8], now: Time) -> Result<Self, LocalError>
//! Connection::responder(config: &Config, seed: [u8; 32], now: Time)                      -> Result<Self, LocalError>
//! startup(&self) -> Startup               // Pending | Request (answer it) | Established | Rejected | Failed
//! peer_private_data(&self) -> &[u8]       // of the request (responder) or the reply (initiator)
//! accept(&mut self, private_data: &[u8], now) / reject(&mut self, private_data: &[u8], now) -> Result<(), LocalError>
//!
//! recv_vec(&mut self) -> ReadVec<'_>      // empty: do not read now
//! handle_received(&mut self, octets: usize, now: Time)      // the whole of what one read into recv_vec gave
//! handle_end(&mut self, now: Time)        // read gave 0: the peer ended its sending
//! handle_broken(&mut self, error: io::Error)                // the socket failed
//! send_vec(&mut self, now: Time) -> WriteVec<'_>            // empty: nothing to send now
//! handle_sent(&mut self, octets: usize, now: Time)
//! next_action(&mut self) -> Option<Action>                  // EndSending (shutdown of writing) | Close
//! wants_read(&self) -> bool, wants_write(&self) -> bool, next_timeout(&self) -> Option<Time>, handle_timeout(&mut self, now)
//!
//! capabilities, register, invalidate, retire, post, next_event, message, release, close(how, now): as fabric::Stream
//! take_error(&mut self) -> Option<StreamError>              // once, when the stream has ended
//! ```
#![forbid(unsafe_code)]
