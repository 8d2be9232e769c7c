//! *Mapping pages*: fills a span of addresses with pages, rung by rung down the ladder.
//!
//! One private region can consist of several kinds of pages: the first rung takes as many whole
//! pages as it has, the next as many as it has of the rest, and so on. Each segment records why it
//! is not on a higher rung.
//!
//! Ordinary pages are made accessible in place (`mprotect`): if this fails, the reservation of
//! addresses remains. Hugetlb pages need a mapping of their own over the reservation. Up to Linux
//! 6.11 the kernel removes the old mapping before it asks the hugetlb pool, so a failure leaves a
//! hole that another thread's mapping could fill. A trial mapping at another address therefore asks
//! the pool first.
//!
//! Shared memory is one file, and a file has pages of one kind: the first rung that can take all of
//! it. If the machine's settings provide no transparent hugepages for it, populating can still make
//! them; see `collapse.rs`.

use std::fs::File;
use std::ops::Range;
use std::ptr::NonNull;

use super::memfd;
use super::span::{AddressSpan, unmap};
use crate::arena::error::call_failed;
use crate::arena::machine::hugetlb;
use crate::arena::populate::collapse;
use crate::arena::region::builder::MapOptions;
use crate::arena::{ArenaError, Backing, Call, Errno, Fallback, Limit, Numa, PageSize};
use crate::sys;

/// A part of a region that consists of pages of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    /// Offsets into the span.
    pub(crate) range: Range<usize>,
    pub(crate) requested: PageSize,
    pub(crate) got: PageSize,
    pub(crate) fallbacks: Vec<Fallback>,
    /// Transparent hugepages that populating makes, because faults do not. See `collapse.rs`.
    pub(crate) by_collapse: bool,
}

/// A span of addresses with pages.
#[derive(Debug)]
pub(crate) struct MappedSpan {
    pub(crate) span: AddressSpan,
    pub(crate) segments: Vec<Segment>,
    pub(crate) file: Option<File>,
    pub(crate) policy_verified: bool,
}

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
            // SAFETY: the range belongs to the span, and the advice changes no byte.
            unsafe { sys::madvise(span.base(), span.len(), advice) }
                .map_err(|errno| call_failed(Call::Advise, span.len(), errno))?;
        }
    }
    Ok(())
}

/// Rounds `requested` up to whole pages.
fn whole_pages(requested: usize, page: usize) -> Result<usize, ArenaError> {
    let max = isize::MAX as usize & !(page - 1);
    requested
        .checked_next_multiple_of(page)
        .filter(|len| *len <= max)
        .ok_or(ArenaError::TooLarge { requested, most: max })
}

fn private(options: &MapOptions) -> Result<MappedSpan, ArenaError> {
    let rungs = options.ladder.usable();
    let sizes = || rungs.iter().map(|page| page.bytes());
    let len = whole_pages(options.requested, sizes().min().unwrap_or(1))?;
    let span = AddressSpan::reserve(len, sizes().max().unwrap_or(1), options.guard_pages)?;

    let mut segments = Vec::new();
    let mut reasons: Vec<Fallback> = Vec::new();
    let mut at = 0;
    for &page in rungs {
        let size = page.bytes();
        let wanted = (len - at) / size;
        let (got, reason) = if at == len {
            break;
        } else if !at.is_multiple_of(size) {
            (0, Some(Fallback::Unaligned { page }))
        } else if wanted == 0 {
            (0, None)
        } else {
            match page {
                PageSize::Base => (plain(&span, at, wanted * size, false)?, None),
                PageSize::Thp => transparent(&span, at, wanted * size)?,
                PageSize::Huge2M | PageSize::Huge1G => pooled(&span, at, wanted, page, options),
            }
        };
        if got > 0 {
            let fallbacks = reasons.clone();
            segments.push(Segment {
                range: at..at + got,
                requested: rungs[0],
                got: page,
                fallbacks,
                by_collapse: false,
            });
            at += got;
        }
        if at < len {
            reasons.push(reason.unwrap_or(Fallback::Tail { page }));
        }
    }
    match reasons.pop() {
        Some(reason) if at < len => Err(no_pages(at..len, rungs[rungs.len() - 1], reason)),
        _ => Ok(MappedSpan { span, segments, file: None, policy_verified: false }),
    }
}

fn no_pages(range: Range<usize>, page: PageSize, reason: Fallback) -> ArenaError {
    let limit = match reason {
        Fallback::PoolShort { page, .. } | Fallback::PoolFailed { page, .. } => {
            hugetlb::free(page).map(|free| Limit::Pool { page, free })
        }
        _ => None,
    };
    ArenaError::NoPages { range, page, reason, limit }
}

/// Makes a part of the span accessible as ordinary memory.
fn plain(
    span: &AddressSpan,
    at: usize,
    len: usize,
    transparent: bool,
) -> Result<usize, ArenaError> {
    // SAFETY: the part lies in the span, which the caller owns.
    unsafe { sys::protect(span.at(at), len) }
        .map_err(|errno| call_failed(Call::Protect, len, errno))?;
    if !transparent {
        // Where the machine uses hugepages for everything, base pages need this advice. A kernel
        // without transparent hugepages rejects it and uses base pages anyway.
        // SAFETY: the part lies in the span, which the caller owns; no byte changes.
        let _ = unsafe { sys::madvise(span.at(at), len, libc::MADV_NOHUGEPAGE) };
    }
    Ok(len)
}

