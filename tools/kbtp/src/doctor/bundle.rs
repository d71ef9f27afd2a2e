//! `kbtp doctor --bundle FILE`: what a report of a fault needs to say about the machine, in one file of text that its
//! sender can read first.
//!
//! It names no host and no user, and holds no addresses: neither IP and MAC addresses nor the GIDs and GUIDs made of them.

use super::Report;
use super::sys::{names, word};
use crate::failure::Failure;
use crate::newfile::NewFile;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

/// Octets of one file at most: `/proc/cpuinfo` of a machine with many cores is longer, and each says the same.
const FILE_MAX: u64 = 16 << 10;

/// Files that are taken as they are.
const FILES: &[&str] = &[
    "etc/os-release",
    "proc/version",
    "proc/cmdline",
    "proc/cpuinfo",
    "proc/meminfo",
    "proc/modules",
    "proc/self/limits",
    "proc/self/cgroup",
    "proc/sys/net/core/rmem_max",
    "proc/sys/net/core/wmem_max",
    "proc/sys/net/ipv4/tcp_rmem",
    "proc/sys/net/ipv4/tcp_wmem",
    "proc/sys/net/ipv4/tcp_congestion_control",
    "proc/sys/vm/nr_hugepages",
    "proc/sys/vm/overcommit_memory",
    "sys/kernel/mm/transparent_hugepage/enabled",
    "sys/kernel/mm/transparent_hugepage/shmem_enabled",
];

/// Files of each RDMA device and its ports, GIDs and GUIDs left out.
const OF_DEVICE: &[&str] = &["node_type", "node_desc", "fw_ver", "hca_type", "board_id"];
const OF_PORT: &[&str] = &["state", "phys_state", "link_layer", "rate"];
/// Files of each network device, addresses left out.
const OF_NETDEV: &[&str] = &["operstate", "mtu", "speed", "type", "device/numa_node"];
/// Of the kernel's command line, what says where the root is or gives secrets to the first process stays out.
const OF_CMDLINE: &[&str] = &[
    "hugepages=",
    "hugepagesz=",
    "default_hugepagesz=",
    "iommu=",
    "intel_iommu=",
    "amd_iommu=",
    "isolcpus=",
    "nohz_full=",
    "mitigations=",
    "numa",
    "transparent_hugepage=",
];

/// Writes the file. One that is there is left alone.
///
/// # Errors
/// [`Failure`] if it cannot be written.
pub(super) fn write(path: &Path, root: &Path, report: &Report) -> Result<(), Failure> {
    let failed = |e: &std::io::Error| Failure::file("write", path, e);
    // It is for its reader to say who else may see it.
    let new = NewFile::create(path, 0o600).map_err(|e| failed(&e))?;
    let text = text(root, report, std::env::vars_os());
    let mut file = new.file();
    file.write_all(text.as_bytes()).map_err(|e| failed(&e))?;
    new.publish(false).map_err(|e| failed(&e))
}

