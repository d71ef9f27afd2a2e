//! A template as a person would draw it: a line for each WQE, a gap before each wave.

use crate::element::{Address, Bound, Element, Name, Piece, Queue, Remote, Shape};
use crate::memory::Spot;
use crate::template::{Source, Template};
use core::fmt;
use kbtp_mlx5::Opcode;

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.name)?;
        write!(f, "request  ")?;
        let mut at = 0;
        for piece in &self.receive {
            let end = at + u64::from(piece.spot.len);
            write!(f, "{at}..{end} > {}  ", piece.spot)?;
            at = end;
        }
        writeln!(f)?;
        for queue in [Queue::Worker, Queue::Client] {
            let blocks = self.stride(queue);
            writeln!(f, "\n{queue}, {blocks} basic blocks a slot")?;
            for element in self.queue(queue) {
                let enable = |shape: &Shape| matches!(shape, Shape::Enable(Queue::Worker, _));
                writeln!(f, "{}", self.line(queue, element))?;
                if enable(&element.shape) && element.opcode == Opcode::SendEnable {
                    writeln!(f)?;
                }
            }
        }
        Ok(())
    }
}

/// What a WQE works on, behind its opcodes.
struct Body<'a>(&'a Template, &'a Element);

impl fmt::Display for Body<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.body(f, self.1)
    }
}

impl Template {
    /// The line of a WQE in the drawing, without its end.
    #[must_use]
    pub fn line(&self, queue: Queue, element: &Element) -> String {
        let name = element.name;
        let at = self.offset(name).unwrap_or_default();
        let fence = if element.fenced { 'F' } else { ' ' };
        let cqe = match self.cqe_of(queue, name) {
            Some(number) => format!(" k{number}  "),
            None => String::from("     "),
        };
        let what = element.opcodes().map(|opcode| opcode.to_string());
        let what = what.collect::<Vec<_>>().join(" | ");
        let body = self.describe(element);
        let mut line = format!("{at:>4}  {name:<6}{fence}{cqe}{what:<30} {body}");
        let by = self.patched_by(name);
        if !by.is_empty() {
            line.push_str("   < ");
            line.push_str(&by.join(" "));
        }
        line
    }

    /// What a WQE works on: at the responder, in its data segments, whom it enables.
    #[must_use]
    pub fn describe(&self, element: &Element) -> String {
        Body(self, element).to_string()
    }

    /// Which of its queue's CQEs a WQE writes.
    #[must_use]
    pub fn cqe_of(&self, queue: Queue, name: Name) -> Option<usize> {
        self.signalled(queue).position(|one| one == name)
    }

    /// Who writes octets of a WQE, each once.
    #[must_use]
    pub fn patched_by(&self, name: Name) -> Vec<Name> {
        let mut by = Vec::new();
        for patch in self.patches() {
            let who = match patch.source {
                Source::Request => "request",
                Source::Element(name) => name,
            };
            let here = patch.target.memory == crate::memory::Memory::Wqe(name);
            if here && !by.contains(&who) {
                by.push(who);
            }
        }
        by
    }

    fn body(&self, f: &mut fmt::Formatter<'_>, element: &Element) -> fmt::Result {
        match &element.shape {
            Shape::Wait(cq, number) => write!(f, "{cq} k{number}"),
            Shape::WaitBefore(cq, number) => write!(f, "{cq} k{number} of the slot before"),
            Shape::Enable(queue, Bound::Through(name)) => {
                let end = self.bound(*queue, Bound::Through(name));
                write!(f, "{queue} through {name} (to {})", end.unwrap_or_default())
            }
            Shape::Enable(queue, Bound::NextSlot(blocks)) => {
                write!(f, "{queue} to next slot + {blocks}")
            }
            Shape::WaitData { remote, .. } => remote_at(f, remote),
            Shape::Rdma(remote, pieces) => {
                remote_at(f, remote)?;
                let writes = element.opcodes().any(|one| one == Opcode::RdmaWrite);
                let reads = element.opcodes().any(|one| one == Opcode::RdmaRead);
                let arrow = match (reads, writes) {
                    (true, true) => " <>",
                    (true, false) => " >",
                    (false, _) => " <",
                };
                write!(f, "{arrow}")?;
                list(f, pieces)
            }
            Shape::Skipped(_) => Ok(()),
            Shape::Send(pieces) => list(f, pieces),
            Shape::CompareSwap { remote, reply, .. } | Shape::FetchAdd { remote, reply } => {
                remote_at(f, remote)?;
                write!(f, " > {}", reply.spot)
            }
        }
    }
}

fn remote_at(f: &mut fmt::Formatter<'_>, remote: &Remote) -> fmt::Result {
    match remote.address {
        Address::OfSpot => write!(f, "{}", remote.spot),
        Address::Lap => write!(f, "{}@lap {}", remote.key, remote.spot),
        Address::Page(at, _) => write!(f, "{}@page+{at} {}", remote.key, remote.spot),
        Address::Armed(address) => write!(f, "{}@{address:#x} {}", remote.key, remote.spot),
    }
}

fn list(f: &mut fmt::Formatter<'_>, pieces: &[Piece]) -> fmt::Result {
    for piece in pieces {
        let shown = |spot: Spot| spot.to_string();
        write!(f, " {}", shown(piece.spot))?;
        if let Some(instead) = piece.instead {
            write!(f, "|{}", shown(instead))?;
        }
    }
    Ok(())
}
