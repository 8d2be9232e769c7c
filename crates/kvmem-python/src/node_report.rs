//! *Node report*: what a node tells about itself, as the named tuples of `kvmem/data.py`.

use kvmem_node::{
    Event, EventKind, Events, Listed, Located, NamespaceStats, NodeStats, SessionListed,
};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::disk_key::key_of_bytes;
use crate::report::named;

/// Returns a limit; None if there is none.
fn limit(value: u64) -> Option<u64> {
    (value != u64::MAX).then_some(value)
}

fn namespace<'py>(py: Python<'py>, stats: &NamespaceStats) -> PyResult<Bound<'py, PyAny>> {
    let NamespaceStats { name, bytes, max_bytes, pinned, pinned_bytes, share } = stats;
    named(py, "NamespaceStats", (name, *bytes, limit(*max_bytes), *pinned, *pinned_bytes, *share))
}

/// Converts the statistics.
pub(crate) fn stats<'py>(py: Python<'py>, stats: &NodeStats) -> PyResult<Bound<'py, PyAny>> {
    let numbers = [
        stats.capacity,
        stats.used,
        stats.largest_free,
        stats.values,
        stats.max_blocks,
        stats.sessions,
        stats.orphaned_sessions,
        stats.pinned,
        stats.pinned_bytes,
        stats.reservations,
        stats.reserved_bytes,
        stats.fenced_bytes,
        stats.dead_bytes,
        stats.hits,
        stats.misses,
        stats.reserved_total,
        stats.committed_total,
        stats.removed_total,
        stats.evicted_total,
        stats.expired_total,
        stats.fenced_total,
        stats.out_of_space_total,
        stats.scrubbed_total,
        stats.damaged_total,
        stats.tier_stored_total,
        stats.tier_fetched_total,
        stats.tier_failed_total,
    ];
    let mut fields = Vec::with_capacity(numbers.len() + 2);
    for number in numbers {
        fields.push(number.into_pyobject(py)?.into_any());
    }
    fields.push(stats.tier_state.name().into_pyobject(py)?.into_any());
    let namespaces = stats.namespaces.iter().map(|it| namespace(py, it));
    fields.push(PyTuple::new(py, namespaces.collect::<PyResult<Vec<_>>>()?)?.into_any());
    named(py, "NodeStats", PyTuple::new(py, fields)?)
}

fn event<'py>(py: Python<'py>, event: &Event) -> PyResult<Bound<'py, PyAny>> {
    let kind = match event.kind {
        EventKind::Stored => "stored",
        EventKind::Replaced => "replaced",
        EventKind::Removed => "removed",
        EventKind::Evicted => "evicted",
        EventKind::Damaged => "damaged",
        EventKind::TierEvicted => "tier_evicted",
    };
    named(py, "Event", (event.number, kind, event.namespace, &key_of_bytes(&event.key)))
}

/// Converts events from number `from` on.
pub(crate) fn events<'py>(
    py: Python<'py>,
    Events { events, next, lost }: Events,
) -> PyResult<Bound<'py, PyAny>> {
    let all = events.iter().map(|it| event(py, it)).collect::<PyResult<Vec<_>>>()?;
    named(py, "EventBatch", (PyTuple::new(py, all)?, next, lost))
}

/// Converts a value, for operators.
pub(crate) fn listed<'py>(py: Python<'py>, value: &Listed) -> PyResult<Bound<'py, PyAny>> {
    let Listed { namespace, key, len, pins, priority, idle_ms } = value;
    let idle = *idle_ms as f64 / 1000.0;
    named(py, "Listed", (namespace, &key_of_bytes(key), *len, *pins, *priority, idle))
}

/// Converts the place of a value.
pub(crate) fn located(py: Python<'_>, located: Located) -> PyResult<Bound<'_, PyAny>> {
    named(py, "Located", (located.in_memory, located.in_tier))
}

/// Converts a client, for operators.
pub(crate) fn session<'py>(
    py: Python<'py>,
    session: &SessionListed,
) -> PyResult<Bound<'py, PyAny>> {
    let SessionListed { pid, namespace, pins, reservations, connected, silent_ms } = session;
    let silent = *silent_ms as f64 / 1000.0;
    named(py, "SessionListed", (*pid, namespace, *pins, *reservations, *connected, silent))
}
