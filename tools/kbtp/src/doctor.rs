//! `kbtp doctor`: what this machine can do, and which of the three ways a target would run on it, and why.

mod bundle;
mod rdma;
mod sys;
mod tier;

use crate::cli::DoctorArgs;
use crate::failure::Failure;
use crate::output::{self, Sheet};
use crate::units::octets;
use kbtp_memory::crc32c;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use serde::Serialize;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;
use sys::{names, number};

/// How a finding weighs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// As it should be.
    Ok,
    /// Works, but slower or less than it could.
    Limited,
    /// A target cannot run.
    Missing,
}

/// One thing looked at.
#[derive(Debug, Serialize)]
struct Finding {
    name: &'static str,
    state: State,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

/// One way to run a target.
#[derive(Debug, Serialize)]
struct Way {
    name: &'static str,
    runs: bool,
    why: String,
}

/// All of it.
#[derive(Debug, Serialize)]
struct Report {
    findings: Vec<Finding>,
    devices: Vec<rdma::Device>,
    /// Of each mlx5 device.
    tiers: Vec<tier::Tier>,
    ways: Vec<Way>,
    would_run: Option<&'static str>,
}

const CHAIN: &str = "chain";
const VERBS: &str = "software over an RDMA NIC";
const PLAIN: &str = "software over a plain NIC";

/// Runs the command.
///
/// # Errors
/// [`Failure`] if no way can run, or output fails.
pub(crate) fn run(args: &DoctorArgs, json: bool) -> Result<(), Failure> {
    let report = examine(&args.root);
    if let Some(path) = &args.bundle {
        bundle::write(path, &args.root, &report)?;
    }
    output::report(json, &report, || text(&report))?;
    if report.would_run.is_none() {
        return Err(Failure::operation(
            "no target can run on this machine",
            "see the findings marked missing",
        ));
    }
    Ok(())
}

fn text(report: &Report) -> String {
    let mut sheet = Sheet::new();
    for f in &report.findings {
        let mark = match f.state {
            State::Ok => "ok     ",
            State::Limited => "limited",
            State::Missing => "MISSING",
        };
        sheet.row(f.name, format_args!("{mark}  {}", f.found));
        if let Some(remedy) = &f.remedy {
            sheet.row("", format_args!("         -> {remedy}"));
        }
    }
    for device in &report.devices {
        let mark = if device.usable { "ok     " } else { "no     " };
        sheet.row(&device.name, format_args!("{mark}  {}", device.said()));
        sheet.row("", format_args!("         {}", device.why));
        if let Some(remedy) = &device.remedy {
            sheet.row("", format_args!("         -> {remedy}"));
        }
    }
    sheet.row("", "");
    for way in &report.ways {
        let mark = if report.would_run == Some(way.name) {
            "RUNS   "
        } else if way.runs {
            "could  "
        } else {
            "no     "
        };
        sheet.row(way.name, format_args!("{mark}  {}", way.why));
    }
    sheet.text()
}

fn examine(root: &Path) -> Report {
    let devices = rdma::devices(root);
    let tiers = if root == Path::new("/") {
        tier::tiers(&devices, &tier::ask)
    } else {
        tier::tiers(&devices, &|_| Err("its machine is not this one".to_owned()))
    };
    let loopback = loopback();
    let plain_runs = loopback.state != State::Missing;
    let findings = vec![
        rdma_devices(&devices),
        rdma_modules(root, &devices),
        hugepages(root),
        memlock(&devices),
        crc(crc32c::method()),
        numa(root, &devices),
        cores(),
        loopback,
    ];
    let ways = vec![
        Way {
            name: CHAIN,
            runs: tiers.iter().any(|one| one.would_run == "T2"),
            why: tier::chain_why(&tiers),
        },
        Way {
            name: VERBS,
            runs: devices.iter().any(|d| d.usable),
            why: verbs_why(&devices),
        },
        Way {
            name: PLAIN,
            runs: plain_runs,
            why: if plain_runs {
                "user-space iWARP on TCP sockets needs only the kernel's TCP".to_owned()
            } else {
                "TCP over loopback does not work here".to_owned()
            },
        },
    ];
    Report {
        findings,
        devices,
        tiers,
        ways,
        would_run: plain_runs.then_some(PLAIN),
    }
}

fn verbs_why(devices: &[rdma::Device]) -> String {
    let usable: Vec<&str> = devices
        .iter()
        .filter(|d| d.usable)
        .map(|d| d.name.as_str())
        .collect();
    if !usable.is_empty() {
        let usable = usable.join(", ");
        return format!(
            "{usable} could carry it: name its address under `rdma` in the target's configuration"
        );
    }
    if devices.is_empty() {
        "no RDMA device".to_owned()
    } else {
        "no RDMA device that can be used".to_owned()
    }
}

fn ok(name: &'static str, found: impl Into<String>) -> Finding {
    Finding {
        name,
        state: State::Ok,
        found: found.into(),
        remedy: None,
    }
}

fn limited(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding {
        name,
        state: State::Limited,
        found: found.into(),
        remedy: Some(remedy.into()),
    }
}

fn rdma_devices(devices: &[rdma::Device]) -> Finding {
    const NAME: &str = "RDMA devices";
    if devices.is_empty() {
        return limited(
            NAME,
            "none",
            "nothing to do for software over a plain NIC; with an RDMA NIC, load its driver",
        );
    }
    let usable = devices.iter().filter(|d| d.usable).count();
    let found = format!("{}, of which can be used: {usable}", devices.len());
    if usable == 0 {
        return limited(NAME, found, "see each of them below");
    }
    ok(NAME, found)
}

fn rdma_modules(root: &Path, devices: &[rdma::Device]) -> Finding {
    const NAME: &str = "RDMA kernel modules";
    /// Without these no program can use a device.
    const NEEDED: [&str; 2] = ["ib_uverbs", "rdma_ucm"];
    const KNOWN: [&str; 9] = [
        "ib_core",
        "ib_uverbs",
        "rdma_cm",
        "rdma_ucm",
        "iw_cm",
        "mlx5_ib",
        "siw",
        "rdma_rxe",
        "irdma",
    ];
    let loaded = fs::read_to_string(root.join("proc/modules")).unwrap_or_default();
    let built_in = root.join("sys/module");
    let found: Vec<&str> = KNOWN
        .into_iter()
        .filter(|m| {
            loaded.lines().any(|l| l.split(' ').next() == Some(m)) || built_in.join(m).exists()
        })
        .collect();
    if found.is_empty() {
        return limited(
            NAME,
            "none",
            "nothing to do for software over a plain NIC; otherwise modprobe rdma_ucm ib_uverbs",
        );
    }
    let lacking: Vec<&str> = NEEDED.into_iter().filter(|m| !found.contains(m)).collect();
    if !devices.is_empty() && !lacking.is_empty() {
        return limited(
            NAME,
            format!("{}; not {}", found.join(", "), lacking.join(", ")),
            format!("modprobe -a {}", lacking.join(" ")),
        );
    }
    ok(NAME, found.join(", "))
}

fn hugepages(root: &Path) -> Finding {
    const NAME: &str = "hugepages";
    let dir = root.join("sys/kernel/mm/hugepages");
    let mut free = Vec::new();
    for size in names(&dir) {
        let kib: u64 = size
            .trim_start_matches("hugepages-")
            .trim_end_matches("kB")
            .parse()
            .unwrap_or(0);
        let count = number(&dir.join(&size).join("free_hugepages")).unwrap_or(0);
        if count > 0 {
            free.push(format!("{count} of {} free", octets(kib * 1024)));
        }
    }
    if free.is_empty() {
        return limited(
            NAME,
            "none free: a pool uses ordinary pages",
            "for fewer TLB misses: echo 1024 > /proc/sys/vm/nr_hugepages (2 GiB)",
        );
    }
    ok(NAME, free.join(", "))
}

fn memlock(devices: &[rdma::Device]) -> Finding {
    const NAME: &str = "locked memory limit";
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((RLIM_INFINITY, _)) => ok(NAME, "unlimited"),
        Ok((soft, _)) => limited(
            NAME,
            if devices.is_empty() {
                format!("{}: a larger pool can be swapped out", octets(soft))
            } else {
                format!(
                    "{}: no larger pool can be registered with an RDMA device",
                    octets(soft)
                )
            },
            "ulimit -l unlimited, or LimitMEMLOCK=infinity in the service's unit",
        ),
        Err(e) => limited(NAME, format!("unknown: {e}"), "see getrlimit(2)"),
    }
}

