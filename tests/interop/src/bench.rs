//! What KBTP costs over an RDMA device, beside a bare loop of verbs on the same device in the same run.
//!
//! The device is emulated in software, and so is the machine: the figures mean nothing by themselves, their ratios do.

use crate::driver::{in_background, seconds};
use crate::session::{connect, target};
use kbtp_initiator::{Buffer, Client, Dial, Handle, LoadOptions, StoreOptions};
use kbtp_verbs::bare::{Bare, Pair, Shape, Side};
use kbtp_verbs_sys::{Operation, Source, VerbsError};
use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Octets of a block, of a long load and Write.
const LONG: u32 = 64 << 10;
/// Octets of a short one.
const SHORT: u32 = 4 << 10;
/// How many long ones are under way at a time.
const DEPTH: u32 = 8;
/// Long ones of a measurement.
const WRITES: u32 = 256;
/// Short ones of a measurement.
const TURNS: u32 = 256;
/// Measurements of each kind; they take turns.
const ROUNDS: usize = 7;
/// Octets of a LOAD and of a COMPLETION.
const REQUEST: u32 = 40;
const COMPLETION: u32 = 40;
/// Of so many Sends of the bare client, one is told of, as their places in the queue come back with it.
const TOLD: u32 = 8;

const SHAPE: Shape = Shape {
    memory: 2 * (LONG as u64) * (DEPTH as u64),
    send_work: 64,
    receives: 32,
    receive_len: 64,
};

/// Measures at `at`, an address of a device, and says what came of it.
///
/// # Errors
/// The first thing that is not as it should be.
pub fn bench(at: SocketAddr, out: &mut impl Write) -> Outcome<()> {
    let target = target(at)?;
    let mut client = connect(at, false)?;
    let mut buffers = client.register_many(usize::try_from(DEPTH)?, LONG)?;
    let first = client.terms().grant.handle_base.0;
    for (handle, buffer) in (first..).zip(&mut buffers) {
        buffer.fill(&vec![7; usize::try_from(LONG)?])?;
        client.alloc_store(Handle(handle), buffer, &StoreOptions::default())?;
    }
    let mut short = client.register(SHORT)?;
    short.fill(&vec![7; usize::try_from(SHORT)?])?;
    let small = Handle(first + u64::from(DEPTH));
    client.alloc_store(small, &mut short, &StoreOptions::default())?;

    let mut bare = Bare::at(at.ip(), SHAPE)?;
    let (mut bandwidth, mut latency) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let written = rate(WRITES * LONG, || Ok(writes(&mut bare.pair()?)?))?;
        let loaded = rate(WRITES * LONG, || loads(&mut client, first, &mut buffers))?;
        let pair = bare.pair()?;
        let turned = each(TURNS, || Ok(turns(pair)?))?;
        let asked = each(TURNS, || {
            for _ in 0..TURNS {
                client.load(small, &mut short, &LoadOptions::default())?;
            }
            Ok(())
        })?;
        // The first round warms up.
        if round > 0 {
            bandwidth.push((written, loaded, loaded / written));
            latency.push((turned, asked, asked / turned));
        }
    }
    client.close()?;
    target.shutdown_handle().drain();
    target.join()?;
    let (bare_rate, our_rate, ratio) = medians(&mut bandwidth);
    writeln!(
        out,
        "64 KiB, {DEPTH} at a time: RDMA Write {bare_rate:.1} MB/s, LOAD {our_rate:.1} MB/s: {ratio:.2}"
    )?;
    let (bare_time, our_time, ratio) = medians(&mut latency);
    writeln!(
        out,
        "4 KiB, one at a time: Send + Write + Send {bare_time:.0} us, LOAD {our_time:.0} us: {ratio:.2}"
    )?;
    Ok(())
}

/// Megabytes a second.
fn rate(octets: u32, work: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    Ok(f64::from(octets) / 1e6 / took(work)?)
}

/// Microseconds of one of `count`.
fn each(count: u32, work: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    Ok(took(work)? * 1e6 / f64::from(count))
}

