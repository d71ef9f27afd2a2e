//! The questions.

use super::bench::{Bench, DATA, Pair, Why, why};
use super::{Latency, Outcome, Probe};
use crate::{Device, DeviceEvent, Layout, Roles};
use kbtp_mlx5::CqeIndex;
use kbtp_mlx5::{
    Atomic, Body, Comparison, CqArm, Cqe, DataList, KsmEntry, Mkey, OnMismatch, Opcode, Payload,
    RepeatEntry, Signal, Syndrome, WaitCqe, WaitData, WaitFor,
};
use kbtp_wire::{RingCounter, RingOrder};

const PLAIN: Roles = Roles {
    master: false,
    managed_send: false,
    managed_receive: false,
};
const MASTER: Roles = Roles {
    master: true,
    ..PLAIN
};
const MANAGED: Roles = Roles {
    master: true,
    managed_send: true,
    managed_receive: false,
};

type Ask<D> = fn(&mut Bench<'_, D>) -> Result<Outcome, Why>;

/// What is asked: its number, its words, whether chains need it, and how.
type Question<D> = (u8, &'static str, bool, Ask<D>);

fn questions<D: Device>() -> [Question<D>; 15] {
    [
        (1, "a NOP with a body", true, nop),
        (
            2,
            "WRITE and READ of a queue pair itself",
            true,
            write_and_read,
        ),
        (
            3,
            "FetchAdd of 8 octets: byte order of memory and reply",
            true,
            fetch_add,
        ),
        (
            4,
            "masked FetchAdd: no carry leaves a field",
            true,
            masked_add,
        ),
        (5, "masked compare-and-swap of 8 octets", true, masked_swap),
        (6, "WAIT counts CQEs from zero, and waits", true, wait_index),
        (
            7,
            "SEND_EN counts basic blocks, and 16 bits wrap",
            true,
            enable,
        ),
        (
            8,
            "a managed WQE is read after the SEND_EN that lets it run",
            true,
            patch,
        ),
        (9, "index and queue pair in a WQE", false, identity),
        (
            10,
            "repeat blocks with a pad of stride 0 and a start address",
            true,
            repeat,
        ),
        (11, "keys of equal pieces with a start address", true, equal),
        (
            12,
            "a READ that scatters 22 octets, one by one",
            true,
            scatter,
        ),
        (13, "WAIT for data", true, wait_data),
        (14, "WAIT and the CQE of an error", false, wait_error),
        (
            15,
            "a queue armed for solicited CQEs tells of errors",
            true,
            solicited,
        ),
    ]
}

/// Asks all of it.
pub(super) fn all<D: Device>(bench: &mut Bench<'_, D>) -> Vec<Probe> {
    let asked = questions()
        .into_iter()
        .map(|(number, asks, needed, ask)| Probe {
            number,
            asks,
            needed,
            outcome: ask(bench).unwrap_or_else(Outcome::Failed),
        });
    let mut probes: Vec<Probe> = asked.collect();
    probes.push(Probe {
        number: 16,
        asks: "an alias of another function's key",
        needed: false,
        outcome: Outcome::NotTried("it takes a second function of the device"),
    });
    probes
}

fn expect<T: PartialEq + Copy + core::fmt::Debug>(
    what: &str,
    got: T,
    wanted: T,
) -> Result<(), Why> {
    if got == wanted {
        Ok(())
    } else {
        Err(format!("{what}: {got:02x?} instead of {wanted:02x?}"))
    }
}

fn nop<D: Device>(bench: &mut Bench<'_, D>) -> Result<Outcome, Why> {
    let mut pair = bench.pair(PLAIN)?;
    bench.signalled(&mut pair, Opcode::Nop, &Body::Ignored(&[0xa5; 32]))?;
    bench.nop(&mut pair)?;
    bench.go(&pair)?;
    bench.done(&mut pair)?;
    bench.done(&mut pair)?;
    Ok(Outcome::Passed)
}

/// READs `len` octets at an address to the data at `to`.
fn read<D: Device>(
    bench: &mut Bench<'_, D>,
    pair: &mut Pair,
    (rkey, address): (Mkey, u64),
    to: u64,
    len: u32,
) -> Result<(), Why> {
    let list = [bench.local(to, len)?];
    let remote = kbtp_mlx5::RemoteAddress { address, rkey };
    let body = Body::Read(remote, DataList::new(&list));
    bench.signalled(pair, Opcode::RdmaRead, &body)
}

fn write_and_read<D: Device>(bench: &mut Bench<'_, D>) -> Result<Outcome, Why> {
    let mut pair = bench.pair(PLAIN)?;
    let octets: [u8; 64] = core::array::from_fn(|at| u8::try_from(at ^ 0x5a).unwrap_or(0));
    bench.put(0, &octets)?;
    bench.put(64, &[0; 128])?;
    let list = [bench.local(0, 64)?];
    let payload = Payload::List(DataList::new(&list));
    let body = Body::Write(bench.remote(64), payload);
    bench.signalled(&mut pair, Opcode::RdmaWrite, &body)?;
    let key = bench.key;
    read(bench, &mut pair, (key, DATA + 64), 128, 64)?;
    bench.go(&pair)?;
    bench.done(&mut pair)?;
    bench.done(&mut pair)?;
    expect("written", bench.get(64)?, octets)?;
    expect("read", bench.get(128)?, octets)?;
    Ok(Outcome::Passed)
}

/// Runs an atomic on a word with this value; gives the word and the reply afterwards, as they lie in memory.
fn atomic<D: Device>(
    bench: &mut Bench<'_, D>,
    pair: &mut Pair,
    atomic: Atomic,
    word: u64,
) -> Result<([u8; 8], [u8; 8]), Why> {
    bench.put(0, &word.to_le_bytes())?;
    bench.put(8, &[0; 8])?;
    let (remote, reply) = (bench.remote(0), bench.local(8, 8)?);
    let body = Body::Atomic(remote, atomic, reply);
    bench.signalled(pair, atomic.opcode(), &body)?;
    bench.go(pair)?;
    bench.done(pair)?;
    Ok((bench.get(0)?, bench.get(8)?))
}

const WORD: u64 = 0x0102_0304_0506_0708;

fn fetch_add<D: Device>(bench: &mut Bench<'_, D>) -> Result<Outcome, Why> {
    let mut pair = bench.pair(PLAIN)?;
    let add = Atomic::FetchAdd { add: 0x10 };
    let (word, reply) = atomic(bench, &mut pair, add, WORD)?;
    expect("the word", word, (WORD + 0x10).to_le_bytes())?;
    if reply == WORD.to_be_bytes() {
        return Err("the reply is big-endian: chains are built for one as in memory".to_owned());
    }
    expect("the reply", reply, WORD.to_le_bytes())?;
    Ok(Outcome::Passed)
}

fn masked_add<D: Device>(bench: &mut Bench<'_, D>) -> Result<Outcome, Why> {
    let mut pair = bench.pair(PLAIN)?;
    for n in [1, 5, 20] {
        let order = RingOrder::new(n).ok_or_else(|| "no such ring".to_owned())?;
        let add = Atomic::MaskedFetchAdd8 {
            add: RingCounter::ADD_DATA,
            boundary: RingCounter::add_mask(order),
        };
        // The last slot, and the last ticket: both fields start again, and nothing goes over.
        let last = u64::from(order.slots() - 1) << 4;
        for (ticket, offset, wanted) in [
            (7_u64, 0, 8 << 32 | 16),
            (7, last, 8 << 32),
            (u64::from(u32::MAX), last, 0),
        ] {
            let (word, reply) = atomic(bench, &mut pair, add, ticket << 32 | offset)?;
            expect("the counter", word, u64::to_le_bytes(wanted))?;
            expect("the reply", reply, (ticket << 32 | offset).to_le_bytes())?;
        }
    }
    Ok(Outcome::Passed)
}

fn masked_swap<D: Device>(bench: &mut Bench<'_, D>) -> Result<Outcome, Why> {
    let mut pair = bench.pair(PLAIN)?;
    let swap = |compare| Atomic::MaskedCompareSwap8 {
        swap: 0xaa,
        compare,
        swap_mask: 0xff,
        compare_mask: 0xff00,
    };
    for (compare, wanted) in [(0x0700, WORD & !0xff | 0xaa), (0x0800, WORD)] {
        let (word, reply) = atomic(bench, &mut pair, swap(compare), WORD)?;
        expect("the word", word, wanted.to_le_bytes())?;
        expect("the reply", reply, WORD.to_le_bytes())?;
    }
    Ok(Outcome::Passed)
}

fn wait_for<D: Device>(
    bench: &mut Bench<'_, D>,
    pair: &mut Pair,
    cqn: kbtp_mlx5::Cqn,
    index: u32,
) -> Result<(), Why> {
    let wait = WaitCqe {
        cqn,
        index: CqeIndex::truncate(index),
    };
    bench.post(pair, Opcode::Wait, &Body::WaitCqe(wait), &|_| {})
}

fn wait_index<D: Device>(bench: &mut Bench<'_, D>) -> Result<Outcome, Why> {
    let mut other = bench.pair(PLAIN)?;
    let mut pair = bench.pair(MANAGED)?;
    for index in [0, 1] {
        wait_for(bench, &mut pair, other.cqn, index)?;
        bench.nop(&mut pair)?;
    }
    bench.go(&pair)?;
    bench.nothing(&mut pair, "WAIT for the first CQE ends before it is there")?;
    bench.nop(&mut other)?;
    bench.go(&other)?;
    bench.done(&mut other)?;
    let first = bench.done(&mut pair);
    first.map_err(|why| format!("WAIT for CQE 0 of one: {why}"))?;
    bench.nothing(&mut pair, "WAIT for CQE 1 ends with the first one")?;
    bench.nop(&mut other)?;
    bench.go(&other)?;
    bench.done(&mut other)?;
    bench.done(&mut pair)?;
    Ok(Outcome::Passed)
}

/// NOPs at a time, of a ring of 64.
const BATCH: u64 = 32;

fn enable<D: Device>(bench: &mut Bench<'_, D>) -> Result<Outcome, Why> {
    let mut pair = bench.pair(MANAGED)?;
    let pieces = [bench.local(0, 1)?, bench.local(1, 1)?, bench.local(2, 1)?];
    let body = Body::Read(bench.remote(64), DataList::new(&pieces));
    bench.signalled(&mut pair, Opcode::RdmaRead, &body)?;
    let end = pair.posted;
    expect("basic blocks of a WQE of 80 octets", end, 2)?;
    bench.nop(&mut pair)?;
    bench.run_to(&pair, end)?;
    bench.done(&mut pair)?;
    bench.nothing(&mut pair, "SEND_EN to block 2 lets block 2 run")?;
    bench.go(&pair)?;
    bench.done(&mut pair)?;
    while pair.posted < (1 << 16) + BATCH {
        for _ in 1..BATCH {
            bench.post(&mut pair, Opcode::Nop, &Body::Ignored(&[]), &|_| {})?;
        }
        bench.nop(&mut pair)?;
        bench.go(&pair)?;
        let at = pair.posted;
        let done = bench.done(&mut pair);
        done.map_err(|why| format!("up to basic block {at}: {why}"))?;
    }
    Ok(Outcome::Passed)
}

fn patch<D: Device>(bench: &mut Bench<'_, D>) -> Result<Outcome, Why> {
    let mut pair = bench.pair(MANAGED)?;
    bench.put(0, &[1; 8])?;
    bench.put(8, &[2; 8])?;
    bench.put(16, &[0; 8])?;
    let write = |bench: &mut Bench<'_, D>, pair: &mut Pair, from| {
        let list = [bench.local(from, 8)?];
        let payload = Payload::List(DataList::new(&list));
        let body = Body::Write(bench.remote(16), payload);
        bench.signalled(pair, Opcode::RdmaWrite, &body)
    };
    write(bench, &mut pair, 0)?;
    bench.idle();
    // The device has had time to read it. Now it is another.
    pair.posted = 0;
    write(bench, &mut pair, 8)?;
    bench.go(&pair)?;
    bench.done(&mut pair)?;
    expect("what ran", bench.get(16)?, [2; 8])?;
    Ok(Outcome::Passed)
}

fn identity<D: Device>(bench: &mut Bench<'_, D>) -> Result<Outcome, Why> {
    let ask = |bench: &mut Bench<'_, D>, change: fn(&mut kbtp_mlx5::Control)| {
        let mut pair = bench.pair(PLAIN)?;
        bench.post(&mut pair, Opcode::Nop, &Body::Ignored(&[]), &|control| {
            control.signal = Signal::Always;
            change(control);
        })?;
        bench.go(&pair)?;
        Ok::<_, Why>(matches!(bench.next(&mut pair), Some(Cqe::Completed(_))))
    };
    let index = ask(bench, |control| control.index.0 ^= 5)?;
    let qpn = ask(bench, |control| {
        control.qpn = kbtp_mlx5::Qpn::truncate(control.qpn.get() ^ 1);
    })?;
    let word = |taken| if taken { "not checked" } else { "checked" };
    Ok(Outcome::Says(format!(
        "index {}, queue pair {}",
        word(index),
        word(qpn)
    )))
}

