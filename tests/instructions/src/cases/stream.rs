//! Two ends of an RDMAP Stream with CRCs and a socket pair between them. What the kernel does is not counted.

use super::Failure;
use kbtp_fabric::{
    Access, Event, LocalBuffer, RemoteBuffer, Time, WorkId, WorkOutcome, WorkRequest,
};
use kbtp_iwarp::{Config, Connection, Startup};
use kbtp_memory::{PageOptions, Region};
use kbtp_wire::{ByteLen, TaggedOffset};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

const LEN: u32 = 4096;
const NOW: Time = Time(0);

struct Pair {
    a: Connection,
    b: Connection,
    socket: (UnixStream, UnixStream),
}

impl Pair {
    fn new() -> Result<Self, Failure> {
        let config = Config::default();
        let socket = UnixStream::pair()?;
        socket.0.set_nonblocking(true)?;
        socket.1.set_nonblocking(true)?;
        let mut pair = Self {
            a: Connection::initiator(&config, [1; 32], &[], NOW)?,
            b: Connection::responder(&config, [2; 32], NOW)?,
            socket,
        };
        pair.settle()?;
        pair.b.accept(&[], NOW)?;
        pair.settle()?;
        let up = |end: &Connection| end.startup() == Startup::Established;
        if up(&pair.a) && up(&pair.b) {
            Ok(pair)
        } else {
            Err("no stream came up".into())
        }
    }

    /// Moves octets both ways until none moves.
    fn settle(&mut self) -> Result<(), Failure> {
        let (one, other) = (self.socket.0.as_fd(), self.socket.1.as_fd());
        loop {
            let there = carry(&mut self.a, &mut self.b, one, other)?;
            let back = carry(&mut self.b, &mut self.a, other, one)?;
            if !there && !back {
                return Ok(());
            }
        }
    }

    /// Posts work at `a` and moves octets until it is done at both ends.
    fn work(&mut self, work: &WorkRequest<'_>, message: bool) -> Result<(), Failure> {
        self.a.post(WorkId(1), work, true)?;
        self.settle()?;
        match self.a.next_event() {
            Some(Event::Done {
                outcome: WorkOutcome::Sent | WorkOutcome::Read,
                ..
            }) => {}
            other => return Err(format!("{other:?}").into()),
        }
        if message {
            match self.b.next_event() {
                Some(Event::Received { slot, .. }) => self.b.release(slot),
                other => return Err(format!("{other:?}").into()),
            }
        }
        Ok(())
    }
}

/// What `from` has to send goes to `to`; whether there was any.
fn carry(
    from: &mut Connection,
    to: &mut Connection,
    write: std::os::fd::BorrowedFd<'_>,
    read: std::os::fd::BorrowedFd<'_>,
) -> Result<bool, Failure> {
    let list = from.send_vec(NOW);
    if list.is_empty() {
        return Ok(false);
    }
    let sent = list.write_to(write)?;
    from.handle_sent(sent, NOW);
    let mut left = sent;
    while left > 0 {
        let taken = to.recv_vec().read_from(read)?;
        to.handle_received(taken, NOW);
        left = left.saturating_sub(taken);
    }
    Ok(true)
}

/// A pair with a registered buffer at each end.
fn registered() -> Result<(Pair, LocalBuffer, RemoteBuffer), Failure> {
    let mut pair = Pair::new()?;
    let access = Access {
        remote_read: true,
        remote_write: true,
        ..Access::LOCAL
    };
    let mut stags = Vec::new();
    for end in [&mut pair.a, &mut pair.b] {
        let region = Region::anonymous(LEN.into(), &PageOptions::default())?;
        stags.push(end.register(&region, 0..LEN.into(), TaggedOffset(0), access)?);
    }
    let [here, there] = stags[..] else {
        return Err("each end registers one buffer".into());
    };
    let local = LocalBuffer {
        stag: here,
        offset: TaggedOffset(0),
        len: ByteLen(LEN),
    };
    let remote = RemoteBuffer {
        stag: there,
        offset: TaggedOffset(0),
    };
    Ok((pair, local, remote))
}

pub(super) fn send(times: u32) -> Result<(), Failure> {
    let mut pair = Pair::new()?;
    let head = [7; 40];
    let work = WorkRequest::Send {
        head: &head,
        tail: None,
        solicited: false,
        invalidate: None,
    };
    (0..times).try_for_each(|_| pair.work(&work, true))
}

pub(super) fn write(times: u32) -> Result<(), Failure> {
    let (mut pair, local, remote) = registered()?;
    let work = WorkRequest::Write {
        local,
        remote,
        immediate: None,
    };
    (0..times).try_for_each(|_| pair.work(&work, false))
}

pub(super) fn read(times: u32) -> Result<(), Failure> {
    let (mut pair, local, remote) = registered()?;
    let work = WorkRequest::Read { local, remote };
    (0..times).try_for_each(|_| pair.work(&work, false))
}
