//! *Memory methods*: those of all classes with memory.

/// Methods of all classes with memory. The class is frozen and has a field `held` with such a
/// value.
macro_rules! memory_methods {
    ($class:ident, $value:ty) => {
        impl $crate::buffer::Viewed for $class {
            type Value = $value;

            fn held(&self) -> &$crate::holder::Holder<$value> {
                &self.held
            }
        }

        #[pymethods]
        impl $class {
            #[doc = doc!("_Memory.ptr")]
            #[getter]
            fn ptr(&self) -> PyResult<usize> {
                self.held.with(|value| $crate::buffer::Bytes::span(value).at.addr())
            }

            #[doc = doc!("_Memory.nbytes")]
            #[getter]
            fn nbytes(&self) -> PyResult<usize> {
                self.held.with(|value| $crate::buffer::Bytes::span(value).len)
            }

            fn __len__(&self) -> PyResult<usize> {
                self.nbytes()
            }

            unsafe fn __getbuffer__(
                slf: Bound<'_, Self>,
                view: *mut pyo3::ffi::Py_buffer,
                flags: std::ffi::c_int,
            ) -> PyResult<()> {
                // SAFETY: `view` is the argument that the interpreter passed to `__getbuffer__` of
                // this object, as `export` requires.
                unsafe { $crate::buffer::export(&slf, view, flags) }
            }

            unsafe fn __releasebuffer__(&self, _view: *mut pyo3::ffi::Py_buffer) {
                self.held.release();
            }

            #[doc = doc!("_Memory.__dlpack__")]
            #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
            fn __dlpack__<'py>(
                slf: &Bound<'py, Self>,
                stream: Option<Bound<'py, PyAny>>,
                max_version: Option<$crate::number::Exactly<$crate::number::Int<'py>, 2>>,
                dl_device: Option<$crate::number::Exactly<$crate::number::Int<'py>, 2>>,
                copy: Option<bool>,
            ) -> PyResult<Bound<'py, PyAny>> {
                let options = $crate::dlpack::ExportOptions::new(
                    slf.py(),
                    stream.is_some(),
                    max_version,
                    dl_device,
                    copy,
                )?;
                $crate::dlpack::export(slf, &options)
            }

            #[doc = doc!("_Memory.__dlpack_device__")]
            fn __dlpack_device__(&self) -> (i32, i32) {
                $crate::dlpack::CPU
            }
        }
    };
}
pub(crate) use memory_methods;
