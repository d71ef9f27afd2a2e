//! `kbtp free`: frees the blocks of a map.

use crate::cli::FreeArgs;
use crate::failure::Failure;
use crate::get::{as_owner, check_instance};
use crate::map::{Id, Map};
use crate::output::{self, Progress};
use crate::session::{self, Session};
use crate::units::count;
use kbtp_initiator::{ClientError, FreeItem, Generation, Handle, InitiatorId, LoadItem, Status};
use serde::Serialize;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

/// Blocks freed with one call.
const BATCH: usize = 256;

/// What was freed.
#[derive(Debug, Default, Serialize)]
struct Report {
    freed: u64,
    /// Not there any more: freed before, or their lease ran out.
    gone: u64,
}

/// Runs the command.
///
/// # Errors
/// [`Failure`]; the map stays then.
pub(crate) fn run(args: &FreeArgs, json: bool) -> Result<(), Failure> {
    let report = match (&args.map, args.initiator, args.target) {
        (Some(named), _, _) => free_map(args, named)?,
        (None, Some(id), Some(target)) => free_initiator(args, id, target)?,
        (None, ..) => {
            return Err(Failure::usage(
                "neither a map nor an initiator",
                "name the map, or --initiator ID with --target ADDR",
            ));
        }
    };
    output::report(json, &report, || match report.gone {
        0 => format!("freed {} blocks\n", count(report.freed)),
        gone => format!(
            "freed {} blocks; {} were gone before (freed, or their lease ran out)\n",
            count(report.freed),
            count(gone)
        ),
    })
}

/// Frees the blocks of the map `named`, and removes it.
fn free_map(args: &FreeArgs, named: &Path) -> Result<Report, Failure> {
    let (path, map) = Map::read(named)?;
    // To another tenant the blocks look like blocks that are gone.
    if map.tenant != args.who.tenant {
        return Err(match &map.tenant {
            Some(of) => Failure::usage(
                format_args!("the blocks of {} are those of tenant {of}", path.display()),
                format_args!("add --tenant {of} --key-file FILE"),
            ),
            None => Failure::usage(
                format_args!("the blocks of {} are no tenant's", path.display()),
                "leave out --tenant",
            ),
        });
    }
    let target = args.target.unwrap_or(map.target);
    let options = as_owner(session::options(target, &args.who)?, &map);
    let mut session = session::open(options)?;
    check_instance(&session, &map, target)?;
    let blocks = u32::try_from(map.block_count()).unwrap_or(u32::MAX);
    session.set_bound(blocks);
    let report = free_blocks(&mut session, &map)?;
    session
        .close()
        .map_err(|e| session::failed("cannot end the session", &e))?;
    if !args.keep_map {
        remove(&path).map_err(|e| Failure::file("remove the map", &path, &e))?;
    }
    Ok(report)
}

/// Removes the map, and the link if it was named by one: the map itself first.
fn remove(path: &Path) -> io::Result<()> {
    let map = fs::canonicalize(path)?;
    fs::remove_file(&map)?;
    if fs::symlink_metadata(path).is_ok_and(|at| at.is_symlink()) {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// Frees whatever the initiator `id` has bound.
fn free_initiator(args: &FreeArgs, id: Id, target: SocketAddr) -> Result<Report, Failure> {
    let options = session::options(target, &args.who)?
        .initiator_id(InitiatorId(id.0))
        .quota(1)
        .handles(1);
    let mut session = session::open(options)?;
    let (base, handles) = session.handles();
    session.set_bound(u32::try_from(handles).unwrap_or(u32::MAX));
    let mut report = Report::default();
    let mut progress = Progress::new(handles, "freeing");
    let step = u64::try_from(BATCH).unwrap_or(1);
    for first in (0..handles).step_by(BATCH) {
        let numbers = first..first.saturating_add(step).min(handles);
        let mut items: Vec<FreeItem> = numbers
            .map(|n| FreeItem::new(Handle(base.0.saturating_add(n))))
            .collect();
        session
            .free_many(&mut items)
            .map_err(|e| session::failed("cannot free", &e))?;
        for item in &items {
            match &item.result {
                Some(Ok(_)) => report.freed += 1,
                // Most of a range is not bound.
                Some(Err(e)) if e.is_missing() => {}
                Some(Err(e)) => return Err(session::failed("cannot free", e)),
                None => return Err(not_begun(item)),
            }
        }
        progress.at(first);
    }
    progress.finish();
    session
        .close()
        .map_err(|e| session::failed("cannot end the session", &e))?;
    Ok(report)
}

fn not_begun(item: &FreeItem) -> Failure {
    Failure::operation(
        format_args!("the free of handle {} was not begun", item.handle),
        "run the command again",
    )
}

/// That the first block which may not be freed is not bound by somebody else than the map says: then nothing is gone.
fn check_gone(session: &mut Session, map: &Map, item: &FreeItem) -> Result<(), Failure> {
    let buffers = session::buffers(session, map.block_size)?;
    let Some(mut buffer) = buffers.into_iter().next() else {
        return Ok(());
    };
    let mut load = LoadItem::new(item.handle, &mut buffer);
    load.options.generation = item.options.generation;
    session
        .load_many(std::slice::from_mut(&mut load))
        .map_err(|e| session::failed("cannot load", &e))?;
    if !matches!(load.result, Some(Ok(_))) {
        return Ok(());
    }
    Err(Failure::operation(
        format_args!(
            "handle {} is bound, and initiator {} of the map may not free it",
            item.handle, map.initiator_id
        ),
        "restore the map that put wrote, or see in kbtp stat whose it is, and use --initiator",
    ))
}

fn free_blocks(session: &mut Session, map: &Map) -> Result<Report, Failure> {
    let mut report = Report::default();
    let mut progress = Progress::new(map.block_count(), "freeing");
    let mut refused = false;
    let mut items: Vec<FreeItem> = map
        .files
        .iter()
        .flat_map(|f| &f.blocks)
        .map(|b| {
            let mut item = FreeItem::new(Handle(b.handle));
            item.options.generation = Generation::new(b.generation);
            item
        })
        .collect();
    for batch in items.chunks_mut(BATCH) {
        session
            .free_many(batch)
            .map_err(|e| session::failed("cannot free", &e))?;
        for item in batch {
            match &item.result {
                Some(Ok(_)) => report.freed += 1,
                Some(Err(e)) if is_gone(e) => {
                    if !e.is_missing() && !refused {
                        refused = true;
                        check_gone(session, map, item)?;
                    }
                    report.gone += 1;
                }
                Some(Err(e)) => return Err(session::failed("cannot free", e)),
                None => return Err(not_begun(item)),
            }
        }
        progress.at(report.freed + report.gone);
    }
    progress.finish();
    Ok(report)
}

/// A range whose lease ran out is another one now, and the handle may lie outside it.
fn is_gone(error: &ClientError) -> bool {
    error.is_missing() || error.status() == Some(Status::NotAuthorized)
}
