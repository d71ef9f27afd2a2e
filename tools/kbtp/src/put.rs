//! `kbtp put`: files become runs of blocks, and a map says where they are.

use crate::cli::PutArgs;
use crate::driver::{self, Interrupt};
use crate::failure::Failure;
use crate::map::{self, Id, Map, MapBlock, MapFile};
use crate::output::{self, Progress};
use crate::session::{self, Session};
use crate::units::{count, lease_words, octets, rate};
use kbtp_initiator::{
    Buffer, ClientError, FreeItem, Generation, Handle, InitiatorId, Options, StoreItem,
};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What was stored.
#[derive(Debug, Serialize)]
struct Report {
    map: PathBuf,
    target: String,
    files: usize,
    blocks: u64,
    octets: u64,
    lease_ms: u32,
    elapsed_ns: u64,
}

/// A file to store.
#[derive(Debug)]
struct Source<'a> {
    path: &'a Path,
    name: String,
    length: u64,
}

/// Runs the command.
///
/// # Errors
/// [`Failure`]; blocks stored before it are freed again.
pub(crate) fn run(args: &PutArgs, json: bool) -> Result<(), Failure> {
    // Before any thread: they inherit the blocked signals.
    let interrupt = Interrupt::take()?;
    let sources = sources(&args.files)?;
    let map_path = map_path(args)?;
    let options = session::options(args.at.target, &args.at.who)?;
    let needed = needed(options.clone(), &sources, args.at.target)?;
    let id = driver::random_id()?;
    let mut session = session::open(
        options
            .initiator_id(InitiatorId(id))
            .quota(needed)
            .handles(u64::from(needed)),
    )?;
    let grant = session.terms().grant;
    if grant.quota < needed {
        return Err(Failure::operation(
            format_args!(
                "{needed} blocks are needed, {} grants {}",
                args.at.target, grant.quota
            ),
            "free blocks, wait for leases to run out, or start the target with more --blocks",
        ));
    }
    let began = driver::now();
    tell_what_stays(&interrupt, Id(id), args.at.target);
    let mut writer = Writer::new(&mut session, interrupt)?;
    let stored = writer.store_all(&sources).and_then(|files| {
        let map = Map {
            format: Map::FORMAT,
            target: args.at.target,
            tenant: args.at.who.tenant.clone(),
            instance_id: Id(grant.instance.0),
            initiator_id: Id(id),
            block_size: grant.block_size.0,
            lease_ms: grant.lease_ms,
            files,
        };
        map.write_new(&map_path).map(|()| map)
    });
    let map = match stored {
        Ok(map) => map,
        Err(failure) => {
            return Err(match writer.free_all() {
                Ok(()) => failure,
                Err(left) => failure.and(format_args!(
                    "what was stored before could not be freed ({left}) and stays until its lease ends; to free it: \
                     kbtp free --initiator {} --target {}",
                    Id(id),
                    args.at.target
                )),
            });
        }
    };
    let elapsed = began.elapsed();
    session
        .close()
        .map_err(|e| session::failed("cannot end the session", &e))?;
    let report = Report {
        target: args.at.target.to_string(),
        files: map.files.len(),
        blocks: map.block_count(),
        octets: sources.iter().map(|s| s.length).sum(),
        lease_ms: map.lease_ms,
        elapsed_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
        map: map_path,
    };
    output::report(json, &report, || text(&report))
}

/// Says how to free what was stored, should the process end without having come to free it.
fn tell_what_stays(interrupt: &Interrupt, id: Id, target: SocketAddr) {
    interrupt.on_abandon(move || {
        output::note(&format!(
            "kbtp: what was stored stays until its lease ends; to free it before: kbtp free --initiator {id} --target {target}"
        ));
    });
}

fn text(report: &Report) -> String {
    let kept = match report.lease_ms {
        u32::MAX => "until they are freed or the target ends".to_owned(),
        ms => format!("for {} from now", lease_words(ms)),
    };
    format!(
        "stored {} in {} blocks at {} ({}); kept {kept}\nmap: {}\n",
        octets(report.octets),
        count(report.blocks),
        report.target,
        rate(report.octets, Duration::from_nanos(report.elapsed_ns)),
        report.map.display()
    )
}

