//! `kbtp get`: loads files back by their map.

use crate::cli::GetArgs;
use crate::driver::{self, Interrupt};
use crate::failure::Failure;
use crate::map::{Id, Map, MapBlock, MapFile};
use crate::newfile::NewFile;
use crate::output::{self, Progress};
use crate::put::hex;
use crate::session::{self, Session};
use crate::units::{count, octets, rate};
use kbtp_initiator::{Buffer, Generation, Handle, InitiatorId, LoadItem, Options};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What was loaded.
#[derive(Debug, Serialize)]
struct Report {
    files: Vec<PathBuf>,
    blocks: u64,
    octets: u64,
    elapsed_ns: u64,
}

/// Runs the command.
///
/// # Errors
/// [`Failure`]; a file that could not be loaded whole and right does not take its name.
pub(crate) fn run(args: &GetArgs, json: bool) -> Result<(), Failure> {
    // Before any thread: they inherit the blocked signals.
    let interrupt = Interrupt::take()?;
    let (map_path, map) = Map::read(&args.map)?;
    let files = chosen(&map, &args.file, &map_path)?;
    let to_stdout = args.output == Path::new("-");
    if !to_stdout && !args.force {
        refuse_existing(&files, &args.output)?;
    }
    let target = args.target.unwrap_or(map.target);
    let mut options = session::options(target, &args.who)?;
    // Anyone of the tenant may load, so that several may at once; one block of quota is the least a session has.
    options = if args.owner {
        as_owner(options, &map)
    } else {
        options.quota(1)
    };
    let mut session = session::open(options)?;
    check_instance(&session, &map, target)?;
    let explain = |failure| explain_tenant(failure, &map, args);

    let began = driver::now();
    let mut reader = Reader::new(&mut session, map.block_size, interrupt)?;
    let total: u64 = files.iter().map(|f| f.length).sum();
    let mut progress = Progress::new(total, "loading");
    let mut written = Vec::with_capacity(files.len());
    for file in &files {
        if to_stdout {
            let out = BufWriter::new(io::stdout().lock());
            reader
                .load(file, out, &mut progress, &|e| Failure::output(e))
                .map_err(explain)?;
        } else {
            let path = load_to_file(&mut reader, file, args, &mut progress);
            written.push(path.map_err(explain)?);
        }
    }
    progress.finish();
    let elapsed = began.elapsed();
    let blocks = reader.blocks;
    session
        .close()
        .map_err(|e| session::failed("cannot end the session", &e))?;
    if to_stdout {
        return Ok(());
    }
    let report = Report {
        blocks,
        octets: total,
        elapsed_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
        files: written,
    };
    output::report(json, &report, || text(&report))
}

fn text(report: &Report) -> String {
    let names = report.files.iter().map(|p| format!("{}\n", p.display()));
    format!(
        "{}loaded {} in {} blocks ({})\n",
        names.collect::<String>(),
        octets(report.octets),
        count(report.blocks),
        rate(report.octets, Duration::from_nanos(report.elapsed_ns))
    )
}

/// To another tenant than the owner, blocks that are there look like blocks that are gone.
fn explain_tenant(failure: Failure, map: &Map, args: &GetArgs) -> Failure {
    match &map.tenant {
        Some(of) if map.tenant != args.who.tenant => failure.and(format_args!(
            "the map is of tenant {of}, whose blocks others may load only if both are shared"
        )),
        _ => failure,
    }
}

/// Opens the session as the owner of the map's blocks.
pub(crate) fn as_owner(options: Options, map: &Map) -> Options {
    let blocks = map.block_count().max(1);
    options
        .initiator_id(InitiatorId(map.initiator_id.0))
        .quota(u32::try_from(blocks).unwrap_or(u32::MAX))
        .handles(blocks)
}

/// A target that restarted without its blocks has another Instance ID; handles would name nothing, or other blocks.
pub(crate) fn check_instance(
    session: &Session,
    map: &Map,
    target: SocketAddr,
) -> Result<(), Failure> {
    let grant = session.terms().grant;
    let now = Id(grant.instance.0);
    if now == map.instance_id && grant.block_size.0 == map.block_size {
        return Ok(());
    }
    if now == map.instance_id {
        return Err(Failure::operation(
            format_args!(
                "blocks of {target} have {} octets, those of the map {}",
                grant.block_size, map.block_size
            ),
            "restore the map that put wrote",
        ));
    }
    Err(Failure::operation(
        format_args!(
            "{target} is instance {now}, the map is of {}: its blocks are lost",
            map.instance_id
        ),
        "store the files again, and remove the map",
    ))
}

