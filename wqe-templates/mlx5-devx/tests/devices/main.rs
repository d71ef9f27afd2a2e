//! The device over a kernel that keeps what it is given.
#![forbid(unsafe_code)]

#[cfg(test)]
mod device;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod target;
