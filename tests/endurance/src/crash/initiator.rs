//! An initiator that may be killed, and whose target may be. It writes to standard output what it is about to do and what
//! was done, one line each, so that whoever started it knows what must be in its blocks whatever happens.
//!
//! It is told, one line each: the journal of the process before it and `begin`; then `go`, `pause`, and `prove N`, which
//! asks for a load over the session it has now.

use crate::cli::InitiatorArgs;
use crate::driver::told;
use crate::scene::BLOCK_SIZE;
use kbtp_harness::{End, Hand, Ledger, Line, Slot, options};
use kbtp_initiator::{Client, InitiatorId};
use nix::sys::signal::Signal;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

/// Handles and quota of an initiator.
pub(crate) const QUOTA: u32 = 24;

/// How long it waits before it tries again to connect.
const PAUSE: Duration = Duration::from_millis(5);

/// Says something, in one system call: a kill cuts no line.
fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{what}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

fn enter(line: Line) {
    say(&format!("journal {line}"));
}

pub(crate) fn run(args: &InitiatorArgs) -> ExitCode {
    // Whoever started it may be killed too.
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).unwrap();
    let told = told();
    let mut ledger = Ledger::new(args.owner, QUOTA.into(), BLOCK_SIZE);
    loop {
        match told.recv().expect("what is known").as_str() {
            "begin" => break,
            line => line.parse::<Line>().unwrap().enter(&mut ledger),
        }
    }
    let mut initiator = Initiator {
        args,
        told,
        proof: None,
        instance: args.instance.clone(),
        gone: false,
    };
    let Some(mut hand) = initiator.connect(ledger) else {
        return ExitCode::SUCCESS;
    };
    while !initiator.gone {
        if initiator.greet(&mut hand) {
            initiator.serve(&mut hand);
        }
        if !initiator.gone {
            say("lost");
            initiator.resume(&mut hand);
        }
    }
    ExitCode::SUCCESS
}

struct Initiator<'a> {
    args: &'a InitiatorArgs,
    told: Receiver<String>,
    /// Asked for a load, and not done yet.
    proof: Option<String>,
    instance: Option<String>,
    /// Nobody is there any more to tell it anything.
    gone: bool,
}

impl Initiator<'_> {
    /// Waits a moment before the next try. What it is told meanwhile is for later, or comes too late.
    fn pause(&mut self) {
        match self.told.recv_timeout(PAUSE) {
            Ok(line) if line.starts_with("prove") => self.proof = Some(line),
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => self.gone = true,
        }
    }

    fn connect(&mut self, ledger: Ledger) -> Option<Hand> {
        let wanted = options(&self.args.target, self.args.owner)
            .quota(QUOTA)
            .direct_load(self.args.direct)
            .direct_alloc(self.args.direct);
        while !self.gone {
            match Client::connect(wanted.clone()) {
                Ok(client) => return Some(Hand::over(client, ledger).telling(enter)),
                Err(_) => self.pause(),
            }
        }
        None
    }

    fn resume(&mut self, hand: &mut Hand) {
        while !self.gone && hand.try_resume().is_err() {
            self.pause();
        }
    }

    /// Says what the session is, and looks at every block; whether the session is still there then.
    fn greet(&mut self, hand: &mut Hand) -> bool {
        let grant = hand.client.terms().grant;
        let stags = [
            grant.table_stag,
            grant.pool_stag,
            grant.partition_stag,
            grant.ring_stag,
            grant.counter_stag,
        ];
        let stags: Vec<_> = stags.iter().map(|stag| stag.0.to_string()).collect();
        // As a target's status writes it.
        let instance = InitiatorId(grant.instance.0).to_string();
        say(&format!(
            "session {instance} {} {} {}",
            grant.quota,
            u8::from(hand.client.terms().direct_alloc),
            stags.join(",")
        ));
        if self
            .instance
            .as_ref()
            .is_some_and(|known| *known != instance)
        {
            // The blocks are gone with the memory they were in.
            for slot in &mut hand.ledger.slots {
                *slot = Slot::default();
            }
        }
        self.instance = Some(instance);
        if hand.try_verify(|| say("served")).is_err() {
            return false;
        }
        hand.ledger.lines().for_each(enter);
        say("ready");
        true
    }

    /// Does what it is told until the session is lost.
    fn serve(&mut self, hand: &mut Hand) {
        loop {
            let line = match self.proof.take() {
                Some(line) => line,
                None => self.told.recv().unwrap_or_default(),
            };
            match line.as_str() {
                "pause" => {}
                "" => {
                    self.gone = true;
                    return;
                }
                "go" => match hand.work(|| !self.stops()) {
                    End::Enough => say("paused"),
                    End::Lost(_) | End::Draining => return,
                },
                proof => {
                    if hand.try_look(0).is_err() {
                        // It is asked for of the next session.
                        self.proof = Some(line);
                        return;
                    }
                    say(proof);
                }
            }
        }
    }

    /// Whether it is told to pause.
    fn stops(&mut self) -> bool {
        match self.told.try_recv() {
            Ok(line) if line == "pause" => true,
            Ok(line) => {
                self.proof = Some(line);
                false
            }
            Err(TryRecvError::Empty) => false,
            Err(TryRecvError::Disconnected) => {
                self.gone = true;
                true
            }
        }
    }
}