/// How many blocks the files need. That is known only with the block size, which a first session, ended at once, asks
/// for.
fn needed(options: Options, sources: &[Source<'_>], target: SocketAddr) -> Result<u32, Failure> {
    let probe = session::open(options.quota(1))?;
    let grant = probe.terms().grant;
    probe
        .close()
        .map_err(|e| session::failed("cannot end the session", &e))?;
    if grant.lease_ms == 0 {
        return Err(Failure::operation(
            format_args!("{target} keeps no blocks when a session ends"),
            "start the target with a --lease longer than 0",
        ));
    }
    blocks_needed(sources, grant.block_size.0)
}

fn sources(paths: &[PathBuf]) -> Result<Vec<Source<'_>>, Failure> {
    let mut names = BTreeSet::new();
    let mut sources = Vec::with_capacity(paths.len());
    for path in paths {
        let data = path
            .metadata()
            .map_err(|e| Failure::file("read", path, &e))?;
        let name = path.file_name().and_then(|n| n.to_str());
        if !data.is_file() {
            let kind = if data.is_dir() {
                "a directory"
            } else {
                "not a regular file"
            };
            return Err(Failure::usage(
                format_args!("{} is {kind}", path.display()),
                "name regular files",
            ));
        }
        let Some(name) = name else {
            return Err(Failure::usage(
                format_args!("{} has a name that is not UTF-8", path.display()),
                "rename it",
            ));
        };
        if !names.insert(name) {
            return Err(Failure::usage(
                format_args!("two files are called {name}"),
                "store them with a map each",
            ));
        }
        sources.push(Source {
            path,
            name: name.to_owned(),
            length: data.len(),
        });
    }
    Ok(sources)
}

/// Where the map goes; early, so that nothing is stored in vain.
fn map_path(args: &PutArgs) -> Result<PathBuf, Failure> {
    let path = match (&args.map, args.files.as_slice()) {
        (Some(path), _) => path.clone(),
        (None, [file]) => map::beside(file),
        (None, _) => {
            return Err(Failure::usage(
                "several files and no name for their map",
                "add --map MAP",
            ));
        }
    };
    if path.exists() {
        // Without their map, blocks that it lists could be freed by nobody: never advise to remove it.
        return Err(Failure::operation(
            format_args!("the map {} exists", path.display()),
            "free what it lists with kbtp free, or name another with --map",
        ));
    }
    Ok(path)
}

fn blocks_needed(sources: &[Source<'_>], block_size: u32) -> Result<u32, Failure> {
    let size = u64::from(block_size.max(1));
    let needed: u64 = sources.iter().map(|s| s.length.div_ceil(size)).sum();
    // A session without a block to its name is none: ask for one at least.
    u32::try_from(needed.max(1)).map_err(|_| {
        Failure::operation(
            format_args!("{needed} blocks are needed"),
            "no pool has so many: store fewer files, or use larger blocks",
        )
    })
}

/// Stores blocks one after the other into the handles of a session.
struct Writer<'s> {
    session: &'s mut Session,
    buffers: Vec<Buffer>,
    next: u64,
    stored: Vec<(Handle, Generation)>,
    interrupt: Interrupt,
}

impl<'s> Writer<'s> {
    fn new(session: &'s mut Session, interrupt: Interrupt) -> Result<Self, Failure> {
        let buffers = session::buffers(session, session.block_size())?;
        Ok(Self {
            session,
            buffers,
            next: 0,
            stored: Vec::new(),
            interrupt,
        })
    }

