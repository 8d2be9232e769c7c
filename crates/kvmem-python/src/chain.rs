//! *Chain*: two lower tiers, one below the other.
//!
//! The object only names them. A cache makes the library's chain of it, since tiers of Python are
//! made for the pool of a cache, and are owned by its object.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::cluster_tier::PyClusterTier;
use crate::collect::{Link, collected};
use crate::disk_tier::PyDiskTier;
use crate::error;
use crate::tier_set::PyTierSet;

#[doc = doc!("Chain")]
#[pyclass(name = "Chain", module = "kvmem", frozen, weakref)]
pub(crate) struct PyChain {
    upper: Link<PyAny>,
    lower: Link<PyAny>,
}

collected!(PyChain { upper, lower }, |it, py| {
    it.upper.cut(py);
    it.lower.cut(py);
});

/// Checks that an object may be a part of a chain.
fn check(name: &str, object: &Bound<'_, PyAny>) -> PyResult<()> {
    if object.is_instance_of::<PyDiskTier>()
        || object.is_instance_of::<PyTierSet>()
        || object.is_instance_of::<PyClusterTier>()
        || object.is_instance_of::<PyChain>()
        || object.getattr_opt("__lower_tier__")?.is_some()
    {
        return Ok(());
    }
    let message = format!(
        "{name}: {} is no DiskTier, TierSet, ClusterTier or Chain, and has no method \
         __lower_tier__(pool), which returns a lower tier: see kvmem.tier",
        object.get_type().name()?
    );
    Err(PyTypeError::new_err(message))
}

#[pymethods]
impl PyChain {
    #[new]
    fn create(upper: &Bound<'_, PyAny>, lower: &Bound<'_, PyAny>) -> PyResult<PyChain> {
        check("upper", upper)?;
        check("lower", lower)?;
        let link = |object: &Bound<'_, PyAny>| Link::new(Some(object.clone().unbind()));
        Ok(PyChain { upper: link(upper), lower: link(lower) })
    }

    #[doc = doc!("Chain.upper")]
    #[getter]
    pub(crate) fn upper<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        part(py, &self.upper)
    }

    #[doc = doc!("Chain.lower")]
    #[getter]
    pub(crate) fn lower<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        part(py, &self.lower)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (upper, lower) = (self.upper(py)?.repr()?, self.lower(py)?.repr()?);
        Ok(format!("<kvmem.Chain of {upper} above {lower}>"))
    }
}

fn part<'py>(py: Python<'py>, link: &Link<PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let object = link.get(py).ok_or_else(|| error::closed("chain", "cleared"))?;
    Ok(object.into_bound(py))
}
