//! What can go wrong between this process and a device.

use crate::load::Missing;
use std::io;

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// A library is not there.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The system, the driver or the device refused.
    #[error("{what}: {source}")]
    Os {
        /// What was asked.
        what: &'static str,
        /// What it said.
        #[source]
        source: io::Error,
    },
    /// More was asked than the device has.
    #[error("{attribute} of the device is {limit}, and {wanted} were asked for")]
    Attribute {
        /// The device's attribute, as `ibv_query_device(3)` names it.
        attribute: &'static str,
        /// What was asked for.
        wanted: u64,
        /// What there is.
        limit: u64,
    },
    /// The device or its driver has no such operation.
    #[error("the device has no {what}")]
    Unsupported {
        /// What it lacks.
        what: &'static str,
    },
    /// There is no device of this name.
    #[error("there is no RDMA device {name}: there {}", listed(.known))]
    NoDevice {
        /// What was asked for.
        name: String,
        /// The names of those there are.
        known: Vec<String>,
    },
    /// A device that libmlx5 does not drive.
    #[error(
        "{name} is not of the mlx5 family (ConnectX-4 and later, BlueField), and no other has DEVX"
    )]
    NotMlx5 {
        /// Its name.
        name: String,
    },
    /// A device that gives this process no DEVX.
    #[error(
        "{name} gives this process no DEVX: {source}; it needs CAP_NET_RAW, /dev/infiniband/uverbs* writable, a kernel \
         with mlx5_ib's DEVX and, in the firmware, a function that may have user contexts"
    )]
    NoDevx {
        /// Its name.
        name: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A range outside its region or registration.
    #[error("octets {start}..{end} lie outside {len}")]
    Range {
        /// First octet.
        start: u64,
        /// One past the last.
        end: u64,
        /// Octets there are.
        len: u64,
    },
}

fn listed(names: &[String]) -> String {
    match names {
        [] => "are none (modprobe mlx5_ib loads the driver of the mlx5 family)".to_owned(),
        [one] => format!("is {one}"),
        more => format!("are {}", more.join(", ")),
    }
}

impl VerbsError {
    /// The system's own number for it, if it came from there.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Os { source, .. } | Self::NoDevx { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

/// The error of a function that gives -1 or null and sets `errno`.
pub(crate) fn last(what: &'static str) -> VerbsError {
    VerbsError::Os {
        what,
        source: io::Error::last_os_error(),
    }
}

/// Result of a function that gives 0, or the number of its error, or -1 and sets `errno`: verbs are not of one mind.
pub(crate) fn check(what: &'static str, result: i32) -> Result<(), VerbsError> {
    match result {
        0 => Ok(()),
        -1 => Err(last(what)),
        number => Err(VerbsError::Os {
            what,
            source: io::Error::from_raw_os_error(number.saturating_abs()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_errors_whatever_their_sign() {
        assert!(check("x", 0).is_ok());
        assert_eq!(check("x", 22).unwrap_err().errno(), Some(22));
        assert_eq!(check("x", -22).unwrap_err().errno(), Some(22));
        assert!(check("x", i32::MIN).unwrap_err().errno().is_some());
    }
}
