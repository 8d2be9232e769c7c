//! *Node values*: keys, values and hints as a node's calls take them.

use std::time::Duration;

use kvmem::tier::Priority;
use kvmem_node::format::MAX_KEY;
use kvmem_node::{CallError, MAX_BATCH, NodeReservation, ParentKey, ValueOptions};
use pyo3::prelude::*;

use crate::buffer::Source;
use crate::cache_key::{CacheKey, OwnedKey};
use crate::data_type::ElementType;
use crate::disk_key::disk_key;
use crate::elements::{each_key, elements};
use crate::error;
use crate::node_error::node_error;
use crate::number::{Int, Seconds};

/// Longest time to live in seconds: 136 years.
const MAX_TTL: u64 = u32::MAX as u64;

/// Keys of a call, each with the bytes by which the node knows it.
pub(crate) struct NodeKeys {
    pub(crate) keys: Vec<OwnedKey>,
    bytes: Vec<Vec<u8>>,
}

impl NodeKeys {
    /// Takes the keys of an iterable.
    pub(crate) fn of(keys: &Bound<'_, PyAny>) -> PyResult<NodeKeys> {
        let mut all = NodeKeys { keys: Vec::new(), bytes: Vec::new() };
        let py = keys.py();
        let convert = |key: CacheKey<'_>| Ok((key.to_owned_key(), node_key(py, key)?));
        for (key, bytes) in each_key(keys, "keys", convert)? {
            all.bytes.push(bytes);
            all.keys.push(key);
        }
        Ok(all)
    }

    /// Returns the keys in parts that one message can have.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[Vec<u8>]> {
        self.bytes.chunks(MAX_BATCH)
    }
}

/// Returns the bytes by which the node knows a key.
pub(crate) fn node_key(py: Python<'_>, key: CacheKey<'_>) -> PyResult<Vec<u8>> {
    let bytes = disk_key(key);
    match bytes.len() {
        1..=MAX_KEY => Ok(bytes.into_owned()),
        len => Err(node_error(py, &CallError::BadKey { len, limit: MAX_KEY }.into())),
    }
}

/// Checks that a batch fits into one message, which makes it all or nothing.
pub(crate) fn check_batch(py: Python<'_>, len: usize, what: &str) -> PyResult<()> {
    if len <= MAX_BATCH {
        return Ok(());
    }
    let message = format!("{len} {what} are too many for one call: the limit is {MAX_BATCH}");
    Err(error::bad_number(py, message, len, MAX_BATCH))
}

/// Converts the hints for a value.
pub(crate) fn hints<'py>(
    py: Python<'py>,
    priority: Int<'py>,
    ttl: Option<Seconds<'py>>,
    ElementType(data_type): ElementType,
) -> PyResult<ValueOptions> {
    let (priority, ttl) = worth(py, priority, ttl)?;
    Ok(ValueOptions { parent: None, priority, ttl, data_type })
}

/// Converts the arguments `priority` and `ttl`.
pub(crate) fn worth<'py>(
    py: Python<'py>,
    priority: Int<'py>,
    ttl: Option<Seconds<'py>>,
) -> PyResult<(Priority, Option<Duration>)> {
    let level = priority.within(py, "priority", 0..=Priority::MAX.get().into())?;
    let priority = Priority::new(level as u8).unwrap_or(Priority::MAX);
    Ok((priority, ttl.map(|ttl| bounded(py, ttl, "ttl", MAX_TTL)).transpose()?))
}

/// Converts the key of a parent.
pub(crate) fn parent_key(py: Python<'_>, parent: CacheKey<'_>) -> PyResult<ParentKey> {
    let key = node_key(py, parent)?;
    ParentKey::new(key).map_err(|error| node_error(py, &error.into()))
}

/// Returns the hints for each of `count` values: `hints`, with the parents of an iterable.
pub(crate) fn hints_of_each(
    parents: Option<&Bound<'_, PyAny>>,
    hints: ValueOptions,
    count: usize,
) -> PyResult<Vec<ValueOptions>> {
    let Some(parents) = parents else { return Ok(vec![hints; count]) };
    let py = parents.py();
    let mut all = Vec::with_capacity(count);
    for parent in elements(parents, "parents", "keys and None")? {
        let parent = parent?;
        let parent = parent.extract::<Option<CacheKey<'_>>>()?;
        let parent = parent.map(|parent| parent_key(py, parent)).transpose()?;
        all.push(ValueOptions { parent, ..hints });
    }
    if all.len() == count {
        return Ok(all);
    }
    let given = all.len();
    let message = format!("{given} parents for {count} values: give a key or None for each");
    Err(error::bad_number(py, message, given, count))
}

/// Converts seconds of which there are at most `limit`.
pub(crate) fn bounded<'py>(
    py: Python<'py>,
    seconds: Seconds<'py>,
    name: &str,
    limit: u64,
) -> PyResult<Duration> {
    let duration = seconds.duration(py, name)?;
    if duration > Duration::from_secs(limit) {
        let seconds = duration.as_secs_f64();
        let message = format!("{name} is {seconds}: give a number of seconds from 0 to {limit}");
        return Err(error::bad_number(py, message, seconds, limit));
    }
    Ok(duration)
}

/// Copies a value into a reservation, with the GIL released if that takes long.
pub(crate) fn fill(
    py: Python<'_>,
    reservation: &mut NodeReservation,
    source: &Source<'_>,
) -> PyResult<()> {
    debug_assert_eq!(reservation.len(), source.len());
    let into = reservation.bytes_mut().map_err(|error| node_error(py, &error))?;
    // SAFETY: the reservation has as many bytes as the source, for which it was made. They are
    // mapped and its own while it is borrowed exclusively, until this returns.
    unsafe { source.copy_to(py, into.as_mut_ptr()) };
    Ok(())
}