/// The whole text.
fn text(
    root: &Path,
    report: &Report,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> String {
    let mut text = String::new();
    section(&mut text, "kbtp", env!("CARGO_PKG_VERSION"));
    section(&mut text, "doctor", &super::text(report));
    section(&mut text, "environment", &variables(environment));
    for file in FILES {
        let content = content(&root.join(file));
        let content = match *file {
            "proc/cmdline" => chosen_words(&content),
            "proc/cpuinfo" => first_processor(&content),
            _ => content,
        };
        section(&mut text, file, &content);
    }
    let hugepages = tree(
        &root.join("sys/kernel/mm/hugepages"),
        &["nr_hugepages", "free_hugepages"],
    );
    section(&mut text, "sys/kernel/mm/hugepages", &hugepages);
    let class = root.join("sys/class/infiniband");
    section(&mut text, "sys/class/infiniband", &tree(&class, OF_DEVICE));
    for device in names(&class) {
        let ports = format!("sys/class/infiniband/{device}/ports");
        section(&mut text, &ports, &tree(&root.join(&ports), OF_PORT));
    }
    let class = root.join("sys/class/net");
    section(&mut text, "sys/class/net", &tree(&class, OF_NETDEV));
    text
}

fn section(text: &mut String, name: &str, content: &str) {
    let content = content.trim_end();
    let content = if content.is_empty() {
        "(nothing)"
    } else {
        content
    };
    text.extend(["=== ", name, "\n", content, "\n\n"]);
}

/// The beginning of a file, or why it cannot be read.
fn content(path: &Path) -> String {
    let mut octets = Vec::new();
    let read = File::open(path).and_then(|f| f.take(FILE_MAX).read_to_end(&mut octets));
    match read {
        Ok(_) => String::from_utf8_lossy(&octets).into_owned(),
        Err(e) => format!("({e})"),
    }
}

/// Some files of each folder of `dir`, one a line.
fn tree(dir: &Path, files: &[&str]) -> String {
    let mut text = String::new();
    for name in names(dir) {
        for file in files {
            let path: PathBuf = dir.join(&name).join(file);
            if let Some(word) = word(&path) {
                text.extend([&name, "/", file, ": ", &word, "\n"]);
            }
        }
    }
    text
}

/// Names of our own variables; a value may be a secret.
fn variables(environment: impl Iterator<Item = (OsString, OsString)>) -> String {
    let mut ours: Vec<String> = environment
        .map(|(name, _)| name.to_string_lossy().into_owned())
        .filter(|name| name.starts_with("KBTP_"))
        .collect();
    ours.sort();
    ours.iter().flat_map(|name| [name, " is set\n"]).collect()
}

fn chosen_words(line: &str) -> String {
    let words = line.split_whitespace();
    let chosen: Vec<&str> = words
        .filter(|word| OF_CMDLINE.iter().any(|start| word.starts_with(start)))
        .collect();
    chosen.join(" ")
}

fn first_processor(text: &str) -> String {
    text.split("\n\n").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::examine;
    use crate::doctor::sys::machine;

    fn bundled(files: &[(&str, &str)]) -> String {
        let root = machine(files);
        let secret = ("KBTP_SECRET".into(), "hunter2".into());
        let other = ("PATH".into(), "/somewhere".into());
        text(&root, &examine(&root), [secret, other].into_iter())
    }

    #[test]
    fn it_says_what_the_machine_is() {
        let text = bundled(&[
            ("etc/os-release", "NAME=\"Debian GNU/Linux\"\n"),
            ("proc/cpuinfo", "processor: 0\nmodel: x\n\nprocessor: 1\n"),
            ("proc/meminfo", "MemTotal: 1 kB\n"),
            ("sys/class/infiniband/mlx5_0/fw_ver", "20.31.1014\n"),
            ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
            ("sys/class/net/ens1np0/mtu", "9000\n"),
            (
                "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
                "7\n",
            ),
        ]);
        for said in [
            "=== kbtp\n",
            "RDMA devices",
            "=== etc/os-release\nNAME=\"Debian",
            "processor: 0",
            "MemTotal",
            "mlx5_0/fw_ver: 20.31.1014",
            "=== sys/class/infiniband/mlx5_0/ports\n1/state: 4: ACTIVE",
            "ens1np0/mtu: 9000",
            "hugepages-2048kB/nr_hugepages: 7",
            "=== proc/modules\n(No such file",
        ] {
            assert!(text.contains(said), "{said} not in {text}");
        }
        assert!(!text.contains("processor: 1"), "one processor is enough");
    }

    #[test]
    fn it_says_nothing_that_is_nobodys_business() {
        let gid = "0000:0000:0000:0000:0000:ffff:0a4d:0001\n";
        let port = "sys/class/infiniband/rxe0/ports/1";
        let text = bundled(&[
            (
                "proc/cmdline",
                "root=UUID=12ab hugepages=64 secret=x numa=off\n",
            ),
            (
                "sys/class/infiniband/rxe0/node_guid",
                "c00c:f8ff:fe53:f27f\n",
            ),
            (&format!("{port}/gids/0"), gid),
            (&format!("{port}/gid_attrs/types/0"), "RoCE v2\n"),
            ("sys/class/net/eth0/address", "52:54:00:12:34:56\n"),
        ]);
        assert!(text.contains("hugepages=64 numa=off"));
        assert!(text.contains("KBTP_SECRET is set"));
        for private in [
            "hunter2", "PATH", "UUID", "secret=x", "c00c", "0a4d", "52:54",
        ] {
            assert!(!text.contains(private), "{private} in {text}");
        }
    }

    #[test]
    fn a_file_that_is_there_stays() {
        let root = machine(&[("report", "mine")]);
        let path = root.join("report");
        write(&path, &root, &examine(&root)).unwrap_err();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
        let other = root.join("other");
        write(&other, &root, &examine(&root)).unwrap();
        assert!(
            std::fs::read_to_string(&other)
                .unwrap()
                .contains("=== doctor")
        );
    }
}
