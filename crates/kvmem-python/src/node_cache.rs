//! *Node cache*: values by key in the memory of a node, which all engines of a machine share.
//!
//! The object is used as a [`KvCache`](crate::kv_cache) is. Its calls go to a server over a Unix
//! socket, and its values are read and written in place, in memory that this process maps once.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use kvmem::arena::{CancelToken, ProgressOptions, Region};
use kvmem_node::{
    CallError, ClientError, ClientRegistrars, ConnectOptions, MAX_BATCH, NewValue, NodeClient,
    PinBatch, ValueOptions,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch::take_all;
use crate::buffer::Source;
use crate::cache_key::CacheKey;
use crate::collect::{Plain, plain};
use crate::context::context_manager;
use crate::data_type::ElementType;
use crate::elements::{at_key, elements, items, named};
use crate::error;
use crate::holder::{Held, Holder, Lent, drop_value};
use crate::keywords::Keywords;
use crate::long;
use crate::node_call::{INTERRUPT, call, detached};
use crate::node_error::node_error;
use crate::node_pins::{NodePin, PyPinBatch, PyPinnedValue};
use crate::node_report;
use crate::node_reservation::{PyNodeReservation, Reserved};
use crate::node_values::{
    NodeKeys, bounded, check_batch, fill, hints, hints_of_each, node_key, parent_key,
};
use crate::number::{Int, Seconds, Several, plain};
use crate::options::{self, Threads};
use crate::region::part;
use crate::registration::key;
use crate::report::{self, Level};
use crate::size::Size;

/// Returns the mapping of a client that may write.
fn writable<'a>(py: Python<'_>, client: &'a NodeClient) -> PyResult<&'a Region> {
    client.region().ok_or_else(|| node_error(py, &ClientError::Call(CallError::ReadOnly)))
}

/// Longest path of a Unix socket.
const MAX_SOCKET_PATH: usize = 107;

/// Longest wait for an event in seconds.
const MAX_WAIT: u64 = u32::MAX as u64 / 1000;

/// Longest wait of one message: it is shorter than the lease of any sensible server.
const WAIT_PER_MESSAGE: std::time::Duration = std::time::Duration::from_secs(5);

/// Highest number of events or values that one message returns.
pub(crate) const MAX_LISTED: u64 = 512;

impl Held for NodeClient {
    const NAME: &'static str = "node cache";
    // The connection has a lock.
    const SLOW: bool = true;
}

/// What a cache was connected with.
pub(crate) struct Connected {
    path: PathBuf,
    namespace: String,
    read_only: bool,
    /// Whether the log has the warning about values without checksums.
    warned: AtomicBool,
}

impl Plain for NodeClient {}
impl Plain for Connected {}

#[doc = doc!("NodeCache")]
#[pyclass(name = "NodeCache", module = "kvmem", frozen, weakref)]
pub(crate) struct PyNodeCache {
    held: Holder<NodeClient>,
    connected: Connected,
}

plain!(PyNodeCache { held, connected });

#[doc = doc!("connect")]
#[pyfunction]
#[pyo3(signature = (path, **options), text_signature = "(path, *, namespace='', \
    read_only=False, retry_for=10.0, answer_within=30.0, populate=False, checksums=False, \
    verify=False, rings=False, devices=None, server_users=())")]