fn took(work: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    let began = seconds();
    work()?;
    Ok(seconds() - began)
}

/// The median of each of the three.
fn medians(rounds: &mut [(f64, f64, f64)]) -> (f64, f64, f64) {
    let mut of = |pick: fn(&(f64, f64, f64)) -> f64| {
        rounds.sort_by(|a, b| pick(a).total_cmp(&pick(b)));
        rounds.get(rounds.len() / 2).map_or(0.0, pick)
    };
    (of(|r| r.0), of(|r| r.1), of(|r| r.2))
}

fn gone() -> VerbsError {
    VerbsError::Unsupported {
        what: "answer of the other side in time",
    }
}

/// Long Writes, [`DEPTH`] under way.
fn writes(pair: &mut Pair) -> Result<(), VerbsError> {
    let remote = pair.server.remote(0);
    let client = &mut pair.client;
    let one = |side: &Side, n: u32| {
        let at = u64::from(n % DEPTH) * u64::from(LONG);
        let buffer = side.buffer(at, LONG)?;
        side.post(Operation::Write {
            source: Source::Registered(&[buffer]),
            remote,
            immediate: None,
        })
    };
    for n in 0..WRITES {
        if n >= DEPTH {
            ended(client)?;
        }
        one(client, n)?;
    }
    for _ in 0..DEPTH {
        ended(client)?;
    }
    Ok(())
}

fn ended(side: &mut Side) -> Result<(), VerbsError> {
    let completion = side.next_ended()?.ok_or_else(gone)?;
    if completion.is_ok() {
        Ok(())
    } else {
        Err(gone())
    }
}

/// Long loads, as many under way.
fn loads<D: Dial>(client: &mut Client<D>, first: u64, buffers: &mut Vec<Buffer>) -> Outcome<()> {
    for n in 0..WRITES {
        if buffers.is_empty() {
            buffers.push(loaded(client)?);
        }
        let buffer = buffers.pop().ok_or("a buffer")?;
        let handle = Handle(first + u64::from(n % DEPTH));
        client
            .submit_load(handle, buffer, &LoadOptions::default())
            .map_err(|rejected| rejected.error)?;
    }
    while client.in_flight() > 0 {
        buffers.push(loaded(client)?);
    }
    Ok(())
}

fn loaded<D: Dial>(client: &mut Client<D>) -> Outcome<Buffer> {
    let done = client.wait_any()?.ok_or("a load under way")?;
    done.result?;
    Ok(done.buffer.ok_or("its buffer")?)
}

/// Requests as long as a LOAD, each answered by a short Write and a Send as long as a COMPLETION, by a thread of its own.
fn turns(pair: Pair) -> Result<(), VerbsError> {
    let Pair {
        mut client,
        mut server,
        ..
    } = pair;
    let sink = client.remote(0);
    let answers = in_background("bare server", move || {
        for _ in 0..TURNS {
            message(&mut server)?;
            let data = server.buffer(0, SHORT)?;
            let write = Operation::Write {
                source: Source::Registered(&[data]),
                remote: sink,
                immediate: None,
            };
            server.post_as(write, false)?;
            let head = server.buffer(0, COMPLETION)?;
            server.post(send(&[head]))?;
        }
        // The last answer is out before the queue pair goes.
        ended(&mut server)?;
        Ok(server)
    });
    for n in 1..=TURNS {
        let head = client.buffer(0, REQUEST)?;
        client.post_as(send(&[head]), n % TOLD == 0)?;
        message(&mut client)?;
    }
    answers.join().map_err(|_| gone())?.map(drop)
}

const fn send(head: &[kbtp_verbs_sys::Sge]) -> Operation<'_> {
    Operation::Send {
        source: Source::Registered(head),
        invalidate: None,
    }
}

/// Waits for a message; what else ends meanwhile is passed over.
fn message(side: &mut Side) -> Result<(), VerbsError> {
    loop {
        let completion = side.next_ended()?.ok_or_else(gone)?;
        if !completion.is_ok() {
            return Err(gone());
        }
        if side.received(completion)?.is_some() {
            return Ok(());
        }
    }
}
