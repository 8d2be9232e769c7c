//! Leases, with more threads and steps than loom can check; the model is in `loom/leases_toy.rs`.

use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

include!("../loom/leases_toy.rs");

#[test]
fn no_thread_finds_a_value_older_than_one_that_was_put() {
    super::check(|| {
        let toy = Arc::new(Toy::new(None));
        // The last version put before a lookup began; one thread puts, so versions rise.
        let put = Arc::new(AtomicU64::new(0));
        let mut threads = Vec::new();
        {
            let (toy, put) = (toy.clone(), put.clone());
            threads.push(thread::spawn(move || {
                for version in 1..=3 {
                    toy.put(version);
                    put.store(version, Ordering::SeqCst);
                    if version == 2 {
                        toy.remove();
                    }
                }
            }));
        }
        for _ in 0..2 {
            let toy = toy.clone();
            threads.push(thread::spawn(move || {
                toy.evict();
                toy.evict();
            }));
        }
        for _ in 0..2 {
            let (toy, put) = (toy.clone(), put.clone());
            threads.push(thread::spawn(move || {
                for _ in 0..2 {
                    let known = put.load(Ordering::SeqCst);
                    let (found, _) = toy.get();
                    assert!(found.is_none_or(|found| found >= known), "{found:?} after {known}");
                }
            }));
        }
        for thread in threads {
            thread.join().unwrap();
        }
        toy.end(true);
    });
}
