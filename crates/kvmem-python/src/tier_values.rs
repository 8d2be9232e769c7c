//! *Tier values*: storing and fetching on a set of disk tiers. A single one is a set of one.
//!
//! Every call works without the GIL: it transfers bytes, or waits for a sync. Buffers of the
//! caller are exported meanwhile, so they stay where they are. Like views, they are the caller's:
//! a thread that writes to bytes that are being stored stores an undefined mixture, which a fetch
//! returns or reports as damaged.

use std::sync::Arc;

use kvmem::tier::{TierHints, TierRead, TierValue};
use kvmem_tier::{Fetched, TierSet};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::buffer::{Source, Span};
use crate::cache_key::CacheKey;
use crate::collect::Plain;
use crate::disk_key::disk_key;
use crate::disk_memory::{bytes_of, bytes_of_mut, targets};
use crate::elements::{at_key, each_key, items, named};
use crate::error;
use crate::holder::Held;
use crate::report;

/// The tiers, shared with the caches above them.
pub(crate) type SharedTier = Arc<TierSet>;

impl Held for SharedTier {
    const NAME: &'static str = "disk tier";
    const SLOW: bool = true;
}

impl Plain for SharedTier {}

/// Returns the keys of a call, as the tier knows them.
pub(crate) fn keys_of(keys: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<u8>>> {
    each_key(keys, "keys", |key| Ok(disk_key(key).into_owned()))
}

/// The name of a namespace: text or bytes.
#[derive(Default)]
pub(crate) struct NamespaceName(pub(crate) Vec<u8>);

impl<'a, 'py> FromPyObject<'a, 'py> for NamespaceName {
    type Error = error::ArgumentError;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> Result<NamespaceName, error::ArgumentError> {
        if let Ok(bytes) = given.cast::<PyBytes>() {
            return Ok(NamespaceName(bytes.as_bytes().to_vec()));
        }
        Ok(NamespaceName(given.extract::<&str>()?.as_bytes().to_vec()))
    }
}

/// Stores values; see the method of [`tier_methods`].
pub(crate) fn store(
    py: Python<'_>,
    tier: &TierSet,
    values: &Bound<'_, PyAny>,
    hints: TierHints,
    namespace: &[u8],
) -> PyResult<()> {
    let pairs = items(values, "values", "bytes")?;
    let mut keys = Vec::with_capacity(pairs.len());
    let mut sources = Vec::with_capacity(pairs.len());
    for (key, value) in &pairs {
        let name =
            key.extract::<CacheKey<'_>>().map_err(|error| named(py, error, "a key of values"))?;
        keys.push(disk_key(name).into_owned());
        sources.push(Source::of(value).map_err(|error| at_key(error, "values", key))?);
    }
    let spans: Vec<Span> = sources.iter().map(Source::span).collect();
    let results = py.detach(|| {
        // SAFETY: `sources` borrows or exports the bytes until this call returns.
        let bytes = spans.iter().map(|span| unsafe { bytes_of(span) });
        let pairs = keys.iter().zip(bytes);
        let values: Vec<TierValue<'_>> = pairs
            .map(|(key, value)| TierValue::new(key, value).with_hints(hints))
            .map(|value| value.with_namespace(namespace))
            .collect();
        let results = tier.store_with(&values);
        // An older value must not be taken for the one that was not stored.
        let lost: Vec<&[u8]> = values
            .iter()
            .zip(&results)
            .filter(|(_, result)| result.is_err())
            .map(|(value, _)| value.key)
            .collect();
        if !lost.is_empty() {
            // If this fails, too, the tier is read-only, which the error says.
            let _ = tier.remove(&lost);
        }
        results
    });
    let failed: Vec<_> = results.iter().zip(&pairs).filter(|(result, _)| result.is_err()).collect();
    match failed.first() {
        Some((Err(error), _)) => {
            let failed = failed.iter().map(|(_, (key, _))| key).collect::<Vec<_>>();
            Err(error::tier_store(py, error, failed))
        }
        _ => Ok(()),
    }
}

/// Fetches the values of keys into memory that `place` returns for the index and the length of
/// each, with something that the caller gets back if the value is there.
///
/// # Safety
/// The bytes may be written until this call returns, and none has two places.
unsafe fn fetch_to<T>(
    py: Python<'_>,
    tier: &TierSet,
    keys: &[Vec<u8>],
    place: impl Fn(usize, usize) -> PyResult<(T, Span)>,
) -> PyResult<Vec<Option<T>>> {
    let mut found: Vec<Option<T>> = keys.iter().map(|_| None).collect();
    let mut wanted: Vec<usize> = (0..keys.len()).collect();
    // Again for values that were replaced by some of another length meanwhile.
    while !wanted.is_empty() {
        let key = |&index: &usize| &*keys[index];
        let len = |index| tier.len_of(key(index)).unwrap_or(0) as usize;
        let lens: Vec<usize> = py.detach(|| wanted.iter().map(len).collect());
        let places = wanted.iter().zip(lens).map(|(&index, len)| place(index, len));
        let (values, spans): (Vec<T>, Vec<Span>) = places.collect::<PyResult<_>>()?;
        let outcomes = py.detach(|| {
            // SAFETY: the caller's promise.
            let targets = spans.iter().map(|span| unsafe { bytes_of_mut(span) });
            let reads = wanted.iter().zip(targets);
            let read = |(index, into)| TierRead { key: key(index), into };
            tier.fetch(&mut reads.map(read).collect::<Vec<_>>())
        });
        let mut again = Vec::new();
        for ((index, value), outcome) in wanted.into_iter().zip(values).zip(outcomes) {
            match outcome {
                Fetched::Hit => found[index] = Some(value),
                Fetched::Length { .. } => again.push(index),
                _ => {}
            }
        }
        wanted = again;
    }
    Ok(found)
}

/// Fetches values; see the method of [`tier_methods`].
pub(crate) fn fetch<'py>(
    py: Python<'py>,
    tier: &TierSet,
    keys: &Bound<'py, PyAny>,
) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
    let place = |_, len| {
        let value = PyBytes::new_with(py, len, |_| Ok(()))?;
        let span = Span::writable(value.as_bytes().as_ptr().cast_mut(), len);
        Ok((value, span))
    };
    // SAFETY: each place is an object of its own, which only the call knows until it returns.
    unsafe { fetch_to(py, tier, &keys_of(keys)?, place) }
}

