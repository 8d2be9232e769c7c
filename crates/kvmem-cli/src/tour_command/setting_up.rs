//! *Setting up*: sizes, maps, populates and registers the pool of the tour, as far as this machine
//! allows.
//!
//! The available memory is the least that any limit leaves: free memory, every control group above,
//! the limits of the process. A tour takes a quarter of it, and at most [`MAX_POOL`], since more
//! would show nothing new. Rings pin each page once for every ring, under a limit of their own. The
//! pool is made smaller to meet that limit, or stays unregistered if [`MIN_PINNED`] does not meet
//! it. If memory turns out to be short, the pool is halved until it fits.

use std::sync::{Arc, Mutex, PoisonError};

use kvmem::arena::preflight::{Report, Value};
use kvmem::pool::{Pool, PoolError};
use kvmem::register::{Limits, NotAvailable, Registrar};

use super::printer::{Going, Missing, bytes};
use crate::args::TourArgs;

/// Maximum size without `--pool`.
const MAX_POOL: u64 = 1 << 30;
/// A pool is not made smaller than this to be pinned; it stays unpinned.
const MIN_PINNED: u64 = 64 << 20;
/// Size if no limit can be read.
const UNKNOWN: u64 = 256 << 20;
/// The first of the two bars of building a pool.
const POPULATING: &str = "populating";
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

/// The size of a pool, and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sizing {
    pub(super) bytes: u64,
    pub(super) why: String,
}

impl Sizing {
    fn new(bytes: u64, why: impl Into<String>) -> Sizing {
        Sizing { bytes, why: why.into() }
    }

    /// Returns the requested size, or one that fits.
    ///
    /// # Errors
    /// The machine has too little memory for the smallest pool.
    pub(super) fn of(report: &Report, requested: Option<u64>) -> Result<Sizing, Missing> {
        if let Some(bytes) = requested {
            return Ok(Sizing::new(bytes, "requested"));
        }
        let Some((name, available)) = tightest(report) else {
            return Ok(Sizing::new(UNKNOWN, "no limit of memory can be read here"));
        };
        let size = whole(available / 4).min(MAX_POOL);
        let available = bytes(available);
        if size < TourArgs::MIN_POOL {
            let needed = bytes(4 * TourArgs::MIN_POOL);
            let why = format!(
                "{name} leaves {available}, and a tour takes a quarter of at least {needed}"
            );
            let remedies = [
                "end another program, or raise the limit (kvmem doctor says how)",
                "use more of the free memory: kvmem tour --pool 16MiB",
            ];
            return Err(Missing::new("memory", why, &remedies));
        }
        Ok(match size {
            MAX_POOL => Sizing::new(size, format!("enough for a tour; {name} leaves {available}")),
            _ => {
                Sizing::new(size, format!("a quarter of what {name} leaves, which is {available}"))
            }
        })
    }

    /// Makes the pool smaller if rings can then pin it. Returns whether they can pin all of it.
    fn meets(&mut self, rings: &[Limits], may_shrink: bool) -> bool {
        let limit = rings.iter().filter_map(|ring| {
            let memlock = ring.memlock?;
            let own = memlock.used_bytes + SPARE;
            Some(memlock.limit_bytes.saturating_sub(own) / rings.len() as u64)
        });
        let Some(limit) = limit.min().filter(|limit| *limit < self.bytes) else { return true };
        if may_shrink && limit >= MIN_PINNED {
            let why = format!("as much as RLIMIT_MEMLOCK lets {} rings pin", rings.len());
            *self = Sizing::new(whole(limit), why);
            return true;
        }
        false
    }
}

/// Returns the limit that leaves least, and its remainder.
fn tightest(report: &Report) -> Option<(&'static str, u64)> {
    let available = |name: &'static str| match report.check(name)?.value {
        Value::Bytes(bytes) => Some((name, bytes)),
        _ => None,
    };
    LIMITS.into_iter().filter_map(available).min_by_key(|(_, bytes)| *bytes)
}

/// Rounds down to 64 MiB, or to 1 MiB below that.
fn whole(bytes: u64) -> u64 {
    let unit = if bytes >= 64 << 20 { 64 << 20 } else { 1 << 20 };
    bytes / unit * unit
}

/// The pool, and what the machine lacks.
pub(super) struct SetUp {
    pub(super) pool: Pool,
    pub(super) sizing: Sizing,
    pub(super) missing: Vec<Missing>,
}

/// Returns the rings that pin the pool, or why there are none.
pub(super) fn rings(
    opened: Result<Vec<Arc<dyn Registrar>>, NotAvailable>,
) -> (Vec<Arc<dyn Registrar>>, Option<Missing>) {
    match opened {
        Ok(rings) => (rings, None),
        Err(NotAvailable { backend, reason, remedy, .. }) => {
            let why = format!(
                "{reason}; without rings the pool is not registered, and nothing can DMA into it"
            );
            (Vec::new(), Some(Missing::new(&backend, why, &[&*remedy])))
        }
    }
}