fn chosen<'m>(map: &'m Map, names: &[String], path: &Path) -> Result<Vec<&'m MapFile>, Failure> {
    if names.is_empty() {
        return Ok(map.files.iter().collect());
    }
    names
        .iter()
        .map(|name| {
            map.files.iter().find(|f| f.name == *name).ok_or_else(|| {
                let all: Vec<&str> = map.files.iter().map(|f| f.name.as_str()).collect();
                Failure::usage(
                    format_args!("{} has no file {name}", path.display()),
                    format_args!("it has {}", all.join(", ")),
                )
            })
        })
        .collect()
}

fn refuse_existing(files: &[&MapFile], dir: &Path) -> Result<(), Failure> {
    for file in files {
        let path = dir.join(&file.name);
        if path.exists() {
            return Err(Failure::operation(
                format_args!("{} exists", path.display()),
                "add --force to replace it, or name another directory with --output",
            ));
        }
    }
    Ok(())
}

/// Loads `file`, and gives it its name when it is whole and right.
fn load_to_file(
    reader: &mut Reader<'_>,
    file: &MapFile,
    args: &GetArgs,
    progress: &mut Progress,
) -> Result<PathBuf, Failure> {
    let path = args.output.join(&file.name);
    let failed = |e: &io::Error| Failure::file("write", &path, e);
    let new = NewFile::create(&path, 0o666).map_err(|e| failed(&e))?;
    reader.load(file, BufWriter::new(new.file()), progress, &failed)?;
    new.publish(args.force).map_err(|e| failed(&e))?;
    Ok(path)
}

/// Loads runs of blocks.
struct Reader<'s> {
    session: &'s mut Session,
    buffers: Vec<Buffer>,
    block: Vec<u8>,
    octets: u64,
    blocks: u64,
    interrupt: Interrupt,
}

impl<'s> Reader<'s> {
    fn new(
        session: &'s mut Session,
        block_size: u32,
        interrupt: Interrupt,
    ) -> Result<Self, Failure> {
        let buffers = session::buffers(session, block_size)?;
        Ok(Self {
            session,
            buffers,
            block: vec![0; usize::try_from(block_size).unwrap_or(0)],
            octets: 0,
            blocks: 0,
            interrupt,
        })
    }

    /// Writes the content of `file` to `out`, and checks it.
    fn load(
        &mut self,
        file: &MapFile,
        mut out: impl Write,
        progress: &mut Progress,
        writing: &dyn Fn(&io::Error) -> Failure,
    ) -> Result<(), Failure> {
        let mut digest = Sha256::new();
        for batch in file.blocks.chunks(self.buffers.len().max(1)) {
            self.interrupt
                .check(format_args!("while loading {}", file.name))?;
            self.load_batch(file, batch)?;
            for (block, buffer) in batch.iter().zip(&self.buffers) {
                let len = usize::try_from(block.length).unwrap_or(0);
                let to = self.block.get_mut(..len).unwrap_or_default();
                buffer
                    .read_at(0, to)
                    .map_err(|e| session::failed("cannot read a buffer", &e))?;
                digest.update(&*to);
                out.write_all(to).map_err(|e| writing(&e))?;
                self.octets += u64::from(block.length);
            }
            self.blocks += u64::try_from(batch.len()).unwrap_or(0);
            progress.at(self.octets);
        }
        out.flush().map_err(|e| writing(&e))?;
        let found = hex(&digest.finalize());
        if found == file.sha256 {
            return Ok(());
        }
        Err(Failure::operation(
            format_args!(
                "{}: SHA-256 is {found}, the map says {}",
                file.name, file.sha256
            ),
            "the map or the blocks are not what put wrote: store the file again",
        ))
    }

    /// Loads `batch` into the first buffers.
    fn load_batch(&mut self, file: &MapFile, batch: &[MapBlock]) -> Result<(), Failure> {
        let mut items = Vec::with_capacity(batch.len());
        for (block, buffer) in batch.iter().zip(&mut self.buffers) {
            let mut item = LoadItem::new(Handle(block.handle), buffer);
            item.options.generation = Generation::new(block.generation);
            items.push(item);
        }
        let doing = || format!("cannot load {}", file.name);
        self.session
            .load_many(&mut items)
            .map_err(|e| session::failed(&doing(), &e))?;
        for (item, block) in items.into_iter().zip(batch) {
            match item.result {
                Some(Ok(done)) if done.len.0 == block.length => {}
                Some(Ok(done)) => {
                    return Err(Failure::operation(
                        format_args!(
                            "{}: handle {} holds {} octets, the map says {}",
                            file.name, block.handle, done.len, block.length
                        ),
                        "the map is not of these blocks: store the file again",
                    ));
                }
                Some(Err(e)) => return Err(session::failed(&doing(), &e)),
                None => {
                    return Err(Failure::operation(
                        format_args!("{}: a load was not begun", doing()),
                        "try again",
                    ));
                }
            }
        }
        Ok(())
    }
}
