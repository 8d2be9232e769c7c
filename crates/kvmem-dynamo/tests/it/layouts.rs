//! Layouts of `kvbm-physical` on kvmem's memory.

use std::sync::Arc;

use dynamo_memory::Buffer;
use dynamo_memory::nixl::register_with_nixl;
use kvbm_physical::layout::{BlockDimension, LayoutConfig, PhysicalLayout, PhysicalLayoutBuilder};
use kvmem::arena::{Populate, Region};
use kvmem::pool::Pool;
use kvmem_dynamo::{BlockMemory, MemoryDescriptor, PoolMemory, RegionMemory};

use crate::agent::agent;

const BLOCKS: usize = 8;
const LAYERS: usize = 3;

fn config() -> LayoutConfig {
    LayoutConfig::builder()
        .num_blocks(BLOCKS)
        .num_layers(LAYERS)
        .outer_dim(2)
        .page_size(16)
        .inner_dim(128)
        .dtype_width_bytes(2)
        .build()
        .expect("a layout")
}

/// The bytes of one block, layer and outer index.
const PIECE: usize = 16 * 128 * 2;

fn region(bytes: usize) -> Region {
    Region::builder(bytes).populate(Populate::Auto).map().expect("memory")
}

/// Returns the address of each piece, and checks that the pieces fill `bytes` bytes without
/// overlapping.
fn pieces(layout: &PhysicalLayout, parts: &[(usize, usize)]) -> Vec<usize> {
    let mut found = Vec::new();
    for block in 0..BLOCKS {
        for layer in 0..LAYERS {
            for outer in 0..2 {
                let piece = layout.memory_region(block, layer, outer).expect("it exists");
                assert_eq!(piece.size(), PIECE);
                let inside = |(addr, size): &(usize, usize)| {
                    piece.addr() >= *addr && piece.addr() + PIECE <= addr + size
                };
                assert!(parts.iter().any(inside), "{:#x} lies outside", piece.addr());
                found.push(piece.addr());
            }
        }
    }
    let mut sorted = found.clone();
    sorted.sort_unstable();
    assert!(sorted.windows(2).all(|two| two[0] + PIECE <= two[1]), "pieces overlap");
    found
}

#[test]
fn a_contiguous_layout_fills_a_region() {
    let Some(agent) = agent("contiguous") else { return };
    let config = config();
    let memory = RegionMemory::new(region(config.required_bytes()));
    let (base, part) = (memory.addr(), (memory.addr(), memory.size()));
    let layout = PhysicalLayoutBuilder::new(agent)
        .with_config(config)
        .fully_contiguous()
        .with_memory_regions(vec![memory])
        .expect("NIXL registers the region")
        .build()
        .expect("the region is large enough");
    let found = pieces(&layout, &[part]);
    assert_eq!(found[0], base);
    assert_eq!(found.len() * PIECE, config_bytes());
    assert!(layout.memory_region(BLOCKS, 0, 0).is_err());
    let regions = layout.layout().memory_regions();
    assert!(regions[0].nixl_descriptor().is_some(), "NIXL has registered it");
}

fn config_bytes() -> usize {
    config().required_bytes()
}

#[test]
fn each_layer_has_a_region() {
    let Some(agent) = agent("separate") else { return };
    let memories: Vec<RegionMemory> =
        (0..LAYERS).map(|_| RegionMemory::new(region(config_bytes() / LAYERS))).collect();
    let parts: Vec<_> = memories.iter().map(|memory| (memory.addr(), memory.size())).collect();
    let layout = PhysicalLayoutBuilder::new(agent)
        .with_config(config())
        .layer_separate(BlockDimension::BlockIsFirstDim)
        .with_memory_regions(memories)
        .expect("NIXL registers the regions")
        .build()
        .expect("they are large enough");
    pieces(&layout, &parts);
    let first = layout.memory_region(0, 1, 0).expect("it exists");
    assert_eq!(first.addr(), parts[1].0, "the second layer is in the second region");
}

/// The memory of a pool is registered once; each layer is a block of it.
#[test]
fn each_layer_is_a_block_of_a_registered_pool() {
    let Some(agent) = agent("pool") else { return };
    let pool = Arc::new(Pool::builder(4 << 20).build().expect("a pool"));
    // SAFETY: the layout below is built on blocks.
    let memory = unsafe { PoolMemory::new(Arc::clone(&pool)) };
    let registered = register_with_nixl(memory, agent.raw_agent(), None);
    let memory = Buffer::new(registered.map_err(drop).expect("NIXL registers the pool"));
    let blocks: Vec<BlockMemory> = (0..LAYERS)
        .map(|_| pool.allocate_aligned(config_bytes() / LAYERS, 4096).expect("there is room"))
        .map(|block| BlockMemory::within(block, &memory).expect("it is from this pool"))
        .collect();
    let parts: Vec<_> = blocks.iter().map(|block| (block.addr(), block.size())).collect();
    for block in &blocks {
        let descriptor = block.nixl_descriptor().expect("the pool is registered");
        assert_eq!((descriptor.addr as usize, descriptor.size), (block.addr(), block.size()));
    }
    let layout = PhysicalLayoutBuilder::new(agent)
        .with_config(config())
        .layer_separate(BlockDimension::BlockIsFirstDim)
        .with_registered_regions(blocks.into_iter().map(Buffer::new).collect())
        .expect("they are registered")
        .build()
        .expect("they are large enough");
    pieces(&layout, &parts);
    assert_eq!(pool.figures().allocations, LAYERS as u64);
    drop(layout);
    pool.trim();
    assert_eq!(pool.figures().allocated, 0, "the blocks went back with the layout");
}

#[test]
fn a_region_that_is_too_small_is_an_error() {
    let Some(agent) = agent("small") else { return };
    let memory = RegionMemory::new(region(4096));
    let built = PhysicalLayoutBuilder::new(agent)
        .with_config(config())
        .fully_contiguous()
        .with_memory_regions(vec![memory])
        .expect("NIXL registers the region")
        .build();
    assert!(built.is_err());
}
