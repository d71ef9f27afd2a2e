//! Streams by token. A token is never reused: an event for a stream that is gone finds nothing, even when another
//! stream has its place.

/// A map from tokens to values with O(1) access and no allocation but to grow.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    len: usize,
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            len: 0,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Puts a value in and gives its token: the place in the low 32 bits, its generation above. A token is below
    /// 2^63. `None` if there are 2^32 values, or a place has been used 2^31 times and none other is left.
    pub(crate) fn insert(&mut self, value: T) -> Option<u64> {
        let index = if let Some(index) = self.free.pop() {
            index
        } else {
            let index = u32::try_from(self.places.len()).ok()?;
            self.places.push(Place {
                generation: 0,
                value: None,
            });
            index
        };
        let place = self.places.get_mut(usize::try_from(index).ok()?)?;
        place.value = Some(value);
        self.len += 1;
        Some(u64::from(place.generation) << 32 | u64::from(index))
    }

    fn place(&self, token: u64) -> Option<usize> {
        let index = usize::try_from(token & u64::from(u32::MAX)).ok()?;
        (u64::from(self.places.get(index)?.generation) == token >> 32).then_some(index)
    }

    pub(crate) fn get_mut(&mut self, token: u64) -> Option<&mut T> {
        let index = self.place(token)?;
        self.places.get_mut(index)?.value.as_mut()
    }

    pub(crate) fn remove(&mut self, token: u64) -> Option<T> {
        let index = self.place(token)?;
        let place = self.places.get_mut(index)?;
        let value = place.value.take()?;
        self.len -= 1;
        place.generation += 1;
        // A place whose generations are used up is never given out again.
        if place.generation < 1 << 31 {
            self.free.push(u32::try_from(index).ok()?);
        }
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.places.iter().enumerate().filter_map(|(i, place)| {
            let token = u64::from(place.generation) << 32 | u64::try_from(i).ok()?;
            Some((token, place.value.as_ref()?))
        })
    }

    /// Tokens of all values, for a walk that changes the slab.
    pub(crate) fn tokens(&self) -> Vec<u64> {
        self.iter().map(|(token, _)| token).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_dies_with_its_value() {
        let mut slab = Slab::new();
        let a = slab.insert("a").unwrap();
        assert_eq!(slab.remove(a), Some("a"));
        let b = slab.insert("b").unwrap();
        assert_ne!(a, b);
        assert_eq!(a & 0xffff_ffff, b & 0xffff_ffff, "the place is used again");
        assert_eq!(slab.get_mut(a), None);
        assert_eq!(slab.remove(a), None);
        assert_eq!(slab.get_mut(b), Some(&mut "b"));
        assert_eq!((slab.len(), slab.tokens()), (1, vec![b]));
        assert_eq!(slab.get_mut(77), None);
    }
}
