//! *Policy*: which block goes next.

use std::fmt;
use std::sync::Arc;

use super::clock::{NONE, ORDERS, Rank, Time};
use super::lru::Lru;
use super::reuse::Reuse;
use super::scan_resistant::ScanResistant;

/// A block's place in its shard: a small number, used again when the block has gone. Those in use
/// are close to 0, so tables can be indexed by it.
pub type Slot = u32;

/// Decides which of a shard's blocks goes next. It knows blocks by their slots, and never sees keys
/// or bytes.
///
/// Each shard has one of its own and calls it under its lock: so a policy needs no locking, should
/// take some nanoseconds for [`touch`](Self::touch), and must not call the cache.
///
/// Uses are told late, so that look-ups need not wait for each other, but always before any other
/// call: before a policy is asked, or told that a block comes or goes, it knows of all. They come
/// in the order of each thread, one thread after the other. Uses of one block between two other
/// calls count once, the first of them.
///
/// What a policy answers is checked: a slot that is empty or pinned is taken for "none". So a wrong
/// policy evicts badly; it harms nothing else.
///
/// A policy that panics is not called again. The panic reaches the caller of the cache; the shard
/// goes on with LRU.
pub trait Policy: Send {
    /// A block has come to `slot`, which was empty. `hash` is that of its key, the same whenever
    /// the key comes again, and well mixed.
    fn insert(&mut self, slot: Slot, hash: u64);

    /// As [`insert`](Self::insert), of a block whose place in its prefix is known: `depth` blocks
    /// are before it. 0 also where the caller gave no depth. Calls `insert` unless a policy
    /// overrides it.
    fn insert_at_depth(&mut self, slot: Slot, hash: u64, depth: u32) {
        let _ = depth;
        self.insert(slot, hash);
    }

    /// The block at `slot` was used, once or more since the last other call, or got a new value.
    fn touch(&mut self, slot: Slot);

    /// The block at `slot` has gone otherwise than by [`victim`](Self::victim).
    fn remove(&mut self, slot: Slot);

    /// The block that goes next, of those that `may_go`; `None` if there is none. The policy
    /// forgets it. Blocks that are asked about and may not go are pinned, hence in use.
    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot>;
}

/// The policies there are.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Eviction {
    /// The least recently used block goes first; a pinned one that is met on the way counts as used
    /// then. Within a shard it is exact as to blocks used since different changes: of those
    /// used since the latest, the one whose first use since was earlier goes first, and what
    /// several threads used is in the order of each; with [`exact`](super::KvCacheBuilder::exact_recency)
    /// every use counts.
    #[default]
    Lru,
    /// The block goes first that is worth least, by how often it was used and how long ago: what
    /// that says of further uses is learned from what became of others. So a long run of blocks
    /// that are used once does not drive out those that are used again and again, and the end
    /// of a prefix goes before its start. Until enough is learned, and where nothing speaks against
    /// it, it is LRU.
    ScanResistant,
    /// Another one: makes the policy of one shard.
    Custom(Arc<dyn Fn() -> Box<dyn Policy> + Send + Sync>),
}

impl Eviction {
    /// Its name: `lru`, `scan-resistant` or `custom`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Eviction::Lru => "lru",
            Eviction::ScanResistant => "scan-resistant",
            Eviction::Custom(_) => "custom",
        }
    }

    /// How blocks of several shards are compared.
    pub(super) fn across(&self) -> Across {
        match self {
            Eviction::Lru => Across::Age,
            Eviction::ScanResistant => Across::Worth(Arc::default()),
            Eviction::Custom(_) => Across::Turns,
        }
    }

    /// The policy of one shard.
    pub(super) fn make(&self, across: &Across) -> Chosen {
        match (self, across) {
            (Eviction::Custom(make), _) => {
                Chosen::Own(Own { policy: make(), calling: false, instead: None })
            }
            (_, Across::Worth(reuse)) => {
                Chosen::Scan(Box::new(ScanResistant::new(Arc::clone(reuse))))
            }
            _ => Chosen::Lru(Lru::default()),
        }
    }
}