pub(crate) fn connect(
    py: Python<'_>,
    #[pyo3(from_py_with = plain)] path: PathBuf,
    options: Option<Bound<'_, PyDict>>,
) -> PyResult<PyNodeCache> {
    let len = path.as_os_str().len();
    if len > MAX_SOCKET_PATH {
        let message =
            format!("the path has {len} bytes: a socket's has at most {MAX_SOCKET_PATH} bytes");
        return Err(error::bad_number(py, message, len, MAX_SOCKET_PATH));
    }
    let given = Keywords::new(py, "connect", options);
    let usual = ConnectOptions::default();
    let users = given.take::<Several<Int<'_>>>("server_users")?.map_or_else(Vec::new, |it| it.0);
    let number = |user: Int<'_>| user.u32(py, "server_users");
    let options = ConnectOptions {
        namespace: given.text("namespace")?.unwrap_or_default(),
        read_only: given.flag("read_only", false)?,
        retry_for: given.seconds("retry_for")?.unwrap_or(usual.retry_for),
        answer_within: given.seconds("answer_within")?.unwrap_or(usual.answer_within),
        populate: given.flag("populate", false)?,
        checksums: given.flag("checksums", false)?,
        verify: given.flag("verify", false)?,
        rings: given.flag("rings", false)?,
        registrars: ClientRegistrars(options::devices(py, given.take("devices")?.as_ref())?),
        server_users: users.into_iter().map(number).collect::<PyResult<_>>()?,
        interrupt: Some(INTERRUPT),
    };
    given.end()?;
    // SAFETY: the processes that map the memory for writing keep to the protocol, which is a
    // condition of this function for its caller.
    let client = detached(py, || unsafe { NodeClient::connect(&path, &options) })?;
    let ConnectOptions { namespace, read_only, .. } = options;
    Ok(PyNodeCache {
        held: Holder::new(client),
        connected: Connected { path, namespace, read_only, warned: AtomicBool::new(false) },
    })
}

impl PyNodeCache {
    pub(crate) fn client(&self) -> PyResult<Lent<NodeClient>> {
        self.held.with(NodeClient::clone).map(Lent::new)
    }

