//! Many initiators, one after the other: each has a session, stores and loads, and goes in one of the ways there are.
//!
//! It is told `go` and `rest`, one line each.

use super::load::TIMEOUT;
use super::say;
use crate::cli::{ChurnArgs, Plant};
use crate::driver::told;
use kbtp_harness::{Dice, Ledger, options};
use kbtp_initiator::{Client, FreeItem, Handle, LoadItem, Status, StoreItem};
use nix::sys::signal::Signal;
use std::net::TcpStream;
use std::process::ExitCode;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// Blocks that one stores at most.
const BLOCKS: u64 = 6;
/// Sessions between two that are leaked, where that is asked for.
const LEAK_EACH: u64 = 10;
/// Pause after a session: the handles of a hundred ranges whose lease runs are all there are.
const PAUSE: Duration = Duration::from_millis(10);
/// Octets leaked with each session, where that is asked for.
const LEAK_LEN: usize = 16 << 10;

pub(crate) fn run(args: &ChurnArgs) -> ExitCode {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).unwrap();
    let told = told();
    let mut dice = Dice::new(args.seed + 5);
    let (mut cycles, mut operations) = (0_u64, 0_u64);
    let mut kept = Vec::new();
    let mut fat: Vec<Vec<u8>> = Vec::new();
    while told.recv().is_ok() {
        while told.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
            let owner = 1000 + cycles % 50_000;
            let Some((client, done)) = cycle(&args.target, owner, &mut dice) else {
                continue;
            };
            cycles += 1;
            operations += done;
            match args.plant {
                Some(Plant::Sessions) if cycles.is_multiple_of(LEAK_EACH) => kept.extend(client),
                Some(Plant::Memory) => fat.push(vec![1; LEAK_LEN]),
                _ => drop(client),
            }
            say(&format!("so far {operations} {cycles}"));
        }
        say(&format!("rested {operations} {cycles}"));
    }
    drop((kept, fat));
    ExitCode::SUCCESS
}

/// One session, unless it went in order; and how many operations were done. None if there is no room for it now.
fn cycle(target: &str, owner: u64, dice: &mut Dice) -> Option<(Option<Client>, u64)> {
    let way = dice.below(10);
    if way == 0 {
        // Somebody who connects and says nothing.
        drop(TcpStream::connect(target).expect("the target listens"));
    }
    let direct = dice.below(2) == 1;
    let wanted = options(target, owner)
        .quota(u32::try_from(BLOCKS).unwrap())
        .timeout(TIMEOUT)
        .connect_timeout(TIMEOUT)
        .direct_load(direct)
        .direct_alloc(direct)
        .invalidate(dice.below(3) == 0);
    let mut client = match Client::connect(wanted) {
        Ok(client) => client,
        Err(error) if error.status() == Some(Status::NoSpace) => return None,
        Err(error) => panic!("no session: {error}"),
    };
    let mut done = work(&mut client, owner, dice);
    match way {
        1..4 => {
            client.close().unwrap();
            return Some((None, done));
        }
        4..6 => {
            // The same again, over a new stream.
            client.reconnect().expect("a session again");
            done += work(&mut client, owner, dice);
        }
        // Dropped: the stream is cut, and what is bound is freed when its lease is over.
        _ => {}
    }
    Some((Some(client), done))
}

/// Stores some blocks, loads them, compares, and frees some of them.
fn work(client: &mut Client, owner: u64, dice: &mut Dice) -> u64 {
    // Leases of those before it may have left it less than it wanted.
    let quota = client.terms().grant.quota.into();
    let count = 1 + dice.below(BLOCKS.min(quota));
    let base = client.handles().0.0;
    let mut ledger = Ledger::new(owner, BLOCKS, client.block_size());
    let mut buffers = client
        .register_many(usize::try_from(count).unwrap(), client.block_size())
        .unwrap();
    let versions: Vec<_> = (0..count).map(|_| dice.below(1 << 40)).collect();
    for (handle, (buffer, version)) in (0..).zip(buffers.iter_mut().zip(&versions)) {
        buffer.fill(&ledger.data(handle, *version)).unwrap();
    }
    let handles: Vec<_> = (base..base + count).map(Handle).collect();
    // A session that came again has them already.
    let mut frees: Vec<_> = handles.iter().map(|h| FreeItem::new(*h)).collect();
    client.free_many(&mut frees).unwrap();
    let mut items: Vec<_> = handles
        .iter()
        .zip(&mut buffers)
        .map(|(handle, buffer)| StoreItem::new(*handle, buffer))
        .collect();
    if client.terms().direct_alloc {
        client.alloc_direct_many(&mut items).unwrap();
    } else {
        client.alloc_store_many(&mut items).unwrap();
    }
    for item in &items {
        assert!(matches!(item.result, Some(Ok(_))), "{:?}", item.result);
    }
    let mut loads: Vec<_> = handles
        .iter()
        .zip(&mut buffers)
        .map(|(handle, buffer)| LoadItem::new(*handle, buffer))
        .collect();
    if client.terms().direct_load {
        client.load_direct_many(&mut loads).unwrap();
    } else {
        client.load_many(&mut loads).unwrap();
    }
    for item in &loads {
        assert!(matches!(item.result, Some(Ok(_))), "{:?}", item.result);
    }
    for (handle, (buffer, version)) in (0..).zip(buffers.iter().zip(&versions)) {
        let wrong = ledger.wrong(handle, *version, &buffer.to_vec().unwrap());
        assert_eq!(wrong, None, "initiator {owner}, handle {handle}");
    }
    // One in four leaves something to its lease.
    let some = match dice.below(4) {
        0 => dice.below(count),
        _ => count,
    };
    let some = usize::try_from(some).unwrap();
    let mut frees: Vec<_> = handles[..some].iter().map(|h| FreeItem::new(*h)).collect();
    client.free_many(&mut frees).unwrap();
    let _next = ledger.next_version();
    3 * count + some as u64
}
