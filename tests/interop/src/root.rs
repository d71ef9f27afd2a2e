//! The guest's first root: busybox, modules, tools and their libraries in one archive.

use crate::cpio::Archive;
use crate::image::{Outcome, tool};
use crate::modules::Modules;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs of the packages, wherever they lie there.
const PROGRAMS: &[&str] = &[
    "usr/bin/ibv_devices",
    "usr/bin/ibv_devinfo",
    "usr/bin/ibv_rc_pingpong",
    "usr/bin/ibv_srq_pingpong",
    "usr/bin/rdma_client",
    "usr/bin/rdma_server",
    "usr/bin/rping",
    "bin/ip",
    "sbin/tc",
    "usr/bin/rdma",
    "bin/rdma",
];
/// Providers of libibverbs for the devices of the guest.
const PROVIDERS: &[&str] = &["siw", "rxe"];
/// Modules loaded at the start, `siw` and what it alone needs excepted: it is loaded when it is known which build.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_net",
    "dummy",
    "sch_netem",
    "crc32_generic",
    "crc32_pclmul",
    "crc32c_generic",
    "crc32c_intel",
    "libcrc32c",
    "ib_uverbs",
    "iw_cm",
    "rdma_cm",
    "rdma_ucm",
    "rdma_rxe",
];
/// Where libraries lie in Debian's packages.
const LIBRARIES: &str = "lib/x86_64-linux-gnu";
const LOADER: &str = "lib64/ld-linux-x86-64.so.2";

/// What the archive depends on besides the packages.
pub(crate) fn recipe() -> String {
    format!("{PROGRAMS:?}\n{PROVIDERS:?}\n{MODULES:?}")
}

/// The archive, out of the packages unpacked in `work`, the kernel's `modules` and the builds of siw.
pub(crate) fn archive(work: &Path, modules: &Path, builds: &[&str]) -> Outcome<Vec<u8>> {
    let user = work.join("user");
    let mut root = Archive::new(Vec::new());
    for folder in [
        "bin",
        "dev",
        "etc",
        "etc/libibverbs.d",
        "job",
        "lib",
        LIBRARIES,
        "lib/modules",
        "lib/siw",
        "lib64",
        "proc",
        "run",
        "sys",
        "tmp",
        "usr",
        "usr/bin",
        "usr/lib",
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/x86_64-linux-gnu/libibverbs",
    ] {
        root.folder(folder)?;
    }
    root.file("bin/busybox", true, &fs::read(user.join("bin/busybox"))?)?;
    root.link("bin/sh", "busybox")?;

    add_modules(&mut root, work, modules, builds)?;
    let mut dynamic = Vec::new();
    for program in PROGRAMS {
        let path = user.join(program);
        // A link of one place to another, as "bin/rdma" is in some releases, is there under its own name once.
        if path.is_file() {
            let name = program.rsplit('/').next().unwrap_or(program);
            root.file(&format!("usr/bin/{name}"), true, &fs::read(&path)?)?;
            dynamic.push(path);
        }
    }
    let providers = user.join("usr").join(LIBRARIES).join("libibverbs");
    for entry in fs::read_dir(&providers)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if PROVIDERS
            .iter()
            .any(|p| name.starts_with(&format!("lib{p}-")))
        {
            let to = format!("usr/{LIBRARIES}/libibverbs/{name}");
            root.file(&to, true, &fs::read(entry.path())?)?;
            dynamic.push(entry.path());
        }
    }
    for provider in PROVIDERS {
        let name = format!("etc/libibverbs.d/{provider}.driver");
        root.file(&name, false, &fs::read(user.join(&name))?)?;
    }
    root.file(LOADER, true, &fs::read(user.join(LOADER))?)?;
    for library in libraries(&user, &dynamic)? {
        let name = library.file_name().ok_or("a library without a name")?;
        let to = format!("{LIBRARIES}/{}", name.to_string_lossy());
        root.file(&to, true, &fs::read(&library)?)?;
    }
    Ok(root.finish()?)
}

/// The modules, the list by which they are loaded, and the builds of siw.
fn add_modules(
    root: &mut Archive<Vec<u8>>,
    work: &Path,
    modules: &Path,
    builds: &[&str],
) -> Outcome<()> {
    let mut all = Modules::under(modules)?;
    let mut order = String::new();
    for (name, content) in all.in_order(MODULES)? {
        root.file(&format!("lib/modules/{name}.ko"), false, &content)?;
        writeln!(order, "{name}.ko")?;
    }
    root.file("lib/modules/order", false, order.as_bytes())?;
    for name in builds {
        all.add(work.join(name).join("siw.ko"));
        let module = all.in_order(&["siw"])?.pop().ok_or("no siw")?.1;
        root.file(&format!("lib/siw/{name}.ko"), false, &module)?;
    }
    Ok(())
}

/// The shared libraries that programs need, as the guest's own loader finds them, and those every Rust program needs.
fn libraries(user: &Path, programs: &[PathBuf]) -> Outcome<BTreeSet<PathBuf>> {
    let near = user.join(LIBRARIES);
    let far = user.join("usr").join(LIBRARIES);
    let path = format!("{}:{}", near.display(), far.display());
    let mut found = BTreeSet::new();
    for name in ["libc.so.6", "libm.so.6", "libgcc_s.so.1"] {
        found.insert(near.join(name));
    }
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        found.insert(far.join(name));
    }
    for program in programs {
        let said = tool(
            Command::new(user.join(LOADER))
                .args(["--library-path", &path, "--list"])
                .arg(program),
        )?;
        for line in said.lines() {
            let mut words = line.split_whitespace();
            let (Some(name), Some("=>")) = (words.next(), words.next()) else {
                continue;
            };
            match words.next() {
                Some(place) if place.starts_with('/') => {
                    // "/lib64/ld-linux..." is the loader, which is there already.
                    if Path::new(place).starts_with(user) {
                        found.insert(PathBuf::from(place));
                    }
                }
                _ => return Err(format!("{} needs {name}", program.display()).into()),
            }
        }
    }
    Ok(found)
}
