//! *Private memory*: fills a span of addresses with pages, rung by rung down the ladder.
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

use std::ptr::NonNull;

use super::mapped_span::{MappedSpan, Segment};
use super::options::MapOptions;
use super::span::{AddressSpan, unmap};
use crate::arena::error::{call_failed, no_pages};
use crate::arena::machine::thp;
use crate::arena::{ArenaError, Call, Errno, Fallback, PageSize};
use crate::sys;

pub(super) fn private(options: &MapOptions) -> Result<MappedSpan, ArenaError> {
    let rungs = options.ladder.usable();
    let sizes = || rungs.iter().map(|page| page.bytes());
    let len = options.whole_pages(sizes().min().unwrap_or(1))?;
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
                obtained: page,
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

/// Makes a part of the span accessible as ordinary memory.
fn plain(
    span: &AddressSpan,
    at: usize,
    len: usize,
    transparent: bool,
) -> Result<usize, ArenaError> {
    // SAFETY: the part lies in the span, whose addresses belong to its value alone. Access to bytes
    // that had none invalidates no pointer.
    unsafe { sys::protect(span.at(at), len) }
        .map_err(|errno| call_failed(Call::Protect, len, errno))?;
    if !transparent {
        // Where the machine uses hugepages for everything, base pages need this advice. A kernel
        // without transparent hugepages rejects it and uses base pages anyway.
        // SAFETY: the part lies in the span, whose addresses belong to its value alone, and this
        // advice changes no byte.
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
    if let Some(setting) = thp::disabled_by(thp::PRIVATE) {
        return Ok((0, Some(Fallback::ThpOff { setting })));
    }
    plain(span, at, len, true)?;
    // SAFETY: the part lies in the span, whose addresses belong to its value alone, and this advice
    // changes no byte.
    match unsafe { sys::madvise(span.at(at), len, libc::MADV_HUGEPAGE) } {
        Ok(()) => Ok((len, None)),
        Err(errno) => Ok((0, Some(Fallback::ThpFailed { errno }))),
    }
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
    let (mut pages, mut reason) = options.pages_available(page, wanted);
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

fn map_hugetlb(at: NonNull<u8>, len: usize, page: PageSize) -> Result<(), Errno> {
    let shift = page.bytes().ilog2();
    // SAFETY: no address is passed, so the kernel replaces no mapping.
    let trial = unsafe { sys::map_huge(None, len, shift) }?;
    // SAFETY: the kernel chose the range just now, and no code has its address.
    unsafe { unmap(trial, len) };
    // SAFETY: the range lies in a span that the caller borrows, and nothing is mapped there yet
    // except the span's reservation, which has no accessible byte.
    let mapped = unsafe { sys::map_huge(Some(at), len, shift) };
    mapped.map(drop).inspect_err(|_| sys::refill(at, len))
}
