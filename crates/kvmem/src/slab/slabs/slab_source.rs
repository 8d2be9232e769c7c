//! *Slabs*: the rings of all classes above one page source. Magazines are filled from it and
//! drained into it.

use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use super::fault::{FaultHook, SlabFault};
use super::geometry::Geometry;
use super::page_source::PageSource;
use super::page_span::UNIT;
use super::ring::{GiveOutcome, SlabRing};
use super::slab::{Chunk, Slab};
use crate::slab::magazine::RoundSource;
use crate::sync::{AtomicBool, Mutex, Ordering, hold_over_fork, release_over_fork};

/// Ids for [`Slab::owner`]; never reused.
static NEXT: AtomicU64 = AtomicU64::new(0x51ab_0000_0000_0001);

/// A class: its ring under its lock, on cache lines of its own.
#[repr(align(128))]
struct ClassRing {
    geometry: Geometry,
    ring: Mutex<SlabRing>,
}

impl ClassRing {
    fn order(&self) -> usize {
        (self.geometry.slab_bytes / UNIT).trailing_zeros() as usize
    }
}

/// The slab layer: a ring of slabs for each class. Each class has a lock, and the page source below
/// has one.
pub(crate) struct Slabs {
    owner: u64,
    classes: Box<[ClassRing]>,
    pages: PageSource,
    on_fault: FaultHook,
    /// This process is a forked child without the pages: nothing is allocated, and frees are
    /// ignored.
    orphaned: AtomicBool,
}

/// The counters of a class at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassCount {
    pub(crate) geometry: Geometry,
    pub(crate) slabs: usize,
    /// Objects that are not in a slab: in use or in a magazine.
    pub(crate) live: usize,
}

impl Slabs {
    pub(crate) fn new(geometries: &[Geometry], pages: PageSource, on_fault: FaultHook) -> Slabs {
        let class = |geometry: &Geometry| ClassRing {
            geometry: *geometry,
            ring: Mutex::new(SlabRing::new()),
        };
        // Relaxed: only uniqueness matters.
        let owner = NEXT.fetch_add(1, Ordering::Relaxed);
        Slabs {
            owner,
            classes: geometries.iter().map(class).collect(),
            pages,
            on_fault,
            orphaned: AtomicBool::new(false),
        }
    }

    pub(crate) fn pages(&self) -> &PageSource {
        &self.pages
    }

    pub(crate) fn on_fault(&self) -> &FaultHook {
        &self.on_fault
    }

    pub(crate) fn geometry(&self, class: usize) -> &Geometry {
        &self.classes[class].geometry
    }

    pub(crate) fn counts(&self) -> impl Iterator<Item = ClassCount> {
        self.classes.iter().map(|class| {
            let ring = class.ring.lock();
            ClassCount { geometry: class.geometry, slabs: ring.slabs, live: ring.live }
        })
    }

    /// Returns objects to their slabs; reports those that are invalid.
    fn free_objects(&self, number: usize, chunks: impl Iterator<Item = Chunk>) -> Vec<SlabFault> {
        if self.is_orphaned() {
            return Vec::new();
        }
        let class = &self.classes[number];
        let mut faults = Vec::new();
        // Empty slabs, linked by `next`; their pages are returned after the lock is released.
        let mut emptied: *mut Slab = ptr::null_mut();
        let mut ring = class.ring.lock();
        for chunk in chunks {
            match self.free_object(number, &class.geometry, &mut ring, chunk) {
                Ok(None) => {}
                Ok(Some(slab)) => {
                    // SAFETY: the slab is in no ring any more, and all of its objects are free, so
                    // no other code uses its header. Its link is free to use. Without an owner, a
                    // second free is detected while the pages are still mapped.
                    unsafe { ((*slab.as_ptr()).next, (*slab.as_ptr()).owner) = (emptied, 0) };
                    emptied = slab.as_ptr();
                }
                Err(fault) => faults.push(fault),
            }
        }
        drop(ring);
        if !emptied.is_null() {
            let runs = std::iter::from_fn(|| {
                let slab = NonNull::new(emptied)?;
                // SAFETY: an empty slab, linked above; its pages are not returned yet.
                emptied = unsafe { (*slab.as_ptr()).next };
                Some(slab.cast())
            });
            // SAFETY: slabs of this class are made of runs of this order of this source. All
            // objects of these are free, and they are in no ring.
            unsafe { self.pages.give(class.order(), runs) };
        }
        faults
    }

