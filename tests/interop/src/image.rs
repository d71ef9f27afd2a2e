//! What the guest is made of, from Debian's packages alone: a kernel, the modules of its RDMA devices, and the tools of
//! rdma-core. Packages are downloaded and unpacked, not installed.

use crate::kernel;
use crate::root;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// Raise it when the code below makes another image of the same lists.
const EDITION: &str = "1";
/// The package that stands for Debian's newest kernel of the release.
const KERNEL: &str = "linux-image-amd64";
/// User space: busybox, the tools, and all the libraries these need.
const USER_SPACE: &[&str] = &[
    "busybox-static",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "libbpf1",
    "libbsd0",
    "libc6",
    "libcap2",
    "libdb5.3",
    "libelf1",
    "libgcc-s1",
    "libibverbs1",
    "libmd0",
    "libmnl0",
    "libnl-3-200",
    "libnl-route-3-200",
    "libpcre2-8-0",
    "librdmacm1",
    "libselinux1",
    "libxtables12",
    "rdmacm-utils",
    "zlib1g",
];
/// Builds of siw: the name, and what is changed in `siw_main.c`, where its options are constants. Debian's kernels have
/// no siw at all, but its source is in their source package.
const SIW: &[(&str, &str, &str)] = &[
    ("siw", "", ""),
    // Asks for CRCs, as the initiator too; as it is, it uses them where its peer asks.
    (
        "siw-crc",
        "const bool mpa_crc_required;",
        "const bool mpa_crc_required = true;",
    ),
];
/// A guest that can be started.
#[derive(Clone, Debug)]
pub struct Image {
    /// The kernel, an ELF file.
    pub kernel: PathBuf,
    /// Its first root, unpacked into memory.
    pub root: PathBuf,
}

impl Image {
    /// The image in `folder`; makes it if it is not there, or not by the lists of this version. Says on standard error
    /// what takes long.
    ///
    /// # Errors
    /// What is missing, or failed, and what helps.
    pub fn in_folder(folder: &Path) -> Outcome<Self> {
        let image = Self {
            kernel: folder.join("vmlinux"),
            root: folder.join("root.cpio"),
        };
        let stamp = folder.join("made-by");
        let recipe = format!(
            "{EDITION}\n{KERNEL}\n{USER_SPACE:?}\n{SIW:?}\n{}",
            root::recipe()
        );
        let made = fs::read_to_string(&stamp).is_ok_and(|by| by == recipe);
        if made && image.kernel.exists() && image.root.exists() {
            return Ok(image);
        }
        let folder = &std::path::absolute(folder)?;
        let work = folder.join("unpacked");
        if work.exists() {
            fs::remove_dir_all(&work)?;
        }
        fs::create_dir_all(work.join("kernel"))?;
        fs::create_dir_all(work.join("user"))?;
        let version = packages(folder, &work)?;
        say("building siw");
        build_siw(&work, &version)?;
        say("writing the guest's root");
        let packed = fs::read(work.join(format!("kernel/boot/vmlinuz-{version}")))?;
        fs::write(&image.kernel, kernel::unpack(&packed)?)?;
        let modules = work.join("kernel/lib/modules").join(&version);
        let builds: Vec<&str> = SIW.iter().map(|(name, ..)| *name).collect();
        fs::write(&image.root, root::archive(&work, &modules, &builds)?)?;
        fs::remove_dir_all(&work)?;
        fs::write(stamp, recipe)?;
        Ok(image)
    }
}

