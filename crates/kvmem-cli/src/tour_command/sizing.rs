//! *Sizing*: how large a pool this machine can spare for a tour.
//!
//! The available memory is the least that any limit leaves: free memory, every control group above,
//! the limits of the process. A tour takes a quarter of it, which other programs hardly notice, and
//! at most [`MAX_POOL`], since more would show nothing new. Rings pin each page once for every
//! ring, and have their own limit for pinned bytes.

use kvmem::arena::preflight::{Report, Value};
use kvmem::register::Limits;

use super::telling::{Missing, bytes as human};
use crate::args::TourArgs;

/// Maximum size without `--pool`.
const MAX_POOL: u64 = 1 << 30;
/// A pool is not made smaller than this to be pinned; it stays unpinned.
const WORTH_PINNING: u64 = 64 << 20;
/// Size if no limit can be read.
const UNKNOWN: u64 = 256 << 20;
/// Minimum size to pin.
const LEAST_PINNED: u64 = 1 << 20;
/// An upper bound of what rings pin for themselves.
const SPARE: u64 = 1 << 20;

/// The limits that ordinary memory meets.
const LIMITS: [&str; 6] = [
    "memory.available",
    "memory.overcommit",
    "cgroup.memory.max",
    "cgroup.memory.high",
    "rlimit.as",
    "rlimit.data",
];

/// The size of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sizing {
    /// Its bytes.
    pub(super) bytes: u64,
    /// The reason for this size.
    pub(super) why: String,
}

impl Sizing {
    /// Returns the requested size, or one that fits.
    ///
    /// # Errors
    /// The machine has too little memory for the smallest pool.
    pub(super) fn of(report: &Report, requested: Option<u64>) -> Result<Sizing, Missing> {
        if let Some(bytes) = requested {
            return Ok(Sizing { bytes, why: "requested".to_owned() });
        }
        let Some((name, left)) = tightest(report) else {
            return Ok(Sizing {
                bytes: UNKNOWN,
                why: "no limit of memory can be read here".to_owned(),
            });
        };
        let bytes = whole(left / 4).min(MAX_POOL);
        let left = human(left);
        if bytes < TourArgs::LEAST_POOL {
            let least = human(4 * TourArgs::LEAST_POOL);
            return Err(Missing {
                what: "memory".to_owned(),
                why: format!(
                    "{name} leaves {left}, and a tour takes a quarter of that, of {least} at least"
                ),
                remedies: vec![
                    "end another program, or raise the limit (kvmem doctor says how)".to_owned(),
                    "use more of the free memory: kvmem tour --pool 16MiB".to_owned(),
                ],
            });
        }
        let why = match bytes {
            MAX_POOL => format!("enough for a tour; {name} leaves {left}"),
            _ => format!("a quarter of what {name} leaves, which is {left}"),
        };
        Ok(Sizing { bytes, why })
    }

    /// Makes it smaller if rings can then pin it; returns how much of it they can pin.
    pub(super) fn pinned(&mut self, rings: &[Limits], may_shrink: bool) -> Pin {
        let Some(each) = each(rings) else { return Pin::All };
        if each >= self.bytes {
            return Pin::All;
        }
        if may_shrink && each >= WORTH_PINNING {
            self.bytes = whole(each);
            self.why = format!("as much as RLIMIT_MEMLOCK lets {} rings pin", rings.len());
            return Pin::All;
        }
        match whole(each) {
            bytes if bytes >= LEAST_PINNED => Pin::Some(bytes),
            _ => Pin::None,
        }
    }
}

/// How much of the pool rings can pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pin {
    /// All of the pool.
    All,
    /// This many bytes: too few for the pool, enough for a demonstration.
    Some(u64),
    /// Nothing worth showing.
    None,
}

/// Returns the limit that leaves least, and its remainder.
fn tightest(report: &Report) -> Option<(&'static str, u64)> {
    let left = |name: &'static str| match report.check(name)?.value {
        Value::Bytes(bytes) => Some((name, bytes)),
        _ => None,
    };
    LIMITS.into_iter().filter_map(left).min_by_key(|(_, bytes)| *bytes)
}

