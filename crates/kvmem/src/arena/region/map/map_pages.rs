//! *Mapping pages*: turns the description of a region into addresses with pages.

use super::mapped_span::MappedSpan;
use super::options::MapOptions;
use super::private::private;
use super::shared::shared;
use super::span::AddressSpan;
use crate::arena::error::call_failed;
use crate::arena::region::backing::Backing;
use crate::arena::{ArenaError, Call};
use crate::sys;

/// Maps what the options describe; touches no page.
pub(crate) fn map_pages(options: &MapOptions) -> Result<MappedSpan, ArenaError> {
    if options.requested == 0 {
        return Err(ArenaError::ZeroSize);
    }
    if options.ladder.usable().is_empty() {
        return Err(ArenaError::EmptyLadder);
    }
    options.numa.check()?;
    let mut mapped = match options.backing {
        Backing::Private => private(options)?,
        Backing::Shared => shared(options)?,
    };
    for segment in &mapped.segments {
        mapped.policy_verified =
            options.numa.apply(mapped.span.at(segment.range.start), segment.range.len())?;
    }
    shield(&mapped.span, options.dont_fork, options.dont_dump)?;
    Ok(mapped)
}

/// Keeps a range out of forked children and core dumps.
pub(crate) fn shield(
    span: &AddressSpan,
    dont_fork: bool,
    dont_dump: bool,
) -> Result<(), ArenaError> {
    for (wanted, advice) in [(dont_fork, libc::MADV_DONTFORK), (dont_dump, libc::MADV_DONTDUMP)] {
        if wanted {
            // SAFETY: the range is the span's own, and neither advice changes a byte of this
            // process.
            unsafe { sys::madvise(span.base(), span.len(), advice) }
                .map_err(|errno| call_failed(Call::Advise, span.len(), errno))?;
        }
    }
    Ok(())
}
