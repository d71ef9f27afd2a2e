//! Small files of `/sys` and `/proc`.

use std::fs;
use std::path::Path;

/// Names in a directory, sorted; none if there is no such directory.
pub(super) fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .filter_map(|e| e.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// What a file says, without the space around it.
pub(super) fn word(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The number a file says.
pub(super) fn number(path: &Path) -> Option<u64> {
    word(path)?.parse().ok()
}

/// A directory with files that stands for `/` in a test.
#[cfg(test)]
pub(super) fn machine(files: &[(&str, &str)]) -> kbtp_harness::Scratch {
    let root = kbtp_harness::Scratch::new();
    for (path, text) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}