/// Bytes that each ring may pin, if all pin the same; `None` without a limit.
fn each(rings: &[Limits]) -> Option<u64> {
    let left = rings.iter().filter_map(|ring| {
        let memlock = ring.memlock?;
        Some(memlock.limit_bytes.saturating_sub(memlock.used_bytes + SPARE) / rings.len() as u64)
    });
    left.min()
}

/// The limit of locked memory under which the rings can pin this many bytes each.
pub(super) fn enough(bytes: u64, rings: usize) -> u64 {
    bytes.saturating_mul(rings as u64).saturating_add(SPARE)
}

/// Rounds down to 64 MiB, or to 1 MiB below that.
fn whole(bytes: u64) -> u64 {
    let unit = if bytes >= 64 << 20 { 64 << 20 } else { 1 << 20 };
    bytes / unit * unit
}

#[cfg(test)]
mod tests {
    use kvmem::register::{Account, Memlock};

    use super::*;

    fn rings(number: usize, limit_bytes: u64) -> Vec<Limits> {
        let memlock = Some(Memlock { account: Account::Rings, limit_bytes, used_bytes: 0 });
        (0..number)
            .map(|ring| Limits { memlock, ..Limits::none(format!("io_uring:{ring}")) })
            .collect()
    }

    fn sized(bytes: u64) -> Sizing {
        Sizing { bytes, why: String::new() }
    }

    #[test]
    fn a_pool_fits_what_rings_may_pin() {
        let pinned = |limit, may_shrink| {
            let mut sizing = sized(1 << 30);
            (sizing.pinned(&rings(2, limit), may_shrink), sizing.bytes)
        };
        assert_eq!(pinned(enough(1 << 30, 2), true), (Pin::All, 1 << 30));
        assert_eq!(pinned(enough(1 << 30, 2) - 2, true), (Pin::All, 960 << 20));
        assert_eq!(
            pinned(1 << 30, false),
            (Pin::Some(448 << 20), 1 << 30),
            "the requested size stays"
        );
        assert_eq!(pinned(8 << 20, true), (Pin::Some(3 << 20), 1 << 30));
        assert_eq!(pinned(64 << 10, true), (Pin::None, 1 << 30));
        assert_eq!(pinned(0, true), (Pin::None, 1 << 30));
        assert_eq!(sized(1 << 30).pinned(&[Limits::none("free")], true), Pin::All);
        assert_eq!(sized(1 << 30).pinned(&[], true), Pin::All);
    }

    #[test]
    fn sizes_are_whole() {
        assert_eq!(whole((1 << 30) - 1), 960 << 20);
        assert_eq!(whole((17 << 20) + 5), 17 << 20);
        assert_eq!(whole(5), 0);
    }

    #[test]
    fn a_quarter_is_taken_of_the_tightest_limit() {
        use kvmem::arena::PageSize;
        use kvmem::arena::preflight::{Machine, Requirements, System};

        let requirements = Requirements::new(4096, PageSize::Base).expect("a requirements");
        // A folder without the files of /proc: no limit of memory can be read.
        let nowhere = Machine::new("/nonexistent", System::here()).preflight(&requirements);
        let here = Machine::here().preflight(&requirements);
        let (_, left) = tightest(&here).expect("a limit can be read here");
        match Sizing::of(&here, None) {
            Ok(Sizing { bytes, .. }) => {
                assert!(bytes <= left / 4 && bytes <= MAX_POOL, "{bytes} of {left}")
            }
            Err(missing) => assert!(left < 64 << 20, "{missing:?}"),
        }
        assert_eq!(Sizing::of(&here, Some(5)).map(|sizing| sizing.bytes), Ok(5));
        let unread = tightest(&nowhere);
        assert!(unread.is_none_or(|(name, _)| name.starts_with("rlimit")), "{unread:?}");
    }
}
