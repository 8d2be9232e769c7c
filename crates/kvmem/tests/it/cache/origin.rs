//! Origins: what a lower tier names a value when it is fetched comes back when it is evicted.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};

use kvmem::arena::PageSize;
use kvmem::cache::KvCache;
use kvmem::pool::Pool;
use kvmem::tier::{
    BoxError, Lookup, StoreOutcome, Tier, TierHit, TierOrigin, TierRead, TierValue, WriteBehind,
};

/// A tier that names its values, and keeps the names with which values come.
#[derive(Default)]
struct Naming(Mutex<State>);

#[derive(Default)]
struct State {
    values: HashMap<u64, (u64, Vec<u8>)>,
    stored: u64,
    came: Vec<(u64, Option<u64>)>,
}

/// Returns the key of a cache of numbers.
fn number(key: &[u8]) -> u64 {
    u64::from_le_bytes(key.try_into().unwrap())
}

impl Tier for Naming {
    fn store(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
        let mut state = self.0.lock().unwrap();
        let mut store = |value: &TierValue<'_>| {
            let key = number(value.key);
            state.came.push((key, value.origin.map(|origin| origin.get().get())));
            state.stored += 1;
            let stored = (state.stored, value.bytes.to_vec());
            state.values.insert(key, stored);
            Ok(StoreOutcome::Stored)
        };
        values.iter().map(&mut store).collect()
    }

    fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup> {
        let state = self.0.lock().unwrap();
        let len = |(_, value): &(u64, Vec<u8>)| Lookup::Found(value.len() as u64);
        keys.iter().map(|key| state.values.get(&number(key)).map_or(Lookup::Missing, len)).collect()
    }

    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<TierHit>> {
        let state = self.0.lock().unwrap();
        let fetch = |read: &mut TierRead<'_>| {
            let (named, value) = state.values.get(&number(read.key))?;
            read.into.copy_from_slice(value);
            let origin = NonZeroU64::new(*named).map(TierOrigin::new);
            Some(TierHit { origin, ..TierHit::default() })
        };
        reads.iter_mut().map(fetch).collect()
    }

    fn remove(&self, keys: &[&[u8]]) -> Result<(), BoxError> {
        let mut state = self.0.lock().unwrap();
        keys.iter().for_each(|key| drop(state.values.remove(&number(key))));
        Ok(())
    }

    fn clear(&self) -> Result<(), BoxError> {
        self.0.lock().unwrap().values.clear();
        Ok(())
    }
}

/// Returns the keys with their origins that came since the last call.
fn came(tier: &Naming) -> Vec<(u64, Option<u64>)> {
    let mut came = std::mem::take(&mut tier.0.lock().unwrap().came);
    came.sort_unstable();
    came
}

#[test]
fn the_name_of_a_fetched_value_comes_back_with_it() {
    for queued in [false, true] {
        let tier = Arc::new(Naming::default());
        let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build().unwrap();
        let queue = Arc::new(WriteBehind::builder(&pool, tier.clone()).build().unwrap());
        let below: Arc<dyn Tier> =
            if queued { Arc::clone(&queue) as _ } else { Arc::clone(&tier) as _ };
        let cache: KvCache<u64> = KvCache::builder(&pool).lower_tier(below).build().unwrap();
        let evict = || {
            cache.evict_to(0);
            queue.sync().unwrap();
        };
        for key in 1..4 {
            cache.insert(key, &[key as u8; 1000]).unwrap();
            evict();
        }
        assert_eq!(came(&tier), [(1, None), (2, None), (3, None)], "nothing was fetched");
        let fetched = cache.get_batch(&[1, 2, 3]);
        let origin = |place: usize| fetched[place].as_ref().unwrap().origin();
        assert_eq!(
            (1..4).map(NonZeroU64::new).map(|n| n.map(TierOrigin::new)).collect::<Vec<_>>(),
            [origin(0), origin(1), origin(2)]
        );
        drop(fetched);
        // Another value of the key has no name.
        cache.insert(2, &[9; 1000]).unwrap();
        evict();
        assert_eq!(came(&tier), [(1, Some(1)), (2, None), (3, Some(3))]);
        // They have new names by now.
        let fetched = cache.get_batch(&[1, 2, 3]);
        assert!(fetched.iter().all(|one| one.as_ref().unwrap().origin().unwrap().get().get() > 3));
    }
}
