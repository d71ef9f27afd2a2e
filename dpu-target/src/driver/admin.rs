//! The admin endpoint's sockets: one thread, one epoll, at most [`limits::ADMIN_CONNECTIONS`] connections, each with a
//! bounded head and a bounded life.

use crate::http::{self, Head, Status};
use crate::inbox::Inbox;
use crate::limits;
use crate::strangers;
use kbtp_fabric::Time;
use kbtp_iwarp_tcp::{Interest, Poller};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;

/// Where the answers come from. Called on the admin thread, so it may take a lock or wait briefly for the workers.
pub(crate) trait Answers {
    /// Whether the target serves at all.
    fn healthy(&self) -> Result<(), String>;
    /// Whether it takes new sessions.
    fn ready(&self) -> Result<(), String>;
    /// Prometheus text.
    fn metrics(&self) -> String;
    /// JSON.
    fn status(&self) -> String;
    /// JSON: where each block is.
    fn audit(&self) -> String;
}

/// Told to the admin thread through its inbox.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AdminCommand {
    /// End.
    Stop,
}

/// The token of the listener; connections have the numbers of their slots.
const LISTENER: u64 = 1 << 32;

const WRITE: Interest = Interest {
    read: false,
    write: true,
};

#[derive(Debug)]
enum State {
    /// Octets of the head so far.
    Head(Vec<u8>),
    /// The response, and how much of it is out.
    Reply(Vec<u8>, usize),
    /// All is out; waiting for the client's close, so that a reset does not overtake the response.
    Closing,
}

#[derive(Debug)]
struct Connection {
    socket: TcpStream,
    state: State,
    deadline: Time,
    /// How many were accepted before it.
    number: u64,
}

/// The endpoint, ready to run.
#[derive(Debug)]
pub(crate) struct AdminServer {
    listener: TcpListener,
    inbox: Inbox<AdminCommand>,
    poller: Poller,
    slots: Vec<Option<Connection>>,
    /// Connections accepted so far.
    accepted: u64,
}

impl AdminServer {
    /// # Errors
    /// If the listener cannot be watched.
    pub(crate) fn new(
        listener: TcpListener,
        inbox: Inbox<AdminCommand>,
        poller: Poller,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        poller.add(listener.as_fd(), LISTENER, Interest::READ)?;
        Ok(Self {
            listener,
            inbox,
            poller,
            slots: (0..limits::ADMIN_CONNECTIONS).map(|_| None).collect(),
            accepted: 0,
        })
    }

    /// Serves until told to stop.
    pub(crate) fn run(mut self, answers: &impl Answers) {
        let mut ready = Vec::with_capacity(limits::ADMIN_CONNECTIONS + 1);
        loop {
            let due = self.slots.iter().flatten().map(|c| c.deadline).min();
            let now = match self.poller.wait(due) {
                Ok(now) => now,
                Err(error) => {
                    tracing::error!(%error, "the admin endpoint ends: it cannot wait for events");
                    return;
                }
            };
            if let Some(AdminCommand::Stop) = self.inbox.next() {
                return;
            }
            ready.clear();
            ready.extend(self.poller.ready().map(|r| r.token));
            for token in &ready {
                if *token == LISTENER {
                    self.accept(now, answers);
                } else {
                    self.serve(usize::try_from(*token).unwrap_or(usize::MAX), answers);
                }
            }
            self.expire(now);
        }
    }

    fn expire(&mut self, now: Time) {
        for slot in 0..self.slots.len() {
            let due = self
                .slots
                .get(slot)
                .and_then(Option::as_ref)
                .is_some_and(|c| c.deadline <= now);
            if due {
                self.close(slot);
            }
        }
    }