/// Builds the pool. `hot` returns the sizes that will be allocated.
///
/// # Errors
/// The machine has no memory for the smallest pool.
pub(super) fn set_up(
    args: &TourArgs,
    mut sizing: Sizing,
    mut rings: Vec<Arc<dyn Registrar>>,
    hot: impl Fn(u64) -> Vec<u64>,
) -> Result<SetUp, Missing> {
    let mut missing = Vec::new();
    let limits: Vec<Limits> = rings.iter().map(|ring| ring.limits()).collect();
    if !sizing.meets(&limits, args.pool.is_none()) {
        missing.push(too_little_locked(&sizing, &limits));
        rings.clear();
    }
    loop {
        match build(sizing.bytes, hot(sizing.bytes), &rings) {
            Ok(pool) => return Ok(SetUp { pool, sizing, missing }),
            Err(error @ PoolError::Register(_)) if !rings.is_empty() => {
                let why =
                    format!("{error}; so the pool stays unregistered, and nothing can DMA into it");
                missing.push(Missing::new("registration", why, &[]));
                rings.clear();
            }
            Err(error) if args.pool.is_none() && sizing.bytes / 2 >= TourArgs::MIN_POOL => {
                let size = bytes(sizing.bytes);
                let why =
                    format!("{size} is not available ({error}), so the tour tries half of it");
                missing.push(Missing::new("memory", why, &[]));
                sizing = Sizing::new(sizing.bytes / 2, "as much as is available");
            }
            Err(error) => return Err(Missing::new("memory for a pool", error.to_string(), &[])),
        }
    }
}

/// Builds a pool, and shows the progress of each step.
fn build(bytes: u64, hot: Vec<u64>, rings: &[Arc<dyn Registrar>]) -> Result<Pool, PoolError> {
    let bar: Arc<Mutex<Option<(&str, Going)>>> = Arc::default();
    let show =
        |bar: &Mutex<Option<(&str, Going)>>, step: &'static str, done, total, message: String| {
            let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
            // Chunks are registered while later ones are populated: the bar does not go back.
            if step == POPULATING && bar.as_ref().is_some_and(|(now, _)| *now != step) {
                return;
            }
            if bar.as_ref().is_none_or(|(now, _)| *now != step) {
                *bar = Some((step, Going::new(step, Some(total))));
            }
            if let Some((_, going)) = &*bar {
                going.of(total);
                going.at(done, message);
            }
        };
    let (populating, registering) = (Arc::clone(&bar), Arc::clone(&bar));
    // A size above the address space becomes the largest one, which no machine can map.
    let built = Pool::builder(usize::try_from(bytes).unwrap_or(usize::MAX))
        .hot_sizes(hot)
        .registrars(rings.iter().cloned())
        .on_populate(move |it| {
            let speed = format!("{:.1} GiB/s", it.gib_per_s());
            show(&populating, POPULATING, it.done_bytes, it.total_bytes, speed);
        })
        .on_register(move |it| {
            show(&registering, "registering", it.done_bytes, it.total_bytes, String::new());
        })
        .build();
    // The listeners live as long as the pool, and the bar ends here.
    bar.lock().unwrap_or_else(PoisonError::into_inner).take();
    built
}

/// `RLIMIT_MEMLOCK` is too small.
fn too_little_locked(sizing: &Sizing, rings: &[Limits]) -> Missing {
    let limits = rings.iter().filter_map(|ring| Some(ring.memlock?.limit_bytes));
    let needed = sizing.bytes.saturating_mul(rings.len() as u64);
    let why = format!(
        "RLIMIT_MEMLOCK is {}, and {} rings pin {} of a pool of {}; so this pool stays \
         unregistered, and nothing can DMA into it",
        bytes(limits.min().unwrap_or(0)),
        rings.len(),
        bytes(needed),
        bytes(sizing.bytes)
    );
    let kib = needed.saturating_add(SPARE).div_ceil(1024);
    let remedies = [
        &*format!("ulimit -l {kib} in the shell, or memlock in /etc/security/limits.conf"),
        "a container: --ulimit memlock=-1; a systemd unit: LimitMEMLOCK=infinity",
    ];
    Missing::new("locked memory", why, &remedies)
}

#[cfg(test)]
mod tests {
    use kvmem::arena::PageSize;
    use kvmem::arena::preflight::{Machine, Requirements, System};
    use kvmem::register::{Account, Memlock};

    use super::*;

    #[test]
    fn a_pool_meets_the_limit_of_rings_or_stays_unregistered() {
        let memlock = |limit_bytes| Memlock { account: Account::Rings, limit_bytes, used_bytes: 0 };
        let ring = |limit| Limits { memlock: Some(memlock(limit)), ..Limits::none("io_uring:0") };
        let (size, spare) = (1 << 30, SPARE);
        for (limit, may_shrink, expected) in [
            (2 * size + spare, true, (true, size)),
            (2 * size + spare - 2, true, (true, 960 << 20)),
            (size, false, (false, size)),
            (8 << 20, true, (false, size)),
            (0, true, (false, size)),
        ] {
            let mut sizing = Sizing::new(size, "");
            let meets = sizing.meets(&[ring(limit), ring(limit)], may_shrink);
            assert_eq!((meets, sizing.bytes), expected, "{limit}");
        }
        assert!(Sizing::new(size, "").meets(&[Limits::none("free")], true));
    }

    #[test]
    fn a_quarter_is_taken_of_the_tightest_limit() {
        assert_eq!([(1 << 30) - 1, (17 << 20) + 5, 5].map(whole), [960 << 20, 17 << 20, 0]);
        let requirements = Requirements::new(4096, PageSize::Base).expect("requirements");
        // A folder without the files of /proc: no limit of memory can be read.
        let nowhere = Machine::new("/nonexistent", System::here()).preflight(&requirements);
        let here = Machine::here().preflight(&requirements);
        let (_, available) = tightest(&here).expect("a limit can be read here");
        match Sizing::of(&here, None) {
            Ok(Sizing { bytes, .. }) => assert!(bytes <= available / 4 && bytes <= MAX_POOL),
            Err(missing) => assert!(available < 64 << 20, "{missing:?}"),
        }
        assert_eq!(Sizing::of(&here, Some(5)).map(|sizing| sizing.bytes), Ok(5));
        let unread = tightest(&nowhere);
        assert!(unread.is_none_or(|(name, _)| name.starts_with("rlimit")), "{unread:?}");
    }
}
