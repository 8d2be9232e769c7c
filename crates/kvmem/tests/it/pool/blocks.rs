//! Blocks: their ranges, their bytes, and their parts.

use kvmem::offset::AllocError;
use kvmem::pool::{Block, Pool, PoolError, PoolSize};

use super::{MIB, small};

fn pool(bytes: usize) -> Pool {
    small(bytes).build().expect("little memory")
}

/// Asserts that no two blocks overlap and that all are in the pool.
fn assert_apart(blocks: &[Block], pool: &Pool) {
    let mut ranges: Vec<_> = blocks.iter().map(Block::range).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "{ranges:?}");
    assert!(ranges.iter().all(|range| range.end <= pool.capacity()));
}

#[test]
fn addresses_have_any_alignment() {
    let pool = pool(8 * MIB);
    let mut blocks = Vec::new();
    for log in 0..22 {
        let align = 1usize << log;
        let block = pool.allocate_aligned(100 + log, align).expect("room");
        assert!(block.as_ptr().addr().is_multiple_of(align), "{align}: {:?}", block.as_ptr());
        assert_eq!(block.len(), 100 + log);
        blocks.push(block);
    }
    assert_apart(&blocks, &pool);
    // The padding of an alignment beyond a page is free again.
    let requested: usize = blocks.iter().map(Block::len).sum();
    assert_eq!(pool.metrics().allocated, requested as u64);
    for (align, error) in
        [(0, AllocError::BadAlign { align: 0 }), (24, AllocError::BadAlign { align: 24 })]
    {
        assert_eq!(pool.allocate_aligned(100, align).unwrap_err(), PoolError::Allocate(error));
    }
    for align in [1, 1 << 40] {
        assert_eq!(
            pool.allocate_aligned(0, align).unwrap_err(),
            PoolError::Allocate(AllocError::ZeroSize)
        );
    }
    assert!(matches!(
        pool.allocate_aligned(usize::MAX, 1 << 40).unwrap_err(),
        PoolError::Allocate(AllocError::TooLarge { .. })
    ));
    // The error has the requested size, not that of the longer range that alignment needs.
    let limit = pool.capacity();
    for align in [1 << 23, 1 << 40, 1 << 63] {
        let error = pool.allocate_aligned(1, align).unwrap_err();
        let PoolError::Allocate(failure) = &error else { panic!("{error}") };
        let found = match *failure {
            AllocError::AlignTooLarge { requested, align, limit: max } if max == limit => {
                (requested, align)
            }
            AllocError::OutOfSpace { requested, .. } => (requested, align as u64),
            ref other => panic!("{other}"),
        };
        assert_eq!(found, (1, align as u64), "{error}");
    }
    pool.check().expect("sound");
}

#[test]
fn impossible_requests_return_errors() {
    let pool = pool(MIB);
    assert_eq!(pool.allocate(0).unwrap_err(), PoolError::Allocate(AllocError::ZeroSize));
    assert!(matches!(
        pool.allocate(2 * MIB).unwrap_err(),
        PoolError::Allocate(AllocError::TooLarge { .. })
    ));
    let _half = pool.allocate(MIB / 2 + 1).expect("room");
    let error = pool.allocate(MIB / 2).unwrap_err();
    let PoolError::Allocate(AllocError::OutOfSpace { requested, free, .. }) = error else {
        panic!("{error}")
    };
    assert_eq!((requested, free), (MIB as u64 / 2, MIB as u64 / 2 - 1));
    assert!(
        pool.allocate_batch(MIB / 8, 5).is_err() && pool.allocate_scattered(MIB / 2, 9).is_err()
    );
}

#[test]
fn parts_of_a_block() {
    let pool = pool(MIB);
    let mut block = pool.allocate(1000).expect("room");
    {
        let mut part = block.sub_mut(100..300).expect("within");
        let (mut low, mut high) = part.split_at_mut(50).expect("within");
        low.bytes_mut().fill(1);
        high.bytes_mut().fill(2);
        assert_eq!(high.offset() - low.offset(), 50);
        assert!(part.split_at_mut(201).is_err());
    }
    block.bytes_mut()[..100].fill(0);
    block.bytes_mut()[300..].fill(0);
    let part = block.sub(140..160).expect("within");
    assert_eq!(part.bytes(), [[1; 10], [2; 10]].concat());
    assert_eq!(part.range(), block.offset() + 140..block.offset() + 160);
    assert_eq!(part.as_ptr(), block.bytes()[140..].as_ptr());
    #[allow(clippy::reversed_empty_ranges)]
    for bad in [900..1001, 10..9, usize::MAX..usize::MAX] {
        let error = block.sub(bad.clone()).unwrap_err();
        assert_eq!(
            error,
            PoolError::OutOfBounds { range: bad.start as u64..bad.end as u64, len: 1000 }
        );
    }
    let chunks: Vec<_> =
        block.chunks(300).map(|part| (part.offset() - block.offset(), part.len())).collect();
    assert_eq!(chunks, [(0, 300), (300, 300), (600, 300), (900, 100)]);
    assert_eq!(block.chunks(0).count(), 0);
}

#[test]
fn sizes_are_numbers_or_texts() {
    let text = String::from("1 MiB");
    for size in [PoolSize::from(MIB), PoolSize::from("1m"), PoolSize::from(text)] {
        assert_eq!(
            Pool::builder(size.bytes().unwrap())
                .ladder(kvmem::arena::PageSize::Base)
                .build()
                .unwrap()
                .capacity(),
            MIB as u64
        );
    }
    let error = Pool::builder("64 gigs").build().unwrap_err();
    assert!(error.to_string().starts_with(r#""64 gigs" is not a size"#), "{error}");
    assert!(Pool::builder(0).build().is_err());
    assert!(matches!(small(2 * MIB).max_size(MIB).build().unwrap_err(), PoolError::Limit { .. }));
    // A hot size that cannot be cached is an error before anything is mapped.
    let error = small(MIB).hot_sizes([MIB as u64]).build().unwrap_err();
    assert!(matches!(error, PoolError::HotSizes(_)), "{error}");
}
