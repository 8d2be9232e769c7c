//! Objects keep their constructed values, and each one is constructed and dropped once.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use kvmem::arena::{ExclusiveRegion, Region};
use kvmem::slab::{Object, ObjectCache, ObjectStats, SlabError};

/// A value that counts how many of it live.
struct Counted {
    live: Arc<AtomicUsize>,
    uses: u32,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }
}

fn counted(live: &Arc<AtomicUsize>) -> impl Fn() -> Counted + Send + Sync + 'static {
    let live = Arc::clone(live);
    move || {
        live.fetch_add(1, Ordering::Relaxed);
        Counted { live: Arc::clone(&live), uses: 0 }
    }
}

#[test]
fn constructed_values_are_kept() {
    let live = Arc::default();
    let cache = ObjectCache::builder()
        .reset(|object: &mut Counted| {
            object.uses += 1;
            object.uses < 3
        })
        .build(counted(&live));
    for use_ in [0, 1, 2, 0, 1] {
        assert_eq!(cache.get().unwrap().uses, use_);
        assert_eq!(live.load(Ordering::Relaxed), usize::from(use_ < 2));
    }
    cache.trim();
    assert_eq!(live.load(Ordering::Relaxed), 0);

    let mut many: Vec<Object<'_, Counted>> = Vec::new();
    cache.get_batch(1000, &mut many).unwrap();
    let addresses: HashSet<_> = many.iter().map(|object| std::ptr::from_ref(&**object)).collect();
    assert_eq!((addresses.len(), live.load(Ordering::Relaxed)), (1000, 1000));
    drop(many.split_off(500));
    let inner = Object::into_inner(many.pop().unwrap());
    drop(many);
    let owned = cache.get_owned().unwrap();
    drop(cache);
    // At min the two in use.
    assert!(live.load(Ordering::Relaxed) >= 2);
    thread::spawn(move || drop(owned)).join().unwrap();
    assert_eq!(live.load(Ordering::Relaxed), 1);
    drop(inner);
    assert_eq!(live.load(Ordering::Relaxed), 0);
}

#[test]
fn a_panic_of_the_constructor_leaks_nothing() {
    let cache = ObjectCache::<u64>::new(|| panic!("no"));
    for _ in 0..10 {
        assert!(catch_unwind(AssertUnwindSafe(|| cache.get().map(drop))).is_err());
    }
    cache.trim();
}

#[test]
fn any_size_and_alignment() {
    #[repr(align(64))]
    struct Line([u8; 65]);
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let line = ObjectCache::new(|| Line([1; 65]));
    let page = ObjectCache::new(|| Page([2; 4096]));
    let large = ObjectCache::new(|| [3u8; 40_000]);
    let none = ObjectCache::new(|| ());
    let lines: Vec<_> = (0..100).map(|_| line.get_owned().unwrap()).collect();
    assert!(
        lines.iter().all(|line| std::ptr::from_ref(&**line).addr() % 64 == 0 && line.0 == [1; 65])
    );
    let pages: Vec<_> = (0..10).map(|_| page.get().unwrap()).collect();
    assert!(
        pages
            .iter()
            .all(|page| std::ptr::from_ref(&**page).addr() % 4096 == 0 && page.0[4095] == 2)
    );
    assert!((0..10).all(|_| large.get().unwrap().iter().all(|byte| *byte == 3)));
    let (one, other) = (none.get().unwrap(), none.get().unwrap());
    assert_eq!((*one, *other), ((), ()));
}

/// Memory of no bytes must not be requested from the system's allocator.
#[test]
fn an_aligned_object_without_size() {
    #[repr(align(128))]
    struct Nothing;
    let cache = ObjectCache::new(|| Nothing);
    let one = cache.get().unwrap();
    assert_eq!(std::ptr::from_ref(&*one).addr() % 128, 0);
    assert!(cache.stats().object_bytes > 0);
}

#[test]
fn objects_on_a_region() {
    let region = ExclusiveRegion::new(Region::builder(1 << 20).map().unwrap()).unwrap();
    let cache = ObjectCache::builder().region(region).build(|| [0u64; 128]);
    let mut all = Vec::new();
    let failed = cache.get_batch(2000, &mut all);
    assert_eq!(failed, Err(SlabError::NoMemory { requested: 1024 }));
    assert!(all.len() > 900, "{}", all.len());
}

/// Checks the numbers in use, cached and constructed against counting, for objects in slabs and
/// from the system's allocator.
fn counts<T: Send + 'static>(cache: &ObjectCache<T>, bytes: usize, in_slabs: bool) {
    let of = |stats: ObjectStats| (stats.in_use, stats.cached, stats.constructed);
    let stats = cache.stats();
    assert_eq!(
        (of(stats), stats.object_bytes, stats.slab_objects > 0),
        ((0, 0, 0), bytes, in_slabs)
    );
    let mut objects: Vec<_> = (0..100).map(|_| cache.get().unwrap()).collect();
    let stats = cache.stats();
    assert_eq!((of(stats), stats.cached_bytes), ((100, 0, 100), 0));
    let min = 100usize.div_ceil(stats.slab_objects.max(1)) * usize::from(in_slabs);
    assert_eq!((stats.slabs, stats.slab_bytes > 0), (min, in_slabs));
    assert!(stats.mapped_bytes >= stats.slab_bytes + stats.unused_bytes);
    assert!(stats.slab_bytes >= stats.slabs * stats.slab_objects * bytes);
    drop(objects.split_off(30));
    let stats = cache.stats();
    assert_eq!((of(stats), stats.cached_bytes), ((30, 70, 100), 70 * bytes as u64));
    drop(Object::into_inner(objects.pop().unwrap()));
    objects.extend((0..71).map(|_| cache.get().unwrap()));
    assert_eq!(of(cache.stats()), (100, 0, 101));
    thread::scope(|scope| {
        // Joined, so the thread's magazines are in the depot.
        scope.spawn(|| drop(objects)).join().unwrap();
    });
    assert_eq!(of(cache.stats()), (0, 100, 101));
    cache.trim();
    let stats = cache.stats();
    assert_eq!((of(stats), stats.slabs, stats.mapped_bytes, stats.remote), ((0, 0, 101), 0, 0, 0));
}

#[test]
fn statistics_agree_with_counting() {
    counts(&ObjectCache::new(|| [0u64; 3]), 32, true);
    counts(&ObjectCache::new(|| [0u8; 32_752]), 32_752, true);
    counts(&ObjectCache::new(|| [0u8; 40_000]), 40_000, false);
    // Values that are not cached are dropped.
    let cache = ObjectCache::builder().build(|| 0u8);
    drop([cache.get().unwrap(), cache.get().unwrap()]);
    let stats = cache.stats();
    assert_eq!((stats.in_use, stats.cached, stats.constructed), (0, 0, 2));
    let panics = ObjectCache::<u64>::new(|| panic!("no"));
    assert!(catch_unwind(AssertUnwindSafe(|| panics.get().map(drop))).is_err());
    assert_eq!((panics.stats().in_use, panics.stats().constructed), (0, 0));
}

#[test]
fn threads_share_a_cache() {
    let live = Arc::default();
    let cache = ObjectCache::builder().reset(|_| true).build(counted(&live));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..2000 {
                    let mut some = Vec::new();
                    cache.get_batch(round % 20, &mut some).unwrap();
                    some.iter_mut().for_each(|object| object.uses += 1);
                }
            });
        }
    });
    assert!(live.load(Ordering::Relaxed) <= 4 * 20 + 4 * 256);
    drop(cache);
    assert_eq!(live.load(Ordering::Relaxed), 0);
}