/// How it is decided which shard gives the next block.
#[derive(Debug)]
pub(super) enum Across {
    /// One after the other: nothing is known of the policy.
    Turns,
    /// The one with the block that was not used for longest.
    Age,
    /// By age and worth; see [`super::scan_resistant`].
    Worth(Arc<Reuse>),
}

impl fmt::Debug for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A policy; the default one is not called through a table.
pub(super) enum Chosen {
    Lru(Lru),
    Scan(Box<ScanResistant>),
    /// One of the caller's.
    Own(Own),
}

/// A policy of the caller's, which may panic. What it knows afterwards is unknown, so it is not
/// called again.
pub(super) struct Own {
    policy: Box<dyn Policy>,
    /// A call began and has not ended. Under the lock of the shard that is: it panicked.
    calling: bool,
    /// Takes its place after a panic.
    instead: Option<Lru>,
}

impl Own {
    fn call<R>(&mut self, call: impl FnOnce(&mut dyn Policy) -> R) -> R {
        match &mut self.instead {
            Some(lru) => call(lru),
            None => {
                self.calling = true;
                let answer = call(&mut *self.policy);
                self.calling = false;
                answer
            }
        }
    }
}

impl Chosen {
    /// Tells the time of what follows.
    #[inline]
    pub(super) fn set_now(&mut self, now: Time) {
        match self {
            Chosen::Lru(lru) => lru.now = now,
            Chosen::Scan(scan) => scan.now = now,
            Chosen::Own(_) => {}
        }
    }

    /// Tells what LRU's candidate of all shards is worth, for the next victim.
    #[inline]
    pub(super) fn set_other(&mut self, other: Option<f32>) {
        if let Chosen::Scan(scan) = self {
            scan.other = other;
        }
    }

    /// The rank of the first block of each order.
    #[inline]
    pub(super) fn oldest(&self) -> [Rank; ORDERS] {
        let mut ranks = [NONE; ORDERS];
        match self {
            Chosen::Lru(lru) => ranks[0] = lru.oldest().unwrap_or(NONE),
            Chosen::Scan(scan) => ranks = scan.oldest(),
            Chosen::Own(_) => {}
        }
        ranks
    }

    /// Whether it has panicked, and nothing took its place yet.
    #[inline]
    pub(super) fn has_panicked(&self) -> bool {
        matches!(self, Chosen::Own(own) if own.calling)
    }

    /// An LRU takes its place, which knows the blocks at these slots. The one that panicked goes
    /// with the cache: its `Drop` may panic, too.
    pub(super) fn dismiss(&mut self, slots: impl Iterator<Item = Slot>) {
        if let Chosen::Own(own) = self {
            let mut lru = Lru::default();
            slots.for_each(|slot| lru.insert(slot, 0));
            own.instead = Some(lru);
            own.calling = false;
        }
    }
}

impl Policy for Chosen {
    fn insert(&mut self, slot: Slot, hash: u64) {
        match self {
            Chosen::Lru(policy) => policy.insert(slot, hash),
            Chosen::Scan(policy) => policy.insert(slot, hash),
            Chosen::Own(own) => own.call(|policy| policy.insert(slot, hash)),
        }
    }

    fn insert_at_depth(&mut self, slot: Slot, hash: u64, depth: u32) {
        match self {
            Chosen::Lru(policy) => policy.insert_at_depth(slot, hash, depth),
            Chosen::Scan(policy) => policy.insert_at_depth(slot, hash, depth),
            Chosen::Own(own) => own.call(|policy| policy.insert_at_depth(slot, hash, depth)),
        }
    }

    #[inline]
    fn touch(&mut self, slot: Slot) {
        match self {
            Chosen::Lru(policy) => policy.touch(slot),
            Chosen::Scan(policy) => policy.touch(slot),
            Chosen::Own(own) => own.call(|policy| policy.touch(slot)),
        }
    }

    fn remove(&mut self, slot: Slot) {
        match self {
            Chosen::Lru(policy) => policy.remove(slot),
            Chosen::Scan(policy) => policy.remove(slot),
            Chosen::Own(own) => own.call(|policy| policy.remove(slot)),
        }
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        match self {
            Chosen::Lru(policy) => policy.victim(may_go),
            Chosen::Scan(policy) => policy.victim(may_go),
            Chosen::Own(own) => own.call(|policy| policy.victim(may_go)),
        }
    }
}
