//! *Node operator*: the calls on a node that concern all namespaces and other clients.

use kvmem_node::NodeClient;
use pyo3::prelude::*;

use crate::collect::{Link, collected};
use crate::error;
use crate::holder::Lent;
use crate::node_cache::{MAX_LISTED, PyNodeCache};
use crate::node_call::call;
use crate::node_report;
use crate::number::Int;
use crate::size::Size;

#[doc = doc!("NodeOperator")]
#[pyclass(name = "NodeOperator", module = "kvmem", frozen, weakref)]
pub(crate) struct PyNodeOperator {
    cache: Link<PyNodeCache>,
}

collected!(PyNodeOperator { cache }, |it, py| {
    it.cache.cut(py);
});

impl PyNodeOperator {
    pub(crate) fn new(cache: &Bound<'_, PyNodeCache>) -> PyNodeOperator {
        PyNodeOperator { cache: Link::new(Some(cache.clone().unbind())) }
    }

    fn cache<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyNodeCache>> {
        let cache = self.cache.get(py).ok_or_else(|| error::closed("node cache", "cleared"))?;
        Ok(cache.into_bound(py))
    }

    fn client(&self, py: Python<'_>) -> PyResult<Lent<NodeClient>> {
        self.cache(py)?.get().client()
    }

    /// Returns the client for a call that changes the node.
    fn writer(&self, py: Python<'_>) -> PyResult<Lent<NodeClient>> {
        self.cache(py)?.get().check_writes(py)?;
        self.client(py)
    }
}

#[pymethods]
impl PyNodeOperator {
    #[doc = doc!("NodeOperator.list")]
    #[pyo3(signature = (*, max=None))]
    fn list<'py>(
        &self,
        py: Python<'py>,
        max: Option<Int<'py>>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let max = max.map_or(Ok(u64::MAX), |max| max.u64(py, "max"))?;
        let values = call(py, &self.client(py)?, |client| {
            let operator = client.as_operator();
            let (mut all, mut from) = (Vec::new(), Some(0));
            while let (Some(at), left @ 1..) = (from, max - all.len() as u64) {
                let (values, next) = operator.list(at, left.min(MAX_LISTED) as u32)?;
                all.extend(values);
                from = next;
            }
            Ok(all)
        })?;
        values.iter().map(|value| node_report::listed(py, value)).collect()
    }

    #[doc = doc!("NodeOperator.misses")]
    #[pyo3(signature = (max=Int::usual(256)), text_signature = "($self, max=256)")]
    fn misses<'py>(&self, py: Python<'py>, max: Int<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let max = max.u64(py, "max")?.min(MAX_LISTED) as u32;
        let misses = call(py, &self.client(py)?, |client| client.as_operator().misses(max))?;
        misses.iter().map(|miss| node_report::miss(py, miss)).collect()
    }

    #[doc = doc!("NodeOperator.sessions")]
    fn sessions<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let sessions = call(py, &self.client(py)?, |client| client.as_operator().sessions())?;
        sessions.iter().map(|session| node_report::session(py, session)).collect()
    }

    #[doc = doc!("NodeOperator.evict")]
    #[pyo3(signature = (nbytes, namespace=None))]
    fn evict(&self, py: Python<'_>, nbytes: Size, namespace: Option<&str>) -> PyResult<u64> {
        let client = self.writer(py)?;
        call(py, &client, |client| client.as_operator().evict(namespace, nbytes.0))
    }

    #[doc = doc!("NodeOperator.clear")]
    #[pyo3(signature = (namespace=None))]
    fn clear(&self, py: Python<'_>, namespace: Option<&str>) -> PyResult<usize> {
        let client = self.writer(py)?;
        call(py, &client, |client| client.as_operator().clear(namespace))
    }

    #[doc = doc!("NodeOperator.resize")]
    fn resize<'py>(&self, py: Python<'py>, nbytes: Size) -> PyResult<Bound<'py, PyAny>> {
        let client = self.writer(py)?;
        let resized = call(py, &client, |client| client.as_operator().resize(nbytes.0))?;
        node_report::resized(py, resized)
    }

    #[doc = doc!("NodeOperator.reclaim_pins")]
    fn reclaim_pins(&self, py: Python<'_>, pid: Int<'_>) -> PyResult<usize> {
        let (client, pid) = (self.writer(py)?, pid.u32(py, "pid")?);
        call(py, &client, |client| client.as_operator().reclaim_pins(pid))
    }
}

#[pymethods]
impl PyNodeCache {
    #[doc = doc!("NodeCache.as_operator")]
    fn as_operator(cache: &Bound<'_, Self>) -> PyNodeOperator {
        PyNodeOperator::new(cache)
    }
}
