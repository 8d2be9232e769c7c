//! Loads go first: how long fetches wait while another thread stores.
//!
//! The times depend on the drive, so this is a measurement and no test: `cargo xtask chaos
//! service_level` runs it with an optimized build, on a machine that does nothing else.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvmem::tier::TierRead;
use kvmem_tier::device::{AlignedBuffer, Engine, FileDevice};
use kvmem_tier::format::BLOCK;
use kvmem_tier::{DiskTier, DiskTierOptions, Fetched};

use crate::files::temp_path;

/// Bytes of a value, and of the tier.
const VALUE: usize = 1 << 20;
const TIER: u64 = 1 << 30;
/// Values of a call that stores, as many as a node stores in one.
const STORED: usize = 16;
/// Values that are fetched.
const FETCHED: u64 = 64;
/// How long each of the two is measured, and how often.
const TIME: Duration = Duration::from_secs(1);
const ROUNDS: usize = 5;
/// The limit of the p99 of fetches during stores, as a multiple of that of fetches alone.
const TIMES_ALONE: u32 = 3;

#[test]
#[ignore = "a measurement: cargo xtask chaos service_level"]
fn stores_hardly_delay_loads() {
    for engine in [Engine::IoUring, Engine::Threads] {
        let file = temp_path("loads-first");
        let device = FileDevice::open(&file, TIER, 32).expect("there is space");
        let device = if engine == Engine::Threads { device.without_rings() } else { device };
        let engine = device.engine();
        let (tier, _) = DiskTier::on(device, &DiskTierOptions::default()).expect("a new file");
        println!("{engine:?}: p50, p99 and longest of a fetch alone, and during stores");
        let mut p99s = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            let stored_alone = store_during(&tier, || thread::sleep(TIME)).1;
            store_wanted(&tier);
            let alone = fetch_for_a_while(&tier);
            let (contended, stored) = store_during(&tier, || fetch_for_a_while(&tier));
            println!("{alone:?} {contended:?}; {stored} MB/s stored, alone {stored_alone}");
            p99s[0].push(alone[1]);
            p99s[1].push(contended[1]);
        }
        p99s.iter_mut().for_each(|times| times.sort_unstable());
        let [alone, contended] = p99s.map(|times| times[ROUNDS / 2]);
        assert!(contended <= alone * TIMES_ALONE, "{engine:?}: {contended:?}, alone {alone:?}");
    }
}

/// Stores the values that are fetched.
fn store_wanted(tier: &DiskTier) {
    let mut value = AlignedBuffer::new(VALUE / BLOCK);
    for key in 0..FETCHED {
        value.fill(key as u8);
        assert!(tier.store(&[(&key.to_le_bytes(), &value)])[0].is_ok());
    }
}

/// Fetches one value after the other. Returns the median, the 99th percentile and the longest.
fn fetch_for_a_while(tier: &DiskTier) -> [Duration; 3] {
    let mut into = AlignedBuffer::new(VALUE / BLOCK);
    let start = Instant::now();
    let mut took = Vec::new();
    while start.elapsed() < TIME {
        let key = took.len() as u64 * 29 % FETCHED;
        let began = Instant::now();
        let fetched = tier.fetch(&mut [TierRead { key: &key.to_le_bytes(), into: &mut into }]);
        took.push(began.elapsed());
        assert_eq!((fetched[0], into[VALUE - 1]), (Fetched::Hit, key as u8));
    }
    took.sort_unstable();
    [took[took.len() / 2], took[took.len() * 99 / 100], took[took.len() - 1]]
}

/// Stores as fast as possible until `work` is done. Returns its result, and the MB/s.
fn store_during<R>(tier: &DiskTier, work: impl FnOnce() -> R) -> (R, u64) {
    /// Ends the other thread, by a panic too.
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            // Relaxed: the scope waits for the thread.
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let storing = scope.spawn(|| {
            let mut memory = AlignedBuffer::new(STORED * VALUE / BLOCK);
            memory.fill(7);
            let (start, mut bytes) = (Instant::now(), 0);
            while !ends.load(Ordering::Relaxed) {
                let keys: [[u8; 8]; STORED] =
                    std::array::from_fn(|number| (FETCHED + bytes + number as u64).to_le_bytes());
                let values = keys.iter().zip(memory.chunks_exact(VALUE));
                let values: Vec<_> = values.map(|(key, value)| (&key[..], value)).collect();
                assert!(tier.store(&values).iter().all(Result::is_ok));
                bytes += (STORED * VALUE) as u64;
            }
            bytes * 1000 / start.elapsed().as_nanos() as u64
        });
        let ends = Ends(&ends);
        let result = work();
        drop(ends);
        (result, storing.join().expect("stores succeed"))
    })
}
