//! `kbtp free`: frees the blocks of a map.

use crate::cli::FreeArgs;
use crate::failure::Failure;
use crate::get::{as_owner, check_instance};
use crate::map::Map;
use crate::output::{self, Progress};
use crate::session::{self, Session};
use crate::units::count;
use kbtp_initiator::{ClientError, FreeItem, Generation, Handle, Status};
use serde::Serialize;
use std::fs;

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
    let (path, map) = Map::read(&args.map)?;
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
        fs::remove_file(&path).map_err(|e| Failure::file("remove the map", &path, &e))?;
    }
    output::report(json, &report, || match report.gone {
        0 => format!("freed {} blocks\n", count(report.freed)),
        gone => format!(
            "freed {} blocks; {} were gone before (freed, or their lease ran out)\n",
            count(report.freed),
            count(gone)
        ),
    })
}

fn free_blocks(session: &mut Session, map: &Map) -> Result<Report, Failure> {
    let mut report = Report::default();
    let mut progress = Progress::new(map.block_count(), "freeing");
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
                Some(Err(e)) if is_gone(e) => report.gone += 1,
                Some(Err(e)) => return Err(session::failed("cannot free", e)),
                None => {
                    return Err(Failure::operation(
                        format_args!("the free of handle {} was not begun", item.handle),
                        "run the command again",
                    ));
                }
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