/// Fetches values into memory; see the method of [`tier_methods`].
pub(crate) fn fetch_into(
    py: Python<'_>,
    tier: &TierSet,
    keys: &Bound<'_, PyAny>,
    buffers: &Bound<'_, PyAny>,
) -> PyResult<Vec<Option<usize>>> {
    let keys = keys_of(keys)?;
    let targets = targets(buffers, keys.len())?;
    let place = |index: usize, len| {
        let span = targets[index].span;
        if len > span.len {
            let message = format!(
                "buffer {index} has {} bytes, and the value {len}: give a longer one",
                span.len
            );
            return Err(error::short_buffer(py, message, span.len, len));
        }
        Ok((len, Span { len, ..span }))
    };
    // SAFETY: `targets` has the buffers exported and writable until this call returns, and none
    // shares bytes with another.
    unsafe { fetch_to(py, tier, &keys, place) }
}

/// Removes values; see the method of [`tier_methods`].
pub(crate) fn remove(py: Python<'_>, tier: &TierSet, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
    let keys = keys_of(keys)?;
    let removed = py.detach(|| tier.remove(&keys.iter().map(|key| &**key).collect::<Vec<_>>()));
    removed.map_err(|error| error::tier(py, &error))
}

/// Returns the figures of a tier.
pub(crate) fn stats<'py>(py: Python<'py>, tier: &TierSet) -> PyResult<Bound<'py, PyAny>> {
    let stats = py.detach(|| tier.stats());
    report::statistics(py, "DiskTierStats", &stats, &PyDict::new(py))
}

