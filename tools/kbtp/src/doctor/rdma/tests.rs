//! Machines as the kernel showed them, and as they break.

use super::*;
use crate::doctor::sys::machine;

/// Files of a machine, to which a test adds.
struct Files(Vec<(String, String)>);

impl Files {
    fn new() -> Self {
        Self(Vec::new())
    }

    fn add(mut self, path: &str, text: &str) -> Self {
        self.0.retain(|(p, _)| p != path);
        self.0.push((path.to_owned(), text.to_owned()));
        self
    }

    fn without(mut self, start: &str) -> Self {
        self.0.retain(|(p, _)| !p.starts_with(start));
        self
    }

    /// A device with one port and what lets programs open it.
    fn device(self, name: &str, node_type: &str, state: &str, link_layer: &str) -> Self {
        let dir = format!("sys/class/infiniband/{name}");
        let uverbs = format!("uverbs{}", self.0.len());
        self.add(&format!("{dir}/node_type"), node_type)
            .add(&format!("{dir}/ports/1/state"), state)
            .add(&format!("{dir}/ports/1/link_layer"), link_layer)
            .add(&format!("{dir}/ports/1/rate"), "100 Gb/sec (4X EDR)\n")
            .add(
                &format!("sys/class/infiniband_verbs/{uverbs}/ibdev"),
                &format!("{name}\n"),
            )
            .add(&format!("dev/infiniband/{uverbs}"), "")
            .add("dev/infiniband/rdma_cm", "")
    }

    fn gid(self, name: &str, index: u32, kind: &str, gid: &str, netdev: &str) -> Self {
        let port = format!("sys/class/infiniband/{name}/ports/1");
        let files = self
            .add(&format!("{port}/gids/{index}"), gid)
            .add(&format!("{port}/gid_attrs/types/{index}"), kind);
        if netdev.is_empty() {
            return files;
        }
        files.add(&format!("{port}/gid_attrs/ndevs/{index}"), netdev)
    }

    fn devices(&self) -> Vec<Device> {
        let files: Vec<(&str, &str)> = self.0.iter().map(|(p, t)| (&**p, &**t)).collect();
        let root = machine(&files);
        devices(&root)
    }

    fn one(&self) -> Device {
        let mut devices = self.devices();
        assert_eq!(devices.len(), 1);
        devices.remove(0)
    }
}

const EMPTY: &str = "0000:0000:0000:0000:0000:0000:0000:0000\n";
const LINK_LOCAL: &str = "fe80:0000:0000:0000:c00c:f8ff:fe53:f27f\n";
const V4: &str = "0000:0000:0000:0000:0000:ffff:0a4d:0001\n";

/// What Linux 6.1 shows of rxe on a dummy device.
fn rxe() -> Files {
    Files::new()
        .device("rxe_rx0", "1: CA\n", "4: ACTIVE\n", "Ethernet\n")
        .add("sys/class/infiniband/rxe_rx0/parent", "rx0\n")
        .gid("rxe_rx0", 0, "RoCE v2\n", LINK_LOCAL, "rx0\n")
        .gid("rxe_rx0", 1, "RoCE v2\n", V4, "rx0\n")
        .gid("rxe_rx0", 2, "", EMPTY, "")
}

/// And of siw, whose port names no network device.
fn siw() -> Files {
    Files::new()
        .device("siw_eth0", "4: RNIC\n", "4: ACTIVE\n", "Ethernet\n")
        .gid(
            "siw_eth0",
            0,
            "IB/RoCE v1\n",
            "5254:0000:0001:0000:0000:0000:0000:0000\n",
            "",
        )
        .add("sys/class/net/lo/address", "00:00:00:00:00:00\n")
        .add("sys/class/net/eth0/address", "52:54:00:00:00:01\n")
}

/// A NIC with two ports, one of which is down.
fn mlx5() -> Files {
    Files::new()
        .device("mlx5_0", "1: CA\n", "1: DOWN\n", "Ethernet\n")
        .add("sys/class/infiniband/mlx5_0/ports/2/state", "4: ACTIVE\n")
        .add(
            "sys/class/infiniband/mlx5_0/ports/2/link_layer",
            "Ethernet\n",
        )
        .add(
            "sys/class/infiniband/mlx5_0/ports/2/rate",
            "200 Gb/sec (4X HDR)\n",
        )
        .add("sys/class/infiniband/mlx5_0/ports/2/gids/3", V4)
        .add(
            "sys/class/infiniband/mlx5_0/ports/2/gid_attrs/types/3",
            "RoCE v2\n",
        )
        .add(
            "sys/class/infiniband/mlx5_0/ports/2/gid_attrs/ndevs/3",
            "ens1np1\n",
        )
        .add("sys/class/infiniband/mlx5_0/device/numa_node", "1\n")
        .add("sys/class/infiniband/mlx5_0/device/net/ens1np0/address", "")
}