    /// Stores values under keys, all or none.
    fn insert_all(
        &self,
        py: Python<'_>,
        values: Vec<(Vec<u8>, Source<'_>)>,
        hints: &[ValueOptions],
    ) -> PyResult<()> {
        let client = self.client()?;
        let sizes: Vec<u64> = values.iter().map(|(_, source)| source.len() as u64).collect();
        let reservations = call(py, &client, |client| client.reserve(&sizes))?;
        let mut committed = Vec::with_capacity(values.len());
        let values = values.into_iter().zip(reservations).zip(hints);
        for (((name, source), mut reservation), hints) in values {
            fill(py, &mut reservation, &source)?;
            committed.push(NewValue { key: name, reservation, options: *hints });
        }
        call(py, &client, |client| Ok(client.commit(committed)?))
    }

    /// Pins the values of keys, with as few messages as possible.
    fn pin(
        &self,
        py: Python<'_>,
        keys: NodeKeys,
        prefix_only: bool,
        wait: bool,
    ) -> PyResult<PyPinBatch> {
        let client = self.client()?;
        let (pins, pending) = call(py, &client, |client| {
            let acquire = match (prefix_only, wait) {
                (false, true) => NodeClient::acquire,
                (false, false) => NodeClient::try_acquire,
                (true, true) => NodeClient::acquire_prefix,
                (true, false) => NodeClient::try_acquire_prefix,
            };
            let (mut pins, mut pending) = (Vec::new(), Vec::new());
            for (number, part) in keys.parts().enumerate() {
                let found: PinBatch = acquire(client, part)?;
                let start = number * MAX_BATCH;
                pending.extend(found.pending().iter().map(|it| start + usize::from(*it)));
                let is_whole = found.hits() == part.len();
                pins.push(found);
                if prefix_only && !is_whole {
                    break;
                }
            }
            Ok((pins, pending))
        })?;
        self.warn_of_unverified(py, &client)?;
        Ok(PyPinBatch::new(pins, keys.keys, pending))
    }

    /// Logs once that values were misses because they have no checksum.
    fn warn_of_unverified(&self, py: Python<'_>, client: &NodeClient) -> PyResult<()> {
        // The flag guards no other memory: the thread that sets it logs.
        if client.unverified() == 0 || self.connected.warned.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let Connected { path, namespace, .. } = &self.connected;
        report::log(py, "node", Level::Warning, || {
            format!(
                "values of the node at {}, namespace {namespace:?}, have no checksums, so verify \
                 treats them as misses: set checksums on the writers (connect(..., \
                 checksums=True)); NodeCache.unverified counts the misses",
                path.display()
            )
        })
    }

    /// Adds up what a call returns for the parts of keys.
    fn count(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        count: fn(&NodeClient, &[Vec<u8>]) -> Result<usize, kvmem_node::ClientError>,
    ) -> PyResult<usize> {
        let keys = NodeKeys::of(keys)?;
        call(py, &self.client()?, |client| keys.parts().map(|part| count(client, part)).sum())
    }

    /// Returns an error if the cache only reads.
    pub(crate) fn check_writes(&self, py: Python<'_>) -> PyResult<()> {
        match self.connected.read_only {
            true => Err(node_error(py, &ClientError::Call(CallError::ReadOnly))),
            false => Ok(()),
        }
    }
}

#[pymethods]
impl PyNodeCache {
    #[doc = doc!("NodeCache.insert")]
    #[pyo3(
        signature = (
            key, value, *, parent=None, priority=Int::usual(0), ttl=None,
            data_type=ElementType::default()
        ),
        text_signature = "($self, key, value, *, parent=None, priority=0, ttl=None, \
            data_type='unknown')"
    )]
    fn insert(
        &self,
        key: CacheKey<'_>,
        value: &Bound<'_, PyAny>,
        parent: Option<CacheKey<'_>>,
        priority: Int<'_>,
        ttl: Option<Seconds<'_>>,
        data_type: ElementType,
    ) -> PyResult<()> {
        let py = value.py();
        let parent = parent.map(|parent| parent_key(py, parent)).transpose()?;
        let hints = ValueOptions { parent, ..hints(py, priority, ttl, data_type)? };
        let source = Source::of(value).map_err(|error| named(py, error, "value"))?;
        self.insert_all(py, vec![(node_key(py, key)?, source)], &[hints])
    }

    #[doc = doc!("NodeCache.insert_batch")]
    #[pyo3(
        signature = (
            values, *, parents=None, priority=Int::usual(0), ttl=None,
            data_type=ElementType::default()
        ),
        text_signature = "($self, values, *, parents=None, priority=0, ttl=None, \
            data_type='unknown')"
    )]
    fn insert_batch(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        parents: Option<&Bound<'_, PyAny>>,
        priority: Int<'_>,
        ttl: Option<Seconds<'_>>,
        data_type: ElementType,
    ) -> PyResult<()> {
        let hints = hints(py, priority, ttl, data_type)?;
        let items = items(values, "values", "bytes")?;
        check_batch(py, items.len(), "values")?;
        let hints = hints_of_each(parents, hints, items.len())?;
        let mut all = Vec::with_capacity(items.len());
        for (key, value) in &items {
            let source = Source::of(value).map_err(|error| at_key(error, "values", key))?;
            let key = key.extract().map_err(|error| named(py, error, "a key of values"))?;
            all.push((node_key(py, key)?, source));
        }
        self.insert_all(py, all, &hints)
    }

    #[doc = doc!("NodeCache.reserve")]
    #[pyo3(
        signature = (
            key, nbytes, *, parent=None, priority=Int::usual(0), ttl=None,
            data_type=ElementType::default()
        ),
        text_signature = "($self, key, nbytes, *, parent=None, priority=0, ttl=None, \
            data_type='unknown')"
    )]
    fn reserve(
        slf: &Bound<'_, Self>,
        key: CacheKey<'_>,
        nbytes: Size,
        parent: Option<CacheKey<'_>>,
        priority: Int<'_>,
        ttl: Option<Seconds<'_>>,
        data_type: ElementType,
    ) -> PyResult<PyNodeReservation> {
        let py = slf.py();
        let parent = parent.map(|parent| parent_key(py, parent)).transpose()?;
        let hints = ValueOptions { parent, ..hints(py, priority, ttl, data_type)? };
        let key = (key.to_owned_key(), node_key(py, key)?);
        let client = slf.get().client()?;
        let reservation = call(py, &client, |client| client.reserve(&[nbytes.0]))?.pop();
        let reservation = reservation.expect("there is one reservation for each size");
        let reserved = Reserved::new(py, reservation, &client, key, hints)?;
        Ok(PyNodeReservation { held: Holder::new(reserved) })
    }

    #[doc = doc!("NodeCache.reserve_batch")]
    #[pyo3(
        signature = (
            sizes, *, parents=None, priority=Int::usual(0), ttl=None,
            data_type=ElementType::default(), wait=true
        ),
        text_signature = "($self, sizes, *, parents=None, priority=0, ttl=None, \
            data_type='unknown', wait=True)"
    )]
    fn reserve_batch(
        &self,
        sizes: &Bound<'_, PyAny>,
        parents: Option<&Bound<'_, PyAny>>,
        priority: Int<'_>,
        ttl: Option<Seconds<'_>>,
        data_type: ElementType,
        #[pyo3(from_py_with = plain)] wait: bool,
    ) -> PyResult<Vec<PyNodeReservation>> {
        let py = sizes.py();
        let hints = hints(py, priority, ttl, data_type)?;
        let items = items(sizes, "sizes", "number of bytes")?;
        check_batch(py, items.len(), "reservations")?;
        let hints = hints_of_each(parents, hints, items.len())?;
        let mut keys = Vec::with_capacity(items.len());
        let mut sizes = Vec::with_capacity(items.len());
        for (key, size) in &items {
            let size = size.extract::<Size>().map_err(|error| at_key(error, "sizes", key))?;
            let key = key.extract::<CacheKey<'_>>();
            let key = key.map_err(|error| named(py, error, "a key of sizes"))?;
            keys.push((key.to_owned_key(), node_key(py, key)?));
            sizes.push(size.0);
        }
        let client = self.client()?;
        let reservations = call(py, &client, |client| match wait {
            true => client.reserve(&sizes),
            false => client.try_reserve(&sizes),
        })?;
        let one = |((key, reservation), hints)| {
            let reserved = Reserved::new(py, reservation, &client, key, hints)?;
            Ok(PyNodeReservation { held: Holder::new(reserved) })
        };
        keys.into_iter().zip(reservations).zip(hints).map(one).collect()
    }

    #[doc = doc!("NodeCache.commit")]
    fn commit(&self, py: Python<'_>, reservations: &Bound<'_, PyAny>) -> PyResult<()> {
        let client = self.client()?;
        let objects = elements(reservations, "reservations", "reservations")?;
        let objects = objects.collect::<PyResult<Vec<_>>>()?;
        check_batch(py, objects.len(), "reservations")?;
        for (at, object) in objects.iter().enumerate() {
            let reservation = object
                .cast::<PyNodeReservation>()
                .map_err(|error| named(py, error, &format!("reservations[{at}]")))?;
            let reservation = reservation.get();
            if !reservation.held.with(|reserved| reserved.is_of(&client))? {
                let message = "a reservation is of another connection: commit it there";
                return Err(error::bad_value(py, message));
            }
        }
        let objects = pyo3::types::PyList::new(py, objects)?;
        let taken =
            take_all::<PyNodeReservation, _>(objects.as_any(), "reservations", |it| &it.held)?;
        let values: Vec<_> = taken.into_iter().map(Reserved::into_value).collect();
        call(py, &client, |client| Ok(client.commit(values)?))
    }

    #[doc = doc!("NodeCache.get")]
    fn get(&self, py: Python<'_>, key: CacheKey<'_>) -> PyResult<Option<PyPinnedValue>> {
        let (key, name) = (key.to_owned_key(), node_key(py, key)?);
        let pin =
            call(py, &self.client()?, |client| Ok(NodePin::new(client.acquire(&[&name])?, key)))?;
        Ok(pin.map(PyPinnedValue::new))
    }

    #[doc = doc!("NodeCache.acquire")]
    #[pyo3(signature = (keys, *, wait=true))]
    fn acquire(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = plain)] wait: bool,
    ) -> PyResult<PyPinBatch> {
        self.pin(py, NodeKeys::of(keys)?, false, wait)
    }

    #[doc = doc!("NodeCache.acquire_prefix")]
    #[pyo3(signature = (keys, *, wait=true))]
    fn acquire_prefix(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = plain)] wait: bool,
    ) -> PyResult<PyPinBatch> {
        self.pin(py, NodeKeys::of(keys)?, true, wait)
    }

    #[doc = doc!("NodeCache.lookup")]
    fn lookup(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
        let keys = NodeKeys::of(keys)?;
        call(py, &self.client()?, |client| {
            let mut found = 0;
            for part in keys.parts() {
                let here = client.lookup(part)?;
                found += here;
                if here < part.len() {
                    break;
                }
            }
            Ok(found)
        })
    }

    #[doc = doc!("NodeCache.locate")]
    fn locate<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let keys = NodeKeys::of(keys)?;
        let located = call(py, &self.client()?, |client| {
            let mut all = Vec::new();
            for part in keys.parts() {
                all.extend(client.locate(part)?);
            }
            Ok(all)
        })?;
        located.into_iter().map(|one| node_report::located(py, one)).collect()
    }

    #[doc = doc!("NodeCache.touch")]
    fn touch(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.count(py, keys, |client, keys| client.touch(keys))
    }

    #[doc = doc!("NodeCache.remove")]
    fn remove(&self, py: Python<'_>, key: CacheKey<'_>) -> PyResult<bool> {
        let name = node_key(py, key)?;
        call(py, &self.client()?, |client| client.remove(&[name])).map(|removed| removed > 0)
    }

    #[doc = doc!("NodeCache.remove_batch")]
    fn remove_batch(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.count(py, keys, |client, keys| client.remove(keys))
    }

    fn __contains__(&self, py: Python<'_>, key: CacheKey<'_>) -> PyResult<bool> {
        let name = node_key(py, key)?;
        call(py, &self.client()?, |client| client.lookup(&[name])).map(|found| found > 0)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        call(py, &self.client()?, NodeClient::stats).map(|stats| stats.values as usize)
    }

    /// A cache is true even if it is empty, so `cache or default` is the cache.
    fn __bool__(&self) -> bool {
        true
    }

    #[doc = doc!("NodeCache.keep_alive")]
    fn keep_alive(&self, py: Python<'_>) -> PyResult<()> {
        call(py, &self.client()?, NodeClient::keep_alive)
    }

    #[doc = doc!("NodeCache.stats")]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stats = call(py, &self.client()?, NodeClient::stats)?;
        node_report::stats(py, &stats)
    }

    #[doc = doc!("NodeCache.events")]
    #[pyo3(
        signature = (start=Int::usual(0), *, max=Int::usual(512), wait=None),
        text_signature = "($self, start=0, *, max=512, wait=0.0)"
    )]
    fn events<'py>(
        &self,
        py: Python<'py>,
        start: Int<'py>,
        max: Int<'py>,
        wait: Option<Seconds<'py>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let start = start.u64(py, "start")?;
        let max = max.u32(py, "max")?;
        let wait = wait.map(|wait| bounded(py, wait, "wait", MAX_WAIT)).transpose()?;
        let mut left = wait.unwrap_or_default();
        let found = call(py, &self.client()?, |client| {
            loop {
                let now = left.min(WAIT_PER_MESSAGE);
                left -= now;
                let found = client.events(start, max, now)?;
                if !found.events.is_empty() || found.lost || left.is_zero() || max == 0 {
                    return Ok(found);
                }
            }
        })?;
        node_report::events(py, found)
    }

    #[doc = doc!("NodeCache.list_namespace")]
    fn list_namespace<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let values = call(py, &self.client()?, |client| {
            let (mut all, mut from) = (Vec::new(), Some(0));
            while let Some(at) = from {
                let (values, next) = client.list_namespace(at, MAX_LISTED as u32)?;
                all.extend(values);
                from = next;
            }
            Ok(all)
        })?;
        values.iter().map(|value| node_report::listed(py, value)).collect()
    }

    #[doc = doc!("NodeCache.misses")]
    #[pyo3(signature = (max=Int::usual(256)), text_signature = "($self, max=256)")]
    fn misses<'py>(&self, py: Python<'py>, max: Int<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let max = max.u64(py, "max")?.min(MAX_LISTED) as u32;
        let misses = call(py, &self.client()?, |client| client.misses(max))?;
        misses.iter().map(|miss| node_report::miss(py, miss)).collect()
    }

    #[doc = doc!("NodeCache.evict")]
    fn evict(&self, py: Python<'_>, nbytes: Size) -> PyResult<u64> {
        self.check_writes(py)?;
        call(py, &self.client()?, |client| client.evict(nbytes.0))
    }

    #[doc = doc!("NodeCache.clear")]
    fn clear(&self, py: Python<'_>) -> PyResult<usize> {
        self.check_writes(py)?;
        call(py, &self.client()?, NodeClient::clear)
    }

    #[doc = doc!("NodeCache.memory_address")]
    #[getter]
    fn memory_address(&self) -> PyResult<usize> {
        self.held.with(|client| client.memory().0.addr())
    }

    #[doc = doc!("NodeCache.memory_len")]
    #[getter]
    fn memory_len(&self) -> PyResult<usize> {
        self.held.with(|client| client.mapping().1)
    }

    #[doc = doc!("NodeCache.boundary")]
    #[getter]
    fn boundary(&self) -> PyResult<Option<u64>> {
        self.held.with(NodeClient::boundary)
    }

    #[doc = doc!("NodeCache.fileno")]
    fn fileno(&self, py: Python<'_>) -> PyResult<c_int> {
        let client = self.client()?;
        Ok(writable(py, &client)?.fd().expect("it was attached by its descriptor").as_raw_fd())
    }

    #[doc = doc!("NodeCache.populate_aliases")]
    #[pyo3(signature = (*, threads=None))]
    fn populate_aliases(&self, py: Python<'_>, threads: Option<Threads<'_>>) -> PyResult<u64> {
        let how = options::populate_now(py, threads)?;
        let cancel = CancelToken::new();
        let watch = ProgressOptions::new().cancel(cancel.clone());
        let client = self.client()?;
        let region = writable(py, &client)?;
        let done = long::run(py, &cancel, || region.populate_aliases(how, &watch))?;
        done.map_err(|error| error::arena(py, &error))
    }

    #[doc = doc!("NodeCache.devices")]
    #[getter]
    fn devices(&self) -> PyResult<Vec<String>> {
        self.held.with(|client| match client.registration() {
            Some(registration) => registration.devices().map(str::to_owned).collect(),
            None => Vec::new(),
        })
    }

    #[doc = doc!("NodeCache.key_for")]
    #[pyo3(
        signature = (device, start=Int::usual(0), stop=None),
        text_signature = "($self, device, start=0, stop=None)"
    )]
    fn key_for<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = plain)] device: &str,
        start: Int<'_>,
        stop: Option<Int<'_>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let len = self.held.with(|client| client.mapping().1)?;
        let (start, stop) = part(py, len, start, stop)?;
        let found = self.held.with(|client| match client.registration() {
            Some(registration) => Ok(registration.key_for(device, start..stop)?),
            None => client.key_for(device, 0, 0),
        })?;
        key(py, found.map_err(|error| node_error(py, &error))?)
    }

    #[doc = doc!("NodeCache.namespace")]
    #[getter]
    fn namespace(&self) -> &str {
        &self.connected.namespace
    }

    #[doc = doc!("NodeCache.path")]
    #[getter]
    fn path(&self) -> PathBuf {
        self.connected.path.clone()
    }

    #[doc = doc!("NodeCache.read_only")]
    #[getter]
    fn read_only(&self) -> bool {
        self.connected.read_only
    }

    #[doc = doc!("NodeCache.has_rings")]
    #[getter]
    fn has_rings(&self, py: Python<'_>) -> PyResult<bool> {
        let client = self.client()?;
        Ok(py.detach(|| client.has_rings()))
    }

    #[doc = doc!("NodeCache.unverified")]
    #[getter]
    fn unverified(&self) -> PyResult<u64> {
        self.held.with(NodeClient::unverified)
    }

    #[doc = doc!("NodeCache.close")]
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        drop_value(py, self.held.take_if_any()?);
        Ok(())
    }

    #[doc = doc!("NodeCache.closed")]
    #[getter]
    fn closed(&self) -> bool {
        self.held.is_gone()
    }

    fn __repr__(&self) -> String {
        let path = self.connected.path.display();
        match self.held.with(|client| client.mapping().1) {
            Ok(len) => format!("<kvmem.NodeCache of {len} bytes at {path}>"),
            Err(_) => "<kvmem.NodeCache, closed>".to_owned(),
        }
    }
}

context_manager!(PyNodeCache, PyNodeCache::close);
