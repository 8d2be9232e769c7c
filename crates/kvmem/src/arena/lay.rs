//! *Laying*: putting pages into a span, rung by rung down the ladder.
//!
//! Private memory can be of several kinds in one region: the first rung takes as many whole pages
//! as it has, the next as many of the rest, and so on. Each piece knows why it is not on a rung
//! above.
//!
//! What is reserved is opened in place where that will do (`mprotect`): if it is refused, the
//! reservation still stands. Pages of a pool need a mapping of their own over it. Up to Linux 6.11
//! the kernel takes the old mapping away before it asks the pool, so a refusal leaves a hole into
//! which another thread's mapping could come to lie. So the pool is asked with a mapping elsewhere
//! first.
//!
//! Shared memory is one file, and a file has pages of one kind: the first rung that can take all of
//! it. Transparent hugepages that the machine's settings do not give it can still be made when it
//! is populated; see `collapse.rs`.

use std::fs::File;
use std::ops::Range;
use std::ptr::NonNull;

use super::builder::Wish;
use super::diagnose::refused;
use super::span::{Span, unmap};
use super::{
    ArenaError, Backing, Call, Errno, Fallback, Limit, Numa, PageSize, collapse, file, pool,
};
use crate::sys;

/// A part of a region that consists of pages of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Offsets into the span.
    pub(crate) range: Range<usize>,
    pub(crate) requested: PageSize,
    pub(crate) got: PageSize,
    pub(crate) fallbacks: Vec<Fallback>,
    /// Transparent hugepages that faults do not make: populating does. See `collapse.rs`.
    pub(crate) by_collapse: bool,
}

/// A span with pages in it.
#[derive(Debug)]
pub(crate) struct Laid {
    pub(crate) span: Span,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) file: Option<File>,
    pub(crate) policy_verified: bool,
}

/// Lays what is wished for; nothing of it is touched yet.
pub(crate) fn lay(wish: &Wish) -> Result<Laid, ArenaError> {
    if wish.requested == 0 {
        return Err(ArenaError::ZeroSize);
    }
    if wish.ladder.usable().is_empty() {
        return Err(ArenaError::EmptyLadder);
    }
    wish.numa.check()?;
    let mut laid = match wish.backing {
        Backing::Private => private(wish)?,
        Backing::Shared => shared(wish)?,
    };
    for piece in &laid.pieces {
        laid.policy_verified =
            wish.numa.apply(laid.span.at(piece.range.start), piece.range.len())?;
    }
    shield(&laid.span, wish.dont_fork, wish.dont_dump)?;
    Ok(laid)
}

/// Keeps a range out of children and core dumps.
pub(crate) fn shield(span: &Span, dont_fork: bool, dont_dump: bool) -> Result<(), ArenaError> {
    for (wanted, advice) in [(dont_fork, libc::MADV_DONTFORK), (dont_dump, libc::MADV_DONTDUMP)] {
        if wanted {
            // SAFETY: the range is the span's, and the advice changes no byte.
            unsafe { sys::madvise(span.base(), span.len(), advice) }
                .map_err(|errno| refused(Call::Advise, span.len(), errno))?;
        }
    }
    Ok(())
}

/// `requested` in whole pages.
fn whole_pages(requested: usize, page: usize) -> Result<usize, ArenaError> {
    let most = isize::MAX as usize & !(page - 1);
    requested
        .checked_next_multiple_of(page)
        .filter(|len| *len <= most)
        .ok_or(ArenaError::TooLarge { requested, most })
}

