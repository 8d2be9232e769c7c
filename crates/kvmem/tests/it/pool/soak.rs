//! A long life of a pool: threads allocate blocks, write to all of them, pass some on, and free
//! each with the bytes that its owner wrote.
//!
//! `KVMEM_SOAK_OPS` and `KVMEM_SOAK_SEED` set length and sequence, as for the spaces of offsets.

use std::sync::Mutex;

use kvmem::pool::{Block, Pool};
use kvmem_testkit::random::Random;

use super::{MIB, small};
use crate::offset::soak::setting;

const THREADS: u64 = 4;
/// The most blocks of a thread.
const MAX_BLOCKS: usize = 300;

/// A block, and the word that its owner has written all over it.
type Written = (Block, u64);

fn write(mut block: Block, word: u64) -> Written {
    for part in block.bytes_mut().chunks_mut(8) {
        part.copy_from_slice(&word.to_le_bytes()[..part.len()]);
    }
    (block, word)
}

fn check((block, word): &Written) {
    let is_whole = |part: &[u8]| *part == word.to_le_bytes()[..part.len()];
    assert!(block.bytes().chunks(8).all(is_whole), "{word:x}: another one wrote to {block:?}");
}

/// Returns the numbers of granted and of failed requests.
fn work(pool: &Pool, passed: &Mutex<Vec<Written>>, random: &mut Random, ops: u64) -> [u64; 2] {
    let (mut own, mut done): (Vec<Written>, _) = (Vec::new(), [0; 2]);
    let hot = [64, 4096, 1 + random.below(20_000)];
    for _ in 0..ops {
        let at = |random: &mut Random, own: &[Written]| random.below(own.len() as u64) as usize;
        match random.below(16) {
            0..8 if own.len() < MAX_BLOCKS => {
                let len = match random.below(4) {
                    0 => 1 + random.log_below(1 << 16),
                    kind => hot[kind as usize - 1],
                };
                let block = match random.once_in(8) {
                    true => pool.allocate_aligned(len as usize, 1 << random.below(13)),
                    false => pool.allocate(len as usize),
                };
                done[usize::from(block.is_err())] += 1;
                own.extend(block.ok().map(|block| write(block, random.bits())));
            }
            8 if !own.is_empty() => {
                let given = own.swap_remove(at(random, &own));
                passed.lock().expect("no thread panics").push(given);
            }
            9 => own.extend(passed.lock().expect("no thread panics").pop()),
            10 if random.once_in(500) => own.drain(..).for_each(|it| check(&it)),
            _ if !own.is_empty() => {
                let freed = own.swap_remove(at(random, &own));
                check(&freed);
            }
            _ => {}
        }
    }
    own.iter().for_each(check);
    done
}

#[test]
fn threads_never_share_a_byte() {
    let (ops, seed) = (setting("KVMEM_SOAK_OPS", 40_000), setting("KVMEM_SOAK_SEED", 1));
    let mut done = [0; 2];
    // Each life has a pool of its own; every second one is too small for all blocks.
    let lives = ops.div_ceil(10_000_000).max(2);
    for life in 0..lives {
        let pool = small([2, 16][life as usize % 2] * MIB).build().expect("little memory");
        let passed = Mutex::default();
        let work = |thread: u64| {
            let mut random = Random::new(seed ^ (life << 8) ^ thread);
            work(&pool, &passed, &mut random, ops / lives / THREADS)
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|it| scope.spawn(move || work(it))).collect();
            for thread in threads {
                let [granted, failed] = thread.join().expect("a whole life");
                done = [done[0] + granted, done[1] + failed];
            }
        });
        passed.lock().expect("no thread panics").drain(..).for_each(|it| check(&it));
        assert_eq!(pool.metrics().allocated, 0, "life {life} of seed {seed}");
    }
    let [granted, failed] = done;
    println!("{ops} operations in {lives} lives, {granted} blocks, {failed} requests failed");
    assert!(granted > ops / 10 && failed > ops / 1000, "{done:?}");
}
