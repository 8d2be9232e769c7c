//! *Below*: what receives the evicted values of a cache.

use std::sync::{Arc, Weak};

use kvmem::pool::Pool;
use kvmem::tier::{Chain, OnDrop, Tier, WhenFull, WriteBehind};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::chain::PyChain;
use crate::cluster_tier::PyClusterTier;
use crate::collect::{Link, Traverse};
use crate::disk_tier::PyDiskTier;
use crate::error;
use crate::keywords::Keywords;
use crate::pool::PyPool;
use crate::python_tier::PythonTier;
use crate::tier_set::PyTierSet;

/// Any lower tier of the library.
pub(crate) type AnyTier = Arc<dyn Tier>;

/// What receives the evicted values.
pub(crate) enum Below {
    /// Nothing.
    Nothing,
    /// A tier that the library calls. No Python runs when it is called, except that of its parts.
    Tier {
        /// The object of the program.
        object: Link<PyAny>,
        /// The tiers of Python that it has.
        parts: Vec<Arc<PythonTier>>,
        /// The queue above it, which the cache of the library keeps.
        queue: Weak<WriteBehind>,
        /// Whether the end of the cache writes the queue.
        writes_at_end: bool,
    },
}

impl Traverse for Below {
    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self {
            Below::Nothing => Ok(()),
            Below::Tier { object, parts, .. } => {
                object.traverse(visit)?;
                parts.traverse(visit)
            }
        }
    }
}

/// The settings of a queue above a tier.
pub(crate) struct QueueSettings {
    bytes: Option<u64>,
    when_full: WhenFull,
    writers: usize,
    on_drop: OnDrop,
}

/// The maximum number of writers.
const MAX_WRITERS: u64 = 64;

impl QueueSettings {
    /// Takes the options of a cache.
    pub(crate) fn take(options: &Keywords<'_>) -> PyResult<QueueSettings> {
        let when_full = [("wait", WhenFull::Wait), ("drop", WhenFull::Drop)];
        let on_drop = [("write", OnDrop::Write), ("discard", OnDrop::Discard)];
        Ok(QueueSettings {
            bytes: options.bytes("write_behind")?,
            when_full: options.choice("write_behind_when_full", when_full)?,
            writers: options.number("write_behind_writers", 1, MAX_WRITERS)?.unwrap_or(1) as usize,
            on_drop: options.choice("write_behind_on_drop", on_drop)?,
        })
    }

    /// Makes the queue above a tier, if one is wanted.
    fn queue(&self, pool: &Pool, tier: &AnyTier) -> PyResult<Option<Arc<WriteBehind>>> {
        let Some(bytes) = self.bytes else { return Ok(None) };
        let queue = WriteBehind::builder(pool, Arc::clone(tier))
            .max_bytes(bytes)
            .when_full(self.when_full)
            .writers(self.writers)
            .on_drop(self.on_drop);
        // The system's error if no thread can be started.
        Ok(Some(Arc::new(queue.build()?)))
    }
}

/// What a cache gets below it.
pub(crate) struct BuiltBelow {
    pub(crate) below: Below,
    /// The tier of the library, with its queue.
    pub(crate) tier: Option<AnyTier>,
}

/// Makes what a cache gets below it.
pub(crate) fn build<'py>(
    pool: &Bound<'py, PyPool>,
    memory: &Pool,
    lower_tier: Option<Bound<'py, PyAny>>,
    settings: &QueueSettings,
) -> PyResult<BuiltBelow> {
    let py = pool.py();
    let wanted = settings.bytes;
    // Without a tier of the library no queue is possible.
    let queued = |message: &str, limit: u64| {
        let message = format!("write_behind {message}");
        error::bad_number(py, message, wanted.unwrap_or_default(), limit)
    };
    if wanted == Some(0) {
        let message = "is 0: give at least 1 byte, or None for no queue";
        return Err(queued(message, memory.capacity()));
    }
    let Some(given) = lower_tier else {
        if wanted.is_some() {
            return Err(queued("needs a lower_tier: give a DiskTier", 0));
        }
        return Ok(BuiltBelow { below: Below::Nothing, tier: None });
    };
    let mut parts = Vec::new();
    let (object, tier) = match library_tier(&given, pool, &mut parts)? {
        Some(tier) => (given, tier),
        None => {
            let tier = python_tier(&given, pool, &mut parts)?;
            (tier.object.get(py).expect("it was made just now").into_bound(py), tier as AnyTier)
        }
    };
    let writes_at_end = settings.on_drop == OnDrop::Write;
    let queue = settings.queue(memory, &tier)?;
    let object = Link::new(Some(object.unbind()));
    let weak = queue.as_ref().map_or_else(Weak::new, Arc::downgrade);
    let tier = queue.map_or(tier, |queue| queue);
    let below = Below::Tier { object, parts, queue: weak, writes_at_end };
    Ok(BuiltBelow { below, tier: Some(tier) })
}

/// Returns the tier in Python that an object makes, which becomes one of the parts.
fn python_tier(
    object: &Bound<'_, PyAny>,
    pool: &Bound<'_, PyPool>,
    parts: &mut Vec<Arc<PythonTier>>,
) -> PyResult<Arc<PythonTier>> {
    let part = PythonTier::of(object, pool)?;
    parts.push(Arc::clone(&part));
    Ok(part)
}

/// Returns the tier of the library that an object has or names; `None` for other objects.
fn library_tier(
    object: &Bound<'_, PyAny>,
    pool: &Bound<'_, PyPool>,
    parts: &mut Vec<Arc<PythonTier>>,
) -> PyResult<Option<AnyTier>> {
    if let Ok(tier) = object.cast::<PyDiskTier>() {
        let tier = Arc::clone(&*tier.get().tier()?);
        return Ok(Some(tier));
    }
    if let Ok(set) = object.cast::<PyTierSet>() {
        let set = Arc::clone(&*set.get().tier()?);
        return Ok(Some(set));
    }
    if let Ok(cluster) = object.cast::<PyClusterTier>() {
        let cluster = Arc::clone(&*cluster.get().tier()?);
        return Ok(Some(cluster));
    }
    let Ok(chain) = object.cast::<PyChain>() else { return Ok(None) };
    let (py, chain) = (object.py(), chain.get());
    let mut part = |object: Bound<'_, PyAny>| match library_tier(&object, pool, parts)? {
        Some(tier) => Ok(tier),
        None => PyResult::Ok(python_tier(&object, pool, parts)? as AnyTier),
    };
    let (upper, lower) = (part(chain.upper(py)?)?, part(chain.lower(py)?)?);
    Ok(Some(Arc::new(Chain::new(upper, lower))))
}
