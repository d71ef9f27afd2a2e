//! `kbtp wqe run`: one request on the model of a NIC, event by event.

use super::names::{Change, Watch};
use super::rig::{FIRST_HANDLE, HANDLES, Rig, TABLE_AT};
use super::scene::{self, Scene};
use super::{broken, hex, put, svg, write_svg};
use crate::cli::wqe::{WqeCase, WqeOperation, WqeProfile, WqeRunArgs, WqeSchedule};
use crate::failure::Failure;
use crate::output;
use kbtp_chain::Template;
use kbtp_chain::element::Queue;
use kbtp_fabric::Time;
use kbtp_mlx5::{Opcode, Qpn, Syndrome, WqeIndex};
use kbtp_nic_model::{Connection as _, Deed, Ended, Kind, OutgoingWork, WqeStep};
use kbtp_wire::{Completion, Generation, TableEntry};
use serde::Serialize;
use std::collections::BTreeMap;

/// What happened.
#[derive(Debug, Serialize)]
struct Report {
    operation: WqeOperation,
    case: WqeCase,
    profile: WqeProfile,
    block_size: u32,
    schedule: WqeSchedule,
    seed: u64,
    request: String,
    events: Vec<Event>,
    outcome: Outcome,
}

/// Something that happened at one time.
#[derive(Debug, Serialize)]
struct Event {
    number: u64,
    /// A WQE, the request, or software.
    who: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    opcode: Option<String>,
    did: &'static str,
    changes: Vec<Change>,
}

/// How it ended.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "end")]
enum Outcome {
    /// A completion was sent.
    Answered {
        by: &'static str,
        status: &'static str,
        generation: u16,
        data_length: u32,
        block_offset: u64,
        completion: String,
    },
    /// A WQE failed: the queue pair is in error, and the session over.
    Ended {
        wqe: String,
        syndrome: u8,
        means: String,
    },
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] if the case makes no sense, or output or the drawing cannot be written.
pub(super) fn run(args: &WqeRunArgs, json: bool) -> Result<(), Failure> {
    if args.chain.profile == WqeProfile::Load && args.operation != WqeOperation::Load {
        return Err(Failure::usage(
            "the chain of profile load serves LOAD alone; software executes the rest",
            "use --profile full",
        ));
    }
    let scene = Scene::of(args.operation, args.case, args.chain.block_size)?;
    let (handle, entry) = (scene.handle, &scene.entry);
    let rig = Rig::new(args.chain, args.schedule, args.seed, Some((handle, entry)))?;
    let mut play = Play::new(rig);
    let outcome = play.run(&scene)?;
    if let Some(path) = &args.svg {
        let template = play.rig.session.template();
        write_svg(path, &svg::draw(template, &svg::Run::of(&play.ran)))?;
    }
    let mut events = play.events;
    if !args.all {
        events.retain(|event| !event.changes.is_empty() || event.did == FAILED);
    }
    let report = Report {
        operation: args.operation,
        case: args.case,
        profile: args.chain.profile,
        block_size: args.chain.block_size,
        schedule: args.schedule,
        seed: args.seed,
        request: hex(&scene.message),
        events,
        outcome,
    };
    output::report(json, &report, || text(&report))
}

const FAILED: &str = "failed";

struct Play {
    rig: Rig,
    watch: Watch,
    events: Vec<Event>,
    /// What each WQE of the slot was when it ran.
    ran: BTreeMap<&'static str, Opcode>,
    /// The opcode of each WQE that was started, by where it is.
    opcodes: BTreeMap<(u32, u16), u8>,
    number: u64,
    rang: bool,
}

/// More events than any request takes.
const MAX_EVENTS: u64 = 10_000;

impl Play {
    fn new(mut rig: Rig) -> Self {
        rig.model.start_trace();
        Self {
            watch: Watch::new(&rig),
            rig,
            events: Vec::new(),
            ran: BTreeMap::new(),
            opcodes: BTreeMap::new(),
            number: 0,
            rang: false,
        }
    }

    fn note(&mut self, who: impl Into<String>, opcode: Option<String>, did: &'static str) {
        self.number += 1;
        self.events.push(Event {
            number: self.number,
            who: who.into(),
            opcode,
            did,
            changes: self.watch.look(),
        });
    }

