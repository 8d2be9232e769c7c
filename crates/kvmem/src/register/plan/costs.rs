//! *Costs*: rough durations, for estimates.
//!
//! Measured with eight rings on a virtual machine with two cores of an EPYC. Other machines and
//! devices differ by factors. An estimate distinguishes seconds from minutes; no decision depends
//! on it.

use crate::arena::PageSize;

/// Returns the milliseconds in which one thread makes a GiB resident.
pub(super) fn populate_ms(page: PageSize) -> f64 {
    if page == PageSize::Base { 320.0 } else { 44.0 }
}

/// Returns the milliseconds in which one registrar registers a GiB that is resident.
pub(super) fn register_ms(page: PageSize) -> f64 {
    if page == PageSize::Base { 22.0 } else { 1.2 }
}