/// The methods that classes with a set of tiers in `held` have in common.
macro_rules! tier_methods {
    ($class:ident) => {
        impl $class {
            /// Returns the tier, for work that takes longer than a call.
            pub(crate) fn tier(
                &self,
            ) -> PyResult<$crate::holder::Lent<$crate::tier_values::SharedTier>> {
                self.held.with(std::sync::Arc::clone).map($crate::holder::Lent::new)
            }
        }

        #[pymethods]
        impl $class {
            #[doc = doc!("_TierValues.store")]
            #[pyo3(
                                signature = (
                                    values, *, ttl=None, priority=$crate::number::Int::usual(0),
                                    data_type=$crate::data_type::ElementType::default(),
                                    namespace=$crate::tier_values::NamespaceName::default()
                                ),
                                text_signature = "($self, values, *, ttl=None, priority=0, \
                            data_type='unknown', namespace='')"
                            )]
            fn store(
                &self,
                values: &Bound<'_, PyAny>,
                ttl: Option<$crate::number::Seconds<'_>>,
                priority: $crate::number::Int<'_>,
                data_type: $crate::data_type::ElementType,
                namespace: $crate::tier_values::NamespaceName,
            ) -> PyResult<()> {
                let (tier, py) = (self.tier()?, values.py());
                let (priority, ttl) = $crate::node_values::worth(py, priority, ttl)?;
                let hints =
                    kvmem::tier::TierHints { priority, ttl, depth: 0, data_type: data_type.0 };
                $crate::tier_values::store(py, &**tier, values, hints, &namespace.0)
            }

            #[doc = doc!("_TierValues.forget_namespace")]
            fn forget_namespace(
                &self,
                py: Python<'_>,
                namespace: $crate::tier_values::NamespaceName,
            ) -> PyResult<usize> {
                let tier = self.tier()?;
                let removed = py.detach(|| tier.forget_namespace(&namespace.0));
                removed.map_err(|error| $crate::error::tier(py, &error))
            }

            #[doc = doc!("_TierValues.fetch")]
            fn fetch<'py>(
                &self,
                py: Python<'py>,
                keys: &Bound<'py, PyAny>,
            ) -> PyResult<Vec<Option<Bound<'py, pyo3::types::PyBytes>>>> {
                $crate::tier_values::fetch(py, &**self.tier()?, keys)
            }

            #[doc = doc!("_TierValues.fetch_into")]
            fn fetch_into(
                &self,
                py: Python<'_>,
                keys: &Bound<'_, PyAny>,
                buffers: &Bound<'_, PyAny>,
            ) -> PyResult<Vec<Option<usize>>> {
                $crate::tier_values::fetch_into(py, &**self.tier()?, keys, buffers)
            }

            #[doc = doc!("_TierValues.len_of")]
            fn len_of(&self, key: $crate::cache_key::CacheKey<'_>) -> PyResult<Option<u64>> {
                let key = $crate::disk_key::disk_key(key);
                self.held.with(|tier| tier.len_of(&key))
            }

            fn __contains__(&self, key: $crate::cache_key::CacheKey<'_>) -> PyResult<bool> {
                Ok(self.len_of(key)?.is_some())
            }

            fn __len__(&self) -> PyResult<usize> {
                self.held.with(|tier| tier.stats().entries as usize)
            }

            /// A tier is true even if it is empty, so `tier or default` is the tier.
            fn __bool__(&self) -> bool {
                true
            }

            #[doc = doc!("_TierValues.remove")]
            fn remove(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
                $crate::tier_values::remove(py, &**self.tier()?, keys)
            }

            #[doc = doc!("_TierValues.clear")]
            fn clear(&self, py: Python<'_>) -> PyResult<()> {
                let tier = self.tier()?;
                py.detach(|| tier.clear()).map_err(|error| $crate::error::tier(py, &error))
            }

            #[doc = doc!("_TierValues.sync")]
            fn sync(&self, py: Python<'_>) -> PyResult<()> {
                let tier = self.tier()?;
                py.detach(|| tier.sync_all()).map_err(|error| $crate::error::tier(py, &error))
            }

            #[doc = doc!("_TierValues.checkpoint")]
            fn checkpoint(&self, py: Python<'_>) -> PyResult<()> {
                let tier = self.tier()?;
                py.detach(|| tier.checkpoint()).map_err(|error| $crate::error::tier(py, &error))
            }

            #[doc = doc!("_TierValues.register_memory")]
            fn register_memory(
                &self,
                py: Python<'_>,
                pool: &Bound<'_, $crate::pool::PyPool>,
            ) -> PyResult<()> {
                let (tier, pool) = (self.tier()?, pool.get().pool()?);
                let registered = py.detach(|| tier.register_memory(&pool));
                registered.map_err(|error| $crate::error::fixed_buffers(py, &error))
            }

            #[doc = doc!("_TierValues.deregister_memory")]
            fn deregister_memory(
                &self,
                py: Python<'_>,
                pool: &Bound<'_, $crate::pool::PyPool>,
            ) -> PyResult<()> {
                let (tier, pool) = (self.tier()?, pool.get().pool()?);
                py.detach(|| tier.deregister_memory(&pool));
                Ok(())
            }

            #[doc = doc!("_TierValues.register_region")]
            fn register_region(
                &self,
                py: Python<'_>,
                region: &Bound<'_, $crate::region::PyRegion>,
            ) -> PyResult<()> {
                let (tier, region) = (self.tier()?, region.get().region(py)?);
                let registered = py.detach(|| tier.register_region(&region));
                registered.map_err(|error| $crate::error::fixed_buffers(py, &error))
            }

            #[doc = doc!("_TierValues.deregister_region")]
            fn deregister_region(
                &self,
                py: Python<'_>,
                region: &Bound<'_, $crate::region::PyRegion>,
            ) -> PyResult<()> {
                let (tier, region) = (self.tier()?, region.get().region(py)?);
                py.detach(|| tier.deregister_region(&region));
                Ok(())
            }

            #[doc = doc!("_TierValues.stats")]
            fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                $crate::tier_values::stats(py, &**self.tier()?)
            }

            #[doc = doc!("_TierValues.close")]
            fn close(&self, py: Python<'_>) -> PyResult<()> {
                self.held.end(py)
            }

            #[doc = doc!("_TierValues.closed")]
            #[getter]
            fn closed(&self) -> bool {
                self.held.is_gone()
            }
        }

        $crate::context::context_manager!($class, $class::close);
    };
}

pub(crate) use tier_methods;
