//! A chain as a drawing: the loopback queue and the client's as columns, one box a WQE, arrows for who enables whom, who
//! writes whose octets and who waits for whose CQE.

use super::put;
use kbtp_chain::element::{Element, Name, Queue, Shape};
use kbtp_chain::memory::Memory;
use kbtp_chain::template::Source;
use kbtp_chain::{Order, Template};
use kbtp_mlx5::Opcode;
use std::collections::BTreeMap;

/// What a run of the chain made of its WQEs.
pub(super) struct Run<'a>(Option<&'a BTreeMap<&'static str, Opcode>>);

impl<'a> Run<'a> {
    /// None: the chain as it is armed.
    pub(super) const fn none() -> Self {
        Self(None)
    }

    /// The opcodes that ran.
    pub(super) const fn of(ran: &'a BTreeMap<&'static str, Opcode>) -> Self {
        Self(Some(ran))
    }

    /// The words and the class of a box.
    fn shows(&self, element: &Element) -> (String, &'static str) {
        let armed = || {
            let all: Vec<String> = element.opcodes().map(|one| one.to_string()).collect();
            all.join(" | ")
        };
        match self.0.map(|ran| ran.get(element.name)) {
            None if element.may_become.is_empty() => (armed(), "wqe"),
            None => (armed(), "wqe sleeps"),
            Some(None) => (armed(), "wqe idle"),
            Some(Some(Opcode::Nop)) => (Opcode::Nop.to_string(), "wqe idle"),
            Some(Some(opcode)) => (opcode.to_string(), "wqe ran"),
        }
    }

    /// Whether something happened: everything, if there was no run.
    fn took_place(&self, name: Name) -> bool {
        self.0
            .is_none_or(|ran| ran.get(name).is_some_and(|opcode| *opcode != Opcode::Nop))
    }
}

const HEIGHT: u32 = 22;
const ROW: u32 = 26;
const WAVE_GAP: u32 = 16;
const BOX: u32 = 320;
const TOP: u32 = 96;
const LEFT: u32 = 250;
const BETWEEN: u32 = 230;

/// The left edge of a queue's column.
const fn column(queue: Queue) -> u32 {
    match queue {
        Queue::Worker => LEFT,
        Queue::Client => LEFT + BOX + BETWEEN,
    }
}

/// Where the middle of each box is.
type Rows = BTreeMap<Name, (Queue, u32)>;

const STYLE: &str = "\
text{font:11px monospace;fill:#222}.title{font:bold 13px sans-serif}\
.wqe{fill:#eef3fa;stroke:#48648c}.sleeps{fill:#fff;stroke-dasharray:4 2}.idle{fill:#f4f4f4;stroke:#bbb}.ran{fill:#cfe8cf;stroke:#2c702c}\
.request{fill:#fdf0d0;stroke:#a37b16}\
path{fill:none}.enable{stroke:#2c702c;stroke-width:1.4;marker-end:url(#enable)}\
.patch{stroke:#c05a11;stroke-opacity:.65;marker-end:url(#patch)}\
.asked{stroke:#a37b16;stroke-opacity:.8;marker-end:url(#asked)}\
.wait{stroke:#888;stroke-dasharray:3 3;marker-end:url(#wait)}";

