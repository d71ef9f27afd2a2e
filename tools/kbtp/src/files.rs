//! Small files that a user names: read to a bound, so that a device or a wrong name does not fill the memory.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Octets of a configuration or a key at most.
pub(crate) const SETTINGS_MAX: u64 = 1 << 20;

/// The content of the file at `path`, of at most `max` octets.
///
/// # Errors
/// What the system says, or that the file is longer.
pub(crate) fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?
        .take(max.saturating_add(1))
        .read_to_end(&mut content)?;
    if u64::try_from(content.len()).is_ok_and(|len| len <= max) {
        return Ok(content);
    }
    Err(io::Error::new(
        io::ErrorKind::FileTooLarge,
        format!("longer than {}", crate::units::octets(max)),
    ))
}

/// As [`read`], of a file that is text.
///
/// # Errors
/// As [`read`], or that it is not UTF-8.
pub(crate) fn read_text(path: &Path, max: u64) -> io::Result<String> {
    String::from_utf8(read(path, max)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not text (UTF-8)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_end_is_not_read_whole() {
        let error = read(Path::new("/dev/zero"), 4096).unwrap_err();
        assert_eq!(error.to_string(), "longer than 4.00 KiB");
        assert_eq!(read(Path::new("/dev/null"), 0).unwrap(), Vec::<u8>::new());
    }

    #[test]
    fn what_is_not_text_is_said() {
        let scratch = kbtp_harness::Scratch::new();
        let path = scratch.at("file");
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        let error = read_text(&path, 2).unwrap_err().to_string();
        assert_eq!(error, "not text (UTF-8)");
    }
}