/// `method` is what [`crc32c::method`] has chosen.
fn crc(method: &str) -> Finding {
    const NAME: &str = "CRC32C";
    let how = match method {
        "vpclmulqdq" => "512 bits at a time, with AVX-512",
        "sse4.2" => {
            "three streams of the CRC instruction; the CPU has no VPCLMULQDQ, which is faster"
        }
        "aarch64-crc" => "three streams of the CRC instruction",
        _ => {
            return limited(
                NAME,
                format!("{method}: the CPU has no instruction for it that is used"),
                "nothing to do on this CPU; in a VM, pass the host's CPU features through",
            );
        }
    };
    ok(NAME, format!("{method}: {how}"))
}

fn numa(root: &Path, devices: &[rdma::Device]) -> Finding {
    const NAME: &str = "NUMA nodes";
    let nodes = names(&root.join("sys/devices/system/node"))
        .into_iter()
        .filter(|n| {
            n.strip_prefix("node")
                .is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
        })
        .count();
    match nodes {
        0 | 1 => ok(NAME, "1"),
        n => {
            let mut usable = devices.iter().filter(|d| d.usable);
            let node = usable.find_map(|d| d.numa_node);
            let node = node.map_or_else(|| "N".to_owned(), |n| n.to_string());
            limited(
                NAME,
                n.to_string(),
                format!(
                    "run agent and target on the node of the NIC: numactl --cpunodebind={node} --membind={node} kbtp agent ..."
                ),
            )
        }
    }
}