/// Makes a part accessible, with the advice to use transparent hugepages.
fn transparent(
    span: &AddressSpan,
    at: usize,
    len: usize,
) -> Result<(usize, Option<Fallback>), ArenaError> {
    if let Some(off) = thp_off(Backing::Private) {
        return Ok((0, Some(off)));
    }
    plain(span, at, len, true)?;
    // SAFETY: the part lies in the span, which the caller owns; no byte changes.
    match unsafe { sys::madvise(span.at(at), len, libc::MADV_HUGEPAGE) } {
        Ok(()) => Ok((len, None)),
        Err(errno) => Ok((0, Some(Fallback::ThpFailed { errno }))),
    }
}

/// Returns the reason why the kernel would ignore the advice to use transparent hugepages, if there
/// is one.
fn thp_off(backing: Backing) -> Option<Fallback> {
    let off = |setting: String| Some(Fallback::ThpOff { setting });
    let status = sys::read_text("/proc/self/status").unwrap_or_default();
    if status
        .lines()
        .any(|line| line.strip_prefix("THP_enabled:").is_some_and(|on| on.trim() == "0"))
    {
        return off("prctl(PR_SET_THP_DISABLE) of this process".to_owned());
    }
    let folder = "/sys/kernel/mm/transparent_hugepage";
    let file = match backing {
        Backing::Private => "enabled",
        Backing::Shared => "shmem_enabled",
    };
    // Since Linux 6.8 each hugepage size has its own setting, which can refer to the common one.
    let own = format!("{folder}/hugepages-{}kB/{file}", PageSize::Thp.bytes() >> 10);
    for path in [own, format!("{folder}/{file}")] {
        match sys::read_text(&path) {
            Ok(text) if text.contains("[inherit]") => {}
            Ok(text) if text.contains("[never]") || text.contains("[deny]") => {
                return off(format!("{path} is never"));
            }
            Ok(_) => return None,
            Err(_) => {}
        }
    }
    off(format!("{folder}/{file} cannot be read"))
}

/// Maps up to `wanted` pages of a hugetlb pool into the span. Returns their bytes.
fn pooled(
    span: &AddressSpan,
    at: usize,
    wanted: usize,
    page: PageSize,
    options: &MapOptions,
) -> (usize, Option<Fallback>) {
    if !options.dont_fork {
        return (0, Some(Fallback::Inherited { page }));
    }
    let (mut pages, mut reason) = available(page, wanted, &options.numa);
    while pages > 0 {
        match map_hugetlb(span.at(at), pages * page.bytes(), page) {
            Ok(()) => return (pages * page.bytes(), reason),
            Err(errno) => {
                // Another process took the pages first, or a limit is not visible.
                reason = Some(Fallback::PoolFailed { page, errno });
                pages /= 2;
            }
        }
    }
    (0, reason)
}

fn available(page: PageSize, wanted: usize, numa: &Numa) -> (usize, Option<Fallback>) {
    let nodes = numa.nodes();
    let bound = matches!(numa, Numa::Bind(_)).then_some(&nodes);
    let (pages, reason) = hugetlb::available(page, wanted as u64, bound);
    (pages as usize, reason)
}

fn map_hugetlb(at: NonNull<u8>, len: usize, page: PageSize) -> Result<(), Errno> {
    let shift = page.bytes().ilog2();
    // SAFETY: no address is given, so no existing mapping is replaced.
    let trial = unsafe { sys::map_huge(None, len, shift) }?;
    unmap(trial, len);
    // SAFETY: the range lies in the span, which the caller owns, and holds nothing yet.
    let mapped = unsafe { sys::map_huge(Some(at), len, shift) };
    mapped.map(drop).inspect_err(|_| sys::refill(at, len))
}

fn shared(options: &MapOptions) -> Result<MappedSpan, ArenaError> {
    let rungs = options.ladder.usable();
    let mut reasons: Vec<Fallback> = Vec::new();
    for &page in rungs {
        let len = whole_pages(options.requested, page.bytes())?;
        let mut by_collapse = false;
        let reason = if page.is_pooled() {
            let wanted = len / page.bytes();
            let (pages, reason) = available(page, wanted, &options.numa);
            (pages < wanted).then_some(reason).flatten()
        } else if page == PageSize::Thp {
            let off = thp_off(Backing::Shared);
            by_collapse = off.is_some() && options.can_collapse() && collapse::is_possible();
            off.filter(|_| !by_collapse)
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
                    got: page,
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
    Err(no_pages(0..whole_pages(options.requested, page.bytes())?, page, reason))
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
    let file = match memfd::make(page, len) {
        Ok(file) => file,
        Err(error) => return step_down(error),
    };
    let span = match map_whole(&file, len, page, options.guard_pages, true) {
        Ok(span) => span,
        Err(error) => return step_down(error),
    };
    // After kvmem's own mapping, which needs the right to write.
    memfd::seal(&file, len, options.readers_only)?;
    if page == PageSize::Thp {
        // SAFETY: the span belongs to this call; no byte changes.
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
        // SAFETY: no address is given, so no existing mapping is replaced.
        let trial = unsafe { sys::map_file(None, len, file, write) }.map_err(error)?;
        unmap(trial, len);
    }
    // SAFETY: the range belongs to the span, and holds nothing yet.
    if let Err(errno) = unsafe { sys::map_file(Some(span.base()), len, file, write) } {
        sys::refill(span.base(), len);
        return Err(error(errno));
    }
    Ok(span)
}
