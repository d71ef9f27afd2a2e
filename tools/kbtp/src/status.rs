//! The status page of a target: one HTTP GET, and the page for people.

use crate::failure::Failure;
use crate::output::{Sheet, Table};
use crate::units::{count, latency, octets};
use serde_json::Value;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long the target may take for any step of the exchange.
const PATIENCE: Duration = Duration::from_secs(5);
/// Octets of a page at most: 10,000 sessions of a kilobyte, and more.
const PAGE_MAX: u64 = 64 << 20;

/// The status of the target whose admin address is `addr`.
///
/// # Errors
/// [`Failure`] if nobody answers there, or not with a status.
pub(crate) fn fetch(addr: SocketAddr) -> Result<Value, Failure> {
    let page = get(addr).map_err(|e| {
        // A read that has waited long enough is reported as if it had not waited at all.
        if matches!(
            e.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        ) {
            return Failure::operation(
                format_args!(
                    "no status from {addr}: no answer in {}s",
                    PATIENCE.as_secs()
                ),
                "see whether the target has started, is stopped, or has no processor to run on",
            );
        }
        Failure::operation(
            format_args!("no status from {addr}: {e}"),
            "start the target with --admin ADDR, or ask over a session with --target ADDR",
        )
    })?;
    read(&page).map_err(|what| {
        Failure::operation(
            format_args!("{addr} answers with {what}, not with a status"),
            "name the --admin address of a target",
        )
    })
}

/// The status that a whole HTTP response carries.
///
/// # Errors
/// What it is instead, in words.
pub fn read(page: &[u8]) -> Result<Value, String> {
    let text = str::from_utf8(page).map_err(|_| "octets that are not text")?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or("no HTTP response")?;
    let line = head.lines().next().unwrap_or("");
    if !line.starts_with("HTTP/") || line.split(' ').nth(1) != Some("200") {
        return Err(format!("'{line}'"));
    }
    let length = head
        .lines()
        .filter_map(|header| header.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    if let Some((_, says)) = length
        && says.trim().parse() != Ok(body.len())
    {
        let says = says.trim();
        return Err(format!(
            "a page of {} octets that says it has {says}",
            body.len()
        ));
    }
    let found: Value = serde_json::from_str(body).map_err(|e| format!("no JSON ({e})"))?;
    match missing(&found) {
        None => Ok(found),
        Some(pointer) => Err(format!("JSON that has no {pointer}")),
    }
}

/// The first thing that each status has and this one lacks.
fn missing(status: &Value) -> Option<&'static str> {
    let is = |pointer: &str, kind: fn(&Value) -> bool| status.pointer(pointer).is_some_and(kind);
    [
        ("/build/version", Value::is_string as fn(&Value) -> bool),
        ("/phase", Value::is_string),
        ("/instance", Value::is_string),
        ("/listen", Value::is_array),
        ("/pool/blocks", Value::is_u64),
        ("/pool/block_size", Value::is_u64),
        ("/sessions", Value::is_array),
        ("/leases", Value::is_array),
    ]
    .into_iter()
    .find(|(pointer, kind)| !is(pointer, *kind))
    .map(|(pointer, _)| pointer)
}

