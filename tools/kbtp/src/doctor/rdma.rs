//! RDMA devices as the kernel shows them in `/sys`, and whether a program could use each. Nothing is opened: that takes
//! libibverbs, and would not say more about why one cannot be used.

use super::sys::{names, number, word};
use nix::unistd::{AccessFlags, access};
use serde::Serialize;
use std::path::Path;

/// What a device speaks on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) enum Kind {
    /// `InfiniBand`.
    #[serde(rename = "InfiniBand")]
    InfiniBand,
    /// RDMA over Ethernet.
    #[serde(rename = "RoCE")]
    Roce,
    /// RDMA over TCP.
    #[serde(rename = "iWARP")]
    Iwarp,
    /// Something else: usNIC, EFA.
    #[serde(rename = "other")]
    Other,
}

impl Kind {
    const fn said(self) -> &'static str {
        match self {
            Self::InfiniBand => "InfiniBand",
            Self::Roce => "RoCE",
            Self::Iwarp => "iWARP",
            Self::Other => "other",
        }
    }
}

/// An address of a port: an entry of its table of GIDs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Gid {
    index: u32,
    #[serde(rename = "type")]
    kind: String,
    value: String,
}

/// A port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Port {
    number: u32,
    /// As the kernel says it: "4: ACTIVE".
    state: String,
    link_layer: String,
    rate: String,
    gids: Vec<Gid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    netdev: Option<String>,
}

impl Port {
    fn is_active(&self) -> bool {
        self.state.starts_with("4:")
    }
}

/// A device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Device {
    pub(super) name: String,
    kind: Kind,
    /// It is a driver on top of an ordinary NIC.
    pub(super) software: bool,
    /// Its driver is that of the mlx5 family.
    mlx5: bool,
    pub(super) numa_node: Option<u64>,
    ports: Vec<Port>,
    /// A program could use it.
    pub(super) usable: bool,
    pub(super) why: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

impl Device {
    /// Whether it is of the family whose chains are tried: its driver names it so.
    pub(super) fn is_mlx5(&self) -> bool {
        self.mlx5
    }

    /// Kind, ports and addresses in a line.
    pub(super) fn said(&self) -> String {
        let ports: Vec<String> = self
            .ports
            .iter()
            .map(|p| {
                let on = p
                    .netdev
                    .as_ref()
                    .map_or_else(String::new, |n| format!(" on {n}"));
                format!(
                    "port {}{on}: {}, {}, {} GIDs",
                    p.number,
                    p.state,
                    p.rate,
                    p.gids.len()
                )
            })
            .collect();
        let made = if self.software { " in software" } else { "" };
        let node = self
            .numa_node
            .map_or_else(String::new, |n| format!(", NUMA node {n}"));
        format!("{}{made}{node}; {}", self.kind.said(), ports.join("; "))
    }
}

/// The devices under `root`.
pub(super) fn devices(root: &Path) -> Vec<Device> {
    found(root, &|path| {
        access(path, AccessFlags::R_OK | AccessFlags::W_OK).is_ok()
    })
}

/// Whether this process may open a file.
type MayOpen<'a> = &'a dyn Fn(&Path) -> bool;

fn found(root: &Path, may_open: MayOpen<'_>) -> Vec<Device> {
    let class = root.join("sys/class/infiniband");
    names(&class)
        .into_iter()
        .map(|name| device(root, &class.join(&name), name, may_open))
        .collect()
}

fn device(root: &Path, dir: &Path, name: String, may_open: MayOpen<'_>) -> Device {
    let mut numbers: Vec<u32> = names(&dir.join("ports"))
        .iter()
        .filter_map(|n| n.parse().ok())
        .collect();
    numbers.sort_unstable();
    let node_type = word(&dir.join("node_type")).unwrap_or_default();
    let mut ports: Vec<Port> = numbers.into_iter().map(|n| port(dir, n)).collect();
    let over = |layer: &str| ports.iter().any(|p| p.link_layer == layer);
    // "1: CA" is a host's adapter, "4: RNIC" one of iWARP.
    let kind = match node_type.split(':').next() {
        Some("4") => Kind::Iwarp,
        Some("1") if over("InfiniBand") => Kind::InfiniBand,
        Some("1") if over("Ethernet") => Kind::Roce,
        _ => Kind::Other,
    };
    for port in &mut ports {
        if port.netdev.is_none() {
            port.netdev = netdev(root, dir, kind, port);
        }
    }
    // Names are the kernel's habit, and can be changed.
    let driver = std::fs::read_link(dir.join("device/driver"));
    let mlx5 =
        name.starts_with("mlx5_") || driver.is_ok_and(|driver| driver.ends_with("mlx5_core"));
    let mut device = Device {
        name,
        kind,
        software: !dir.join("device").exists(),
        mlx5,
        // -1 on a machine that has one node.
        numa_node: number(&dir.join("device/numa_node")),
        ports,
        usable: false,
        why: String::new(),
        remedy: None,
    };
    if let Some((why, remedy)) = refused(root, &device, may_open) {
        device.why = why;
        device.remedy = Some(remedy);
    } else {
        device.usable = true;
        device.why = taken(&device);
    }
    device
}

