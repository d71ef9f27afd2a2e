//! The `kbtp` command from outside, as a process.

#[cfg(test)]
mod command;
#[cfg(test)]
mod common;
#[cfg(test)]
mod serving;
#[cfg(test)]
mod stopping;
#[cfg(test)]
mod wqe;
