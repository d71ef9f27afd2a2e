//! A target and a client of its own, over an RDMA device of the guest: every way to store, load and free a block.

use kbtp_initiator::{Client, Dial, FreeOptions, LoadOptions, Options, StoreOptions, Verbs};
use kbtp_target::{DirectConfig, Target, TargetConfig};
use kbtp_wire::{Grant, Handle, SessionCapabilities};
use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;

type Outcome<T> = Result<T, Box<dyn Error>>;

const BLOCK: u32 = 64 << 10;
const BLOCKS: u64 = 64;
/// Lengths around inline data, a page and a block.
const LENGTHS: [u32; 5] = [1, 512, 4096, 65_535, BLOCK];

/// Serves at `at`, once with completion records wanted and once without; says what was granted and that all of it worked.
///
/// # Errors
/// The first thing that is not as it should be.
pub fn session(at: SocketAddr, out: &mut impl Write) -> Outcome<()> {
    let target = target(at)?;
    for records in [true, false] {
        let mut client = connect(at, records)?;
        let grant = client.terms().grant;
        let granted = granted(&grant);
        for len in LENGTHS {
            ways(&mut client, &grant, len)
                .map_err(|error| format!("{granted}, {len} octets: {error}"))?;
        }
        client.close()?;
        writeln!(out, "granted {granted}: good")?;
        out.flush()?;
    }
    target.shutdown_handle().drain();
    target.join()?;
    Ok(())
}

/// A target at `at`.
pub(crate) fn target(at: SocketAddr) -> Outcome<Target> {
    Ok(Target::start(TargetConfig {
        listen: Vec::new(),
        rdma: vec![at],
        admin: None,
        allow_unauthenticated: true,
        block_size: BLOCK.into(),
        blocks: BLOCKS,
        direct: DirectConfig {
            load: true,
            alloc: true,
        },
        ..TargetConfig::default()
    })?)
}

/// A client of it that asks for all there is, completion records if they are wanted.
pub(crate) fn connect(at: SocketAddr, records: bool) -> Outcome<Client<Verbs>> {
    let options = Options::new(at.to_string())
        .quota(16)
        .max_inline(512)
        .records(records)
        .direct_load(true)
        .direct_alloc(true);
    Ok(Client::connect_with(Verbs::default(), options)?)
}

fn granted(grant: &Grant) -> String {
    let names = [
        ("records", SessionCapabilities::RECORD_COMPLETION),
        ("loads", SessionCapabilities::DIRECT_LOAD),
        ("allocations", SessionCapabilities::DIRECT_ALLOC),
    ];
    let names: Vec<_> = names
        .iter()
        .filter(|(_, capability)| grant.capabilities.contains(*capability))
        .map(|(name, _)| *name)
        .collect();
    if names.is_empty() {
        return "nothing more".to_owned();
    }
    names.join(" and ")
}

/// Stores, loads and frees blocks of `len` octets in every way that was granted.
fn ways<D: Dial>(client: &mut Client<D>, grant: &Grant, len: u32) -> Outcome<()> {
    let may = |capability| grant.capabilities.contains(capability);
    let base = grant.handle_base.0;
    let unsealed = StoreOptions {
        seal: false,
        ..StoreOptions::default()
    };
    let any = LoadOptions {
        allow_unsealed: true,
        ..LoadOptions::default()
    };
    let (load, seal) = (LoadOptions::default(), StoreOptions::default());
    let mut buffer = client.register(len)?;
    let mut sink = client.register(BLOCK)?;
    // One block by request: unsealed, then again with other data, sealed.
    let first = Handle(base);
    for (seed, options) in [(1, &unsealed), (2, &seal)] {
        let octets = pattern(len, seed);
        buffer.fill(&octets)?;
        if seed == 1 {
            client.alloc_store(first, &mut buffer, options)?;
        } else {
            client.store(first, &mut buffer, options)?;
        }
        let done = client.load(first, &mut sink, &any)?;
        same("a load", &sink.to_vec()?, &octets, done.len.0)?;
    }
    if may(SessionCapabilities::DIRECT_LOAD) {
        let done = client.load_direct(first, &mut sink, &load)?;
        same(
            "a direct load",
            &sink.to_vec()?,
            &pattern(len, 2),
            done.len.0,
        )?;
    }
    // Round the ring more than once.
    let direct = may(SessionCapabilities::DIRECT_ALLOC);
    for round in 0..40_u64 {
        let handle = Handle(base + 1 + round % 8);
        let seed = u8::try_from(3 + round)?;
        let octets = pattern(len, seed);
        buffer.fill(&octets)?;
        let stored = if direct {
            client.alloc_direct(handle, &mut buffer, &seal)
        } else {
            client.alloc_store(handle, &mut buffer, &seal)
        };
        let stored = stored.map_err(|error| format!("allocation {round}: {error}"))?;
        let load = LoadOptions {
            generation: Some(stored.generation),
            ..load
        };
        let done = client.load(handle, &mut sink, &load)?;
        same(
            "a load of what was allocated",
            &sink.to_vec()?,
            &octets,
            done.len.0,
        )?;
        client.free(handle, &FreeOptions::default())?;
        match client.load(handle, &mut sink, &load) {
            Err(error) if error.is_missing() => {}
            other => return Err(format!("a load of what is free: {other:?}").into()),
        }
    }
    client.free(first, &FreeOptions::default())?;
    Ok(())
}

fn pattern(len: u32, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| at.to_le_bytes()[0].wrapping_mul(31).wrapping_add(seed) ^ at.to_le_bytes()[1])
        .collect()
}

fn same(what: &str, got: &[u8], expected: &[u8], len: u32) -> Outcome<()> {
    if usize::try_from(len)? == expected.len() && got.get(..expected.len()) == Some(expected) {
        return Ok(());
    }
    Err(format!("{what} gave other octets, {len} of them").into())
}
