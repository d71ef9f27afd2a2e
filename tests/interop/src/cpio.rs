//! Archives that the kernel unpacks as its first root: the format "newc" of cpio. Several in one file are unpacked one
//! after the other.

use std::io::{self, Write};

/// A regular file, an executable one, a folder, a symbolic link: type and rights as in `stat`.
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;
const FOLDER: u32 = 0o040_755;
const LINK: u32 = 0o120_777;

/// An archive on its way out. Parents are not made: add a folder before what lies in it.
#[derive(Debug)]
pub struct Archive<W: Write> {
    out: W,
    entries: u32,
    written: u64,
}

impl<W: Write> Archive<W> {
    /// An archive that is written to `out`.
    pub const fn new(out: W) -> Self {
        Self {
            out,
            entries: 0,
            written: 0,
        }
    }

    /// A folder.
    ///
    /// # Errors
    /// Writing failed.
    pub fn folder(&mut self, name: &str) -> io::Result<()> {
        self.entry(name, FOLDER, b"")
    }

    /// A file; `program` may be run.
    ///
    /// # Errors
    /// Writing failed, or the file has 4 GiB and more.
    pub fn file(&mut self, name: &str, program: bool, content: &[u8]) -> io::Result<()> {
        self.entry(name, if program { PROGRAM } else { FILE }, content)
    }

    /// A symbolic link to `to`.
    ///
    /// # Errors
    /// Writing failed.
    pub fn link(&mut self, name: &str, to: &str) -> io::Result<()> {
        self.entry(name, LINK, to.as_bytes())
    }

    /// The end of the archive. Gives back what it was written to.
    ///
    /// # Errors
    /// Writing failed.
    pub fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, b"")?;
        Ok(self.out)
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        let too_long = |_| io::Error::new(io::ErrorKind::InvalidInput, "4 GiB and more");
        self.entries += 1;
        let name_len = u32::try_from(name.len() + 1).map_err(too_long)?;
        let content_len = u32::try_from(content.len()).map_err(too_long)?;
        // Inode, mode, owner, group, links, time, length, device twice, name, no check sum.
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            content_len,
            0,
            0,
            0,
            0,
            name_len,
            0,
        ];
        let mut header = Vec::from(*b"070701");
        for field in fields {
            write!(header, "{field:08x}")?;
        }
        self.octets(&header)?;
        self.octets(name.as_bytes())?;
        self.octets(b"\0")?;
        self.pad()?;
        self.octets(content)?;
        self.pad()
    }

    fn octets(&mut self, octets: &[u8]) -> io::Result<()> {
        self.written += octets.len() as u64;
        self.out.write_all(octets)
    }

    /// Names and contents begin at multiples of four.
    fn pad(&mut self) -> io::Result<()> {
        while !self.written.is_multiple_of(4) {
            self.octets(b"\0")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_as_cpio_makes_it() {
        let mut archive = Archive::new(Vec::new());
        archive.folder("d").unwrap();
        archive.file("d/f", false, b"hello").unwrap();
        let octets = archive.finish().unwrap();
        let text = String::from_utf8(octets).unwrap();
        // Written down by hand from the format's description: 6 octets of magic, 13 fields of 8 digits, the name.
        let folder = "070701\
            00000001000041ed00000000000000000000000100000000\
            0000000000000000000000000000000000000000\
            0000000200000000d\0";
        assert_eq!(&text[..112], folder);
        let file = "070701\
            00000002000081a400000000000000000000000100000000\
            0000000500000000000000000000000000000000\
            0000000400000000d/f\0\0\0hello\0\0\0";
        assert_eq!(&text[112..112 + 124], file);
        assert!(text[236..].starts_with("070701"));
        assert!(text.ends_with("TRAILER!!!\0\0\0\0"));
        assert_eq!(text.len() % 4, 0);
    }
}