fn repeat<D: Device>(bench: &mut Bench<'_, D>) -> Result<Outcome, Why> {
    let (first, rows) = (5_u64, 8_u64);
    let row = |number: u64| [u8::try_from(number).unwrap_or(0) | 0xa0; 16];
    for number in 0..rows {
        bench.put(1024 + number * 16, &row(number))?;
    }
    let (mkey, pad) = (bench.key, DATA);
    let entry = |stride, len, address| RepeatEntry {
        stride,
        len,
        mkey,
        address,
    };
    let table = Layout::Repeat {
        repetitions: 8,
        entries: &[entry(16, 16, DATA + 1024), entry(0, 240, pad)],
    };
    let table = bench.key_of(first << 8, rows << 8, table)?;
    let same = Layout::Repeat {
        repetitions: 8,
        entries: &[entry(0, 256, DATA + 1024)],
    };
    let same = bench.key_of(0, rows << 8, same)?;
    let mut pair = bench.pair(PLAIN)?;
    for (key, address, wanted) in [
        (table, first << 8, row(0)),
        (table, (first + 3) << 8, row(3)),
        (table, (first + rows - 1) << 8, row(rows - 1)),
        (same, 6 << 8, row(0)),
    ] {
        bench.put(0, &[0; 16])?;
        read(bench, &mut pair, (key, address), 0, 16)?;
        bench.go(&pair)?;
        bench.done(&mut pair)?;
        expect("the row", bench.get(0)?, wanted)?;
    }
    outside(bench, &mut pair, (table, (first + rows) << 8))?;
    let mut pair = bench.pair(PLAIN)?;
    outside(bench, &mut pair, (table, (first - 1) << 8))?;
    Ok(Outcome::Passed)
}