#[test]
fn devices_in_software() {
    let device = rxe().one();
    assert!(device.usable && device.software, "{device:?}");
    assert_eq!((device.kind, device.numa_node), (Kind::Roce, None));
    assert_eq!(device.ports[0].gids.len(), 2, "empty entries do not count");
    assert_eq!(
        device.said(),
        "RoCE in software; port 1 on rx0: 4: ACTIVE, 100 Gb/sec (4X EDR), 2 GIDs"
    );
    assert!(
        device
            .why
            .starts_with("usable: chosen for an address of rx0;")
    );

    let device = siw().one();
    assert!(device.usable && device.software, "{device:?}");
    assert_eq!(device.kind, Kind::Iwarp);
    assert_eq!(device.ports[0].netdev.as_deref(), Some("eth0"));
}

#[test]
fn a_nic_is_used_by_the_port_that_is_active() {
    let device = mlx5().one();
    assert!(device.usable && !device.software, "{device:?}");
    assert_eq!(device.numa_node, Some(1));
    assert_eq!(device.why, "usable: chosen for an address of ens1np1");
    assert_eq!(device.ports[0].netdev.as_deref(), Some("ens1np0"));
    assert!(
        device
            .said()
            .contains("NUMA node 1; port 1 on ens1np0: 1: DOWN")
    );
}

#[test]
fn infiniband() {
    let device = Files::new()
        .device("mlx5_1", "1: CA\n", "4: ACTIVE\n", "InfiniBand\n")
        .gid("mlx5_1", 0, "IB/RoCE v1\n", LINK_LOCAL, "")
        .one();
    assert!(device.usable, "{device:?}");
    assert_eq!(device.kind, Kind::InfiniBand);
}

#[test]
fn each_thing_that_is_missing_is_named_with_what_helps() {
    for (name, files, why, remedy) in [
        (
            "no-uverbs",
            rxe().without("sys/class/infiniband_verbs"),
            "does not let programs open it",
            "modprobe ib_uverbs",
        ),
        (
            "no-node",
            rxe().without("dev/infiniband/uverbs"),
            "no /dev/infiniband/uverbs0",
            "modprobe ib_uverbs; in a container",
        ),
        (
            "no-cm",
            rxe().without("dev/infiniband/rdma_cm"),
            "no /dev/infiniband/rdma_cm",
            "modprobe rdma_ucm",
        ),
        (
            "down",
            rxe().add("sys/class/infiniband/rxe_rx0/ports/1/state", "1: DOWN\n"),
            "port 1 is 1: DOWN",
            "ip link set rx0 up",
        ),
        (
            "ib-down",
            Files::new().device("mlx5_1", "1: CA\n", "2: INIT\n", "InfiniBand\n"),
            "port 1 is 2: INIT",
            "subnet manager",
        ),
        (
            "no-ports",
            siw().without("sys/class/infiniband/siw_eth0/ports"),
            "no port is active",
            "cable",
        ),
        (
            "link-local",
            rxe().without("sys/class/infiniband/rxe_rx0/ports/1/gids/1"),
            "RoCE v2 address",
            "ip addr add ADDRESS/LENGTH dev rx0",
        ),
        (
            "v1",
            rxe().gid("rxe_rx0", 1, "IB/RoCE v1\n", V4, "rx0\n"),
            "RoCE v2 address",
            "dev rx0",
        ),
        (
            "usnic",
            Files::new().device("usnic_0", "6: usNIC UDP\n", "4: ACTIVE\n", "Ethernet\n"),
            "no reliable connections",
            "plain NIC",
        ),
    ] {
        let device = files.one();
        assert!(!device.usable, "{name}: {device:?}");
        assert!(device.why.contains(why), "{name}: {}", device.why);
        let helps = device.remedy.as_deref().unwrap_or_default();
        assert!(helps.contains(remedy), "{name}: {helps}");
    }
}

#[test]
fn one_that_may_not_be_opened() {
    let files = rxe();
    let files: Vec<(&str, &str)> = files.0.iter().map(|(p, t)| (&**p, &**t)).collect();
    let root = machine(&files);
    let device = found(&root, &|path| !path.ends_with("rdma_cm")).remove(0);
    assert!(!device.usable, "{device:?}");
    assert_eq!(device.why, "this user may not open /dev/infiniband/rdma_cm");
    assert!(device.remedy.unwrap().contains("udev"));
}

#[test]
fn a_machine_without() {
    assert_eq!(Files::new().devices(), []);
}
