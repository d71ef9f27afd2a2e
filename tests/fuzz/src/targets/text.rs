//! What people and their files say: configuration, command line, traces, maps of stored files.

use kbtp::map::Map;
use kbtp::trace::TraceReader;
use kbtp::units::{parse_duration, parse_lease};
use kbtp::{cli, config};
use kbtp_target::{TargetConfig, format_size, parse_size};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

/// The file of `kbtp serve`. Whatever it holds is a configuration or an error in words; so is what the checks say.
pub(super) fn target_config(octets: &[u8]) {
    let Ok(text) = str::from_utf8(octets) else {
        return;
    };
    match toml::from_str::<TargetConfig>(text) {
        Ok(config) => {
            if let Err(error) = config.validate() {
                let said = error.to_string();
                assert!(
                    said.contains(error.key) && !error.remedy.is_empty(),
                    "{said}"
                );
            } else {
                assert!(config.handle_count() >= config.blocks);
                assert!((1..=config.blocks).contains(&config.quota_default()));
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A command line, its words separated by zero octets, and the words themselves as sizes and durations.
pub(super) fn command_line(octets: &[u8]) {
    let words = octets.split(|octet| *octet == 0).take(32);
    let mut line = vec![OsString::from("kbtp")];
    for word in words {
        line.push(OsString::from_vec(word.to_vec()));
        if let Ok(text) = str::from_utf8(word) {
            if let Ok(size) = parse_size(text) {
                assert_eq!(parse_size(&format_size(size)), Ok(size));
            }
            if let Ok(lease) = parse_lease(text) {
                let _wire = lease.to_wire_ms();
            }
            let _either = parse_duration(text).is_ok();
        }
    }
    if let Err(error) = cli::parse(line) {
        assert!(!error.to_string().is_empty());
        assert!(matches!(error.exit_code(), 0 | 2));
    }
}

/// A trace: requests, or an error that names its line.
pub(super) fn trace(octets: &[u8]) {
    let mut reader = TraceReader::new(octets, "trace".to_owned());
    let lines = octets.split(|octet| *octet == b'\n').count();
    for _ in 0..=lines {
        match reader.next_request() {
            Ok(Some(_)) => {}
            Ok(None) => {
                assert_eq!(usize::try_from(reader.octets_read()), Ok(octets.len()));
                return;
            }
            Err(failure) => {
                assert!(failure.to_string().contains("trace:"));
                return;
            }
        }
    }
    unreachable!("more requests than lines");
}

/// The files that `kbtp serve` is named: what is wrong is said with the line that it is in.
pub(super) fn config_file(octets: &[u8]) {
    let Ok(text) = str::from_utf8(octets) else {
        return;
    };
    let path = Path::new("some/file.toml");
    let lines = text.split('\n').count();
    let target = config::target(path, text).err();
    let tenants = config::tenants(path, text).err();
    for failure in [target, tenants].into_iter().flatten() {
        let said = failure.to_string();
        let line = said.strip_prefix("some/file.toml:");
        let line = line.and_then(|rest| rest.split_once(": ")?.0.parse().ok());
        assert!(
            line.is_some_and(|line: usize| (1..=lines).contains(&line)),
            "{said}"
        );
        // Keys are in such files: an error is one line, and does not quote the others.
        assert!(!said.contains('\n'));
    }
}

/// The map of stored files: what is one is written and read again as it is, and names files of its own folder only.
pub(super) fn map_file(octets: &[u8]) {
    match Map::parse(octets) {
        Ok(map) => {
            let Ok(written) = map.to_octets() else {
                unreachable!("a map is JSON");
            };
            assert_eq!(Map::parse(&written), Ok(map));
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}
