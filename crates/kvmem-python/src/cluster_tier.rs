//! *ClusterTier*: a Mooncake cluster as a lower tier, through a helper process.

use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use kvmem::tier::{StoreOutcome, Tier, TierHints, TierRead, TierValue};
use kvmem_cluster::{ClusterOptions, ClusterTier};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::buffer::{Source, Span};
use crate::cache_key::CacheKey;
use crate::collect::{Plain, plain};
use crate::data_type::ElementType;
use crate::disk_key::disk_key;
use crate::disk_memory::{bytes_of, bytes_of_mut, targets};
use crate::disk_tier::encoding;
use crate::elements::{at_key, items};
use crate::error;
use crate::holder::{Held, Holder, Lent};
use crate::interrupt::SIGNAL_INTERVAL;
use crate::keywords::Keywords;
use crate::number::Seconds;
use crate::options;
use crate::process;
use crate::python_tier::lower_tier_error;
use crate::report::{self, Level};
use crate::tier_values::keys_of;

/// The tier, shared with the caches above it.
pub(crate) type SharedCluster = Arc<ClusterTier>;

impl Held for SharedCluster {
    const NAME: &'static str = "cluster tier";
    const SLOW: bool = true;
}

impl Plain for SharedCluster {}

/// The last line of the thread that watches the helper.
type LastLine = Arc<Mutex<Option<String>>>;

impl Plain for LastLine {}

#[doc = doc!("ClusterTier")]
#[pyclass(name = "ClusterTier", module = "kvmem.mooncake", frozen, weakref)]
pub(crate) struct PyClusterTier {
    held: Holder<SharedCluster>,
    last_line: LastLine,
}

plain!(PyClusterTier { held, last_line });

impl PyClusterTier {
    /// Returns the tier, for work that takes longer than a call.
    pub(crate) fn tier(&self) -> PyResult<Lent<SharedCluster>> {
        self.held.with(Arc::clone).map(Lent::new)
    }

    /// Waits in turns, between which signals are handled.
    fn wait_for(
        &self,
        py: Python<'_>,
        timeout: Option<Seconds<'_>>,
        is_so: impl Fn(&ClusterTier, Instant) -> bool + Sync,
    ) -> PyResult<bool> {
        let timeout = options::seconds(py, "timeout", timeout)?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let turn = Instant::now() + SIGNAL_INTERVAL;
            let turn = deadline.map_or(turn, |deadline| deadline.min(turn));
            let tier = self.tier()?;
            if py.detach(|| is_so(&tier, turn)) {
                return Ok(true);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(false);
            }
            py.check_signals()?;
        }
    }
}

