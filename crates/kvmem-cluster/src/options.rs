//! *Options* of a cluster.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use kvmem_encoding::{Codec, Keyring};

/// How the helper of a [`ClusterTier`](crate::ClusterTier) is started and watched.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The program of the helper, and its arguments. A name without a slash is looked up in the
    /// absolute folders of `PATH`. The helper runs in the root folder, and Python finds no modules
    /// there.
    pub command: Vec<OsString>,
    /// Bytes of the memory through which values go: half for those that are stored, half for those
    /// that are fetched. A value is at most a half long.
    pub staging_bytes: u64,
    /// Whether a value replaces the one that its key has. Otherwise keys must name their contents,
    /// as hashes do: an object that exists stays, and is not written again.
    pub replaces: bool,
    /// How values are compressed. Tiers without a codec and keys do not find them then.
    pub codec: Codec,
    /// The keys that encrypt values: the first one writes, all read. A tier with keys accepts no
    /// value that is not encrypted.
    pub keys: Option<Arc<Keyring>>,
    /// A helper that leaves a call unanswered for this time is killed.
    pub call_timeout: Duration,
    /// A helper that is not ready after this time is killed.
    pub start_timeout: Duration,
    /// The pause before the first restart. Each further one is twice as long.
    #[doc(hidden)]
    pub first_pause: Duration,
    /// The longest pause.
    #[doc(hidden)]
    pub max_pause: Duration,
    /// Keys that were removed and that the store still has, at most. Beyond them removals fail, or
    /// with [`replaces`](Self::replaces) all objects of the prefix count as removed.
    #[doc(hidden)]
    pub max_stale: usize,
}

impl ClusterOptions {
    /// Returns the defaults for a helper.
    #[must_use]
    pub fn new(command: Vec<OsString>) -> ClusterOptions {
        ClusterOptions {
            command,
            staging_bytes: 128 << 20,
            replaces: false,
            codec: Codec::None,
            keys: None,
            call_timeout: Duration::from_secs(10),
            start_timeout: Duration::from_secs(60),
            first_pause: Duration::from_secs(1),
            max_pause: Duration::from_secs(60),
            max_stale: 1 << 16,
        }
    }
}
