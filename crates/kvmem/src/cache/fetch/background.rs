//! *Background*: threads that read from the lower tier while their caller does something else.
//!
//! There are none until a call needs one. They belong to the cache: the drop of its last handle
//! ends them, and so does a drop by one of them.

use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::cache::KvCache;
use crate::cache::state::FetchId;
use crate::sys;

impl<K: Hash + Eq + Clone + Send + Sync + 'static> KvCache<K> {
    /// Has fetches started by a thread in the background. If there is none, and none can be made,
    /// this thread reads.
    pub(super) fn read_in_background(&self, ids: &[FetchId]) {
        let fetches = &self.inner.fetches;
        if !fetches.submit(ids) {
            return;
        }
        let (table, cache) = (Arc::clone(fetches), Arc::downgrade(&self.inner));
        let thread = sys::spawn("kvmem-fetch", move || {
            while let Some(batch) = table.next_batch() {
                let Some(inner) = cache.upgrade() else {
                    batch.into_iter().for_each(|(id, _)| table.finish(id, None));
                    continue;
                };
                // The panic of a tier has been reported by the panic hook, and has ended the
                // fetches without a value.
                let _ = catch_unwind(AssertUnwindSafe(|| KvCache { inner }.read(batch)));
            }
            table.thread_ended();
        });
        match thread {
            Ok(thread) => self.inner.fetch_threads.add(thread),
            Err(_) => {
                if fetches.thread_ended() {
                    self.read(fetches.start(ids));
                }
            }
        }
    }
}
