//! A model of a tier, a node that has it, and what the threads of the tier would do.

use std::sync::atomic::AtomicU64;

use kvmem::tier::{TierHints, TierState};

use super::*;
use crate::tier::{Fetching, LookingUp, Storing};

/// Bytes of a page, which is the space of a value.
pub(super) const PAGE: u64 = 4096;

pub(super) const NO_KEYS: [u8; 0] = [];

/// A tier of lengths without bytes. Its keys begin with the namespace.
#[derive(Default)]
pub(super) struct ModelTier {
    /// The values that it knows.
    pub(super) near: Mutex<BTreeMap<Vec<u8>, u64>>,
    /// The values that only a look-up finds, if there is a network.
    pub(super) far: Option<Mutex<BTreeMap<Vec<u8>, u64>>>,
    /// Keys of values that it has and does not find for a while.
    pub(super) hidden: Mutex<Vec<Vec<u8>>>,
    /// Keys that were marked as used, in order.
    pub(super) touched: Mutex<Vec<Vec<u8>>>,
    pub(super) state: Mutex<Option<TierState>>,
    pub(super) evictions: AtomicU64,
    /// It takes no values.
    pub(super) refuses: AtomicBool,
    /// It can sync nothing.
    pub(super) fails_to_sync: bool,
}

/// Returns a key in the tier, of the namespace `model`.
pub(super) fn in_model(key: &[u8]) -> Vec<u8> {
    [b"\x05model", key].concat()
}

impl ModelTier {
    /// Returns a tier that knows values of the namespace `model`, of one page each.
    pub(super) fn with(keys: &[&[u8]]) -> ModelTier {
        let near = keys.iter().map(|key| (in_model(key), PAGE)).collect();
        ModelTier { near: Mutex::new(near), ..ModelTier::default() }
    }

    /// Returns a tier that has these values behind a network.
    pub(super) fn far(keys: &[&[u8]]) -> ModelTier {
        let far = keys.iter().map(|key| (in_model(key), PAGE)).collect();
        ModelTier { far: Some(Mutex::new(far)), ..ModelTier::default() }
    }

    pub(super) fn add(&self, key: &[u8], len: u64) {
        self.near.lock().expect("no panic").insert(in_model(key), len);
    }

    pub(super) fn lose(&self, key: &[u8]) {
        self.near.lock().expect("no panic").remove(&in_model(key));
    }

    /// Returns the last bytes of the keys that were marked as used since the last call, in order.
    pub(super) fn take_touched(&self) -> Vec<u8> {
        let touched = std::mem::take(&mut *self.touched.lock().expect("no panic"));
        touched.iter().map(|key| *key.last().expect("a key")).collect()
    }
}

impl Tier for ModelTier {
    fn store(&self, _: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
        unreachable!("the jobs are done without threads")
    }

    fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup> {
        let near = self.near.lock().expect("no panic");
        let unknown = if self.far.is_some() { Lookup::Unknown } else { Lookup::Missing };
        let look_up = |key: &&[u8]| near.get(*key).map_or(unknown, |len| Lookup::Found(*len));
        keys.iter().map(look_up).collect()
    }