    fn accept(&mut self, now: Time, answers: &impl Answers) {
        // Those that are connected come between: there may be no end of new ones.
        for _ in 0..limits::ADMIN_CONNECTIONS {
            let socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // Some other client's trouble (it went away) or ours (descriptors): the next event tries again.
                Err(error) => {
                    if strangers::ADMIN_REFUSED.admits(now) {
                        tracing::warn!(%error, "the admin endpoint could not accept a connection");
                    }
                    return;
                }
            };
            let slot = self.free_slot();
            let token = u64::try_from(slot).unwrap_or(LISTENER);
            let watched = socket.set_nonblocking(true).is_ok()
                && self
                    .poller
                    .add(socket.as_fd(), token, Interest::READ)
                    .is_ok();
            if watched && let Some(place) = self.slots.get_mut(slot) {
                *place = Some(Connection {
                    socket,
                    state: State::Head(Vec::with_capacity(1024)),
                    deadline: now.after_ms(limits::ADMIN_TIMEOUT_MS),
                    number: self.accepted,
                });
                self.accepted = self.accepted.wrapping_add(1);
                // What asks at once is answered at once, however many come after it.
                self.serve(slot, answers);
            }
        }
    }

    /// A slot without a connection. If there is none, the oldest connection ends: clients that connect and then are
    /// silent, or slow, do not keep the rest out.
    fn free_slot(&mut self) -> usize {
        if let Some(slot) = self.slots.iter().position(Option::is_none) {
            return slot;
        }
        let taken = self.slots.iter().flatten().map(|c| c.number).enumerate();
        let oldest = taken.min_by_key(|(_, number)| *number);
        let slot = oldest.map_or(0, |(slot, _)| slot);
        self.close(slot);
        slot
    }

    fn close(&mut self, slot: usize) {
        if let Some(connection) = self.slots.get_mut(slot).and_then(Option::take)
            && let Err(error) = self.poller.remove(connection.socket.as_fd())
        {
            tracing::warn!(%error, "an admin connection was not watched");
        }
    }

    fn serve(&mut self, slot: usize, answers: &impl Answers) {
        let Some(connection) = self.slots.get_mut(slot).and_then(Option::as_mut) else {
            return;
        };
        match connection.step(answers) {
            Ok(Step::Wait(interest)) => {
                let token = u64::try_from(slot).unwrap_or(LISTENER);
                let fd = connection.socket.as_fd();
                if self.poller.modify(fd, token, interest).is_err() {
                    self.close(slot);
                }
            }
            Ok(Step::Done) | Err(_) => self.close(slot),
        }
    }
}

enum Step {
    Wait(Interest),
    Done,
}

impl Connection {
    fn step(&mut self, answers: &impl Answers) -> io::Result<Step> {
        loop {
            match &mut self.state {
                State::Head(head) => {
                    if !read_some(&mut self.socket, head)? {
                        return Ok(Step::Wait(Interest::READ));
                    }
                    match parse_and_answer(head, answers) {
                        None => {}
                        Some(reply) => self.state = State::Reply(reply, 0),
                    }
                }
                State::Reply(reply, sent) => {
                    match self.socket.write(reply.get(*sent..).unwrap_or(&[])) {
                        Ok(n) => *sent += n,
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                            return Ok(Step::Wait(WRITE));
                        }
                        Err(e) => return Err(e),
                    }
                    if *sent == reply.len() {
                        self.socket.shutdown(Shutdown::Write)?;
                        self.state = State::Closing;
                    }
                }
                State::Closing => {
                    let mut sink = [0; 512];
                    match self.socket.read(&mut sink) {
                        Ok(0) => return Ok(Step::Done),
                        // Others, and the time limit, come between: it may go on sending for ever.
                        Ok(_) => return Ok(Step::Wait(Interest::READ)),
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                            return Ok(Step::Wait(Interest::READ));
                        }
                        Err(e) => return Err(e),
                    }
                }
            }
        }
    }
}

/// Reads once into `head`; false if there is nothing to read now.
fn read_some(socket: &mut TcpStream, head: &mut Vec<u8>) -> io::Result<bool> {
    let mut chunk = [0; 1024];
    match socket.read(&mut chunk) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(n) => {
            head.extend_from_slice(chunk.get(..n).unwrap_or(&[]));
            Ok(true)
        }
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(e) => Err(e),
    }
}

