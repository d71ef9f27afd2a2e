//! A worker thread: one poller, one engine, its inbox.

use crate::engine::{Accepted, Engine, Outside, Waiter, worker_of};
use crate::inbox::{Inbox, InboxError, InboxSender};
use crate::status::SessionStatus;
use crossbeam_channel::Sender;
use kbtp_core::SessionId;
use kbtp_fabric::{Stream, Time};
use kbtp_iwarp_tcp::{Interest, Poller};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

/// Told to a worker.
#[derive(Debug)]
pub(crate) enum Command<S> {
    /// Serve this stream.
    Accept(Box<Accepted<S>>),
    /// Close a session and tell who waits for it.
    Evict {
        /// The session.
        session: SessionId,
        /// Who waits.
        waiter: Waiter,
    },
    /// The session that this stream's HELLO waited for is gone.
    Evicted {
        /// The stream.
        token: u64,
    },
    /// Make the oldest stream go that has not said HELLO, of this source if one is named.
    MakeRoom(Option<IpAddr>),
    /// Drain, and end when drained.
    Drain,
    /// End at once: streams are cut.
    Kill,
    /// Say that you live.
    Ping(Sender<()>),
    /// Say what your sessions are.
    Report(Sender<Vec<SessionStatus>>),
}

/// What the engine's wishes become.
struct World<S> {
    poller: Poller,
    workers: Arc<[InboxSender<Command<S>>]>,
}

impl<S: Stream> Outside<S> for World<S> {
    fn now(&self) -> Time {
        self.poller.clock().now()
    }

    fn watch(&mut self, token: u64, stream: &S, interest: Interest) -> io::Result<()> {
        self.poller.add(stream.descriptor(), token, interest)
    }

    fn rewatch(&mut self, token: u64, stream: &S, interest: Interest) -> io::Result<()> {
        self.poller.modify(stream.descriptor(), token, interest)
    }

    fn unwatch(&mut self, stream: &S) {
        if let Err(error) = self.poller.remove(stream.descriptor()) {
            tracing::debug!(%error, "a stream was not watched");
        }
    }

    fn evict(&mut self, session: SessionId, waiter: Waiter) -> bool {
        self.workers
            .get(worker_of(session))
            .is_some_and(|worker| worker.send(Command::Evict { session, waiter }).is_ok())
    }

    fn evicted(&mut self, waiter: Waiter) {
        let Some(worker) = self.workers.get(waiter.worker) else {
            return;
        };
        let told = worker.send(Command::Evicted {
            token: waiter.token,
        });
        if let Err(InboxError::Full(_)) = told {
            // The waiting HELLO times out.
            tracing::error!(worker = waiter.worker, "a worker's inbox is full");
        }
    }
}

/// What a worker thread runs on.
pub(crate) struct WorkerThread<S> {
    pub(crate) engine: Engine<S>,
    pub(crate) inbox: Inbox<Command<S>>,
    pub(crate) poller: Poller,
    pub(crate) workers: Arc<[InboxSender<Command<S>>]>,
}

impl<S: Stream> WorkerThread<S> {
    /// Serves until drained.
    ///
    /// # Errors
    /// If the system gives no events any more.
    pub(crate) fn run(self) -> io::Result<()> {
        let Self {
            mut engine, inbox, ..
        } = self;
        let mut world = World {
            poller: self.poller,
            workers: self.workers,
        };
        while !engine.is_finished() {
            let until = engine.wait_until();
            world.poller.wait_or(until, |now| engine.attempt(now))?;
            for ready in world.poller.ready() {
                engine.ready(ready.token);
            }
            while let Some(command) = inbox.next() {
                obey(command, &mut engine, &mut world);
            }
            engine.run(&mut world);
        }
        Ok(())
    }
}

fn obey<S: Stream>(command: Command<S>, engine: &mut Engine<S>, world: &mut World<S>) {
    match command {
        Command::Accept(accepted) => engine.accept(*accepted, world),
        Command::Evict { session, waiter } => engine.evict(session, waiter, world),
        Command::Evicted { token } => engine.evicted(token),
        Command::MakeRoom(source) => engine.make_room(source, world.now()),
        Command::Drain => engine.drain(world.now()),
        Command::Kill => engine.kill(world),
        Command::Ping(to) => {
            let _gone = to.send(());
        }
        Command::Report(to) => {
            // Who asked may have given up.
            let _gone = to.send(engine.report(world.now()));
        }
    }
}
