//! *Shared memory*: maps a memory file, which has pages of one kind.
//!
//! The file's pages are those of the first rung that can take all of it. If the machine's settings
//! provide no transparent hugepages for it, populating can still make them; see
//! [`collapse`].

use std::fs::File;

use super::mapped_span::{MappedSpan, Segment};
use super::memfd;
use super::options::MapOptions;
use super::span::{AddressSpan, unmap};
use crate::arena::error::{call_failed, no_pages};
use crate::arena::machine::thp;
use crate::arena::populate::collapse;
use crate::arena::{ArenaError, Call, Fallback, PageSize};
use crate::sys;

pub(super) fn shared(options: &MapOptions) -> Result<MappedSpan, ArenaError> {
    let rungs = options.ladder.usable();
    let mut reasons: Vec<Fallback> = Vec::new();
    for &page in rungs {
        let len = options.whole_pages(page.bytes())?;
        let mut by_collapse = false;
        let reason = if page.is_pooled() {
            let wanted = len / page.bytes();
            let (pages, reason) = options.pages_available(page, wanted);
            (pages < wanted).then_some(reason).flatten()
        } else if page == PageSize::Thp {
            let setting = thp::disabled_by(thp::SHARED);
            by_collapse = setting.is_some() && options.can_collapse() && collapse_is_possible();
            setting.filter(|_| !by_collapse).map(|setting| Fallback::ThpOff { setting })
        } else {
            None
        };
        let span = match reason {
            Some(reason) => Err(reason),
            None => shared_of(page, len, options)?,
        };
        match span {
            Ok((span, file)) => {
                let segment = Segment {
                    range: 0..len,
                    requested: rungs[0],
                    obtained: page,
                    fallbacks: reasons,
                    by_collapse,
                };
                return Ok(MappedSpan {
                    span,
                    segments: vec![segment],
                    file: Some(file),
                    policy_verified: false,
                });
            }
            Err(reason) => reasons.push(reason),
        }
    }
    let (page, reason) = (rungs[rungs.len() - 1], reasons.pop());
    let reason = reason.unwrap_or(Fallback::NoPool { page });
    Err(no_pages(0..options.whole_pages(page.bytes())?, page, reason))
}

/// Maps a shared span of one kind of pages, or returns why another kind must be tried.
fn shared_of(
    page: PageSize,
    len: usize,
    options: &MapOptions,
) -> Result<Result<(AddressSpan, File), Fallback>, ArenaError> {
    let step_down = |error: ArenaError| match error {
        // The next rung may have what this pool has not.
        ArenaError::CallFailed {
            call: Call::MemfdCreate | Call::Truncate | Call::MapFile,
            errno,
            ..
        } if page.is_pooled() => Ok(Err(Fallback::PoolFailed { page, errno })),
        error => Err(error),
    };
    let file = match memfd::make(page, len, options.growable) {
        Ok(file) => file,
        Err(error) => return step_down(error),
    };
    let span = match map_whole(&file, len, page, options.guard_pages, true) {
        Ok(span) => span,
        Err(error) => return step_down(error),
    };
    // After kvmem's own mapping, which needs the right to write.
    memfd::seal(&file, len, options)?;
    if page == PageSize::Thp {
        // SAFETY: the span is this call's own, and the advice changes no byte.
        if let Err(errno) = unsafe { sys::madvise(span.base(), len, libc::MADV_HUGEPAGE) } {
            return Ok(Err(Fallback::ThpFailed { errno }));
        }
    }
    Ok(Ok((span, file)))
}

/// Maps the whole of a file into a new span, to read and perhaps to write.
pub(crate) fn map_whole(
    file: &File,
    len: usize,
    page: PageSize,
    guards: bool,
    write: bool,
) -> Result<AddressSpan, ArenaError> {
    let error = |errno| call_failed(Call::MapFile, len, errno);
    // The pages of another process's file may be hugepages. This mapping can use them as hugepages
    // only at an address where a hugepage can lie.
    let align = if len < PageSize::Thp.bytes() {
        page.bytes()
    } else {
        page.bytes().max(PageSize::Thp.bytes())
    };
    let span = AddressSpan::reserve(len, align, guards)?;
    if page.is_pooled() {
        // The pool promises pages to the file, not to the mapping: the second mapping gets the
        // pages of the first.
        // SAFETY: no address is passed, so the kernel replaces no mapping.
        let trial = unsafe { sys::map_file(None, len, file, write) }.map_err(error)?;
        // SAFETY: the kernel chose the range just now, and no code has its address.
        unsafe { unmap(trial, len) };
    }
    // SAFETY: the range is the new span's, and nothing is mapped there except its reservation,
    // which has no accessible byte.
    if let Err(errno) = unsafe { sys::map_file(Some(span.base()), len, file, write) } {
        sys::refill(span.base(), len);
        return Err(error(errno));
    }
    Ok(span)
}

/// Returns whether the kernel collapses shared memory here. Tries it with one hugepage, because
/// settings and kernels differ.
fn collapse_is_possible() -> bool {
    let tried = || -> Result<bool, ArenaError> {
        let len = PageSize::Thp.bytes();
        let span =
            map_whole(&memfd::make(PageSize::Thp, len, false)?, len, PageSize::Thp, false, true)?;
        Ok(collapse(span.base(), len))
    };
    tried().unwrap_or(false)
}
