//! Which device, port and GID a connection goes through: a rule over what there is, without asking anybody.

use kbtp_verbs_sys::{Gid, GidKind};
use std::cmp::Reverse;
use std::net::{IpAddr, Ipv6Addr};

/// One way out of this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The kernel's name for the device.
    pub device: String,
    /// Its port, from 1.
    pub port: u8,
    /// The port is up.
    pub active: bool,
    /// The device speaks iWARP.
    pub iwarp: bool,
    /// The port is an InfiniBand one.
    pub infiniband: bool,
    /// The entry of the port's GID table.
    pub gid: Gid,
}

/// What the user wants of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Want {
    /// Only this device.
    pub device: Option<String>,
    /// Only this port.
    pub port: Option<u8>,
    /// Only this place of the GID table.
    pub gid_index: Option<u32>,
    /// Link-local addresses may be chosen.
    pub link_local: bool,
}

/// Why there is no way out.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoChoice {
    /// There is no RDMA device with an address.
    #[error("there is no RDMA device with a port and a GID")]
    NoDevice,
    /// There is none of that name, port or index.
    #[error("no RDMA device has {0}")]
    NotThere(String),
    /// All that fit are down.
    #[error("port {port} of {device} is down")]
    Down {
        /// The device.
        device: String,
        /// The port.
        port: u8,
    },
    /// All that fit are link-local, and those were not asked for.
    #[error(
        "{device} has only link-local addresses: name it with a link-local address to use them"
    )]
    LinkLocal {
        /// The device.
        device: String,
    },
    /// Nothing has the address that this machine reaches the peer from.
    #[error("no RDMA device has the address {0}, which the peer is reached from")]
    NotRouted(IpAddr),
}

/// The address that a GID stands for, IPv4 as itself.
#[must_use]
pub fn address(gid: &Gid) -> IpAddr {
    gid.address
        .to_ipv4_mapped()
        .map_or(IpAddr::V6(gid.address), IpAddr::V4)
}

fn is_link_local(address: Ipv6Addr) -> bool {
    let v4 = address.to_ipv4_mapped();
    address.segments()[0] & 0xffc0 == 0xfe80 || v4.is_some_and(|v4| v4.is_link_local())
}

/// How good the protocol is: RoCE version 2 is routed and has congestion control, InfiniBand and iWARP are what their
/// devices speak, and RoCE version 1 is for want of anything else.
const fn rank(candidate: &Candidate) -> u8 {
    match candidate.gid.kind {
        GidKind::RoceV2 => 3,
        GidKind::Native => 2,
        GidKind::Unknown => 1,
        GidKind::RoceV1 => 0,
    }
}

/// The way out, in this order:
/// 1. only what the user named (device, port, index), or everything;
/// 2. only ports that are up;
/// 3. never a link-local address, unless it was asked for;
/// 4. the address that this machine's routes reach the peer from (`source`), if that is known: an iWARP or RoCE device
///    without it is no way there. An InfiniBand port needs none: its GIDs are not addresses of an interface;
/// 5. RoCE version 2 before what a device speaks by itself, before what is unknown, before RoCE version 1;
/// 6. the first device by name, its first port, its first place.
///
/// # Errors
/// [`NoChoice`], with the first of these that leaves nothing.
pub fn choose<'a>(
    candidates: &'a [Candidate],
    want: &Want,
    source: Option<IpAddr>,
) -> Result<&'a Candidate, NoChoice> {
    if candidates.is_empty() {
        return Err(NoChoice::NoDevice);
    }
    let named = |c: &&Candidate| {
        want.device.as_ref().is_none_or(|d| *d == c.device)
            && want.port.is_none_or(|p| p == c.port)
            && want.gid_index.is_none_or(|i| i == c.gid.index)
    };
    let fit: Vec<&Candidate> = candidates.iter().filter(named).collect();
    let first = fit.first().ok_or_else(|| NoChoice::NotThere(wish(want)))?;
    let up: Vec<&Candidate> = fit.iter().copied().filter(|c| c.active).collect();
    let down = NoChoice::Down {
        device: first.device.clone(),
        port: first.port,
    };
    let first = up.first().ok_or(down)?;
    // InfiniBand's own GIDs have the link-local prefix of their subnet, and are no interface's address.
    let allowed = |c: &&Candidate| {
        want.link_local || c.infiniband || !is_link_local(c.gid.address) || c.iwarp
    };
    let local = NoChoice::LinkLocal {
        device: first.device.clone(),
    };
    let fit: Vec<&Candidate> = up.iter().copied().filter(allowed).collect();
    if fit.is_empty() {
        return Err(local);
    }
    let routed = |c: &&Candidate| match source {
        // An iWARP device's GID is made of its hardware address: the interface has the address.
        Some(source) => c.infiniband || c.iwarp || address(&c.gid) == source.to_canonical(),
        None => true,
    };
    let not_routed = || {
        source.map_or(NoChoice::NoDevice, |source| {
            NoChoice::NotRouted(source.to_canonical())
        })
    };
    let fit = fit.into_iter().filter(routed);
    fit.min_by_key(|c| (Reverse(rank(c)), &c.device, c.port, c.gid.index))
        .ok_or_else(not_routed)
}