fn parse_and_answer(head: &[u8], answers: &impl Answers) -> Option<Vec<u8>> {
    let (path, head_only) = match http::parse_head(head) {
        Head::Partial => return None,
        Head::Refused(status) => return Some(http::refusal(status, head)),
        Head::Get { path, head_only } => (path, head_only),
    };
    let probe = |result: Result<(), String>| match result {
        Ok(()) => http::response(Status::Ok, http::TEXT, "ok\n", head_only),
        Err(why) => http::response(
            Status::Unavailable,
            http::TEXT,
            &format!("{why}\n"),
            head_only,
        ),
    };
    Some(match path {
        "/healthz" => probe(answers.healthy()),
        "/readyz" => probe(answers.ready()),
        "/metrics" => http::response(Status::Ok, http::TEXT, &answers.metrics(), head_only),
        "/status" => http::response(Status::Ok, http::JSON, &answers.status(), head_only),
        "/audit" => http::response(Status::Ok, http::JSON, &answers.audit(), head_only),
        _ => http::refusal(Status::NotFound, head),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::inbox;
    use kbtp_iwarp_tcp::Spin;

    struct Fixed;
    impl Answers for Fixed {
        fn healthy(&self) -> Result<(), String> {
            Ok(())
        }
        fn ready(&self) -> Result<(), String> {
            Err("draining".to_owned())
        }
        fn metrics(&self) -> String {
            "m ".repeat(200_000)
        }
        fn status(&self) -> String {
            "{}".to_owned()
        }
        fn audit(&self) -> String {
            "[]".to_owned()
        }
    }

    /// Runs `test` against a server of its own, then stops it.
    fn with_server(test: impl FnOnce(std::net::SocketAddr)) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let poller = Poller::new(Spin::Off).unwrap();
        let (tx, rx) = inbox(poller.waker());
        let server = AdminServer::new(listener, rx, poller).unwrap();
        std::thread::scope(|s| {
            let joined = s.spawn(|| server.run(&Fixed));
            test(address);
            tx.send(AdminCommand::Stop).unwrap();
            joined.join().unwrap();
        });
    }

    fn ask(address: std::net::SocketAddr, request: &[u8]) -> String {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(request).unwrap();
        let mut reply = String::new();
        socket.read_to_string(&mut reply).unwrap();
        reply
    }

    #[test]
    fn each_path_has_its_answer() {
        with_server(|address| {
            for (path, start, end) in [
                ("/healthz", "HTTP/1.1 200", "\r\nok\n"),
                ("/readyz", "HTTP/1.1 503", "\r\ndraining\n"),
                ("/metrics", "HTTP/1.1 200", "m m "),
                ("/status", "HTTP/1.1 200", "\r\n{}"),
                ("/audit", "HTTP/1.1 200", "\r\n[]"),
                ("/", "HTTP/1.1 404", "Not Found\n"),
            ] {
                let reply = ask(address, format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes());
                assert!(reply.starts_with(start) && reply.ends_with(end), "{path}");
            }
        });
    }

    #[test]
    fn head_has_no_body_whatever_the_answer() {
        with_server(|address| {
            for (request, status) in [
                ("HEAD /healthz HTTP/1.1", "200"),
                ("HEAD /readyz HTTP/1.1", "503"),
                ("HEAD /nowhere HTTP/1.1", "404"),
                ("HEAD / HTTP/3.0", "505"),
                ("HEAD x HTTP/1.1", "400"),
            ] {
                let reply = ask(address, format!("{request}\r\n\r\n").as_bytes());
                assert!(reply.starts_with(&format!("HTTP/1.1 {status}")), "{reply}");
                assert!(reply.ends_with("\r\n\r\n"), "{request}: {reply}");
            }
        });
    }

    #[test]
    fn a_head_without_end_is_refused() {
        with_server(|address| {
            let mut socket = TcpStream::connect(address).unwrap();
            let flood = vec![b'a'; limits::ADMIN_HEAD_LEN];
            socket.write_all(&flood).unwrap();
            let mut reply = String::new();
            socket.read_to_string(&mut reply).unwrap();
            assert!(reply.starts_with("HTTP/1.1 431"), "{reply}");
        });
    }

    /// Else one that sends faster than it is read would have the thread for itself.
    #[test]
    fn who_goes_on_sending_is_read_a_little_at_a_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        let mut connection = Connection {
            socket,
            state: State::Closing,
            deadline: Time(0),
            number: 0,
        };
        client.write_all(&[b'a'; 16 << 10]).unwrap();
        for _ in 0..3 {
            assert!(matches!(connection.step(&Fixed), Ok(Step::Wait(_))));
        }
        assert_eq!(connection.socket.peek(&mut [0; 1]).unwrap(), 1);
    }

    #[test]
    fn silent_connections_keep_nobody_out() {
        with_server(|address| {
            let mut idle: Vec<_> = (0..limits::ADMIN_CONNECTIONS * 2)
                .map(|_| TcpStream::connect(address).unwrap())
                .collect();
            for _ in 0..3 {
                let reply = ask(address, b"GET /healthz HTTP/1.1\r\n\r\n");
                assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
            }
            // The one that has been silent longest was ended; the youngest may still ask.
            let ended = idle[0].read(&mut [0; 1]);
            assert!(!matches!(ended, Ok(1..)), "{ended:?}");
            let mut youngest = idle.pop().unwrap();
            youngest.write_all(b"GET /status HTTP/1.1\r\n\r\n").unwrap();
            let mut reply = String::new();
            youngest.read_to_string(&mut reply).unwrap();
            assert!(reply.ends_with("{}"), "{reply}");
        });
    }
}
