//! The lines that a peer can have logged before it has a session, or with sessions that it begins again and again: each kind
//! has a [budget](LogBudget). What is left out of the log is in the metrics all the same, as `kbtp_session_ends_total` by
//! reason, `kbtp_connections_total` by result and `kbtp_streams_turned_away_total`.

use kbtp_fabric::{LogBudget, Time};
use kbtp_iwarp_tcp::PEER_LOG;

pub(crate) static TURNED_AWAY: LogBudget = LogBudget::new("a stream is refused");
pub(crate) static HELLO_REFUSED: LogBudget = LogBudget::new("a HELLO is refused");
pub(crate) static BROKE_PROTOCOL: LogBudget = LogBudget::new("an initiator broke the protocol");
pub(crate) static STREAM_ENDED: LogBudget = LogBudget::new("a stream ended");
pub(crate) static FAILED: LogBudget = LogBudget::new("a stream cannot be served");
pub(crate) static NO_PARTITION: LogBudget = LogBudget::new("no contiguous partition is left");
pub(crate) static TICKETS_ABANDONED: LogBudget = LogBudget::new("tickets abandoned");
pub(crate) static ADMIN_REFUSED: LogBudget =
    LogBudget::new("the admin endpoint could not accept a connection");
pub(crate) static NO_SESSION: LogBudget = LogBudget::new("stream ends without a session");

static ALL: [&LogBudget; 9] = [
    &TURNED_AWAY,
    &HELLO_REFUSED,
    &BROKE_PROTOCOL,
    &STREAM_ENDED,
    &FAILED,
    &NO_PARTITION,
    &TICKETS_ABANDONED,
    &ADMIN_REFUSED,
    &NO_SESSION,
];

/// Says how many lines were left out, of the kinds whose time has come, and when it is to be called again.
pub(crate) fn settle(now: Time) -> Option<Time> {
    let all = || ALL.iter().chain(&PEER_LOG);
    for budget in all() {
        if let Some(more) = budget.settle(now) {
            tracing::warn!("{more} more like it: {}", budget.what());
        }
    }
    all().filter_map(|budget| budget.due()).min()
}