#[pymethods]
impl PyClusterTier {
    #[new]
    #[pyo3(
        signature = (master=None, **options),
        text_signature = "(master='127.0.0.1:50051', *, prefix='kvmem/', replace=True, \
            staging_bytes=None, call_timeout=None, start_timeout=None, engine=None, python=None, \
            codec='none', key_file=None)"
    )]
    fn create<'py>(
        py: Python<'py>,
        master: Option<Bound<'py, PyAny>>,
        options: Option<Bound<'py, PyDict>>,
    ) -> PyResult<PyClusterTier> {
        let given = Keywords::new(py, "ClusterTier", options);
        let master = match &master {
            Some(master) => given.convert("master", master)?,
            None => "127.0.0.1:50051".to_owned(),
        };
        let prefix = given.text("prefix")?.unwrap_or_else(|| "kvmem/".to_owned());
        let python = given.take::<OsString>("python")?;
        let python = match python {
            Some(python) => python,
            None => py
                .import("sys")?
                .getattr("executable")?
                .extract::<Option<OsString>>()?
                .unwrap_or_default(),
        };
        if python.is_empty() {
            let message = "python is empty: give the program that runs Mooncake's client";
            return Err(error::bad_value(py, message));
        }
        let node = ["-m", "kvmem.mooncake.node_tier", "--master", &master, "--prefix", &prefix];
        let mut command = vec![python];
        command.extend(node.map(OsString::from));
        command
            .extend(engine_arguments(py, given.take("engine")?)?.into_iter().map(OsString::from));
        let mut options = ClusterOptions::new(command);
        options.replaces = given.flag("replace", true)?;
        (options.codec, options.keys) = encoding(py, &given)?;
        if let Some(bytes) = given.bytes("staging_bytes")? {
            if !(MIN_STAGING..=MAX_STAGING).contains(&bytes) {
                let message =
                    format!("staging_bytes is {bytes}: give {MIN_STAGING} to {MAX_STAGING}");
                let limit = if bytes < MIN_STAGING { MIN_STAGING } else { MAX_STAGING };
                return Err(error::bad_number(py, message, bytes, limit));
            }
            options.staging_bytes = bytes;
        }
        let seconds = |name: &str, usual| Ok::<_, PyErr>(given.seconds(name)?.unwrap_or(usual));
        options.call_timeout = seconds("call_timeout", options.call_timeout)?;
        options.start_timeout = seconds("start_timeout", options.start_timeout)?;
        given.end()?;
        let last_line = LastLine::default();
        let line = Arc::clone(&last_line);
        let report = move |text: &str| {
            *line.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.to_owned());
            // Nobody waits for this thread while it has the GIL, and nobody calls it.
            process::call(|py| {
                if let Err(error) = report::log(py, "mooncake", Level::Warning, || text.to_owned())
                {
                    error.write_unraisable(py, None);
                }
            });
        };
        // The system's error if no thread can be started.
        let tier = py.detach(|| ClusterTier::start(options, report))?;
        Ok(PyClusterTier { held: Holder::new(Arc::new(tier)), last_line })
    }

    #[doc = doc!("ClusterTier.wait")]
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<Seconds<'_>>) -> PyResult<bool> {
        self.wait_for(py, timeout, ClusterTier::wait_ready)
    }

    #[doc = doc!("ClusterTier.flush")]
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<Seconds<'_>>) -> PyResult<bool> {
        self.wait_for(py, timeout, ClusterTier::flush_until)
    }

    #[doc = doc!("ClusterTier.store")]
    #[pyo3(
        signature = (values, *, data_type=ElementType::default()),
        text_signature = "($self, values, *, data_type='unknown')"
    )]
    fn store<'py>(
        &self,
        py: Python<'py>,
        values: &Bound<'py, PyAny>,
        data_type: ElementType,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let tier = self.tier()?;
        let hints = TierHints { data_type: data_type.0, ..TierHints::default() };
        let pairs = items(values, "values", "bytes")?;
        let (mut keys, mut sources) = (Vec::new(), Vec::new());
        for (key, value) in &pairs {
            keys.push(disk_key(key.extract::<CacheKey<'_>>()?).into_owned());
            sources.push(Source::of(value).map_err(|error| at_key(error, "values", key))?);
        }
        let spans: Vec<Span> = sources.iter().map(Source::span).collect();
        let outcomes = py.detach(|| {
            // SAFETY: the sources are exported, and stay so until this call returns. What other
            // threads write to them meanwhile is stored in part, as the page on buffers says.
            let bytes = spans.iter().map(|span| unsafe { bytes_of(span) });
            let value = |(key, bytes)| TierValue::new(key, bytes).with_hints(hints);
            tier.store(&keys.iter().map(|key| &**key).zip(bytes).map(value).collect::<Vec<_>>())
        });
        let is_lost = |outcome: &Result<_, _>| !matches!(outcome, Ok(StoreOutcome::Stored));
        let all = pairs.into_iter().zip(&outcomes);
        Ok(all.filter(|(_, outcome)| is_lost(outcome)).map(|((key, _), _)| key).collect())
    }

    #[doc = doc!("ClusterTier.ask")]
    fn ask(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Vec<Option<u64>>> {
        let (tier, keys) = (self.tier()?, keys_of(keys)?);
        Ok(py.detach(|| tier.ask(&keys.iter().map(|key| &**key).collect::<Vec<_>>())))
    }

    #[doc = doc!("ClusterTier.fetch_into")]
    fn fetch_into(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<Option<usize>>> {
        let (tier, keys) = (self.tier()?, keys_of(keys)?);
        let targets = targets(buffers, keys.len())?;
        let spans: Vec<Span> = targets.iter().map(|target| target.span).collect();
        let hits = py.detach(|| {
            // SAFETY: the buffers are exported and writable until this call returns, and none
            // shares bytes with another.
            let targets = spans.iter().map(|span| unsafe { bytes_of_mut(span) });
            let reads = keys.iter().zip(targets).map(|(key, into)| TierRead { key, into });
            tier.fetch(&mut reads.collect::<Vec<_>>())
        });
        let len = |(hit, span): (Option<_>, &Span)| hit.map(|_| span.len);
        Ok(hits.into_iter().zip(&spans).map(len).collect())
    }

    #[doc = doc!("ClusterTier.remove")]
    fn remove(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        let (tier, keys) = (self.tier()?, keys_of(keys)?);
        let removed = py.detach(|| tier.remove(&keys.iter().map(|key| &**key).collect::<Vec<_>>()));
        removed.map_err(|error| lower_tier_error(py, &error))
    }

    #[doc = doc!("ClusterTier.clear")]
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        let tier = self.tier()?;
        py.detach(|| tier.clear()).map_err(|error| lower_tier_error(py, &error))
    }

    #[doc = doc!("ClusterTier.stats")]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let tier = self.tier()?;
        let stats = py.detach(|| tier.stats());
        let last_line = self.last_line.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let others = PyDict::new(py);
        others.set_item("state", stats.state.name())?;
        others.set_item("last_report", last_line)?;
        report::statistics(py, "ClusterTierStats", &stats, &others)
    }

    #[doc = doc!("ClusterTier.close")]
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(tier) = self.held.take_if_any()? {
            py.detach(|| {
                tier.close();
                drop(tier);
            });
        }
        Ok(())
    }

    #[doc = doc!("ClusterTier.closed")]
    #[getter]
    fn closed(&self) -> bool {
        self.held.is_gone()
    }

    fn __repr__(&self) -> String {
        match self.held.with(|tier| tier.stats()) {
            Ok(stats) => format!(
                "<kvmem.mooncake.ClusterTier: {} stored, {} fetched, {} dropped>",
                stats.stored, stats.fetched, stats.dropped
            ),
            Err(_) => "<kvmem.mooncake.ClusterTier, closed>".to_owned(),
        }
    }
}

