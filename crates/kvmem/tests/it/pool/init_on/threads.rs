//! Threads that allocate blocks and free each other's.

use std::sync::mpsc;
use std::thread;

use kvmem::cache::KvCache;
use kvmem::pool::{Block, InitOn};

use super::super::MIB;
use super::{View, builder};

const ROUNDS: usize = 3_000;

#[test]
fn blocks_that_threads_pass_on_have_zeros_when_they_return() {
    for init_on in [InitOn::Alloc, InitOn::Free] {
        let pool =
            builder(4 * MIB, init_on).hot_sizes([4096, 9000]).build().expect("little memory");
        let view = View::of(&pool);
        thread::scope(|scope| {
            let (senders, receivers): (Vec<_>, Vec<_>) =
                (0..3).map(|_| mpsc::sync_channel::<Block>(16)).unzip();
            for (number, receiver) in receivers.into_iter().enumerate() {
                let next = senders[(number + 1) % senders.len()].clone();
                let pool = pool.clone();
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let len = [4096, 9000, 1 + round * 7 % 5000][round % 3];
                        if let Ok(mut block) = pool.allocate(len) {
                            assert!(block.bytes().iter().all(|byte| *byte == 0), "{init_on}");
                            block.bytes_mut().fill(number as u8 + 1);
                            // A full channel gives the block back, which frees it here.
                            drop(next.try_send(block));
                        }
                        drop(receiver.try_recv());
                    }
                });
            }
            drop(senders);
        });
        drop(pool);
        assert!(init_on == InitOn::Alloc || view.first_kept_of_all().is_none());
    }
}

#[test]
fn evicted_values_leave_zeros_while_threads_insert() {
    for init_on in [InitOn::Alloc, InitOn::Free] {
        let pool = builder(MIB, init_on).build().expect("little memory");
        let cache: KvCache<u64> = KvCache::new(&pool);
        thread::scope(|scope| {
            for thread in 0..3u64 {
                let cache = &cache;
                scope.spawn(move || {
                    for round in 0..ROUNDS as u64 {
                        let (key, len) =
                            (round * 3 % 200 + thread, 2000 + round as usize % 5 * 3000);
                        let inserted = cache.insert_filled(key, len, |bytes| {
                            assert!(bytes.iter().all(|byte| *byte == 0), "{init_on}");
                            bytes.fill(thread as u8 + 1);
                        });
                        inserted.expect("values are evicted");
                        drop(cache.get(&(round % 200)));
                    }
                });
            }
        });
        assert!(cache.stats().evictions > 0);
    }
}