/// That a READ of one octet there fails.
fn outside<D: Device>(
    bench: &mut Bench<'_, D>,
    pair: &mut Pair,
    at: (Mkey, u64),
) -> Result<(), Why> {
    read(bench, pair, at, 0, 1)?;
    bench.go(pair)?;
    match bench.next(pair) {
        Some(Cqe::Failed(failed)) if failed.syndrome == Syndrome::REMOTE_ACCESS => Ok(()),
        Some(Cqe::Failed(failed)) => Err(format!(
            "out of bounds: syndrome {:#04x}",
            failed.syndrome.0
        )),
        _ => Err("a READ out of bounds does not fail".to_owned()),
    }
}

fn equal<D: Device>(bench: &mut Bench<'_, D>) -> Result<Outcome, Why> {
    const LOG: u8 = 12;
    bench.put(4096, &[3; 4])?;
    bench.put(8192, &[4; 4])?;
    let mkey = bench.key;
    let piece = |at| KsmEntry {
        mkey,
        address: DATA + at,
    };
    let layout = Layout::Equal {
        log_size: LOG,
        entries: &[piece(8192), piece(4096), piece(8192), piece(8192)],
    };
    let start = 1 << 32;
    let key = bench.key_of(start, 4 << LOG, layout)?;
    let mut pair = bench.pair(PLAIN)?;
    for (number, wanted) in [(0, [4; 4]), (1, [3; 4]), (3, [4; 4])] {
        read(bench, &mut pair, (key, start + (number << LOG)), 0, 4)?;
        bench.go(&pair)?;
        bench.done(&mut pair)?;
        expect("a piece", bench.get(0)?, wanted)?;
    }
    outside(bench, &mut pair, (key, start + (4 << LOG)))?;
    Ok(Outcome::Passed)
}