    /// Returns one object to its slab, in the ring of class `number`. Returns the slab if it is
    /// empty now and has left the ring.
    #[inline(always)]
    fn free_object(
        &self,
        number: usize,
        geometry: &Geometry,
        ring: &mut SlabRing,
        chunk: Chunk,
    ) -> Result<Option<NonNull<Slab>>, SlabFault> {
        let (address, size) = (chunk.at().addr().get(), geometry.size);
        let foreign = SlabFault::Foreign { address, size };
        let slab = NonNull::new(Slab::of(chunk.at(), geometry)).ok_or(foreign)?;
        // SAFETY: `Chunk::new` required that the object is one of this class of these slabs, so
        // its slab begins there, and its header changes under the lock of this ring only. The
        // checks below detect only some of the violations.
        let header = unsafe { slab.as_ref() };
        if header.owner != self.owner {
            return Err(foreign);
        }
        if usize::from(header.class) != number {
            let allocated = self.classes[usize::from(header.class)].geometry.size;
            return Err(SlabFault::WrongSize { address, allocated, freed: size });
        }
        let index = header.index(chunk.at(), geometry).ok_or(foreign)?;
        // SAFETY: owner and class show that it is a slab of this ring.
        match unsafe { ring.give(slab, index, geometry) } {
            GiveOutcome::Kept => Ok(None),
            GiveOutcome::Emptied => Ok(Some(slab)),
            GiveOutcome::WasFree => Err(SlabFault::DoubleFree { address, size }),
        }
    }

    fn is_orphaned(&self) -> bool {
        // Relaxed: set when the process has one thread.
        self.orphaned.load(Ordering::Relaxed)
    }

    fn report(&self, faults: Vec<SlabFault>) {
        for fault in faults {
            (self.on_fault)(&fault);
        }
    }

    /// Passes up to `want` objects to `out`; fewer only if there are no more. Allocates nothing but
    /// pages.
    fn take(&self, number: usize, want: usize, mut out: impl FnMut(Chunk)) {
        if self.is_orphaned() {
            return;
        }
        let class = &self.classes[number];
        let mut ring = class.ring.lock();
        let mut missing = want;
        loop {
            missing -= ring.take(&class.geometry, missing, &mut out);
            if missing == 0 {
                return;
            }
            let Some(pages) = self.pages.take(class.order()) else { return };
            // SAFETY: a run of this order is as long as a slab of this class and aligned to its
            // length, and the page source gives it to this call alone.
            let slab =
                unsafe { Slab::init(pages, &class.geometry, self.owner, number, ring.created) };
            // SAFETY: the slab was made above with the ring's geometry, and no other code knows it.
            unsafe { ring.add(slab) };
        }
    }

    /// Takes one object, bypassing all magazines.
    pub(crate) fn take_one(&self, class: usize) -> Option<Chunk> {
        let mut one = None;
        self.take(class, 1, |chunk| one = Some(chunk));
        one
    }

    /// Returns one object, bypassing all magazines.
    pub(crate) fn give_one(&self, class: usize, chunk: Chunk) {
        let faults = self.free_objects(class, [chunk].into_iter());
        self.report(faults);
    }
}

impl RoundSource<Chunk> for Slabs {
    fn refill(&self, class: usize, want: usize, out: &mut Vec<Chunk>) {
        out.reserve(want);
        self.take(class, want, |chunk| out.push(chunk));
    }

    fn drain(&self, class: usize, rounds: &mut Vec<Chunk>) {
        let faults = self.free_objects(class, rounds.drain(..));
        self.report(faults);
    }

    fn refill_one(&self, class: usize) -> Option<Chunk> {
        self.take_one(class)
    }

    fn drain_one(&self, class: usize, round: Chunk) {
        self.give_one(class, round);
    }

    fn prefork(&self) {
        // In the order of classes, then the pages. Other code never holds two of the rings' locks.
        for class in &self.classes {
            hold_over_fork(&class.ring);
        }
        self.pages.prefork();
    }

    fn postfork(&self) {
        self.pages.postfork();
        for class in &self.classes {
            release_over_fork(&class.ring);
        }
        if !self.pages.is_mapped() {
            // Relaxed: a newly forked child has one thread.
            self.orphaned.store(true, Ordering::Relaxed);
        }
    }

