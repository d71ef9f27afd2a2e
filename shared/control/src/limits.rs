//! The bounds of the control protocol, each with its reason.

use std::time::Duration;

/// Longest frame, header included, in octets. The longest message is a status report with [`MAX_SIDE_REGIONS`] rows
/// of at most 96 octets, and a refusal with a sentence in it; both fit twice.
pub const MAX_FRAME_LEN: usize = 4096;

/// Longest name of a side region, in octets: a word or two, and it goes into the kernel's name of the memfd (249).
pub const MAX_NAME_LEN: usize = 64;

/// Side regions an agent keeps. A target has three (table, ring, directory); the rest is for a second generation of
/// each while the first is read back.
pub const MAX_SIDE_REGIONS: usize = 16;

/// Longest sentence in a refusal or a report, in octets: what one line of a log holds.
pub const MAX_TEXT_LEN: usize = 512;

/// Control connections an agent serves at once: one target, and people who look.
pub const MAX_CLIENTS: usize = 32;

/// Connections the kernel may queue before the agent accepts them.
pub const BACKLOG: i32 = 16;

/// Longest path of a Unix socket, in octets (`sun_path` less its final zero).
pub const MAX_PATH_LEN: usize = 107;

/// How long a client may be connected without having said Hello. A client that keeps a place and says nothing would
/// otherwise keep it for ever.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a call waits for the agent's answer unless told otherwise. Creating a side region of many GiB touches
/// and locks each page first: some seconds at 4 GiB/s.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a target that ends waits for the agent to say that it let go. The agent answers within a turn of its loop
/// and allocates nothing for it; one that is stopped or hung sees the socket close when it goes on, which says the same.
pub const DETACH_TIMEOUT: Duration = Duration::from_secs(2);
