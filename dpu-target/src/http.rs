//! As much of HTTP/1.1 (RFC 9112) as a scraper and a health check need: the head of a GET in, one response out, and
//! the connection closed. A request body is neither read nor needed. No sockets here.

use crate::limits;
use std::fmt::Write as _;

/// What the octets so far amount to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Head<'a> {
    /// The head is not complete.
    Partial,
    /// GET or HEAD of this path, without its query.
    Get {
        /// The path.
        path: &'a str,
        /// Only the head of the response is wanted.
        head_only: bool,
    },
    /// Refused with this status.
    Refused(Status),
}

/// Response status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// 200.
    Ok,
    /// 400.
    BadRequest,
    /// 404.
    NotFound,
    /// 405.
    MethodNotAllowed,
    /// 431.
    HeadTooLong,
    /// 505.
    VersionNotSupported,
    /// 503.
    Unavailable,
}

impl Status {
    const fn line(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::BadRequest => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::HeadTooLong => "431 Request Header Fields Too Large",
            Self::VersionNotSupported => "505 HTTP Version Not Supported",
            Self::Unavailable => "503 Service Unavailable",
        }
    }
}

/// Reads the head of a request. Total: any octets give an answer.
#[must_use]
pub fn parse_head(octets: &[u8]) -> Head<'_> {
    let Some(end) = octets.windows(4).position(|w| w == b"\r\n\r\n") else {
        return if octets.len() >= limits::ADMIN_HEAD_LEN {
            Head::Refused(Status::HeadTooLong)
        } else {
            Head::Partial
        };
    };
    let line = octets
        .get(..end)
        .and_then(|head| head.split(|b| *b == b'\r').next())
        .and_then(|line| std::str::from_utf8(line).ok());
    let Some(line) = line else {
        return Head::Refused(Status::BadRequest);
    };
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Head::Refused(Status::BadRequest);
    };
    if !matches!(version, "HTTP/1.0" | "HTTP/1.1") {
        return Head::Refused(if version.starts_with("HTTP/") {
            Status::VersionNotSupported
        } else {
            Status::BadRequest
        });
    }
    if !target.starts_with('/') || target.bytes().any(|b| b.is_ascii_control()) {
        return Head::Refused(Status::BadRequest);
    }
    let path = target.split('?').next().unwrap_or(target);
    match method {
        "GET" => Head::Get {
            path,
            head_only: false,
        },
        "HEAD" => Head::Get {
            path,
            head_only: true,
        },
        _ => Head::Refused(Status::MethodNotAllowed),
    }
}

/// Media type of plain text and of Prometheus' exposition format.
pub const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Media type of JSON.
pub const JSON: &str = "application/json";

/// A whole response. `head_only` leaves the body out but not its length.
#[must_use]
pub fn response(status: Status, media: &str, body: &str, head_only: bool) -> Vec<u8> {
    let mut out = String::with_capacity(256 + body.len());
    let allow = if status == Status::MethodNotAllowed {
        "Allow: GET, HEAD\r\n"
    } else {
        ""
    };
    // Writing to a String cannot fail.
    let _infallible = write!(
        out,
        "HTTP/1.1 {}\r\nContent-Type: {media}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\n{allow}Connection: close\r\n\r\n",
        status.line(),
        body.len()
    );
    if !head_only {
        out.push_str(body);
    }
    out.into_bytes()
}

/// The response that says no more than its status, to a request whose octets so far are `request`: HEAD is answered with a
/// head alone, whatever the answer (RFC 9110, section 9.3.2).
#[must_use]
pub fn refusal(status: Status, request: &[u8]) -> Vec<u8> {
    let head_only = request.starts_with(b"HEAD ");
    response(status, TEXT, &format!("{}\n", status.line()), head_only)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_get_is_read_whole_and_in_pieces() {
        let whole = b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n";
        for cut in 0..whole.len() {
            assert_eq!(parse_head(&whole[..cut]), Head::Partial);
        }
        let expected = Head::Get {
            path: "/metrics",
            head_only: false,
        };
        assert_eq!(parse_head(whole), expected);
        let head = parse_head(b"HEAD / HTTP/1.0\r\n\r\n");
        assert_eq!(
            head,
            Head::Get {
                path: "/",
                head_only: true
            }
        );
    }

    #[test]
    fn the_rest_is_refused() {
        let long = vec![b'a'; limits::ADMIN_HEAD_LEN];
        for (octets, status) in [
            (&b"POST / HTTP/1.1\r\n\r\n"[..], Status::MethodNotAllowed),
            (b"GET / HTTP/2.0\r\n\r\n", Status::VersionNotSupported),
            (b"GET /\r\n\r\n", Status::BadRequest),
            (b"GET / HTTP/1.1 x\r\n\r\n", Status::BadRequest),
            (b"GET a HTTP/1.1\r\n\r\n", Status::BadRequest),
            (b"GET /\x01 HTTP/1.1\r\n\r\n", Status::BadRequest),
            (b"\xff\xfe\r\n\r\n", Status::BadRequest),
            (b"\r\n\r\n", Status::BadRequest),
            (&long, Status::HeadTooLong),
        ] {
            assert_eq!(parse_head(octets), Head::Refused(status));
        }
    }

    #[test]
    fn a_response_states_its_length() {
        let whole = String::from_utf8(response(Status::Ok, TEXT, "ok\n", false)).unwrap();
        assert!(whole.starts_with("HTTP/1.1 200 OK\r\n"));
        assert!(whole.contains("Content-Length: 3\r\n") && whole.ends_with("\r\n\r\nok\n"));
        let head = String::from_utf8(response(Status::Ok, TEXT, "ok\n", true)).unwrap();
        assert!(head.contains("Content-Length: 3\r\n") && head.ends_with("\r\n\r\n"));
        let refused = String::from_utf8(refusal(
            Status::MethodNotAllowed,
            b"POST / HTTP/1.1\r\n\r\n",
        ))
        .unwrap();
        assert!(refused.contains("Allow: GET, HEAD\r\n"));
    }
}