    fn fetch(&self, _: &mut [TierRead<'_>]) -> Vec<Option<TierHit>> {
        unreachable!("the jobs are done without threads")
    }

    fn remove(&self, keys: &[&[u8]]) -> Result<(), BoxError> {
        let maps = std::iter::once(&self.near).chain(&self.far);
        for map in maps {
            map.lock().expect("no panic").retain(|key, _| !keys.contains(&key.as_slice()));
        }
        self.hidden.lock().expect("no panic").retain(|key| !keys.contains(&key.as_slice()));
        Ok(())
    }

    fn clear(&self) -> Result<(), BoxError> {
        self.near.lock().expect("no panic").clear();
        Ok(())
    }

    fn sync(&self) -> Result<(), BoxError> {
        if self.fails_to_sync { Err("it fails".into()) } else { Ok(()) }
    }

    fn may_have(&self, key: &[u8]) -> bool {
        let is_hidden = self.hidden.lock().expect("no panic").iter().any(|it| it == key);
        is_hidden || self.len_of(key) != Lookup::Missing
    }

    fn knows_all(&self) -> bool {
        self.far.is_none()
    }

    fn touch(&self, keys: &[&[u8]]) {
        self.touched.lock().expect("no panic").extend(keys.iter().map(|key| key.to_vec()));
    }

    fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    fn state(&self) -> TierState {
        self.state.lock().expect("no panic").unwrap_or(TierState::Working)
    }
}

/// A node with a tier, and a client in the namespace `model`.
pub(super) struct TierNode {
    pub(super) node: Node,
    pub(super) tier: Arc<ModelTier>,
    pub(super) session: SessionIndex,
}

/// Options of a node of 64 pages, with as many entries as a test likes.
pub(super) fn roomy() -> NodeOptions {
    NodeOptions { max_blocks: Some(100), ..options() }
}

impl TierNode {
    pub(super) fn new(tier: ModelTier) -> TierNode {
        TierNode::with(roomy(), TierOptions::default(), tier)
    }

    pub(super) fn with(options: NodeOptions, used: TierOptions, tier: ModelTier) -> TierNode {
        let mut node = Node::create(shared(BYTES), options).expect("the options are possible");
        let tier = Arc::new(tier);
        assert_eq!(node.attach_tier(Arc::clone(&tier) as _, used), Some(false));
        let session = begin(&mut node, 1);
        TierNode { node, tier, session }
    }

    /// Stores values of one page in memory.
    pub(super) fn insert(&mut self, keys: impl IntoIterator<Item = u8>) {
        keys.into_iter().for_each(|key| insert(&mut self.node, self.session, &[key], PAGE));
    }

    /// Stores values of which each but the first has the one before as its parent.
    pub(super) fn insert_chain(&mut self, keys: &[u8]) {
        for (at, key) in keys.iter().enumerate() {
            let parent = at.checked_sub(1).map(|before| keys[before]);
            self.insert_child(*key, parent);
        }
    }

    pub(super) fn insert_child(&mut self, key: u8, parent: Option<u8>) {
        let handle = self.node.reserve(self.session, &[PAGE]).expect("there is space")[0].handle;
        let parent = parent.as_ref().map(std::slice::from_ref);
        let item = CommitItem { key: &[key], parent, ..item_of(handle) };
        self.node.commit(self.session, &[item], 5).expect("its own");
    }

    pub(super) fn slot(&self, key: u8) -> u32 {
        let namespace = self.node.namespace_number(self.session);
        self.node.find(namespace, &[key]).expect("it has a value")
    }

    pub(super) fn is_clean(&self, key: u8) -> bool {
        self.node.entry(self.slot(key)).is_clean()
    }

    /// Evicts a value of the last key that is to be evicted.
    pub(super) fn evict(&mut self) -> u8 {
        let victim = self.node.victim(None).expect("there is a value");
        let key = self.node.entry(victim).key()[0];
        self.node.evict(victim);
        self.node.check().expect("the invariants hold");
        key
    }

