//! `kbtp wqe`: what the chains of work queue elements are, whether they keep their rules, what they cost, and what they do.
//!
//! Everything is looked at as it is for one session on a model of a NIC ([`rig`]); nothing here touches a device.

mod calibrate;
mod check;
mod cost;
mod names;
mod rig;
mod run;
mod scene;
mod show;
mod svg;

use crate::cli::wqe::{WqeChainArgs, WqeCommand, WqeProfile};
use crate::failure::{Failure, chain};
use kbtp_chain::Template;
use kbtp_wire::ByteLen;
use std::path::Path;

/// Runs the command.
///
/// # Errors
/// [`Failure`] if a rule does not hold, a file cannot be read or written, or output fails.
pub(crate) fn run(command: &WqeCommand, json: bool) -> Result<(), Failure> {
    match command {
        WqeCommand::Show(args) => show::run(args, json),
        WqeCommand::Check(args) => check::run(args, json),
        WqeCommand::Cost(args) => cost::run(args, json),
        WqeCommand::Run(args) => run::run(args, json),
        WqeCommand::Calibrate(args) => calibrate::run(args, json),
    }
}

impl WqeChainArgs {
    fn template(self) -> Template {
        template(self.profile, self.block_size)
    }
}

fn template(profile: WqeProfile, block_size: u32) -> Template {
    match profile {
        WqeProfile::Full => kbtp_chain::full(ByteLen(block_size)),
        WqeProfile::Load => kbtp_chain::load(ByteLen(block_size)),
    }
}

/// Something that cannot go wrong here went wrong.
fn broken(doing: &str, error: &dyn std::error::Error) -> Failure {
    let what = chain(error);
    Failure::operation(format_args!("cannot {doing}: {what}"), "report this")
}

fn write_svg(path: &Path, drawing: &str) -> Result<(), Failure> {
    std::fs::write(path, drawing).map_err(|e| Failure::file("write", path, &e))
}

/// Adds a line.
fn put(text: &mut String, line: std::fmt::Arguments<'_>) {
    text.push_str(&line.to_string());
    text.push('\n');
}

/// Octets as hexadecimal digits.
fn hex(octets: &[u8]) -> String {
    let digits = octets.iter().flat_map(|octet| [octet >> 4, octet & 15]);
    digits
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}

/// The octets that hexadecimal digits stand for.
fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let octet = |pair: &[u8; 2]| {
        // A sign is no digit, though a number may have one.
        let digits = std::str::from_utf8(pair).ok();
        let digits = digits.filter(|_| pair.iter().all(u8::is_ascii_hexdigit))?;
        u8::from_str_radix(digits, 16).ok()
    };
    rest.is_empty()
        .then(|| pairs.iter().map(octet).collect())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_become_digits_and_digits_octets() {
        assert_eq!(hex(&[0, 0xa5, 255]), "00a5ff");
        assert_eq!(unhex("00a5ff"), Some(vec![0, 0xa5, 255]));
        for wrong in ["0", "0g", "é", "+f", "-0"] {
            assert_eq!(unhex(wrong), None, "{wrong}");
        }
    }
}