    fn run(&mut self, scene: &Scene) -> Result<Outcome, Failure> {
        let qpn = self.rig.session.client_qpn();
        let delivered = self.rig.model.deliver(qpn, &scene.message, Kind::Send);
        if delivered != Ok(true) {
            return Err(Failure::operation(
                "no slot took the request",
                "report this",
            ));
        }
        self.note("request", None, "arrived");
        while self.number < MAX_EVENTS {
            if self.rig.model.step() {
                self.stepped();
            } else if !self.client(qpn)? && !self.software()? {
                break;
            }
        }
        self.outcome()
    }

    /// What the model's step did.
    fn stepped(&mut self) {
        for entry in self.rig.model.take_trace() {
            let place = (entry.qpn.get(), entry.index.0);
            self.opcodes.insert(place, entry.opcode);
            if let Some(name) = self.own(entry.qpn, entry.index)
                && let Some(opcode) = Opcode::from_wire(entry.opcode)
            {
                self.ran.insert(name, opcode);
            }
        }
        let Some(WqeStep { qpn, index, deed }) = self.rig.model.last_step() else {
            return;
        };
        let opcode = self.opcodes.get(&(qpn.get(), index.0)).copied();
        let opcode = opcode.and_then(Opcode::from_wire);
        let did = match deed {
            Deed::Started => "started",
            Deed::Responded => "at responder",
            Deed::Completed => "complete",
            Deed::Failed => FAILED,
        };
        let who = self.name(qpn, index);
        self.note(who, opcode.map(|opcode| opcode.to_string()), did);
    }

    /// The WQE of the slot that lies there.
    fn own(&self, qpn: Qpn, index: WqeIndex) -> Option<&'static str> {
        let session = &self.rig.session;
        let queue = match qpn {
            _ if qpn == session.worker_qpn() => Queue::Worker,
            _ if qpn == session.client_qpn() => Queue::Client,
            _ => return None,
        };
        name_at(session.template(), queue, index.0)
    }

    /// What to call the WQE that lies there.
    fn name(&self, qpn: Qpn, index: WqeIndex) -> String {
        let session = &self.rig.session;
        if let Some(name) = self.own(qpn, index) {
            return name.to_owned();
        }
        let queue = match qpn {
            _ if qpn == session.worker_qpn() => Queue::Worker,
            _ if qpn == session.client_qpn() => Queue::Client,
            _ => return "software".to_owned(),
        };
        let template = session.template();
        let within = index.0.checked_sub(template.stride(queue));
        match within.and_then(|within| name_at(template, queue, within)) {
            Some(name) => format!("next {name}"),
            None => format!("{queue}@{}", index.0),
        }
    }

    /// Lets the client do what the target asks of it, one thing at a time. Whether there was any.
    fn client(&mut self, qpn: Qpn) -> Result<bool, Failure> {
        let Some(outgoing) = self.rig.model.outgoing(qpn) else {
            return Ok(false);
        };
        let opcode = match &outgoing.work {
            OutgoingWork::Send { kind, .. } => match kind {
                Kind::Invalidate(_) => Opcode::SendInvalidate,
                _ => Opcode::Send,
            },
            OutgoingWork::Write { .. } => Opcode::RdmaWrite,
            OutgoingWork::Read { .. } => Opcode::RdmaRead,
            OutgoingWork::Atomic { .. } => Opcode::MaskedFa,
        };
        // A slot has one WQE of a kind that reaches the client.
        let mut queue = self.rig.session.template().client.iter();
        let who = queue.find(|element| self.ran.get(element.name) == Some(&opcode));
        let who = who.map_or("client", |element| element.name);
        let Rig { model, client, .. } = &mut self.rig;
        client.post(model, outgoing);
        let ended = client.progress(model, Time(0)) == Err(Ended);
        while let Some(answer) = client.answer() {
            let told = model.answer(qpn, answer.id, answer.answer);
            told.map_err(|e| broken("answer the model", &e))?;
        }
        if ended {
            let gone = model.disconnect(qpn);
            gone.map_err(|e| broken("end the connection", &e))?;
        }
        self.note(who, Some(opcode.to_string()), "at the client");
        Ok(true)
    }

    /// Lets software answer what rang. Whether it had to.
    fn software(&mut self) -> Result<bool, Failure> {
        let Some((_, slot)) = self.rig.target.next_punt() else {
            return Ok(false);
        };
        self.rang = true;
        let slot = u64::from(slot);
        let Some(request) = self.rig.session.request(slot) else {
            return Err(Failure::operation("it rang for nothing", "report this"));
        };
        let entry = entry_of(&self.rig, request.as_octets());
        let answer = scene::answer(&request, entry.as_ref());
        let written = self.rig.session.answer(slot, &answer);
        written.map_err(|e| broken("write the answer", &e))?;
        self.note("software", None, "answers");
        let Rig {
            model,
            master,
            session,
            ..
        } = &mut self.rig;
        let resumed = session.resume(model, master, slot);
        resumed.map_err(|e| broken("resume the slot", &e))?;
        self.note("software", None, "resumes");
        Ok(true)
    }

    fn outcome(&mut self) -> Result<Outcome, Failure> {
        if let Some(message) = self.rig.client.receive() {
            let completion = Completion::decode_message(&message.octets);
            let completion = completion.map_err(|e| broken("read the completion", &e))?;
            return Ok(Outcome::Answered {
                by: if self.rang { "software" } else { "the chain" },
                status: completion.status.name(),
                generation: Generation::to_wire(completion.generation),
                data_length: completion.data_len.0,
                block_offset: completion.block.0,
                completion: hex(&message.octets),
            });
        }
        let session = &self.rig.session;
        for qpn in [session.worker_qpn(), session.client_qpn()] {
            if let Some(failure) = self.rig.model.failure(qpn) {
                let index = failure.index.map(WqeIndex);
                return Ok(Outcome::Ended {
                    wqe: index.map_or_else(|| "none".to_owned(), |index| self.name(qpn, index)),
                    syndrome: failure.syndrome.0,
                    means: meaning(failure.syndrome).to_owned(),
                });
            }
        }
        Err(Failure::operation("the chain stands still", "report this"))
    }
}

