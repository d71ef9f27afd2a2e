//! TCP sockets as streams want them: non-blocking, without Nagle's delay, watched for dead and stalled peers.

use crate::limits::{
    KEEPALIVE_IDLE_MS, KEEPALIVE_INTERVAL_MS, KEEPALIVE_PROBES, RECEIVE_WINDOW, USER_TIMEOUT_MS,
};
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

/// What TCP is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpOptions {
    /// Quiet time after which keep-alive probes start, in milliseconds; whole seconds count.
    pub keepalive_idle_ms: u64,
    /// Time between probes, in milliseconds; whole seconds count.
    pub keepalive_interval_ms: u64,
    /// Unanswered probes that end the stream.
    pub keepalive_probes: u32,
    /// How long octets may go unacknowledged, or the peer may take none, before the stream ends, in milliseconds
    /// (`TCP_USER_TIMEOUT`).
    pub user_timeout_ms: u64,
    /// Octets of the send buffer; `None` lets the system size it by what the path needs, which is best on almost
    /// every path.
    pub send_buffer: Option<usize>,
    /// Octets of the receive buffer; `None` lets the system size it, from
    /// [`RECEIVE_WINDOW`](crate::limits::RECEIVE_WINDOW) upwards.
    pub receive_buffer: Option<usize>,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            keepalive_idle_ms: KEEPALIVE_IDLE_MS,
            keepalive_interval_ms: KEEPALIVE_INTERVAL_MS,
            keepalive_probes: KEEPALIVE_PROBES,
            user_timeout_ms: USER_TIMEOUT_MS,
            send_buffer: None,
            receive_buffer: None,
        }
    }
}

/// A socket for `addr` with the buffers of `options`: window scaling is settled in the handshake, so they are set
/// before it.
fn socket(addr: &SocketAddr, options: &TcpOptions) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(*addr),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_nonblocking(true)?;
    if let Some(octets) = options.send_buffer {
        socket.set_send_buffer_size(octets)?;
    }
    if let Some(octets) = options.receive_buffer {
        socket.set_recv_buffer_size(octets)?;
    }
    Ok(socket)
}

/// Sets what an established stream needs, on either side.
pub(crate) fn prepare(socket: &Socket, options: &TcpOptions) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    // Each send carries whole FPDUs: there is nothing for Nagle to gather, and its wait for a delayed acknowledgement
    // costs 40 ms.
    socket.set_tcp_nodelay(true)?;
    if options.receive_buffer.is_none() {
        //= rfc5041-a-receive-window
        kbtp_memory::raise_receive_window(socket.as_fd(), RECEIVE_WINDOW)?;
    }
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(Duration::from_millis(options.keepalive_idle_ms))
            .with_interval(Duration::from_millis(options.keepalive_interval_ms))
            .with_retries(options.keepalive_probes),
    )?;
    socket.set_tcp_user_timeout(Some(Duration::from_millis(options.user_timeout_ms)))
}

/// A socket on its way to `addr`: writable once it is there or has failed.
pub(crate) fn connect(addr: &SocketAddr, options: &TcpOptions) -> io::Result<Socket> {
    let socket = socket(addr, options)?;
    prepare(&socket, options)?;
    match socket.connect(&SockAddr::from(*addr)) {
        Ok(()) => Ok(socket),
        Err(error) if error.raw_os_error() == Some(nix::libc::EINPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// A listening socket on `addr`. An IPv6 address serves IPv6 only, so that one port can be bound for both families.
pub(crate) fn listen(addr: &SocketAddr, options: &TcpOptions, backlog: i32) -> io::Result<Socket> {
    let socket = socket(addr, options)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // A restarted target must get its port back while old connections linger.
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(*addr))?;
    socket.listen(backlog)?;
    Ok(socket)
}

/// Makes the closing of `socket` a reset: nothing of it lingers, and the peer learns that it did not end in order.
pub(crate) fn reset_on_close(socket: &Socket) {
    // If the system does not take the option the peer sees an ordinary end, and that is all.
    if let Err(error) = socket.set_linger(Some(Duration::ZERO)) {
        tracing::debug!(%error, "a connection ends without a reset");
    }
}

/// Ends a connection at once with a reset.
pub(crate) fn reset(socket: Socket) {
    reset_on_close(&socket);
    drop(socket);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_reach_the_socket() {
        //= test rfc5041-a-receive-window
        let options = TcpOptions {
            user_timeout_ms: 1234,
            keepalive_idle_ms: 7000,
            send_buffer: Some(32_768),
            ..TcpOptions::default()
        };
        for local in ["127.0.0.1:0", "[::1]:0"] {
            let listener = listen(&local.parse().unwrap(), &options, 4).unwrap();
            assert!(listener.reuse_address().unwrap());
            let addr = listener.local_addr().unwrap().as_socket().unwrap();
            let socket = connect(&addr, &options).unwrap();
            assert!(socket.tcp_nodelay().unwrap());
            assert!(socket.keepalive().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(7));
            assert_eq!(
                socket.tcp_user_timeout().unwrap(),
                Some(Duration::from_millis(1234))
            );
            // Linux keeps twice what was asked for, for its own needs.
            assert_eq!(socket.send_buffer_size().unwrap(), 65_536);
            assert!(socket.recv_buffer_size().unwrap() > usize::try_from(RECEIVE_WINDOW).unwrap());
        }
    }
}