/// What this machine lacks for a guest, in words; nothing if it has all. An image that is there already needs less.
#[must_use]
pub fn missing() -> Option<String> {
    const TOOLS: [&str; 7] = [
        "qemu-system-x86_64",
        "apt-get",
        "dpkg-deb",
        "make",
        "gcc-12",
        "strip",
        "xz",
    ];
    if cfg!(not(target_arch = "x86_64")) {
        return Some("the guest is made for x86-64 alone".to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |tool: &&str| std::env::split_paths(&path).any(|d| d.join(tool).exists());
    let gone: Vec<&str> = TOOLS.into_iter().filter(|tool| !there(tool)).collect();
    (!gone.is_empty()).then(|| {
        format!(
            "{} not found; apt-get install qemu-system-x86 gcc-12 make binutils xz-utils",
            gone.join(", ")
        )
    })
}

#[expect(clippy::print_stderr, reason = "progress of a program")]
fn say(what: &str) {
    eprintln!("guest: {what}");
}

/// Runs a tool. Its output.
pub(crate) fn tool(command: &mut Command) -> Outcome<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let ran = command.output().map_err(|e| format!("{name}: {e}"))?;
    if !ran.status.success() {
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        let output = String::from_utf8_lossy(&ran.stdout).into_owned();
        return Err(format!("{command:?} failed:\n{output}{said}").into());
    }
    Ok(String::from_utf8(ran.stdout)?)
}

/// The first package that `package` depends on whose name begins with `prefix`.
fn needs(package: &str, prefix: &str) -> Outcome<String> {
    let said = tool(Command::new("apt-cache").args(["depends", package]))?;
    let names = said
        .lines()
        .filter_map(|l| l.trim().strip_prefix("Depends: "));
    let found = names.map(str::to_owned).find(|n| n.starts_with(prefix));
    Ok(found.ok_or_else(|| format!("{package} depends on no {prefix}*"))?)
}

/// Downloads the packages that are not there and unpacks all. The kernel's version.
fn packages(folder: &Path, work: &Path) -> Outcome<String> {
    let store = folder.join("packages");
    fs::create_dir_all(&store)?;
    let (version, of_kernel) = match fetch(&store) {
        Ok(found) => found,
        Err(first) => {
            // The lists of packages are missing, or of another day: Debian drops superseded kernels.
            say("apt-get update");
            tool(as_root().args(["apt-get", "update", "-qq"]))
                .map_err(|e| format!("{first}\n{e}"))?;
            fetch(&store)?
        }
    };
    say("unpacking");
    for (names, to) in [
        (of_kernel.iter().map(String::as_str).collect(), "kernel"),
        (USER_SPACE.to_vec(), "user"),
    ] {
        for name in names {
            let package = stored(&store, name)?.ok_or_else(|| format!("{name} is gone"))?;
            let to = work.join(to);
            tool(Command::new("dpkg-deb").arg("-x").args([package, to]))?;
        }
    }
    Ok(version)
}

fn as_root() -> Command {
    let mut command = Command::new("env");
    if !nix::unistd::geteuid().is_root() {
        command = Command::new("sudo");
        command.arg("env");
    }
    command.arg("DEBIAN_FRONTEND=noninteractive");
    command
}

/// Downloads what is missing. The kernel's version, and the packages of the kernel.
fn fetch(store: &Path) -> Outcome<(String, Vec<String>)> {
    let image = needs(KERNEL, "linux-image-")?;
    // 6.1.0-57-amd64, of which the headers for all flavours have no "-amd64", and the source no more than 6.1.
    let version = image.trim_start_matches("linux-image-").to_owned();
    let headers = format!("linux-headers-{version}");
    let series: Vec<&str> = version.split('.').take(2).collect();
    let of_kernel = vec![
        needs(&headers, "linux-headers-")?,
        needs(&headers, "linux-kbuild-")?,
        format!("linux-source-{}", series.join(".")),
        headers,
        image,
    ];
    let mut missing = Vec::new();
    for name in of_kernel
        .iter()
        .map(String::as_str)
        .chain(USER_SPACE.iter().copied())
    {
        if stored(store, name)?.is_none() {
            missing.push(name);
        }
    }
    if !missing.is_empty() {
        say(&format!("downloading {} packages", missing.len()));
        let mut download = Command::new("apt-get");
        download.arg("download").args(missing).current_dir(store);
        tool(&mut download)?;
    }
    Ok((version, of_kernel))
}

/// The file of a package.
fn stored(store: &Path, name: &str) -> Outcome<Option<PathBuf>> {
    let start = format!("{name}_");
    for entry in fs::read_dir(store)? {
        let entry = entry?;
        let path = entry.path();
        let package = path.extension().is_some_and(|e| e == "deb");
        if package && entry.file_name().to_string_lossy().starts_with(&start) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Builds each siw out of tree, against the kernel's headers, and puts it among the modules.
fn build_siw(work: &Path, version: &str) -> Outcome<()> {
    let kernel = work.join("kernel/usr/src");
    let headers = kernel.join(format!("linux-headers-{version}"));
    // The Makefile there names the place where the package would be installed.
    let common = version.trim_end_matches("-amd64");
    let common = kernel.join(format!("linux-headers-{common}-common/Makefile"));
    fs::write(
        headers.join("Makefile"),
        format!("include {}\n", common.display()),
    )?;
    let series: Vec<&str> = version.split('.').take(2).collect();
    let source = format!("linux-source-{}", series.join("."));
    for (name, as_it_is, changed) in SIW {
        let here = work.join(name);
        fs::create_dir_all(&here)?;
        let mut tar = Command::new("tar");
        tar.arg("-xJf")
            .arg(kernel.join(format!("{source}.tar.xz")))
            .arg("-C")
            .arg(&here)
            .arg("--strip-components=5")
            .arg(format!("{source}/drivers/infiniband/sw/siw"));
        if *name == "siw" {
            tool(&mut tar)?;
        } else {
            copy_sources(&work.join("siw"), &here)?;
        }
        let main = here.join("siw_main.c");
        let text = fs::read_to_string(&main)?;
        if text.matches(as_it_is).count() != 1 && !as_it_is.is_empty() {
            return Err(format!("siw_main.c has no line {as_it_is:?}").into());
        }
        fs::write(&main, text.replacen(as_it_is, changed, 1))?;
    }
    // Both at once: each is a handful of files.
    let builds: Vec<_> = SIW
        .iter()
        .map(|(name, ..)| {
            let log = fs::File::create(work.join(format!("{name}.log")))?;
            Command::new("make")
                .args(["-s", "-C"])
                .arg(&headers)
                .arg(format!("M={}", work.join(name).display()))
                .args(["CONFIG_RDMA_SIW=m", "modules"])
                .stderr(log.try_clone()?)
                .stdout(log)
                .spawn()
        })
        .collect::<Result<_, _>>()?;
    let mut good = true;
    for mut build in builds {
        good &= build.wait()?.success();
    }
    for (name, ..) in SIW {
        if !good {
            let log = fs::read_to_string(work.join(format!("{name}.log")))?;
            return Err(format!("siw does not build; it takes make and gcc-12\n{log}").into());
        }
        let built = work.join(name).join("siw.ko");
        tool(Command::new("strip").arg("--strip-debug").arg(built))?;
    }
    Ok(())
}

fn copy_sources(from: &Path, to: &Path) -> Outcome<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}