    /// Does what the threads would do with a job. Returns the calls that waited for it.
    pub(super) fn finish(&mut self, job: TierJob) -> Vec<u64> {
        let tier = Arc::clone(&self.tier);
        let done = match job {
            TierJob::Store(values) => {
                let offered = match tier.refuses.load(Ordering::Relaxed) {
                    true => Offered::NotStored,
                    false => Offered::Stored,
                };
                let mut near = tier.near.lock().expect("no panic");
                let taken = values.iter().filter(|_| offered == Offered::Stored);
                near.extend(taken.map(|value| (value.key.clone(), value.len)));
                TierDone::Stored(values.into_iter().map(|value| (value, offered)).collect())
            }
            TierJob::Fetch(values) => {
                let near = tier.near.lock().expect("no panic");
                let hit = |value: &Fetching| {
                    near.contains_key(&value.key).then(|| (7, TierHints::default()))
                };
                TierDone::Fetched(values.into_iter().map(|it| (it.clone(), hit(&it))).collect())
            }
            TierJob::FetchFar(values) => {
                let far = tier.far.as_ref().expect("it has a network").lock().expect("no panic");
                let hit = |value: &Fetching| {
                    far.contains_key(&value.key).then(|| (7, TierHints::default()))
                };
                TierDone::Fetched(values.into_iter().map(|it| (it.clone(), hit(&it))).collect())
            }
            TierJob::LookUp(values) => {
                let far = tier.far.as_ref().expect("it has a network").lock().expect("no panic");
                let len = |value: &LookingUp| far.get(&value.tier_key).copied();
                TierDone::LookedUp(values.into_iter().map(|it| (it.clone(), len(&it))).collect())
            }
            TierJob::Remove(values) => {
                let keys: Vec<&[u8]> = values.iter().map(|it| &*it.tier_key).collect();
                let removed = tier.remove(&keys).is_ok();
                TierDone::Removed(values, removed)
            }
            TierJob::Clear(_) => TierDone::Cleared(tier.clear().is_ok()),
        };
        let ended = self.node.tier_done(done, 5);
        self.node.check().expect("the invariants hold");
        ended
    }

    /// Takes the next jobs that store values: their keys.
    pub(super) fn stored_next(&mut self) -> Vec<Vec<u8>> {
        let jobs = self.store_jobs();
        let keys =
            |job: &Vec<Storing>| job.iter().map(|it| *it.key.last().expect("a key")).collect();
        let found = jobs.iter().map(keys).collect();
        for job in jobs {
            self.finish(TierJob::Store(job));
        }
        found
    }

    /// Takes the jobs that store values, of as many as are stored at a time.
    pub(super) fn store_jobs(&mut self) -> Vec<Vec<Storing>> {
        for _ in 0..4 {
            self.node.store_ahead();
        }
        let values = |job| match job {
            TierJob::Store(values) => values,
            other => panic!("{other:?} stores nothing"),
        };
        self.node.take_jobs().into_iter().map(values).collect()
    }

    /// Does the jobs that store values and were begun: their keys.
    pub(super) fn stored_now(&mut self) -> Vec<u8> {
        let jobs = self.node.take_jobs();
        let mut keys = Vec::new();
        for job in jobs {
            let TierJob::Store(values) = &job else { panic!("{job:?} stores nothing") };
            keys.extend(values.iter().map(|it| *it.key.last().expect("a key")));
            self.finish(job);
        }
        keys
    }

    /// Stores ahead until nothing is left. Returns the keys in order.
    pub(super) fn store_all(&mut self) -> Vec<u8> {
        let mut keys = Vec::new();
        for _ in 0..1000 {
            let jobs = self.stored_next();
            if jobs.is_empty() {
                return keys;
            }
            keys.extend(jobs.into_iter().flatten());
        }
        panic!("it stores without an end");
    }

    /// Acquires values without waiting. Returns which keys have some, and which ones come.
    pub(super) fn acquire(&mut self, keys: &[&[u8]], prefix_only: bool) -> (Vec<bool>, Vec<u16>) {
        let found = self.node.try_acquire(self.session, keys, prefix_only, 5);
        let (found, pending) = found.expect("the keys are short");
        let handles: Vec<BlockHandle> = found.iter().flatten().map(|it| it.handle).collect();
        self.node.release(self.session, &handles).expect("its own");
        (found.iter().map(Option::is_some).collect(), pending)
    }

    /// Takes the jobs that fetch values: their keys.
    pub(super) fn fetched_next(&mut self) -> Vec<Vec<u8>> {
        let jobs = self.node.take_jobs();
        let mut found = Vec::new();
        for job in jobs {
            let (TierJob::Fetch(values) | TierJob::FetchFar(values)) = &job else {
                panic!("{job:?} fetches nothing")
            };
            found.push(values.iter().map(|it| *it.key.last().expect("a key")).collect());
            self.finish(job);
        }
        found
    }
}
