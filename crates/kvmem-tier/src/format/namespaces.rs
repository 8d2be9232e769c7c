//! *Namespaces* of a tier: their seeds lie in the superblock, so two writes forget one.

use std::fmt;

use kvmem_encoding::Namespace;

/// The most namespaces of a tier.
pub const MAX_NAMESPACES: usize = 112;
/// Bytes of a namespace: its identity and its seed.
const NAMESPACE: usize = 32;
/// Bytes of all of them.
pub(super) const NAMESPACES: usize = MAX_NAMESPACES * NAMESPACE;

/// The namespaces of a tier, by their numbers from 1.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Namespaces(Vec<Namespace>);

impl Namespaces {
    /// Returns the namespace with a number.
    #[must_use]
    pub fn get(&self, number: u16) -> Option<Namespace> {
        let found = self.0.get(usize::from(number).checked_sub(1)?)?;
        (*found != Namespace::default()).then_some(*found)
    }

    /// Returns the number of the namespace with an identity. O(namespaces).
    #[must_use]
    pub fn number_of(&self, id: &[u8; 16]) -> Option<u16> {
        let place = self.0.iter().position(|one| one.id == *id)?;
        Some(place as u16 + 1)
    }

    /// Adds a namespace; returns its number, or `None` if there are too many.
    pub(crate) fn add(&mut self, namespace: Namespace) -> Option<u16> {
        let free = self.0.iter().position(|one| *one == Namespace::default());
        match free {
            Some(free) => self.0[free] = namespace,
            None if self.0.len() == MAX_NAMESPACES => return None,
            None => self.0.push(namespace),
        }
        self.number_of(&namespace.id)
    }

    /// Removes the namespace with an identity; returns its number, and what it was.
    pub(crate) fn remove(&mut self, id: &[u8; 16]) -> Option<(u16, Namespace)> {
        let number = self.number_of(id)?;
        Some((number, std::mem::take(&mut self.0[usize::from(number) - 1])))
    }

    /// Returns how many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.iter().filter(|one| **one != Namespace::default()).count()
    }

    pub(super) fn write(&self, bytes: &mut [u8]) {
        for (row, Namespace { id, seed }) in bytes.chunks_exact_mut(NAMESPACE).zip(&self.0) {
            row[..16].copy_from_slice(id);
            row[16..].copy_from_slice(seed);
        }
    }

    pub(super) fn read(bytes: &[u8]) -> Namespaces {
        let rows = bytes.as_chunks::<16>().0.as_chunks::<2>().0;
        let mut all: Vec<Namespace> =
            rows.iter().map(|&[id, seed]| Namespace { id, seed }).collect();
        let free = all.iter().rev().take_while(|one| **one == Namespace::default()).count();
        all.truncate(all.len() - free);
        Namespaces(all)
    }
}

impl fmt::Debug for Namespaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namespaces").field("count", &self.count()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(number: u8) -> Namespace {
        Namespace { id: [number; 16], seed: [number; 16] }
    }

    #[test]
    fn namespaces_keep_their_numbers() {
        let mut all = Namespaces::default();
        for number in 1..=MAX_NAMESPACES as u8 {
            assert_eq!(all.add(namespace(number)), Some(number.into()));
        }
        assert_eq!(all.add(namespace(200)), None, "there are too many");
        assert_eq!(all.remove(&[7; 16]), Some((7, namespace(7))));
        assert_eq!(
            (all.remove(&[7; 16]), all.get(7), all.get(0), all.get(113)),
            (None, None, None, None)
        );
        assert_eq!(all.count(), MAX_NAMESPACES - 1);
        assert_eq!(all.add(namespace(200)), Some(7), "a free number is used again");
        assert_eq!((all.get(7), all.get(8)), (Some(namespace(200)), Some(namespace(8))));
        for last in [112, 111, 1] {
            all.0.truncate(last);
            let mut bytes = [0; NAMESPACES];
            all.write(&mut bytes);
            assert_eq!(Namespaces::read(&bytes), all);
        }
    }
}
