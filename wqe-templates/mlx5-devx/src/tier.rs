//! Which tier a device is fit for: what it says it can, then whether it was seen to do it.
//!
//! T2: chains serve, and software only arms them. T0: software serves. A device never comes to a lower tier by itself: whoever
//! started a target for T2 is told why not, and what would run instead.

use crate::device::{DevxError, Mlx5Devx};
use crate::kernel::Kernel;
use kbtp_device::SetUpError;
use kbtp_device::calibrate::{Report, calibrate};

/// Why chains may not serve with a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unfit {
    /// It says itself that it cannot.
    Lacks(Vec<&'static str>),
    /// These steps of the calibration failed.
    Failed(Vec<String>),
}

impl core::fmt::Display for Unfit {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Lacks(what) => write!(f, "it has no {}", what.join(", no ")),
            Self::Failed(steps) => write!(f, "calibration: {}", steps.join("; ")),
        }
    }
}

/// What came of asking a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Judgement {
    /// Why chains may not serve; `None` if they may.
    pub unfit: Option<Unfit>,
    /// What it was seen to do; `None` if what it says was enough to refuse it.
    pub report: Option<Report>,
}

/// Asks a device whether chains may serve with it. `now` counts nanoseconds.
///
/// # Errors
/// What stopped the asking: nothing is known then, and no chain may serve.
pub fn judge<K: Kernel>(
    device: &mut Mlx5Devx<K>,
    now: &mut dyn FnMut() -> u64,
) -> Result<Judgement, SetUpError<DevxError<K::Error>>> {
    let capabilities = device.capabilities();
    let capabilities = capabilities.map_err(|source| SetUpError::Device {
        what: "asking the device what it can do",
        source,
    })?;
    let lacks = capabilities.lacks();
    if !lacks.is_empty() {
        return Ok(Judgement {
            unfit: Some(Unfit::Lacks(lacks)),
            report: None,
        });
    }
    let report = calibrate(device, &mut Mlx5Devx::wait, now)?;
    let failed = report.failed();
    Ok(Judgement {
        unfit: (!failed.is_empty()).then_some(Unfit::Failed(failed)),
        report: Some(report),
    })
}
