//! What can be seen of processes from outside: a target's admin endpoint, and /proc.

use serde_json::Value;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

/// How long an admin endpoint may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a target's admin endpoint says at `path`.
pub(crate) fn get(admin: &str, path: &str) -> String {
    let mut socket = TcpStream::connect(admin).expect("the admin endpoint is there");
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {admin}\r\n\r\n");
    socket.write_all(request.as_bytes()).unwrap();
    let mut page = String::new();
    socket.read_to_string(&mut page).expect("an answer");
    let (head, body) = page.split_once("\r\n\r\n").expect("an HTTP response");
    assert!(head.contains(" 200 "), "{path}: {head}");
    body.to_owned()
}

/// The same, as JSON.
pub(crate) fn get_json(admin: &str, path: &str) -> Value {
    serde_json::from_str(&get(admin, path)).expect("JSON")
}

/// A metric without labels of a target.
pub(crate) fn metric(admin: &str, name: &str) -> u64 {
    let page = get(admin, "/metrics");
    let value = page
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = value.and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("no metric {name}"))
}

/// A number in JSON.
pub(crate) fn number(from: &Value, pointer: &str) -> u64 {
    let found = from.pointer(pointer).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("no {pointer} in {from}"))
}

/// A process' resources.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Resources {
    /// Octets resident.
    pub(crate) resident: u64,
    /// Descriptors open.
    pub(crate) descriptors: u64,
    /// Those of them that are sockets.
    pub(crate) sockets: u64,
    /// Those of them that are memory handed from process to process.
    pub(crate) memfds: u64,
    /// Threads.
    pub(crate) threads: u64,
    /// Mappings.
    pub(crate) mappings: u64,
    /// Mappings of memory handed from process to process.
    pub(crate) shared: u64,
}

/// What process `pid` holds now; it must be alive.
pub(crate) fn resources(pid: u32) -> Resources {
    let proc = Path::new("/proc").join(pid.to_string());
    let read = |name: &str| {
        let read = fs::read_to_string(proc.join(name));
        read.unwrap_or_else(|e| panic!("process {pid}, {name}: {e}"))
    };
    let status = read("status");
    let field = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name));
        let value = value.and_then(|text| text.split_whitespace().next());
        value.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
    };
    let mut seen = Resources {
        resident: field("VmRSS:") << 10,
        threads: field("Threads:"),
        ..Resources::default()
    };
    for entry in fs::read_dir(proc.join("fd")).unwrap() {
        // One that is closed meanwhile is none.
        let Ok(to) = entry.and_then(|entry| fs::read_link(entry.path())) else {
            continue;
        };
        let to = to.to_string_lossy();
        seen.descriptors += 1;
        seen.sockets += u64::from(to.starts_with("socket:"));
        seen.memfds += u64::from(to.starts_with("/memfd:kbtp-"));
    }
    for line in read("maps").lines() {
        seen.mappings += 1;
        seen.shared += u64::from(line.contains("/memfd:kbtp-"));
    }
    seen
}

/// Names of files in `folder`, in order.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
