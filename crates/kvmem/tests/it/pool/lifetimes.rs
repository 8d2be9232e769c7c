//! Pools, their clones and their blocks are dropped in any order.

use std::time::Duration;

use kvmem::pool::{Block, Pool};
use proptest::prelude::*;

use super::fake::{Fake, live, registrars};
use super::{MIB, small};

/// Returns whether the address is mapped.
fn is_mapped(at: usize) -> bool {
    let text = std::fs::read_to_string("/proc/self/maps").expect("our own maps");
    text.lines().any(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let parse = |text| usize::from_str_radix(text, 16).expect("an address");
        range.is_some_and(|(from, to)| (parse(from)..parse(to)).contains(&at))
    })
}

#[test]
fn a_block_outlives_its_pool_and_the_last_one_releases_the_memory() {
    let pool = small(MIB).build().expect("little memory");
    let mut blocks: Vec<Block> = (0..3).map(|_| pool.allocate(5000).expect("room")).collect();
    let at = blocks[0].as_ptr().addr();
    drop(pool);
    for (n, block) in blocks.iter_mut().enumerate() {
        block.bytes_mut().fill(n as u8 + 1);
    }
    while let Some(block) = blocks.pop() {
        assert!(block.bytes().iter().all(|byte| usize::from(*byte) == blocks.len() + 1));
        assert!(is_mapped(at));
    }
}

enum Owned {
    Pool(Pool),
    Block(Block, u8),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_drop_order_is_fine(
        sizes in proptest::collection::vec(1usize..40_000, 1..24),
        order in proptest::collection::vec(any::<proptest::sample::Index>(), 32),
        auto_hot_sizes in any::<bool>(),
        in_background in any::<bool>(),
        grows in any::<bool>(),
        quarantines in any::<bool>(),
    ) {
        const PART: usize = 256 << 10;
        let fakes = Fake::some(2, PART as u64);
        let builder = small(2 * MIB).max_size(3 * MIB).registrars(registrars(&fakes));
        let builder = builder.auto_hot_sizes(auto_hot_sizes).in_background(in_background);
        let pool = builder.build().expect("little memory");
        // A third of the pools are dropped while they are still being initialized.
        if sizes.len() % 3 > 0 {
            pool.wait_ready(u64::MAX, Duration::from_secs(60));
            if grows {
                pool.grow_to(3 * MIB as u64).expect("addresses are there");
            }
        }
        if quarantines && let Ok(block) = pool.allocate(1000) {
            pool.quarantine_block(block, "a test");
        }
        let mut owned = vec![Owned::Pool(pool.clone()), Owned::Pool(pool.clone())];
        for (n, size) in sizes.into_iter().enumerate() {
            if let Ok(mut block) = pool.allocate(size) {
                block.bytes_mut().fill(n as u8);
                owned.push(Owned::Block(block, n as u8));
            }
        }
        drop(pool);
        for index in order {
            if owned.is_empty() {
                break;
            }
            drop(owned.swap_remove(index.index(owned.len())));
            for one in &owned {
                match one {
                    Owned::Block(block, byte) => {
                        prop_assert!(block.bytes().iter().all(|found| found == byte));
                        prop_assert_eq!(block.keys().map(|keys| keys.len()), Ok(2));
                    }
                    Owned::Pool(pool) => {
                        prop_assert!(pool.ready_bytes() == 0 || pool.allocate(100).is_ok());
                    }
                }
            }
        }
        drop(owned);
        prop_assert_eq!(live(&fakes), 0);
    }
}
