//! *Context*: context managers for classes with a field `held`. Entering fails if the value is
//! gone; leaving ends it.

/// `__enter__` and `__exit__` of a class. The closure ends an object.
macro_rules! context_manager {
    ($class:ty, $end:expr) => {
        #[pyo3::pymethods]
        impl $class {
            fn __enter__(slf: pyo3::Bound<'_, Self>) -> pyo3::PyResult<pyo3::Bound<'_, Self>> {
                slf.get().held.with(|_| ())?;
                Ok(slf)
            }

            #[pyo3(signature = (*exc))]
            fn __exit__(
                &self,
                py: pyo3::Python<'_>,
                exc: &pyo3::Bound<'_, pyo3::types::PyTuple>,
            ) -> pyo3::PyResult<()> {
                use pyo3::types::{PyAnyMethods, PyTupleMethods};

                let end: fn(&$class, pyo3::Python<'_>) -> pyo3::PyResult<()> = $end;
                match end(self, py) {
                    // The current exception says more than the existence of views. The object ends
                    // with the last view.
                    Err(error)
                        if error.is_instance_of::<pyo3::exceptions::PyBufferError>(py)
                            && exc.get_item(0).is_ok_and(|kind| !kind.is_none()) =>
                    {
                        Ok(())
                    }
                    ended => ended,
                }
            }
        }
    };
}

pub(crate) use context_manager;
