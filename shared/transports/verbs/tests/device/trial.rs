//! What the probe finds, on devices whose doings are known.

use super::pair::addresses;
use kbtp_verbs::probe::probe;
use kbtp_verbs::{Quirks, candidates};

/// The kernel's software devices, as they are.
fn known(device: &str) -> Option<Quirks> {
    if device.starts_with("siw") {
        return Some(Quirks::LEAST);
    }
    device.starts_with("rxe").then_some(Quirks {
        heeds_base: true,
        read_buffers: 2,
        immediate: true,
        atomics: true,
        windows: true,
        // It passes the kernel's flag on.
        invalidated_flag: kbtp_verbs_sys_flag(),
    })
}

/// The kernel's flag, in numbers: `1 << 2`.
const fn kbtp_verbs_sys_flag() -> u32 {
    4
}

#[test]
fn the_probe_finds_what_is_known() {
    for address in addresses() {
        let found = probe(address).unwrap();
        let listener = super::pair::listener(address, super::pair::options());
        println!("{address} ({}): {found:?}", listener.device());
        assert_eq!(listener.quirks(), found);
        if let Some(known) = known(listener.device()) {
            assert_eq!(found, known);
        }
    }
}

#[test]
fn every_device_is_a_candidate() {
    if addresses().is_empty() {
        return;
    }
    let found = candidates().unwrap();
    for candidate in &found {
        println!("{candidate:?}");
    }
    for address in addresses() {
        let listener = super::pair::listener(address, super::pair::options());
        assert!(
            found
                .iter()
                .any(|c| c.device == listener.device() && c.active)
        );
    }
}
