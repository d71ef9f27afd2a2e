//! Which handles of its range an initiator has bound, as far as it knows: what makes its count of the quota in use come
//! true again after a stream was lost.

use super::limits::TRACKED_HANDLES;
use kbtp_wire::Handle;

/// What is known of a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Known {
    /// Nothing: not bound, as far as this party had to do with it.
    Nothing,
    /// It is bound.
    Bound,
    /// It may be bound: its allocation or its free was lost with a stream.
    Doubt,
}

/// Two bits for each handle of a range.
#[derive(Clone, Debug, Default)]
pub(super) struct Bindings {
    base: u64,
    bound: Box<[u64]>,
    doubt: Box<[u64]>,
}

impl Bindings {
    /// Of a range in which nothing is known. Cost: allocates a quarter of an octet for each handle. A range that is too
    /// long is not tracked.
    pub(super) fn of(base: Handle, count: u64) -> Self {
        let count = if count > TRACKED_HANDLES { 0 } else { count };
        let words = usize::try_from(count.div_ceil(64)).unwrap_or(0);
        Self {
            base: base.0,
            bound: vec![0; words].into(),
            doubt: vec![0; words].into(),
        }
    }

    /// Notes what is known of a handle now; what was known. `None` if the handle is not tracked.
    pub(super) fn replace(&mut self, handle: Handle, now: Known) -> Option<Known> {
        let number = handle.0.checked_sub(self.base)?;
        let word = usize::try_from(number / 64).ok()?;
        let bit = 1 << (number % 64);
        let bound = self.bound.get_mut(word)?;
        let doubt = self.doubt.get_mut(word)?;
        let before = match (*bound & bit != 0, *doubt & bit != 0) {
            (_, true) => Known::Doubt,
            (true, false) => Known::Bound,
            (false, false) => Known::Nothing,
        };
        *bound &= !bit;
        *doubt &= !bit;
        match now {
            Known::Nothing => {}
            Known::Bound => *bound |= bit,
            Known::Doubt => *doubt |= bit,
        }
        Some(before)
    }

    /// Nothing is known any more.
    pub(super) fn forget(&mut self) {
        self.bound.fill(0);
        self.doubt.fill(0);
    }

    /// Takes over what was known of the same range in an earlier session: all of it is in doubt.
    pub(super) fn inherit(&mut self, before: &Self) {
        if (self.base, self.bound.len()) == (before.base, before.bound.len()) {
            for (to, (bound, doubt)) in self
                .doubt
                .iter_mut()
                .zip(before.bound.iter().zip(&before.doubt))
            {
                *to |= bound | doubt;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_of_the_range_are_remembered() {
        let mut bindings = Bindings::of(Handle(100), 70);
        for n in [100, 163, 164, 169] {
            assert_eq!(
                bindings.replace(Handle(n), Known::Bound),
                Some(Known::Nothing)
            );
            assert_eq!(
                bindings.replace(Handle(n), Known::Doubt),
                Some(Known::Bound)
            );
        }
        assert_eq!(
            bindings.replace(Handle(100), Known::Bound),
            Some(Known::Doubt)
        );
        for outside in [0, 99, 100 + 128, u64::MAX] {
            assert_eq!(bindings.replace(Handle(outside), Known::Bound), None);
        }
        let mut next = Bindings::of(Handle(100), 70);
        next.inherit(&bindings);
        for (n, known) in [
            (100, Known::Doubt),
            (101, Known::Nothing),
            (163, Known::Doubt),
        ] {
            assert_eq!(next.replace(Handle(n), Known::Nothing), Some(known));
        }
        let mut other = Bindings::of(Handle(164), 70);
        other.inherit(&bindings);
        assert_eq!(
            other.replace(Handle(164), Known::Nothing),
            Some(Known::Nothing)
        );
        let mut long = Bindings::of(Handle(0), TRACKED_HANDLES + 1);
        assert_eq!(long.replace(Handle(0), Known::Bound), None);
    }
}
