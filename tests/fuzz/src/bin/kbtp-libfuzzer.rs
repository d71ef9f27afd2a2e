//! libFuzzer over the target that `KBTP_FUZZ_TARGET` names; `cargo xtask fuzz` builds it with coverage and runs it.
#![forbid(unsafe_code)]
#![no_main]

use kbtp_fuzz::{TARGETS, Target};
use std::sync::OnceLock;

static TARGET: OnceLock<&Target> = OnceLock::new();

fn named() -> &'static Target {
    let name = std::env::var("KBTP_FUZZ_TARGET").unwrap_or_default();
    let Some(target) = TARGETS.iter().find(|target| target.name == name) else {
        unreachable!("KBTP_FUZZ_TARGET is {name:?}, which is no target");
    };
    target
}

libfuzzer_sys::fuzz_target!(|octets: &[u8]| {
    (TARGET.get_or_init(named).run)(octets);
});