/// The user's wish in words.
fn wish(want: &Want) -> String {
    let device = want.device.as_ref().map(|d| format!("the name {d}"));
    let port = want.port.map(|p| format!("port {p}"));
    let gid = want.gid_index.map(|i| format!("GID index {i}"));
    let parts: Vec<String> = [device, port, gid].into_iter().flatten().collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(device: &str, index: u32, kind: GidKind, address: &str) -> Candidate {
        let address = match address.parse().unwrap() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        Candidate {
            device: device.to_owned(),
            port: 1,
            active: true,
            iwarp: false,
            infiniband: false,
            gid: Gid {
                index,
                kind,
                address,
                interface: 0,
            },
        }
    }

    /// The GID table of a usual RoCE port: link-local and IPv4, each in both versions.
    fn roce(device: &str, v4: &str) -> Vec<Candidate> {
        let link = "fe80::e42:a1ff:fe4f:1";
        vec![
            candidate(device, 0, GidKind::RoceV1, link),
            candidate(device, 1, GidKind::RoceV2, link),
            candidate(device, 2, GidKind::RoceV1, v4),
            candidate(device, 3, GidKind::RoceV2, v4),
        ]
    }

    fn found(candidates: &[Candidate], want: &Want, source: Option<&str>) -> (String, u32) {
        let source = source.map(|s| s.parse().unwrap());
        let chosen = choose(candidates, want, source).unwrap();
        (chosen.device.clone(), chosen.gid.index)
    }

    #[test]
    fn roce_version_2_with_the_address_of_the_route_is_chosen() {
        let mut all = roce("mlx5_0", "192.0.2.1");
        all.extend(roce("mlx5_1", "198.51.100.1"));
        let any = Want::default();
        assert_eq!(found(&all, &any, None), ("mlx5_0".to_owned(), 3));
        assert_eq!(
            found(&all, &any, Some("192.0.2.1")),
            ("mlx5_0".to_owned(), 3)
        );
        assert_eq!(
            found(&all, &any, Some("198.51.100.1")),
            ("mlx5_1".to_owned(), 3)
        );
        // However the table is ordered.
        all.reverse();
        assert_eq!(found(&all, &any, None), ("mlx5_0".to_owned(), 3));
        assert_eq!(
            found(&all, &any, Some("::ffff:198.51.100.1")),
            ("mlx5_1".to_owned(), 3)
        );
    }

    #[test]
    fn a_way_that_the_routes_do_not_take_is_no_way() {
        let all = roce("mlx5_0", "192.0.2.1");
        let source = "203.0.113.9".parse().unwrap();
        let error = choose(&all, &Want::default(), Some(source)).unwrap_err();
        assert_eq!(error, NoChoice::NotRouted(source));
    }

    #[test]
    fn link_local_only_if_told() {
        let all: Vec<_> = roce("mlx5_0", "192.0.2.1").drain(..2).collect();
        let error = choose(&all, &Want::default(), None).unwrap_err();
        assert!(matches!(error, NoChoice::LinkLocal { .. }), "{error}");
        let told = Want {
            link_local: true,
            ..Want::default()
        };
        assert_eq!(found(&all, &told, None), ("mlx5_0".to_owned(), 1));
        let v4 = [candidate("a", 0, GidKind::RoceV2, "169.254.1.1")];
        assert!(choose(&v4, &Want::default(), None).is_err());
        assert_eq!(found(&v4, &told, Some("169.254.1.1")), ("a".to_owned(), 0));
    }

    #[test]
    fn ports_that_are_down_are_passed_over() {
        let mut all = roce("mlx5_0", "192.0.2.1");
        all.extend(roce("mlx5_1", "198.51.100.1"));
        for c in &mut all[..4] {
            c.active = false;
        }
        let any = Want::default();
        assert_eq!(found(&all, &any, None), ("mlx5_1".to_owned(), 3));
        let named = Want {
            device: Some("mlx5_0".to_owned()),
            ..Want::default()
        };
        let error = choose(&all, &named, None).unwrap_err().to_string();
        assert_eq!(error, "port 1 of mlx5_0 is down");
    }

    #[test]
    fn what_the_user_names_is_what_is_taken_or_nothing() {
        let mut all = roce("mlx5_0", "192.0.2.1");
        all.extend(roce("mlx5_1", "198.51.100.1"));
        let named = Want {
            device: Some("mlx5_1".to_owned()),
            gid_index: Some(2),
            ..Want::default()
        };
        assert_eq!(found(&all, &named, None), ("mlx5_1".to_owned(), 2));
        let absent = Want {
            device: Some("mlx5_9".to_owned()),
            port: Some(2),
            ..Want::default()
        };
        let error = choose(&all, &absent, None).unwrap_err().to_string();
        assert_eq!(error, "no RDMA device has the name mlx5_9, port 2");
        assert_eq!(choose(&[], &absent, None), Err(NoChoice::NoDevice));
    }

    #[test]
    fn infiniband_and_iwarp_need_no_address_in_their_gids() {
        let mut ib = candidate("mlx5_0", 0, GidKind::Native, "fe80::1");
        ib.infiniband = true;
        let mut iwarp = candidate("siw0", 0, GidKind::Native, "5254:12:3456::");
        iwarp.iwarp = true;
        for c in [ib, iwarp] {
            let name = c.device.clone();
            let all = [c];
            assert_eq!(
                found(&all, &Want::default(), Some("192.0.2.1")),
                (name.clone(), 0)
            );
        }
    }
}