/// The drawing.
pub(super) fn draw(template: &Template, run: &Run<'_>) -> String {
    let order = Order::of(template);
    let rows = rows(template, &order);
    let bottom = rows.values().map(|(_, y)| *y).max().unwrap_or(TOP) + ROW;
    let width = column(Queue::Client) + BOX + 20;
    let height = bottom + 40;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
         <style>{STYLE}</style>\n<defs>"
    );
    for (id, colour) in [
        ("enable", "#2c702c"),
        ("patch", "#c05a11"),
        ("asked", "#a37b16"),
        ("wait", "#888"),
    ] {
        put(
            &mut svg,
            format_args!(
                "<marker id=\"{id}\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" style=\"fill:{colour}\"/></marker>"
            ),
        );
    }
    svg.push_str("</defs>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
    headings(&mut svg, template);
    arrows(&mut svg, template, &order, &rows, run);
    for (queue, element) in template.elements() {
        let Some((_, y)) = rows.get(element.name) else {
            continue;
        };
        wqe(&mut svg, template, queue, element, *y, run);
    }
    legend(&mut svg, bottom + 20);
    svg.push_str("</svg>\n");
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// The loopback queue from top to bottom, with a gap before each wave; a WQE of the client's queue beside whoever lets it run.
fn rows(template: &Template, order: &Order) -> Rows {
    let mut rows = Rows::new();
    let (mut y, mut wave) = (TOP, None);
    for element in &template.worker {
        let by = order.enabled_by(element.name);
        if by != wave {
            y += WAVE_GAP;
            wave = by;
        }
        rows.insert(element.name, (Queue::Worker, y));
        y += ROW;
    }
    let mut next = TOP;
    for element in &template.client {
        let beside = order.enabled_by(element.name);
        let beside = beside.and_then(|by| rows.get(by)).map(|(_, y)| *y);
        let y = next.max(beside.unwrap_or(TOP));
        rows.insert(element.name, (Queue::Client, y));
        next = y + ROW;
    }
    rows
}

fn headings(svg: &mut String, template: &Template) {
    let name = template.name;
    put(
        svg,
        format_args!("<text class=\"title\" x=\"20\" y=\"24\">{name}</text>"),
    );
    for (queue, what) in [
        (Queue::Worker, "W: the loopback queue"),
        (Queue::Client, "C: the client's queue"),
    ] {
        let (x, blocks) = (column(queue), template.stride(queue));
        put(
            svg,
            format_args!(
                "<text class=\"title\" x=\"{x}\" y=\"86\">{what}, {blocks} basic blocks a slot</text>"
            ),
        );
    }
    put(
        svg,
        format_args!(
            "<rect class=\"request\" x=\"{LEFT}\" y=\"36\" width=\"{BOX}\" height=\"{HEIGHT}\" rx=\"3\"/><text x=\"{}\" y=\"51\">request</text>",
            LEFT + 8
        ),
    );
}

fn wqe(
    svg: &mut String,
    template: &Template,
    queue: Queue,
    element: &Element,
    y: u32,
    run: &Run<'_>,
) {
    let (x, name) = (column(queue), element.name);
    let (opcodes, class) = run.shows(element);
    let cqe = template.cqe_of(queue, name);
    let cqe = cqe.map_or(String::new(), |number| format!(" k{number}"));
    let fence = if element.fenced { " F" } else { "" };
    let at = template.offset(name).unwrap_or_default();
    let line = escaped(&template.line(queue, element));
    put(
        svg,
        format_args!(
            "<g><title>{line}</title><rect class=\"{class}\" x=\"{x}\" y=\"{}\" width=\"{BOX}\" height=\"{HEIGHT}\" rx=\"3\"/>\
             <text x=\"{}\" y=\"{}\">{at:>2}</text><text x=\"{}\" y=\"{}\" style=\"font-weight:bold\">{name}{fence}{cqe}</text>\
             <text x=\"{}\" y=\"{}\">{}</text></g>",
            y - HEIGHT / 2,
            x + 6,
            y + 4,
            x + 30,
            y + 4,
            x + 108,
            y + 4,
            escaped(&opcodes)
        ),
    );
}

fn arrows(svg: &mut String, template: &Template, order: &Order, rows: &Rows, run: &Run<'_>) {
    for patch in template.patches() {
        let Memory::Wqe(to) = patch.target.memory else {
            continue;
        };
        let Some((queue, y)) = rows.get(to) else {
            continue;
        };
        let title = escaped(&patch.target.to_string());
        match patch.source {
            // The request lies over the first column.
            Source::Request => patched(svg, "asked", &title, (Queue::Worker, 47), (*queue, *y)),
            Source::Element(by) if run.took_place(by) => {
                if let Some(from) = rows.get(by) {
                    patched(svg, "patch", &title, *from, (*queue, *y));
                }
            }
            Source::Element(_) => {}
        }
    }
    let mut before = None;
    for (queue, element) in template.elements() {
        let by = order.enabled_by(element.name);
        if by != before
            && let Some(from) = by.filter(|by| run.took_place(by))
            && let (Some(from), Some((_, y))) = (rows.get(from), rows.get(element.name))
        {
            beside(svg, "enable", *from, (queue, *y));
        }
        before = by;
        if let Shape::Wait(cq, number) = element.shape
            && let Some(from) = writer(template, cq, number).and_then(|name| rows.get(name))
            && let Some((_, y)) = rows.get(element.name)
        {
            beside(svg, "wait", *from, (queue, *y));
        }
    }
}

/// The WQE that writes a CQE; `None` if a request does.
fn writer(template: &Template, cq: kbtp_chain::element::Cq, number: u8) -> Option<Name> {
    use kbtp_chain::element::Cq;
    let queue = match cq {
        Cq::Receive => return None,
        Cq::Client => Queue::Client,
        Cq::Worker => Queue::Worker,
    };
    template.signalled(queue).nth(usize::from(number))
}

/// How far an arrow within a column swings out.
fn swing(from: u32, to: u32, most: u32) -> u32 {
    (20 + from.abs_diff(to) / 5).min(most)
}

/// A patch: on the left of the first column, or across to the second.
fn patched(
    svg: &mut String,
    class: &str,
    title: &str,
    (from_queue, from): (Queue, u32),
    (queue, to): (Queue, u32),
) {
    let path = if from_queue == queue && queue == Queue::Worker {
        let out = LEFT - swing(from, to, LEFT - 10);
        format!("M{LEFT} {from}C{out} {from} {out} {to} {LEFT} {to}")
    } else {
        let (start, end) = (column(from_queue) + BOX, column(queue));
        let middle = start + BETWEEN / 2;
        format!("M{start} {from}C{middle} {from} {middle} {to} {end} {to}")
    };
    put(
        svg,
        format_args!("<path class=\"{class}\" d=\"{path}\"><title>{title}</title></path>"),
    );
}

/// An arrow on the right of a column, or from one to the other.
fn beside(
    svg: &mut String,
    class: &str,
    (from_queue, from): (Queue, u32),
    (queue, to): (Queue, u32),
) {
    let path = match (from_queue, queue) {
        (Queue::Worker, Queue::Client) => {
            let (start, end) = (LEFT + BOX, column(queue));
            format!("M{start} {from}L{end} {to}")
        }
        (Queue::Client, Queue::Worker) => {
            let (start, end) = (column(from_queue), LEFT + BOX);
            format!("M{start} {from}L{end} {to}")
        }
        _ => {
            let edge = column(queue) + BOX;
            let out = edge + swing(from, to, BETWEEN / 2);
            format!("M{edge} {from}C{out} {from} {out} {to} {edge} {to}")
        }
    };
    put(svg, format_args!("<path class=\"{class}\" d=\"{path}\"/>"));
}

fn legend(svg: &mut String, y: u32) {
    let mut x = 20;
    for (class, what) in [
        ("asked", "octets of the request"),
        ("patch", "writes octets of"),
        ("enable", "lets run"),
        ("wait", "waits for its CQE"),
    ] {
        put(
            svg,
            format_args!(
                "<path class=\"{class}\" d=\"M{x} {y}L{} {y}\"/><text x=\"{}\" y=\"{}\">{what}</text>",
                x + 30,
                x + 38,
                y + 4
            ),
        );
        x += 190;
    }
}
