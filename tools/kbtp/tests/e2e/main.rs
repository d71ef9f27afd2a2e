//! The `kbtp` command as processes that are killed, cut off and overheard.

#[cfg(test)]
mod common;
#[cfg(test)]
mod decoder;
#[cfg(test)]
mod kills;
#[cfg(test)]
mod net;
#[cfg(test)]
mod network;
#[cfg(test)]
mod strangers;
