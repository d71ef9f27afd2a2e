//! The model: each of its parts, and the chains of both profiles on it.
#![forbid(unsafe_code)]

#[cfg(test)]
mod bare;
#[cfg(test)]
mod calibrate;
#[cfg(test)]
mod common;
#[cfg(test)]
mod drive;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod greet;
#[cfg(test)]
mod hazards;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod mutations;
#[cfg(test)]
mod opcodes;
#[cfg(test)]
mod perpetual;
#[cfg(test)]
mod random;
#[cfg(test)]
mod sessions;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod words;