const fn meaning(syndrome: Syndrome) -> &'static str {
    match syndrome {
        Syndrome::REMOTE_ACCESS => "the address is outside its key",
        Syndrome::LOCAL_PROTECTION => "a data segment is outside its key",
        Syndrome::LOCAL_LENGTH => "a message is longer than its receive WQE",
        _ => "see the syndrome",
    }
}

/// The WQE of slot 0 that starts at a basic block.
fn name_at(template: &Template, queue: Queue, block: u16) -> Option<&'static str> {
    let mut elements = template.queue(queue).iter();
    elements
        .find(|element| template.offset(element.name) == Some(block))
        .map(|element| element.name)
}

/// The entry of a request's handle; `None` if the table has none.
fn entry_of(rig: &Rig, request: &[u8]) -> Option<TableEntry> {
    let handle = u64::from_be_bytes(*request.get(12..)?.first_chunk()?);
    let row = handle.checked_sub(FIRST_HANDLE)?;
    let at = TABLE_AT + row * TableEntry::LEN as u64;
    let mut octets = [0; TableEntry::LEN];
    (row < HANDLES).then_some(())?;
    rig.target.pool().meta.read(at, &mut octets).ok()?;
    Some(TableEntry::decode(&octets))
}

/// Digits of a value that are shown; of a longer one, the first of them.
const SHOWN: usize = 32;

fn shown(digits: &str) -> String {
    match digits.get(..SHOWN) {
        Some(first) if digits.len() > SHOWN => format!("{first}.. ({} octets)", digits.len() / 2),
        _ => digits.to_owned(),
    }
}

fn text(report: &Report) -> String {
    let mut text = format!("request {}\n\n", report.request);
    for event in &report.events {
        let opcode = event.opcode.as_deref().unwrap_or("");
        let head = format!(
            "{:>4}  {:<10} {opcode:<20} {:<13}",
            event.number, event.who, event.did
        );
        if event.changes.is_empty() {
            text.push_str(head.trim_end());
            text.push('\n');
        }
        let heads = std::iter::once(head.as_str()).chain(std::iter::repeat(""));
        let width = head.chars().count();
        for (head, change) in heads.zip(&event.changes) {
            put(
                &mut text,
                format_args!(
                    "{head:width$} {:<24} {} > {}",
                    change.place,
                    shown(&change.before),
                    shown(&change.after)
                ),
            );
        }
    }
    text.push('\n');
    match &report.outcome {
        Outcome::Answered {
            by,
            status,
            generation,
            data_length,
            block_offset,
            ..
        } => put(
            &mut text,
            format_args!(
                "{status}, answered by {by}: Generation {generation}, Data Length {data_length}, Block Offset {block_offset:#x}"
            ),
        ),
        Outcome::Ended {
            wqe,
            syndrome,
            means,
        } => put(
            &mut text,
            format_args!(
                "the chain ended at {wqe} (syndrome {syndrome:#04x}: {means}): software answers or ends the session"
            ),
        ),
    }
    text
}
