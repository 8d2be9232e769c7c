//! *Witness*: proves to loom that accesses are exclusive. It is empty in every other build.

use super::statics::const_new;
#[cfg(all(loom, not(shuttle)))]
use loom::cell::UnsafeCell;
#[cfg(not(all(loom, not(shuttle))))]
use std::cell::UnsafeCell;

/// Stands for data that one thread at a time may access.
pub(crate) struct Witness(UnsafeCell<()>);

impl Witness {
    const_new! {
        pub(crate) const fn new() -> Self {
            Witness(UnsafeCell::new(()))
        }
    }

    /// Accesses the data; a model fails if another thread's access is not ordered with this one.
    #[inline(always)]
    pub(crate) fn touch(&self) {
        #[cfg(all(loom, not(shuttle)))]
        self.0.with_mut(|_| ());
    }
}