fn get(addr: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = format!("GET /status HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut page = Vec::new();
    stream.take(PAGE_MAX).read_to_end(&mut page)?;
    Ok(page)
}

/// The page for people.
#[must_use]
pub fn text(status: &Value) -> String {
    let word = |path: &str| match status.pointer(path) {
        Some(Value::String(s)) => s.clone(),
        Some(Value::Null) | None => "-".to_owned(),
        Some(other) => other.to_string(),
    };
    let number = |path: &str| status.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    let mut sheet = Sheet::new();
    sheet.row(
        "target",
        format_args!(
            "{} {}, {} over {}",
            word("/build/version"),
            word("/phase"),
            word("/build/engine"),
            word("/build/transport")
        ),
    );
    sheet.row("instance", word("/instance"));
    sheet.row("up", latency(number("/uptime_ns")));
    let listen = status.pointer("/listen").and_then(Value::as_array);
    let listen: Vec<&str> = listen
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    sheet.row("listens on", listen.join(", "));
    sheet.row("pool held by", word("/agent"));
    sheet.row("workers", word("/workers"));
    let block_size = number("/pool/block_size");
    let blocks = number("/pool/blocks");
    sheet.row(
        "pool",
        format_args!(
            "{} blocks of {} ({})",
            count(blocks),
            octets(block_size),
            octets(blocks.saturating_mul(block_size))
        ),
    );
    for (name, field) in [
        ("  free", "blocks_free"),
        ("  bound", "blocks_bound"),
        ("  in use by work in flight", "blocks_pinned"),
        ("  freed, slot not yet consumed", "blocks_deferred"),
        ("quota granted", "quota_granted"),
        ("tickets outstanding", "tickets_outstanding"),
    ] {
        sheet.row(name, count(number(&format!("/pool/{field}"))));
    }
    if status.pointer("/chains/served").is_some() {
        for (name, field) in [
            ("requests by chains", "served"),
            ("  by software instead", "wakeups"),
            ("  of those, chain ended", "traps"),
            ("slots armed", "armed"),
            ("given up, no block in time", "given_up"),
            ("sessions ended, chain stuck", "stalled"),
        ] {
            sheet.row(name, count(number(&format!("/chains/{field}"))));
        }
    }
    let mut text = sheet.text();
    text.push_str(&sessions(status));
    text
}

fn sessions(status: &Value) -> String {
    let list = |field: &str| {
        let items = status.get(field).and_then(Value::as_array);
        items.cloned().unwrap_or_default()
    };
    let cell = |of: &Value, field: &str| match of.get(field) {
        Some(Value::String(s)) if !s.is_empty() => s.clone(),
        Some(Value::Number(n)) => n.as_u64().map_or_else(|| n.to_string(), count),
        _ => "-".to_owned(),
    };
    let mut text = String::new();
    let sessions = list("sessions");
    if !sessions.is_empty() {
        let mut table = Table::new(&["session of", "tenant", "from", "quota", "usage", "requests"]);
        for s in &sessions {
            let fields = ["initiator", "tenant", "peer", "quota", "usage", "requests"];
            table.row(fields.map(|f| cell(s, f)).to_vec());
        }
        text.push('\n');
        text.push_str(&table.text());
    }
    let leases = list("leases");
    if !leases.is_empty() {
        let mut table = Table::new(&["kept for", "tenant", "bound", "time left"]);
        for l in &leases {
            let left = l.get("left_ns").and_then(Value::as_u64);
            let mut row = ["initiator", "tenant", "bound"]
                .map(|f| cell(l, f))
                .to_vec();
            row.push(left.map_or_else(|| "forever".to_owned(), latency));
            table.row(row);
        }
        text.push('\n');
        text.push_str(&table.text());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_pool_sessions_and_leases() {
        let status = serde_json::json!({
            "build": {"version": "0.1.0", "engine": "software", "transport": "iwarp-tcp"},
            "phase": "running", "uptime_ns": 1_500_000_000_u64, "instance": "ab", "listen": ["127.0.0.1:7471"],
            "agent": "in-process", "workers": 2,
            "pool": {"blocks": 1024, "block_size": 65536, "blocks_free": 1000, "blocks_bound": 24},
            "sessions": [{"initiator": "01", "tenant": "", "peer": "127.0.0.1:9", "quota": 256, "usage": 24, "requests": 12345}],
            "leases": [{"initiator": "02", "tenant": "blue", "bound": 3, "left_ns": null}],
        });
        let said = text(&status);
        assert!(
            said.contains("1,024 blocks of 64.00 KiB (64.00 MiB)"),
            "{said}"
        );
        assert!(
            said.contains("12,345") && said.contains("forever"),
            "{said}"
        );
        assert!(
            said.contains("0.1.0 running, software over iwarp-tcp"),
            "{said}"
        );
    }

    #[test]
    fn what_is_no_status_is_said_not_to_be_one() {
        let status = r#"{"build":{"version":"1"},"phase":"running","instance":"ab","listen":[],"pool":{"blocks":1,"block_size":4096},"sessions":[],"leases":[]}"#;
        let page = |head: &str, body: &str| read(format!("{head}\r\n\r\n{body}").as_bytes());
        let ok = "HTTP/1.1 200 OK";
        assert!(page(ok, status).is_ok());
        let right = format!("{ok}\r\ncontent-length: {}", status.len());
        assert!(page(&right, status).is_ok());
        for (head, body, said) in [
            (ok, "{}", "no /build/version"),
            (ok, "[1,2]", "no /build/version"),
            (ok, "null", "no /build/version"),
            (
                ok,
                &status.replace("4096", "\"4096\""),
                "no /pool/block_size",
            ),
            (ok, "<html>", "no JSON"),
            ("HTTP/1.1 404 Not Found", status, "404"),
            ("220 200 x", status, "220"),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 7",
                status,
                "says it has 7",
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: x",
                status,
                "says it has x",
            ),
        ] {
            let error = page(head, body).unwrap_err();
            assert!(error.contains(said), "{body}: {error}");
        }
    }

    #[test]
    fn what_a_stranger_says_cannot_steer_the_terminal() {
        let evil = "\u{1b}]0;x\u{7}\u{9b}2J\r";
        let status = serde_json::json!({
            "phase": evil, "listen": [evil], "agent": evil,
            "sessions": [{"tenant": evil}], "leases": [{"initiator": evil}],
        });
        let said = text(&status);
        assert!(
            said.chars().all(|c| c == '\n' || !c.is_control()),
            "{said:?}"
        );
        let failure = Failure::operation(evil, evil).to_string();
        assert!(failure.chars().all(|c| !c.is_control()), "{failure:?}");
    }

    #[test]
    fn a_target_that_is_silent_is_said_to_be() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let error = fetch(silent.local_addr().unwrap()).unwrap_err().to_string();
        assert!(error.contains("no answer in 5s; see whether"), "{error}");
    }

    #[test]
    fn a_status_that_lacks_everything_still_prints() {
        assert!(text(&Value::Null).contains("pool"));
    }
}