/// Pieces of the dispatching READ.
const PIECES: usize = 22;

fn scatter<D: Device>(bench: &mut Bench<'_, D>) -> Result<Outcome, Why> {
    let octets: [u8; PIECES] = core::array::from_fn(|at| u8::try_from(at + 1).unwrap_or(0));
    bench.put(1024, &octets)?;
    let mut pair = bench.pair(PLAIN)?;
    // Backwards, every other octet.
    let pieces: Result<Vec<_>, Why> = (0..PIECES as u64)
        .rev()
        .map(|at| bench.local(2 * at, 1))
        .collect();
    let pieces = pieces?;
    let body = Body::Read(bench.remote(1024), DataList::new(&pieces));
    bench.put(0, &[0; 2 * PIECES])?;
    bench.signalled(&mut pair, Opcode::RdmaRead, &body)?;
    bench.go(&pair)?;
    bench.done(&mut pair)?;
    let got: [u8; 2 * PIECES] = bench.get(0)?;
    let mut wanted = [0; 2 * PIECES];
    for (to, from) in wanted.iter_mut().step_by(2).zip(octets.iter().rev()) {
        *to = *from;
    }
    expect("scattered", got, wanted)?;
    Ok(Outcome::Passed)
}

fn wait_data<D: Device>(bench: &mut Bench<'_, D>) -> Result<Outcome, Why> {
    let mut pair = bench.pair(MASTER)?;
    bench.put(0, &[0; 8])?;
    let wait = WaitData {
        comparison: Comparison::Equal,
        invert: false,
        lkey: bench.key,
        address: DATA,
        on_mismatch: OnMismatch::Retry,
        data: [1, 2, 3, 4, 9, 9, 9, 9],
        mask: [255, 255, 255, 255, 0, 0, 0, 0],
    };
    bench.post(&mut pair, Opcode::Wait, &Body::WaitData(wait), &|control| {
        control.modifier = WaitFor::Data.to_wire();
    })?;
    bench.nop(&mut pair)?;
    bench.go(&pair)?;
    bench.nothing(&mut pair, "it ends before the data is there")?;
    bench.put(0, &[1, 2, 3, 4])?;
    bench.device.barrier();
    bench.done(&mut pair)?;
    Ok(Outcome::Passed)
}

