//! The device whose chains are to serve: seen to do what they need, or refused before the target serves anybody.

use super::StartError;
use kbtp_device::Device;
use kbtp_device::calibrate::calibrate;
use kbtp_mlx5_devx::{Kernel, Libmlx5, Mlx5Devx, judge};
use kbtp_nic_model::{Hazards, Model, PATIENCE, Schedule};

/// The model. It does what comes at once: what it may do besides is for tests.
pub(super) fn model(now: &mut dyn FnMut() -> u64) -> Result<Model, StartError> {
    fit(Model::new(Hazards::default(), Schedule::Eager, 1), now)
}

fn fit(mut model: Model, now: &mut dyn FnMut() -> u64) -> Result<Model, StartError> {
    let unfit = |why| StartError::Unfit {
        device: "the model of a NIC".to_owned(),
        why,
    };
    let mut wait = |model: &mut Model| (0..PATIENCE).any(|_| model.step());
    let report = calibrate(&mut model, &mut wait, now);
    let report = report.map_err(|error| unfit(error.to_string()))?;
    // What was asked has passed through its queue of events.
    while model.next_event().is_some() {}
    match report.refusal() {
        None => Ok(model),
        Some(why) => Err(unfit(why)),
    }
}

/// Why chains may not serve with a device of the mlx5 family. It is opened and asked first, so that what is the matter with
/// the device itself is what its owner reads.
pub(super) fn mlx5(name: &str, now: &mut dyn FnMut() -> u64) -> StartError {
    let why = match Libmlx5::open(name) {
        Ok(kernel) => judged(kernel, now),
        Err(error) => error.to_string(),
    };
    StartError::Unfit {
        device: name.to_owned(),
        why,
    }
}

fn judged<K: Kernel>(kernel: K, now: &mut dyn FnMut() -> u64) -> String {
    match judge(&mut Mlx5Devx::new(kernel), now) {
        Ok(judgement) => judgement.unfit.map_or_else(
            || {
                "it does what chains need, but this version connects no client's queue pair to it"
                    .to_owned()
            },
            |unfit| unfit.to_string(),
        ),
        Err(error) => format!("it could not be asked: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_does_not_do_it_is_refused_with_each_step() {
        let hazards = Hazards {
            max_pieces: 16,
            ..Hazards::default()
        };
        let unfit = fit(Model::new(hazards, Schedule::Eager, 1), &mut || 0).unwrap_err();
        let said = unfit.to_string();
        assert!(said.contains("step 12, "), "{said}");
        assert!(said.contains("engine = \"software\""), "{said}");
        assert!(model(&mut || 0).is_ok());
    }

    #[test]
    fn a_device_that_is_not_there_is_refused_by_name() {
        let said = mlx5("mlx5_of_nowhere", &mut || 0).to_string();
        assert!(
            said.contains("(T2) may not serve with mlx5_of_nowhere"),
            "{said}"
        );
        assert!(said.contains("software (T0) would serve"), "{said}");
    }
}
