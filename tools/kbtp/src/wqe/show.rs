//! `kbtp wqe show`: a chain as a person would draw it, and the octets that arm one of its slots.

use super::rig::Rig;
use super::{hex, put, svg, write_svg};
use crate::cli::wqe::{WqeProfile, WqeShowArgs};
use crate::failure::Failure;
use crate::output;
use kbtp_chain::element::Queue;
use kbtp_chain::memory::Memory;
use kbtp_chain::template::Source;
use kbtp_chain::{Step, Template};
use kbtp_mlx5::limits::{BASIC_BLOCK, SEGMENT};
use serde::{Deserialize, Serialize};

/// A chain.
#[derive(Debug, Serialize)]
struct Shown {
    profile: WqeProfile,
    block_size: u32,
    slot: u64,
    wqes: Vec<ShownWqe>,
    request: Vec<ShownPiece>,
    patches: Vec<ShownPatch>,
    enables: Vec<ShownEnable>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arm: Option<Vec<ArmStep>>,
}

#[derive(Debug, Serialize)]
struct ShownWqe {
    queue: String,
    basic_block: u16,
    name: &'static str,
    /// As it is armed, then what a record may make of it.
    opcodes: Vec<String>,
    fence: bool,
    /// Which CQE of its queue's it writes.
    cqe: Option<usize>,
    works_on: String,
}

/// Octets of a request and where they go.
#[derive(Debug, Serialize)]
struct ShownPiece {
    from: u32,
    len: u32,
    to: String,
}

#[derive(Debug, Serialize)]
struct ShownPatch {
    by: &'static str,
    /// Where in what it reads the octets come from.
    from: u32,
    to: String,
}

#[derive(Debug, Serialize)]
struct ShownEnable {
    by: &'static str,
    queue: String,
    /// Basic blocks from the start of the slot.
    up_to: u16,
}

/// Something done to arm a slot, in the order in which it is done. Octets are hexadecimal, addresses those of the rings' key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ArmStep {
    /// Octets are written.
    Write {
        /// What they are.
        #[serde(default)]
        what: String,
        /// Where.
        address: u64,
        /// What.
        octets: String,
    },
    /// What was written is visible before anything after.
    Barrier,
    /// The receive WQE is posted, with so many data segments.
    PostReceive {
        /// How many.
        segments: usize,
    },
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] if output or the drawing cannot be written.
pub(super) fn run(args: &WqeShowArgs, json: bool) -> Result<(), Failure> {
    let template = args.chain.template();
    let steps = args
        .octets
        .then(|| Rig::empty(args.chain)?.arm(args.slot))
        .transpose()?;
    if let Some(path) = &args.svg {
        write_svg(path, &svg::draw(&template, &svg::Run::none()))?;
    }
    let shown = shown(args, &template, steps.as_deref());
    output::report(json, &shown, || match &steps {
        None => template
            .to_string()
            .lines()
            .flat_map(|line| [line.trim_end(), "\n"])
            .collect(),
        Some(steps) => text_with_octets(&template, args.slot, steps),
    })
}

fn shown(args: &WqeShowArgs, template: &Template, steps: Option<&[Step]>) -> Shown {
    let wqes = template.elements().map(|(queue, element)| ShownWqe {
        queue: queue.to_string(),
        basic_block: template.offset(element.name).unwrap_or_default(),
        name: element.name,
        opcodes: element.opcodes().map(|one| one.to_string()).collect(),
        fence: element.fenced,
        cqe: template.cqe_of(queue, element.name),
        works_on: template.describe(element),
    });
    let mut from = 0;
    let request = template.receive.iter().map(|piece| {
        let at = from;
        from += piece.spot.len;
        ShownPiece {
            from: at,
            len: piece.spot.len,
            to: piece.spot.to_string(),
        }
    });
    let patches = template.patches().into_iter().map(|patch| ShownPatch {
        by: match patch.source {
            Source::Request => "request",
            Source::Element(name) => name,
        },
        from: patch.from,
        to: patch.target.to_string(),
    });
    let enables = template.enables().map(|(by, queue, bound)| ShownEnable {
        by,
        queue: queue.to_string(),
        up_to: template.bound(queue, bound).unwrap_or_default(),
    });
    Shown {
        profile: args.chain.profile,
        block_size: args.chain.block_size,
        slot: args.slot,
        wqes: wqes.collect(),
        request: request.collect(),
        patches: patches.collect(),
        enables: enables.collect(),
        arm: steps.map(|steps| arm_steps(template, steps)),
    }
}

/// The WQEs come first and in order; behind them the NOPs between slots and the scratch line.
fn arm_steps(template: &Template, steps: &[Step]) -> Vec<ArmStep> {
    let mut names = template.elements().map(|(_, element)| element.name);
    let last_write = steps.iter().rposition(|s| matches!(s, Step::Write { .. }));
    let step = |(at, step): (usize, &Step)| match step {
        Step::Write { address, octets } => ArmStep::Write {
            what: match names.next() {
                Some(name) => name.to_owned(),
                None if Some(at) == last_write => "scratch".to_owned(),
                None => "NOP".to_owned(),
            },
            address: *address,
            octets: hex(octets),
        },
        Step::Barrier => ArmStep::Barrier,
        Step::PostReceive(list) => ArmStep::PostReceive {
            segments: list.len(),
        },
    };
    steps.iter().enumerate().map(step).collect()
}

fn text_with_octets(template: &Template, slot: u64, steps: &[Step]) -> String {
    let mut text = format!("{}, slot {slot}\n", template.name);
    let mut writes = steps.iter().filter_map(|step| match step {
        Step::Write { address, octets } => Some((*address, octets.as_slice())),
        Step::Barrier | Step::PostReceive(_) => None,
    });
    for queue in [Queue::Worker, Queue::Client] {
        put(
            &mut text,
            format_args!("\n{queue}, {} basic blocks a slot", template.stride(queue)),
        );
        for element in template.queue(queue) {
            put(&mut text, format_args!("{}", template.line(queue, element)));
            if let Some((address, octets)) = writes.next() {
                dump(&mut text, address, octets);
            }
        }
    }
    for (address, octets) in writes {
        let what = if octets.len() == BASIC_BLOCK {
            "NOP"
        } else {
            "scratch line"
        };
        put(&mut text, format_args!("\n      {what}"));
        dump(&mut text, address, octets);
    }
    text.push_str("\nbarrier, then the receive WQE\n");
    for piece in &template.receive {
        let sink = match piece.spot.memory {
            Memory::Sink => " (read by nobody)",
            _ => "",
        };
        put(
            &mut text,
            format_args!("      {:>3} octets to {}{sink}", piece.spot.len, piece.spot),
        );
    }
    text
}

/// A line for each segment, in groups of four octets.
fn dump(text: &mut String, address: u64, octets: &[u8]) {
    for (at, segment) in (address..).step_by(SEGMENT).zip(octets.chunks(SEGMENT)) {
        let words: Vec<String> = segment.chunks(4).map(hex).collect();
        put(text, format_args!("      {at:#014x}  {}", words.join(" ")));
    }
}
