//! *Context*: what `with` does with a class that has a `held`: refuses what is gone, and ends what it began.

/// `__enter__` and `__exit__` of a class; the closure ends one.
macro_rules! context_manager {
    ($class:ty, $end:expr) => {
        #[pyo3::pymethods]
        impl $class {
            fn __enter__(slf: pyo3::Bound<'_, Self>) -> pyo3::PyResult<pyo3::Bound<'_, Self>> {
                slf.get().held.with(|_| ())?;
                Ok(slf)
            }

            #[pyo3(signature = (*_exc))]
            fn __exit__(
                &self,
                py: pyo3::Python<'_>,
                _exc: &pyo3::Bound<'_, pyo3::types::PyTuple>,
            ) -> pyo3::PyResult<()> {
                let end: fn(&$class, pyo3::Python<'_>) -> pyo3::PyResult<()> = $end;
                end(self, py)
            }
        }
    };
}

pub(crate) use context_manager;