fn wait_error<D: Device>(bench: &mut Bench<'_, D>) -> Result<Outcome, Why> {
    let mut other = bench.pair(PLAIN)?;
    let mut pair = bench.pair(MASTER)?;
    wait_for(bench, &mut pair, other.cqn, 0)?;
    bench.nop(&mut pair)?;
    bench.go(&pair)?;
    let beyond = bench.region.len();
    let key = bench.key;
    outside(bench, &mut other, (key, beyond))?;
    let ended = matches!(bench.next(&mut pair), Some(Cqe::Completed(_)));
    Ok(Outcome::Says(
        if ended {
            "an error's CQE ends a WAIT"
        } else {
            "an error's CQE does not end a WAIT"
        }
        .to_owned(),
    ))
}

fn solicited<D: Device>(bench: &mut Bench<'_, D>) -> Result<Outcome, Why> {
    let mut pair = bench.pair(PLAIN)?;
    let how = CqArm {
        solicited_only: true,
        ..CqArm::default()
    };
    bench.device.arm_cq(pair.cqn, how).map_err(why)?;
    bench.nop(&mut pair)?;
    bench.go(&pair)?;
    bench.done(&mut pair)?;
    if told(bench, &pair) {
        return Err("it tells of a CQE that is not solicited".to_owned());
    }
    let beyond = bench.region.len();
    let key = bench.key;
    outside(bench, &mut pair, (key, beyond))?;
    bench.idle();
    if told(bench, &pair) {
        Ok(Outcome::Passed)
    } else {
        Err("it does not tell of an error".to_owned())
    }
}

/// Whether an event of the pair's completion queue came. Events of others' ends are taken on the way.
fn told<D: Device>(bench: &mut Bench<'_, D>, pair: &Pair) -> bool {
    let mut found = false;
    while let Some(event) = bench.device.next_event() {
        found |= event == DeviceEvent::Completion(pair.cqn);
    }
    found
}

/// How often each thing is timed.
const TIMES: usize = 65;

/// How long things take.
pub(super) fn latency<D: Device>(
    bench: &mut Bench<'_, D>,
    now: &mut dyn FnMut() -> u64,
) -> Result<Latency, Why> {
    let mut pair = bench.pair(PLAIN)?;
    let mut median = |bench: &mut Bench<'_, D>, pair: &mut Pair, nops: u64, reads: bool| {
        let mut times = Vec::with_capacity(TIMES);
        for _ in 0..TIMES {
            for _ in 1..nops {
                bench.post(pair, Opcode::Nop, &Body::Ignored(&[]), &|_| {})?;
            }
            if reads {
                let key = bench.key;
                read(bench, pair, (key, DATA + 64), 0, 8)?;
            } else {
                bench.nop(pair)?;
            }
            let begin = now();
            bench.go(pair)?;
            bench.done(pair)?;
            times.push(now().saturating_sub(begin));
        }
        times.sort_unstable();
        Ok::<_, Why>(times.get(TIMES / 2).copied().unwrap_or_default())
    };
    let read_ns = median(bench, &mut pair, 1, true)?;
    let nop_ns = median(bench, &mut pair, 1, false)?;
    let many = median(bench, &mut pair, BATCH, false)?;
    Ok(Latency {
        read_ns,
        nop_ns,
        next_nop_ns: many.saturating_sub(nop_ns) / (BATCH - 1),
    })
}