fn private(wish: &Wish) -> Result<Laid, ArenaError> {
    let rungs = wish.ladder.usable();
    let sizes = || rungs.iter().map(|page| page.bytes());
    let len = whole_pages(wish.requested, sizes().min().unwrap_or(1))?;
    let span = Span::reserve(len, sizes().max().unwrap_or(1), wish.guard_pages)?;

    let mut pieces = Vec::new();
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
                PageSize::Huge2M | PageSize::Huge1G => pooled(&span, at, wanted, page, wish),
            }
        };
        if got > 0 {
            let fallbacks = reasons.clone();
            pieces.push(Piece {
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
        _ => Ok(Laid { span, pieces, file: None, policy_verified: false }),
    }
}

fn no_pages(range: Range<usize>, page: PageSize, reason: Fallback) -> ArenaError {
    let limit = match reason {
        Fallback::PoolShort { page, .. } | Fallback::PoolRefused { page, .. } => {
            pool::free(page).map(|free| Limit::Pool { page, free })
        }
        _ => None,
    };
    ArenaError::NoPages { range, page, reason, limit }
}

/// Opens a part of the span for use, as ordinary memory.
fn plain(span: &Span, at: usize, len: usize, transparent: bool) -> Result<usize, ArenaError> {
    // SAFETY: the part lies in the span, which is ours.
    unsafe { sys::protect(span.at(at), len) }
        .map_err(|errno| refused(Call::Protect, len, errno))?;
    if !transparent {
        // Where the machine uses hugepages for everything, base pages must be asked for. Where it
        // knows of no hugepages it refuses, and base pages are what there is.
        // SAFETY: as above; no byte is changed.
        let _ = unsafe { sys::madvise(span.at(at), len, libc::MADV_NOHUGEPAGE) };
    }
    Ok(len)
}

/// The same, with the advice to use transparent hugepages.
fn transparent(
    span: &Span,
    at: usize,
    len: usize,
) -> Result<(usize, Option<Fallback>), ArenaError> {
    if let Some(off) = thp_off(Backing::Private) {
        return Ok((0, Some(off)));
    }
    plain(span, at, len, true)?;
    // SAFETY: the part lies in the span, which is ours; no byte is changed.
    match unsafe { sys::madvise(span.at(at), len, libc::MADV_HUGEPAGE) } {
        Ok(()) => Ok((len, None)),
        Err(errno) => Ok((0, Some(Fallback::ThpRefused { errno }))),
    }
}

/// Why the kernel would not use transparent hugepages where it is advised to.
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
    // Since Linux 6.8 each size has a setting of its own, which can point to the one for all.
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

/// Puts as many pages of a pool into the span as there are, up to `wanted`. Returns their bytes.
fn pooled(
    span: &Span,
    at: usize,
    wanted: usize,
    page: PageSize,
    wish: &Wish,
) -> (usize, Option<Fallback>) {
    if !wish.dont_fork {
        return (0, Some(Fallback::Inherited { page }));
    }
    let (mut pages, mut reason) = offer(page, wanted, &wish.numa);
    while pages > 0 {
        match map_pool(span.at(at), pages * page.bytes(), page) {
            Ok(()) => return (pages * page.bytes(), reason),
            Err(errno) => {
                // Somebody was faster, or a limit does not show.
                reason = Some(Fallback::PoolRefused { page, errno });
                pages /= 2;
            }
        }
    }
    (0, reason)
}

fn offer(page: PageSize, wanted: usize, numa: &Numa) -> (usize, Option<Fallback>) {
    let nodes = numa.nodes();
    let bound = matches!(numa, Numa::Bind(_)).then_some(&nodes);
    let (pages, reason) = pool::offer(page, wanted as u64, bound);
    (pages as usize, reason)
}

fn map_pool(at: NonNull<u8>, len: usize, page: PageSize) -> Result<(), Errno> {
    let shift = page.bytes().ilog2();
    // SAFETY: without an address.
    let trial = unsafe { sys::map_huge(None, len, shift) }?;
    unmap(trial, len);
    // SAFETY: the range lies in the span, which is ours, and nothing is there yet.
    let mapped = unsafe { sys::map_huge(Some(at), len, shift) };
    mapped.map(drop).inspect_err(|_| sys::refill(at, len))
}

fn shared(wish: &Wish) -> Result<Laid, ArenaError> {
    let rungs = wish.ladder.usable();
    let mut reasons: Vec<Fallback> = Vec::new();
    for &page in rungs {
        let len = whole_pages(wish.requested, page.bytes())?;
        let mut by_collapse = false;
        let reason = if page.is_pooled() {
            let wanted = len / page.bytes();
            let (pages, reason) = offer(page, wanted, &wish.numa);
            (pages < wanted).then_some(reason).flatten()
        } else if page == PageSize::Thp {
            let off = thp_off(Backing::Shared);
            by_collapse = off.is_some() && wish.can_collapse() && collapse::is_possible();
            off.filter(|_| !by_collapse)
        } else {
            None
        };
        let tried = match reason {
            Some(reason) => Err(reason),
            None => shared_of(page, len, wish)?,
        };
        match tried {
            Ok((span, file)) => {
                let piece = Piece {
                    range: 0..len,
                    requested: rungs[0],
                    got: page,
                    fallbacks: reasons,
                    by_collapse,
                };
                return Ok(Laid {
                    span,
                    pieces: vec![piece],
                    file: Some(file),
                    policy_verified: false,
                });
            }
            Err(reason) => reasons.push(reason),
        }
    }
    let (page, reason) = (rungs[rungs.len() - 1], reasons.pop());
    let reason = reason.unwrap_or(Fallback::NoPool { page });
    Err(no_pages(0..whole_pages(wish.requested, page.bytes())?, page, reason))
}

/// A shared span of one kind of pages, or why another kind must be tried.
fn shared_of(
    page: PageSize,
    len: usize,
    wish: &Wish,
) -> Result<Result<(Span, File), Fallback>, ArenaError> {
    let step_down = |error: ArenaError| match error {
        // What a pool refuses, the next rung may have.
        ArenaError::Refused {
            call: Call::MemfdCreate | Call::Truncate | Call::MapFile,
            errno,
            ..
        } if page.is_pooled() => Ok(Err(Fallback::PoolRefused { page, errno })),
        error => Err(error),
    };
    let file = match file::make(page, len) {
        Ok(file) => file,
        Err(error) => return step_down(error),
    };
    let span = match map_whole(&file, len, page, wish.guard_pages, true) {
        Ok(span) => span,
        Err(error) => return step_down(error),
    };
    // After our own mapping: that is for writing.
    file::seal(&file, len, wish.readers_only)?;
    if page == PageSize::Thp {
        // SAFETY: the span is ours; no byte is changed.
        if let Err(errno) = unsafe { sys::madvise(span.base(), len, libc::MADV_HUGEPAGE) } {
            return Ok(Err(Fallback::ThpRefused { errno }));
        }
    }
    Ok(Ok((span, file)))
}

/// A span with the whole of a file in it, to be read and perhaps written.
pub(crate) fn map_whole(
    file: &File,
    len: usize,
    page: PageSize,
    guards: bool,
    write: bool,
) -> Result<Span, ArenaError> {
    let error = |errno| refused(Call::MapFile, len, errno);
    // Of a file that somebody else made it is not known whether it consists of hugepages. If so,
    // they are hugepages here too if they lie where a hugepage can lie.
    let align = if len < PageSize::Thp.bytes() {
        page.bytes()
    } else {
        page.bytes().max(PageSize::Thp.bytes())
    };
    let span = Span::reserve(len, align, guards)?;
    if page.is_pooled() {
        // The pool promises pages to the file, not to the mapping: what this gets, the next one
        // has. SAFETY: without an address.
        let trial = unsafe { sys::map_file(None, len, file, write) }.map_err(error)?;
        unmap(trial, len);
    }
    // SAFETY: the range is the span's, and nothing is there yet.
    if let Err(errno) = unsafe { sys::map_file(Some(span.base()), len, file, write) } {
        sys::refill(span.base(), len);
        return Err(error(errno));
    }
    Ok(span)
}