crate::context::context_manager!(PyClusterTier, PyClusterTier::close);

/// The names of `EngineOptions`, which are arguments of the helper.
const ENGINE_OPTIONS: [&str; 8] =
    ["host", "protocol", "devices", "metadata", "timeout", "deadline", "expose", "peers"];

/// Returns the arguments of the helper for the options of its engine.
fn engine_arguments(py: Python<'_>, engine: Option<Bound<'_, PyDict>>) -> PyResult<Vec<String>> {
    let mut arguments = Vec::new();
    for (name, value) in engine.into_iter().flatten() {
        let name = name.extract::<String>()?;
        if !ENGINE_OPTIONS.contains(&&*name) {
            let known = ENGINE_OPTIONS.join(", ");
            let message = format!("engine has the option {name:?}: give some of {known}");
            return Err(error::bad_value(py, message));
        }
        let text = match value.is_instance_of::<PyString>() || value.try_iter().is_err() {
            true => value.str()?.to_string(),
            false => value.extract::<Vec<String>>()?.join(","),
        };
        if name != "expose" {
            // One word: a value that begins with a dash is no option.
            arguments.push(format!("--{name}={text}"));
        } else if value.is_truthy()? {
            arguments.push("--expose".to_owned());
        }
    }
    Ok(arguments)
}

/// The limits of the staging memory.
const MIN_STAGING: u64 = 64 << 10;
const MAX_STAGING: u64 = 1 << 40;
