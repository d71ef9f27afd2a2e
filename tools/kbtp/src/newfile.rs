//! A file that has no name until it is whole: whoever is killed while writing it leaves nothing behind.

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::unistd::linkat;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The file.
#[derive(Debug)]
pub(crate) struct NewFile {
    file: File,
    /// The name it is to have.
    path: PathBuf,
    /// The name it has meanwhile, where the file system knows no files without one.
    part: Option<PathBuf>,
}

impl NewFile {
    /// A file that is to be called `path`, with the permissions `mode` as far as the process' mask lets it.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn create(path: &Path, mode: u32) -> io::Result<Self> {
        match Self::unnamed(path, mode) {
            Ok(new) => Ok(new),
            // No such files in this file system, or none in this kernel, or no /proc to name one by.
            Err(e)
                if matches!(
                    Errno::from_raw(e.raw_os_error().unwrap_or(0)),
                    Errno::EOPNOTSUPP | Errno::EISDIR | Errno::EINVAL
                ) =>
            {
                Self::named(path, mode)
            }
            Err(e) => Err(e),
        }
    }

    fn unnamed(path: &Path, mode: u32) -> io::Result<Self> {
        if !Path::new(OWN_FILES).exists() {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let file = OpenOptions::new()
            .write(true)
            .mode(mode)
            .custom_flags(OFlag::O_TMPFILE.bits())
            .open(folder(path))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            part: None,
        })
    }

    fn named(path: &Path, mode: u32) -> io::Result<Self> {
        let part = beside(path);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&part)?;
        Ok(Self {
            file,
            path: path.to_owned(),
            part: Some(part),
        })
    }

    /// Where to write its content.
    pub(crate) const fn file(&self) -> &File {
        &self.file
    }

    /// Gives it its name, once its content has reached the disk. Another file of that name goes only if `replace` says
    /// so.
    ///
    /// # Errors
    /// What the system says: [`io::ErrorKind::AlreadyExists`] if the name is taken. Without `replace` the name is then
    /// what it was.
    pub(crate) fn publish(mut self, replace: bool) -> io::Result<()> {
        self.file.sync_all()?;
        if replace {
            let part = beside(&self.path);
            if self.part.is_none() {
                // A link cannot take the place of a file, a rename can.
                self.link(&part)?;
                self.part = Some(part.clone());
            }
            fs::rename(part, &self.path)?;
            self.part = None;
        } else if let Some(part) = &self.part {
            fs::hard_link(part, &self.path)?;
        } else {
            self.link(&self.path)?;
        }
        let kept = File::open(folder(&self.path)).and_then(|folder| folder.sync_all());
        match kept {
            // A file system that keeps no folders of its own need not be told.
            Err(e) if e.kind() != io::ErrorKind::InvalidInput => {
                if !replace {
                    drop(fs::remove_file(&self.path));
                }
                Err(e)
            }
            _ => Ok(()),
        }
    }

    /// Gives the file without a name the name `to`, which is free.
    fn link(&self, to: &Path) -> io::Result<()> {
        let own = PathBuf::from(format!("{OWN_FILES}/{}", self.file.as_raw_fd()));
        linkat(AT_FDCWD, &own, AT_FDCWD, to, AtFlags::AT_SYMLINK_FOLLOW).map_err(io::Error::from)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            // It may have its last name already; this one goes in any case.
            drop(fs::remove_file(part));
        }
    }
}

/// The open files of this process, by number.
const OWN_FILES: &str = "/proc/self/fd";

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// A name for the meantime.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.part", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kbtp_harness::Scratch;
    use std::io::Write as _;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    type Make = fn(&Path, u32) -> io::Result<NewFile>;

    #[test]
    fn a_file_has_its_name_when_it_is_whole_and_never_before() {
        let makes: [(&str, Make); 2] = [("create", NewFile::create), ("named", NewFile::named)];
        for (way, make) in makes {
            let folder = Scratch::new();
            let path = folder.join("map");
            let new = make(&path, 0o600).unwrap();
            new.file().write_all(b"whole").unwrap();
            assert!(!path.exists(), "{way}");
            new.publish(false).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"whole", "{way}");
            // Given up, and in vain: the name is what it was.
            drop(make(&path, 0o600).unwrap());
            let late = make(&path, 0o600).unwrap();
            let error = late.publish(false).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{way}");
            assert_eq!(fs::read(&path).unwrap(), b"whole", "{way}");
            let new = make(&path, 0o600).unwrap();
            new.file().write_all(b"new").unwrap();
            new.publish(true).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"new", "{way}");
            assert_eq!(names(&folder), ["map"], "{way}");
        }
    }

    /// What a kill leaves: the process is gone and nothing was dropped.
    #[test]
    fn one_that_is_never_finished_leaves_nothing_to_be_found() {
        let folder = Scratch::new();
        let new = NewFile::create(&folder.join("map"), 0o600).unwrap();
        new.file().write_all(b"half").unwrap();
        if new.part.is_none() {
            assert_eq!(names(&folder), Vec::<String>::new());
        } else {
            println!("SKIPPED, NOTHING TESTED: no files without a name here");
        }
        drop(new);
    }
}
