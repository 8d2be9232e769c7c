//! *Node reservation*: memory of a node that this process writes a value to.

use kvmem_node::{ClientError, NewValue, NodeClient, NodeReservation, ValueOptions};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::block::write;
use crate::buffer::{Bytes, Span};
use crate::cache_key::OwnedKey;
use crate::collect::{Plain, plain};
use crate::holder::{Held, Holder, Lent, drop_value};
use crate::memory_methods::memory_methods;
use crate::node_call::detached;
use crate::node_error::node_error;
use crate::number::Int;

/// A block that is being written, with everything that its commit needs.
pub(crate) struct Reserved {
    reservation: NodeReservation,
    client: NodeClient,
    key: OwnedKey,
    /// The bytes by which the node knows the key.
    name: Vec<u8>,
    hints: ValueOptions,
    span: Span,
}

impl Reserved {
    pub(crate) fn new(
        py: Python<'_>,
        mut reservation: NodeReservation,
        client: &NodeClient,
        (key, name): (OwnedKey, Vec<u8>),
        hints: ValueOptions,
    ) -> PyResult<Reserved> {
        let bytes = reservation.bytes_mut().map_err(|error| node_error(py, &error))?;
        let span = Span::writable(bytes.as_mut_ptr(), bytes.len());
        Ok(Reserved { reservation, client: client.clone(), key, name, hints, span })
    }

    /// Returns whether a client has made the reservation.
    pub(crate) fn is_of(&self, client: &NodeClient) -> bool {
        self.client.mapping() == client.mapping()
    }

    /// Returns what a commit takes.
    pub(crate) fn into_value(self) -> NewValue<Vec<u8>> {
        NewValue { key: self.name, reservation: self.reservation, options: self.hints }
    }

    fn commit(self, py: Python<'_>) -> PyResult<()> {
        let client = Lent::new(self.client.clone());
        let value = vec![self.into_value()];
        detached(py, || Ok(client.commit(value)?))
    }
}

impl Held for Reserved {
    const NAME: &'static str = "reservation";
    const END: &'static str = "committed or discarded";
    // The connection has a lock.
    const SLOW: bool = true;
}

impl Bytes for Reserved {
    fn span(&self) -> Span {
        self.span
    }
}

impl Plain for Reserved {}

#[doc = doc!("NodeReservation")]
#[pyclass(name = "NodeReservation", module = "kvmem", frozen, weakref)]
pub(crate) struct PyNodeReservation {
    pub(crate) held: Holder<Reserved>,
}

plain!(PyNodeReservation { held });

memory_methods!(PyNodeReservation, Reserved);

#[pymethods]
impl PyNodeReservation {
    #[doc = doc!("NodeReservation.cache_key")]
    #[getter]
    fn cache_key<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        (&self.held.with(|reserved| reserved.key.clone())?).into_pyobject(py)
    }

    #[doc = doc!("NodeReservation.offset")]
    #[getter]
    fn offset(&self) -> PyResult<u64> {
        self.held.with(|reserved| reserved.reservation.offset())
    }

    #[doc = doc!("NodeReservation.is_valid")]
    #[getter]
    fn is_valid(&self) -> PyResult<bool> {
        self.held.with(|reserved| reserved.reservation.is_valid())
    }

    #[doc = doc!("NodeReservation.address")]
    #[getter]
    fn address(&self, py: Python<'_>) -> PyResult<usize> {
        match self
            .held
            .with(|reserved| (reserved.reservation.is_valid(), reserved.span.at.addr()))?
        {
            (true, address) => Ok(address),
            (false, _) => Err(node_error(py, &ClientError::ReservationLost)),
        }
    }

    #[doc = doc!("NodeReservation.write")]
    #[pyo3(signature = (source, start=Int::usual(0)), text_signature = "($self, source, start=0)")]
    fn write(&self, py: Python<'_>, source: &Bound<'_, PyAny>, start: Int<'_>) -> PyResult<usize> {
        if !self.is_valid()? {
            return Err(node_error(py, &ClientError::ReservationLost));
        }
        write(py, &self.held, source, start)
    }

    #[doc = doc!("NodeReservation.commit")]
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        self.held.take()?.commit(py)
    }

    #[doc = doc!("NodeReservation.discard")]
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        drop_value(py, Some(self.held.take()?));
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().held.with(|_| ())?;
        Ok(slf)
    }

    /// Commits the value, or discards it after an exception.
    #[pyo3(signature = (kind=None, *_exc))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        _exc: &Bound<'_, PyTuple>,
    ) -> PyResult<()> {
        match self.held.take_if_any()? {
            Some(reserved) if kind.is_none() => reserved.commit(py),
            reserved => {
                drop_value(py, reserved);
                Ok(())
            }
        }
    }

    fn __repr__(&self) -> String {
        match self.held.with(|reserved| (reserved.span.len, reserved.reservation.offset())) {
            Ok((len, at)) => format!("<kvmem.NodeReservation of {len} bytes at offset {at}>"),
            Err(_) => "<kvmem.NodeReservation, ended>".to_owned(),
        }
    }
}
