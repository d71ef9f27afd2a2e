//! Tells the service manager that the agent is ready: pool and socket are there. A target ordered after it does not
//! start too early. Without a service manager (`NOTIFY_SOCKET` unset) it does nothing.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use tracing::warn;

/// Sends one state, such as `READY=1`, to the service manager. Failing to is logged: the service itself is well.
pub(crate) fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(path.as_bytes(), state) {
        warn!(%error, state, "cannot notify the service manager");
    }
}

fn send(path: &[u8], state: &str) -> io::Result<()> {
    let address = match path.split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(by: &UnixDatagram) -> Vec<u8> {
        let mut octets = [0; 64];
        let len = by.recv(&mut octets).unwrap();
        octets[..len].to_vec()
    }

    #[test]
    fn a_state_reaches_a_path_and_an_abstract_name() {
        let name = format!("kbtp-notify-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let by_path = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str().as_bytes(), "READY=1").unwrap();
        assert_eq!(received(&by_path), b"READY=1");
        std::fs::remove_file(&path).unwrap();

        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&address).unwrap();
        send(format!("@{name}").as_bytes(), "STOPPING=1").unwrap();
        assert_eq!(received(&by_name), b"STOPPING=1");
    }
}
