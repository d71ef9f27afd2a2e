//! `kbtp stat`: what a target holds and does, from its status page; or what it grants, from a session.

use crate::cli::{MaybeAddr, StatArgs};
use crate::failure::Failure;
use crate::map::Id;
use crate::output::{self, Sheet};
use crate::session;
use crate::status;
use crate::units::{count, lease_words, octets};
use kbtp_initiator::Terms;
use kbtp_wire::SessionCapabilities;
use serde::Serialize;
use std::net::SocketAddr;

/// What a session was granted.
#[derive(Debug, Serialize)]
struct Grant {
    target: SocketAddr,
    instance: Id,
    block_size: u32,
    blocks: u32,
    quota: u32,
    handles: u64,
    credits: u16,
    max_inline: u32,
    lease_ms: u32,
    ticket_timeout_ms: u32,
    direct_load: bool,
    direct_alloc: bool,
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] if the target does not answer.
pub(crate) fn run(args: &StatArgs, json: bool) -> Result<(), Failure> {
    let Some(target) = args.target else {
        let MaybeAddr::At(admin) = args.admin else {
            return Err(Failure::usage(
                "the admin address is off",
                "name another with --admin ADDR, or ask over a session with --target ADDR",
            ));
        };
        let found = status::fetch(admin)?;
        return output::report(json, &found, || status::text(&found));
    };
    // The least that a session has, but for the direct modes: whether they are granted is part of the answer.
    let options = session::options(target, &args.who)?
        .quota(1)
        .direct_load(true)
        .direct_alloc(true);
    let session = session::open(options)?;
    let grant = grant(target, session.terms());
    session
        .close()
        .map_err(|e| session::failed("cannot end the session", &e))?;
    output::report(json, &grant, || text(&grant))
}

fn grant(target: SocketAddr, terms: &Terms) -> Grant {
    let g = &terms.grant;
    Grant {
        target,
        instance: Id(g.instance.0),
        block_size: g.block_size.0,
        blocks: g.pool_blocks,
        quota: g.quota,
        handles: g.table_count,
        credits: g.credits,
        max_inline: g.max_inline.0,
        lease_ms: g.lease_ms,
        ticket_timeout_ms: g.ticket_timeout_ms,
        direct_load: g.capabilities.contains(SessionCapabilities::DIRECT_LOAD),
        direct_alloc: g.capabilities.contains(SessionCapabilities::DIRECT_ALLOC),
    }
}

fn text(g: &Grant) -> String {
    let pool = u64::from(g.blocks) * u64::from(g.block_size);
    let granted = |yes: bool| if yes { "granted" } else { "not granted" };
    let mut sheet = Sheet::new();
    sheet.row("target", g.target);
    sheet.row("instance", g.instance);
    sheet.row(
        "pool",
        format_args!(
            "{} blocks of {} ({})",
            count(u64::from(g.blocks)),
            octets(u64::from(g.block_size)),
            octets(pool)
        ),
    );
    sheet.row("handles", count(g.handles));
    sheet.row("lease", lease_words(g.lease_ms));
    sheet.row("ticket timeout", lease_words(g.ticket_timeout_ms));
    sheet.row("requests in flight", g.credits);
    sheet.row("inline data", octets(u64::from(g.max_inline)));
    sheet.row("direct load", granted(g.direct_load));
    sheet.row("direct allocation", granted(g.direct_alloc));
    sheet.text()
}
