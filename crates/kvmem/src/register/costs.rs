//! *Costs*: about how long things take, for estimates.
//!
//! Measured with eight rings on a virtual machine with two cores of an EPYC. Other machines and
//! devices differ by factors; an estimate tells seconds from minutes, and nothing is decided by it.

use crate::arena::PageSize;

/// Milliseconds for a GiB to be made resident by one thread.
pub(super) fn populate_ms(page: PageSize) -> f64 {
    if page == PageSize::Base { 320.0 } else { 44.0 }
}

/// Milliseconds for a GiB that is resident to be registered with one registrar.
pub(super) fn register_ms(page: PageSize) -> f64 {
    if page == PageSize::Base { 22.0 } else { 1.2 }
}
