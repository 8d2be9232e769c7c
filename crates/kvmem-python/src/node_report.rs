//! *Node report*: what a node tells about itself, as the named tuples of `kvmem/data.py`.

use kvmem_node::{
    Event, EventKind, Events, Listed, Located, Miss, NamespaceStats, NodeStats, Resized,
    SessionListed,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::disk_key::key_of_bytes;
use crate::report::{named, statistics};

/// Returns a limit; None if there is none.
fn limit(value: u64) -> Option<u64> {
    (value != u64::MAX).then_some(value)
}

fn namespace<'py>(py: Python<'py>, stats: &NamespaceStats) -> PyResult<Bound<'py, PyAny>> {
    let others = PyDict::new(py);
    others.set_item("name", &stats.name)?;
    others.set_item("max_bytes", limit(stats.max_bytes))?;
    statistics(py, "NamespaceStats", stats, &others)
}

/// Converts the statistics.
pub(crate) fn stats<'py>(py: Python<'py>, stats: &NodeStats) -> PyResult<Bound<'py, PyAny>> {
    let others = PyDict::new(py);
    others.set_item("tier_state", stats.tier_state.name())?;
    let namespaces = stats.namespaces.iter().map(|it| namespace(py, it));
    let namespaces = PyTuple::new(py, namespaces.collect::<PyResult<Vec<_>>>()?)?;
    others.set_item("namespaces", namespaces)?;
    statistics(py, "NodeStats", stats, &others)
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

/// Converts a miss.
pub(crate) fn miss<'py>(py: Python<'py>, miss: &Miss) -> PyResult<Bound<'py, PyAny>> {
    let Miss { namespace, key, reason, ago_ms, gone_s, evicted_for, priority } = miss;
    let (key, ago) = (key_of_bytes(key), *ago_ms as f64 / 1000.0);
    let value = (*gone_s, evicted_for.as_deref(), *priority);
    named(py, "Miss", (namespace, &key, reason.name(), ago, value.0, value.1, value.2))
}

/// Converts the place of a value.
pub(crate) fn located(py: Python<'_>, located: Located) -> PyResult<Bound<'_, PyAny>> {
    named(py, "Located", (located.in_memory, located.in_tier))
}

/// Converts the size of the memory, for operators.
pub(crate) fn resized(py: Python<'_>, resized: Resized) -> PyResult<Bound<'_, PyAny>> {
    let Resized { size, wanted, held_bytes, registered_clients } = resized;
    named(py, "Resized", (size, wanted, held_bytes, registered_clients))
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