fn port(dir: &Path, number: u32) -> Port {
    let port = dir.join("ports").join(number.to_string());
    let known = |what: &str| word(&port.join(what)).unwrap_or_else(|| format!("unknown {what}"));
    let mut gids = Vec::new();
    let mut netdev = None;
    let mut indices: Vec<u32> = names(&port.join("gids"))
        .iter()
        .filter_map(|n| n.parse().ok())
        .collect();
    indices.sort_unstable();
    for index in indices {
        let of = |what: &str| word(&port.join(what).join(index.to_string()));
        // The table is full of empty entries; one that is not in use cannot even be read.
        let Some(value) = of("gids").filter(|g| g.chars().any(|c| !matches!(c, '0' | ':'))) else {
            continue;
        };
        if netdev.is_none() {
            netdev = of("gid_attrs/ndevs").filter(|n| !n.is_empty());
        }
        gids.push(Gid {
            index,
            kind: of("gid_attrs/types").unwrap_or_default(),
            value,
        });
    }
    Port {
        number,
        state: known("state"),
        link_layer: known("link_layer"),
        rate: known("rate"),
        gids,
        netdev,
    }
}

/// The network device of a port whose GIDs do not name it.
fn netdev(root: &Path, dir: &Path, kind: Kind, port: &Port) -> Option<String> {
    if let Some(parent) = word(&dir.join("parent")).filter(|p| !p.is_empty()) {
        return Some(parent);
    }
    if kind == Kind::Iwarp {
        // The GID of an iWARP port begins with the address of its network device: 5254:0012:3456:...
        let digits: String = port.gids.first()?.value.replace(':', "");
        let class = root.join("sys/class/net");
        return names(&class).into_iter().find(|name| {
            let address = word(&class.join(name).join("address")).unwrap_or_default();
            let address = address.replace(':', "");
            address.len() == 12 && digits.starts_with(&address)
        });
    }
    names(&dir.join("device/net")).into_iter().next()
}

/// Why no program could use `device`, and what helps.
fn refused(root: &Path, device: &Device, may_open: MayOpen<'_>) -> Option<(String, String)> {
    if device.kind == Kind::Other {
        return Some((
            "it has no reliable connections as InfiniBand, RoCE or iWARP have them".to_owned(),
            "use software over a plain NIC".to_owned(),
        ));
    }
    closed(root, device, may_open).or_else(|| unconnected(device))
}

/// Why programs cannot open it.
fn closed(root: &Path, device: &Device, may_open: MayOpen<'_>) -> Option<(String, String)> {
    let verbs = root.join("sys/class/infiniband_verbs");
    let node = names(&verbs)
        .into_iter()
        .find(|node| word(&verbs.join(node).join("ibdev")).as_deref() == Some(&device.name));
    let Some(node) = node else {
        return Some((
            "the kernel does not let programs open it".to_owned(),
            "modprobe ib_uverbs".to_owned(),
        ));
    };
    for (file, module) in [(node.as_str(), "ib_uverbs"), ("rdma_cm", "rdma_ucm")] {
        let path = root.join("dev/infiniband").join(file);
        if !path.exists() {
            return Some((
                format!("there is no /dev/infiniband/{file}"),
                format!("modprobe {module}; in a container, pass /dev/infiniband through"),
            ));
        }
        if !may_open(&path) {
            return Some((
                format!("this user may not open /dev/infiniband/{file}"),
                "let a udev rule give it to a group (rdma), and add the user to it".to_owned(),
            ));
        }
    }
    None
}

/// Why it reaches nobody.
fn unconnected(device: &Device) -> Option<(String, String)> {
    let netdev = device.ports.iter().find_map(|p| p.netdev.as_deref());
    if !device.ports.iter().any(Port::is_active) {
        let states = device.ports.iter();
        let states: Vec<String> = states
            .map(|p| format!("port {} is {}", p.number, p.state))
            .collect();
        let remedy = match netdev {
            Some(netdev) => format!("ip link set {netdev} up; look at the cable"),
            None => "look at the cable, and that the fabric has a subnet manager".to_owned(),
        };
        let why = format!("no port is active: {}", states.join(", "));
        return Some((why, remedy));
    }
    let has_address = |port: &Port| {
        let mut gids = port.gids.iter();
        port.is_active() && gids.any(|gid| gid.kind == "RoCE v2" && is_routable(&gid.value))
    };
    if device.kind == Kind::Roce && !device.ports.iter().any(has_address) {
        let netdev = netdev.unwrap_or("its network device");
        return Some((
            "no active port has a RoCE v2 address".to_owned(),
            format!("ip addr add ADDRESS/LENGTH dev {netdev}"),
        ));
    }
    None
}

/// Link-local addresses (`fe80::`) are of no use to peers behind a router, nor, without a scope, to `rdma_cm`.
fn is_routable(gid: &str) -> bool {
    !gid.starts_with("fe80")
}

/// How a usable device comes to be used.
fn taken(device: &Device) -> String {
    let netdevs: Vec<&str> = device
        .ports
        .iter()
        .filter(|p| p.is_active())
        .filter_map(|p| p.netdev.as_deref())
        .collect();
    let on = if netdevs.is_empty() {
        "of its IP over InfiniBand".to_owned()
    } else {
        format!("of {}", netdevs.join(", "))
    };
    let cost = if device.software {
        "; in software it is for trying out, the plain way is faster"
    } else {
        ""
    };
    format!("usable: chosen for an address {on}{cost}")
}

/// A device for a test.
#[cfg(test)]
pub(super) fn example(name: &str, usable: bool) -> Device {
    Device {
        name: name.to_owned(),
        kind: Kind::Roce,
        software: false,
        mlx5: name.starts_with("mlx5_"),
        numa_node: None,
        ports: Vec::new(),
        usable,
        why: "it is broken".to_owned(),
        remedy: None,
    }
}

#[cfg(test)]
mod tests;
