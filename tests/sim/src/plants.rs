//! The faults that can be put in on purpose, of all crates that run here.

use kbtp_core::plants as core;
use kbtp_iwarp::plants as iwarp;

/// A fault that can be put in on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// In kbtp-core.
    Core(core::Plant),
    /// In kbtp-iwarp.
    Iwarp(iwarp::Plant),
}

impl Planted {
    /// All of them.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let core = core::Plant::ALL.iter().copied().map(Self::Core);
        let iwarp = iwarp::Plant::ALL.iter().copied().map(Self::Iwarp);
        core.chain(iwarp).collect()
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Core(plant) => format!("{plant:?}"),
            Self::Iwarp(plant) => format!("{plant:?}"),
        }
    }

    /// What it does, in words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Core(plant) => plant.text().trim_ascii(),
            Self::Iwarp(plant) => plant.text().trim_ascii(),
        }
    }

    /// The one of this name, in whatever case.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all()
            .into_iter()
            .find(|plant| plant.name().eq_ignore_ascii_case(name))
    }

    /// Puts it in, in this process, and takes out any other; `None` takes out all.
    pub fn put_in(which: Option<Self>) {
        core::plant(match which {
            Some(Self::Core(plant)) => Some(plant),
            _ => None,
        });
        iwarp::plant(match which {
            Some(Self::Iwarp(plant)) => Some(plant),
            _ => None,
        });
    }
}