fn cores() -> Finding {
    const NAME: &str = "cores for this process";
    match std::thread::available_parallelism() {
        Ok(n) if n.get() > 1 => ok(NAME, n.to_string()),
        Ok(_) => limited(
            NAME,
            "1",
            "give the target a second one: an initiator on the same core waits for it at every turn",
        ),
        Err(e) => limited(NAME, format!("unknown: {e}"), "see sched_getaffinity(2)"),
    }
}

/// How long the loopback test may take.
const LOOPBACK_TIMEOUT: Duration = Duration::from_secs(2);

fn loopback() -> Finding {
    const NAME: &str = "TCP over loopback";
    match loopback_echo() {
        Ok(()) => ok(NAME, "works"),
        Err(e) => Finding {
            name: NAME,
            state: State::Missing,
            found: e.to_string(),
            remedy: Some("ip link set lo up; allow TCP on 127.0.0.1 in the firewall".to_owned()),
        },
    }
}

/// One octet there and back. One thread is enough: the kernel holds the connection and the octet until they are taken.
fn loopback_echo() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut here = TcpStream::connect_timeout(&listener.local_addr()?, LOOPBACK_TIMEOUT)?;
    let (mut there, _) = listener.accept()?;
    here.set_read_timeout(Some(LOOPBACK_TIMEOUT))?;
    there.set_read_timeout(Some(LOOPBACK_TIMEOUT))?;
    let mut octet = [0x5a];
    here.write_all(&octet)?;
    there.read_exact(&mut octet)?;
    there.write_all(&octet)?;
    here.read_exact(&mut octet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::sys::machine;

    fn finding<'r>(report: &'r Report, name: &str) -> &'r Finding {
        report.findings.iter().find(|f| f.name == name).unwrap()
    }

    #[test]
    fn the_crc_is_what_the_product_computes_it_with() {
        let report = examine(&machine(&[]));
        let method = crc32c::method();
        let said = &finding(&report, "CRC32C").found;
        assert!(said.starts_with(&format!("{method}: ")), "{said}");
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("vpclmulqdq")
            && std::arch::is_x86_feature_detected!("avx512vl")
        {
            assert!(said.starts_with("vpclmulqdq"), "{said}");
        }
        assert_eq!(crc("tables").state, State::Limited);
        for method in ["vpclmulqdq", "sse4.2", "aarch64-crc"] {
            assert_eq!(crc(method).state, State::Ok, "{method}");
        }
    }

    #[test]
    fn a_bare_machine_runs_the_plain_way() {
        let report = examine(&machine(&[]));
        assert_eq!(report.would_run, Some(PLAIN));
        assert_eq!(finding(&report, "RDMA devices").state, State::Limited);
        assert!(finding(&report, "hugepages").remedy.is_some());
        assert!(report.ways.iter().all(|w| w.runs == (w.name == PLAIN)));
    }

    #[test]
    fn a_machine_with_a_device_is_told_what_is_not_built() {
        let report = examine(&machine(&[
            ("sys/class/infiniband/mlx5_0/node_type", "1: CA\n"),
            (
                "sys/class/infiniband/mlx5_0/ports/1/link_layer",
                "Ethernet\n",
            ),
            ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
            (
                "proc/modules",
                "mlx5_ib 1 0 - Live 0x0\nrdma_cm 2 0 - Live 0x0\n",
            ),
            (
                "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
                "12\n",
            ),
            ("sys/devices/system/node/node0/x", ""),
            ("sys/devices/system/node/node1/x", ""),
            ("sys/devices/system/node/possible", "0-1"),
        ]));
        assert_eq!(
            finding(&report, "RDMA devices").found,
            "1, of which can be used: 0"
        );
        let modules = finding(&report, "RDMA kernel modules");
        assert_eq!(modules.found, "rdma_cm, mlx5_ib; not ib_uverbs, rdma_ucm");
        assert_eq!(
            modules.remedy.as_deref(),
            Some("modprobe -a ib_uverbs rdma_ucm")
        );
        assert!(text(&report).contains("-> modprobe ib_uverbs"));
        assert_eq!(finding(&report, "hugepages").found, "12 of 2.00 MiB free");
        assert_eq!(finding(&report, "NUMA nodes").found, "2");
        assert!(report.ways[0].why.contains("mlx5_0: T0, "));
        assert_eq!(report.tiers.len(), 1);
        assert!(
            report.ways[1]
                .why
                .contains("no RDMA device that can be used")
        );
        assert_eq!(report.would_run, Some(PLAIN));
    }

    #[test]
    fn the_text_names_the_way_that_runs() {
        let report = examine(&machine(&[]));
        let said = text(&report);
        assert!(said.contains("software over a plain NIC  RUNS"), "{said}");
        assert!(said.contains("-> "), "{said}");
    }
}
