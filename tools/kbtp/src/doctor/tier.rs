//! Which tier each device of the mlx5 family is fit for: T2, chains on the device; T1, cores validate and the device moves
//! data; T0, software.

use super::rdma::Device;
use kbtp_mlx5_devx::{Libmlx5, Mlx5Devx};
use serde::Serialize;

/// What a device says that it cannot, of what chains need; or why it cannot be asked.
pub(super) type Ask<'a> = &'a dyn Fn(&str) -> Result<Vec<&'static str>, String>;

/// What would run with a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Tier {
    device: String,
    /// The tier that would run.
    #[serde(rename = "tier")]
    pub(super) would_run: &'static str,
    /// Why this one and no higher.
    why: String,
}

impl Tier {
    /// In a line.
    pub(super) fn said(&self) -> String {
        format!("{}: {}, {}", self.device, self.would_run, self.why)
    }
}

/// Asks the device itself, without making anything on it but a page of doorbells and a channel of events.
pub(super) fn ask(name: &str) -> Result<Vec<&'static str>, String> {
    let kernel = Libmlx5::open(name).map_err(|error| error.to_string())?;
    let capabilities = Mlx5Devx::new(kernel).capabilities();
    let capabilities = capabilities.map_err(|error| crate::failure::chain(&error))?;
    Ok(capabilities.lacks())
}

/// Of each device of the family.
pub(super) fn tiers(devices: &[Device], ask: Ask<'_>) -> Vec<Tier> {
    let family = devices.iter().filter(|device| device.is_mlx5());
    family.map(|device| tier(device, ask)).collect()
}

fn tier(device: &Device, ask: Ask<'_>) -> Tier {
    let name = &device.name;
    let why = if device.usable {
        match ask(name) {
            Err(why) => format!("no chain can be tried on it: {why}"),
            Ok(lacks) if lacks.is_empty() => format!(
                "it says it has what chains need (kbtp wqe calibrate --nic mlx5:{name} tries it), but this version connects no \
                 client's queue pair to it"
            ),
            Ok(lacks) => format!("chains need what it has not: {}", lacks.join(", ")),
        }
    } else {
        format!("it cannot be used at all: {}", device.why)
    };
    Tier {
        device: name.clone(),
        would_run: "T0",
        why,
    }
}

/// The line of chains.
pub(super) fn chain_why(tiers: &[Tier]) -> String {
    let model = "kbtp serve --engine chain --nic model shows chains at work in software";
    if tiers.is_empty() {
        return format!("none: no mlx5 device (BlueField, ConnectX); {model}");
    }
    let each: Vec<String> = tiers.iter().map(Tier::said).collect();
    format!("{}; {model}", each.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::rdma;

    fn device(name: &str, usable: bool) -> Device {
        rdma::example(name, usable)
    }

    #[test]
    fn each_device_has_a_tier_and_a_reason() {
        let devices = [
            device("mlx5_0", true),
            device("mlx5_1", false),
            device("rxe0", true),
        ];
        let said =
            |ask: Ask<'_>| -> Vec<String> { tiers(&devices, ask).iter().map(Tier::said).collect() };
        let all = said(&|_| Ok(vec![]));
        assert_eq!(all.len(), 2, "one is of another family");
        assert!(all[0].starts_with("mlx5_0: T0, "), "{all:?}");
        assert!(
            all[0].contains("kbtp wqe calibrate --nic mlx5:mlx5_0"),
            "{all:?}"
        );
        assert!(
            all[1].contains("cannot be used at all: it is broken"),
            "{all:?}"
        );
        let lacks = said(&|_| Ok(vec!["atomics"]));
        assert!(lacks[0].contains("has not: atomics"), "{lacks:?}");
        let closed = said(&|name| Err(format!("{name} is closed")));
        assert!(closed[0].contains("mlx5_0 is closed"), "{closed:?}");
    }

    #[test]
    fn without_a_device_the_model_is_offered() {
        let said = chain_why(&[]);
        assert!(said.starts_with("none: no mlx5 device"), "{said}");
        assert!(said.contains("--nic model"), "{said}");
    }
}
