//! What has happened on the way to a state.

/// Marks of a state, a bit each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Marks(u16);

impl Marks {
    /// Sets the mark if it `happened` now.
    pub(crate) const fn add(&mut self, mark: u16, happened: bool) {
        if happened {
            self.0 |= mark;
        }
    }

    /// Whether it happened.
    pub(crate) const fn has(self, mark: u16) -> bool {
        self.0 & mark != 0
    }
}
