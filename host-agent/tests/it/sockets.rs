//! The socket file: who owns it, who may use it, and what is found in its place.

use crate::common::{Running, Scratch, options};
use kbtp_agent::{AgentError, Server};
use kbtp_control::{AgentListener, ControlError, ListenOptions, Role, TargetChannel};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

fn bind_error(scratch: &Scratch) -> ControlError {
    match Server::bind(&scratch.config()) {
        Err(AgentError::Control(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_socket_is_for_its_owner_alone() {
    let scratch = Scratch::new();
    let _agent = Running::start(&scratch.config());
    let mode = std::fs::metadata(scratch.socket())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_live_agent_keeps_its_socket() {
    let scratch = Scratch::new();
    let agent = Running::start(&scratch.config());
    let error = bind_error(&scratch);
    assert!(matches!(error, ControlError::AgentAlive { .. }), "{error}");
    // Even when the lock file is gone: whoever answers is alive.
    std::fs::remove_file(scratch.path().join("agent.sock.lock")).unwrap();
    let error = bind_error(&scratch);
    assert!(matches!(error, ControlError::AgentAlive { .. }), "{error}");
    agent.target();
}

#[test]
fn an_agent_that_starts_holds_the_path_before_it_listens() {
    let scratch = Scratch::new();
    let options = ListenOptions {
        path: scratch.socket(),
        allowed_uid: None,
    };
    let listener = AgentListener::bind(&options).unwrap();
    // As if it had not come to listen: nobody answers at the path, and still it is taken.
    std::fs::remove_file(scratch.socket()).unwrap();
    let error = bind_error(&scratch);
    assert!(matches!(error, ControlError::AgentAlive { .. }), "{error}");
    drop(listener);
    Running::start(&scratch.config()).target();
}

#[test]
fn a_stale_socket_is_replaced() {
    let scratch = Scratch::new();
    let stale = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    bind(&stale, &SocketAddrUnix::new(scratch.socket()).unwrap()).unwrap();
    drop(stale);
    assert!(scratch.socket().exists());
    let error = TargetChannel::connect(&options(&scratch.socket()), Role::Target).unwrap_err();
    assert!(matches!(error, ControlError::NoAgent { .. }), "{error}");
    Running::start(&scratch.config()).target();
}

#[test]
fn what_is_no_agents_socket_is_left_alone() {
    let scratch = Scratch::new();
    std::fs::write(scratch.socket(), "precious").unwrap();
    let error = bind_error(&scratch);
    assert!(matches!(error, ControlError::NotASocket { .. }), "{error}");
    assert_eq!(std::fs::read(scratch.socket()).unwrap(), b"precious");

    std::fs::remove_file(scratch.socket()).unwrap();
    let other = UnixListener::bind(scratch.socket()).unwrap();
    let error = bind_error(&scratch);
    assert!(matches!(error, ControlError::NotASocket { .. }), "{error}");
    let error = TargetChannel::connect(&options(&scratch.socket()), Role::Target).unwrap_err();
    assert!(matches!(error, ControlError::NotASocket { .. }), "{error}");
    drop(other);
}

#[test]
fn a_socket_that_took_the_place_is_not_removed() {
    let scratch = Scratch::new();
    let agent = Running::start(&scratch.config());
    std::fs::remove_file(scratch.socket()).unwrap();
    let _other = UnixListener::bind(scratch.socket()).unwrap();
    drop(agent);
    assert!(scratch.socket().exists());
}

#[test]
fn errors_name_the_path_and_the_remedy() {
    let scratch = Scratch::new();
    let mut config = scratch.config();
    config.socket = scratch.path().join("no/such/dir/agent.sock");
    let text = Server::bind(&config).unwrap_err().to_string();
    assert!(
        text.contains("no/such/dir") && text.contains("directory must exist"),
        "{text}"
    );

    config.socket = scratch.path().join("x".repeat(120));
    let text = Server::bind(&config).unwrap_err().to_string();
    assert!(text.contains("shorter"), "{text}");

    let error = TargetChannel::connect(&options(&scratch.socket()), Role::Target).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("agent.sock") && text.contains("kbtp agent"),
        "{text}"
    );
}