    fn store_all(&mut self, sources: &[Source<'_>]) -> Result<Vec<MapFile>, Failure> {
        let mut progress = Progress::new(sources.iter().map(|s| s.length).sum(), "storing");
        let mut done = 0;
        let mut files = Vec::with_capacity(sources.len());
        for source in sources {
            files.push(self.store_file(source, &mut progress, done)?);
            done += source.length;
        }
        progress.finish();
        Ok(files)
    }

    fn store_file(
        &mut self,
        source: &Source<'_>,
        progress: &mut Progress,
        before: u64,
    ) -> Result<MapFile, Failure> {
        let reading = |e| Failure::file("read", source.path, &e);
        let mut file = File::open(source.path).map_err(reading)?;
        let mut digest = Sha256::new();
        let mut blocks = Vec::new();
        let mut length = 0;
        let mut block = vec![0; usize::try_from(self.session.block_size()).unwrap_or(0)];
        loop {
            let mut filled = 0;
            for buffer in &mut self.buffers {
                let got = read_full(&mut file, &mut block).map_err(reading)?;
                let data = block.get(..got).unwrap_or_default();
                if data.is_empty() {
                    break;
                }
                digest.update(data);
                buffer
                    .fill(data)
                    .map_err(|e| session::failed("cannot fill a buffer", &e))?;
                length += u64::try_from(got).unwrap_or(0);
                filled += 1;
            }
            self.interrupt
                .check(format_args!("while storing {}", source.path.display()))?;
            if filled == 0 {
                break;
            }
            // Before it takes blocks that the session was not granted.
            if length > source.length {
                return Err(changed(source, length));
            }
            self.store_batch(filled, source, &mut blocks)?;
            progress.at(before + length);
        }
        if length != source.length {
            return Err(changed(source, length));
        }
        Ok(MapFile {
            name: source.name.clone(),
            length,
            sha256: hex(&digest.finalize()),
            blocks,
        })
    }

    /// Stores the first `filled` buffers into the next handles.
    fn store_batch(
        &mut self,
        filled: usize,
        source: &Source<'_>,
        blocks: &mut Vec<MapBlock>,
    ) -> Result<(), Failure> {
        let (base, handles) = self.session.handles();
        let mut items = Vec::with_capacity(filled);
        for (i, buffer) in self.buffers.iter_mut().take(filled).enumerate() {
            let number = self.next + u64::try_from(i).unwrap_or(0);
            if number >= handles {
                return Err(Failure::operation(
                    format_args!("{} grew while it was read", source.path.display()),
                    "store it when nobody writes it",
                ));
            }
            items.push(StoreItem::new(Handle(base.0 + number), buffer));
        }
        let ran = self.session.alloc_store_many(&mut items);
        let doing = || format!("cannot store {}", source.path.display());
        let mut first_error = ran.err();
        for item in items {
            match item.result {
                Some(Ok(done)) => {
                    self.stored.push((item.handle, done.generation));
                    blocks.push(MapBlock {
                        handle: item.handle.0,
                        generation: done.generation.get(),
                        length: done.len.0,
                    });
                }
                Some(Err(e)) => first_error = first_error.or(Some(e)),
                None => {}
            }
        }
        self.next += u64::try_from(filled).unwrap_or(0);
        first_error.map_or(Ok(()), |e| Err(session::failed(&doing(), &e)))
    }

    /// Frees what was stored, as far as the session still can: the lease takes the rest.
    fn free_all(&mut self) -> Result<(), ClientError> {
        let mut items: Vec<FreeItem> = self
            .stored
            .drain(..)
            .map(|(handle, generation)| {
                let mut item = FreeItem::new(handle);
                item.options.generation = Some(generation);
                item
            })
            .collect();
        self.session.free_many(&mut items)?;
        items
            .into_iter()
            .find_map(|item| item.result?.err())
            .map_or(Ok(()), Err)
    }
}

fn changed(source: &Source<'_>, length: u64) -> Failure {
    Failure::operation(
        format_args!(
            "{} changed while it was read: {length} octets so far, {} before",
            source.path.display(),
            source.length
        ),
        "store it when nobody writes it",
    )
}

/// Fills `block` from `file` as far as the file goes; returns how far.
fn read_full(file: &mut impl Read, block: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = block.get_mut(done..).filter(|r| !r.is_empty()) {
        match file.read(rest) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Octets in hexadecimal.
pub(crate) fn hex(octets: &[u8]) -> String {
    octets.iter().fold(String::new(), |mut text, octet| {
        for nibble in [octet >> 4, octet & 15] {
            text.extend(char::from_digit(u32::from(nibble), 16));
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_for_each_file() {
        let source = |length| Source {
            path: Path::new("x"),
            name: String::new(),
            length,
        };
        let needed = |lengths: &[u64]| {
            let sources: Vec<_> = lengths.iter().map(|&l| source(l)).collect();
            blocks_needed(&sources, 4096)
        };
        assert_eq!(needed(&[1, 4096, 4097]).unwrap(), 4);
        assert_eq!(needed(&[0]).unwrap(), 1);
        assert!(needed(&[u64::MAX]).is_err());
    }

    #[test]
    fn short_reads_are_joined() {
        struct Drip(u8);
        impl Read for Drip {
            fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
                if self.0 == 0 {
                    return Ok(0);
                }
                self.0 -= 1;
                to[0] = self.0;
                Ok(1)
            }
        }
        let mut block = [9; 4];
        assert_eq!(read_full(&mut Drip(6), &mut block).unwrap(), 4);
        assert_eq!(block, [5, 4, 3, 2]);
        assert_eq!(read_full(&mut Drip(2), &mut block).unwrap(), 2);
    }

    #[test]
    fn digests_print_as_sha256sum_does() {
        assert_eq!(
            hex(&Sha256::digest(b"abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