    fn round_bytes(&self, class: usize) -> usize {
        self.geometry(class).size
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::{Arc, Mutex as StdMutex};

    use super::super::class::{CLASSES, SIZES};
    use super::super::page_origin::Origin;
    use super::*;

    /// Returns a hook for tests that expect no fault.
    fn no_faults() -> FaultHook {
        Arc::new(|fault: &SlabFault| panic!("{fault}"))
    }

    fn slabs(on_fault: FaultHook) -> Slabs {
        Slabs::new(&SIZES, PageSource::new(Origin::System), on_fault)
    }

    impl Slabs {
        fn check(&self) {
            for (number, class) in self.classes.iter().enumerate() {
                class
                    .ring
                    .lock()
                    .check(&class.geometry)
                    .unwrap_or_else(|wrong| panic!("class {number}: {wrong}"));
            }
        }
    }

    #[test]
    fn batches_against_a_naive_model() {
        let slabs = slabs(no_faults());
        let mut held: BTreeMap<usize, (usize, Chunk)> = BTreeMap::new();
        let mut state = 7u64;
        let mut next = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for round in 0..if cfg!(miri) { 12 } else { 3000 } {
            let class = [0, 1, 7, 31, 40, CLASSES - 1][next(6)];
            let size = SIZES[class].size;
            if next(100) < 52 {
                let mut out = Vec::new();
                slabs.refill(class, 1 + next(60), &mut out);
                for chunk in out {
                    let start = chunk.at().addr().get();
                    let before = held.range(..start + size).next_back();
                    assert!(before.is_none_or(|(at, (class, _))| at + SIZES[*class].size <= start));
                    held.insert(start, (class, chunk));
                }
            } else {
                let of_class: Vec<usize> =
                    held.iter().filter(|(_, (of, _))| *of == class).map(|(at, _)| *at).collect();
                let mut back = Vec::new();
                for _ in 0..next(80).min(of_class.len()) {
                    if let Some((_, chunk)) = held.remove(&of_class[next(of_class.len())]) {
                        back.push(chunk);
                    }
                }
                slabs.drain(class, &mut back);
                assert!(back.is_empty());
            }
            if round % 100 == 0 {
                slabs.check();
            }
            assert_eq!(slabs.counts().map(|count| count.live).sum::<usize>(), held.len());
        }
        for (class, chunk) in held.into_values() {
            slabs.give_one(class, chunk);
        }
        slabs.check();
        assert_eq!(
            (slabs.counts().map(|count| count.slabs).sum::<usize>(), slabs.pages().stats().slabs),
            (0, 0)
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "long")]
    fn slabs_are_coloured() {
        let slabs = slabs(no_faults());
        let mut coloured = 0;
        for class in 0..CLASSES {
            let geometry = *slabs.geometry(class);
            let mut out = Vec::new();
            slabs.refill(class, geometry.objects * (geometry.colours() + 2), &mut out);
            let firsts = out.iter().step_by(geometry.objects);
            let seen: BTreeSet<usize> =
                firsts.map(|chunk| chunk.at().addr().get() % geometry.slab_bytes).collect();
            assert_eq!(seen.len(), geometry.colours(), "{geometry:?}");
            assert!(seen.iter().all(|first| first % geometry.step == 0));
            coloured += usize::from(geometry.colours() > 1);
            slabs.drain(class, &mut out);
        }
        // A size that divides the slab without remainder cannot be coloured.
        assert!(coloured * 10 > CLASSES * 6, "{coloured} of {CLASSES}");
    }

    #[test]
    fn misuse_is_seen_when_an_object_comes_back() {
        let seen = Arc::new(StdMutex::new(Vec::new()));
        let sink = Arc::clone(&seen);
        let slabs = slabs(Arc::new(move |fault: &SlabFault| sink.lock().unwrap().push(*fault)));
        let kept = slabs.take_one(0).unwrap();
        let one = slabs.take_one(0).unwrap();
        let address = one.at().addr().get();
        slabs.give_one(0, one);
        slabs.give_one(0, one);
        slabs.give_one(1, kept);
        // SAFETY: within the object, which the test uses alone; that it is none is detected.
        slabs.give_one(0, unsafe { Chunk::new(kept.at().add(8)) });
        let middle = kept.at().addr().get();
        assert_eq!(
            *seen.lock().unwrap(),
            [
                SlabFault::DoubleFree { address, size: 16 },
                SlabFault::WrongSize { address: middle, allocated: 16, freed: 32 },
                SlabFault::Foreign { address: middle + 8, size: 16 },
            ]
        );
        slabs.check();
        slabs.give_one(0, kept);
    }
}
