//! A tour of the pool: `cargo run --example pool`.

use std::time::{Duration, Instant};

use kvmem::arena::{Backing, Ladder, PageSize};
use kvmem::pool::{Access, AttachedPool, BlockRef, Pool};
use kvmem::register::{Devices, Registrar};
use std::sync::Arc;

/// Two rings, or no registrar if a container forbids them.
fn registrars() -> Vec<Arc<dyn Registrar>> {
    let rings = "io_uring:2".parse::<Devices>().expect("a kind of registrar").open();
    rings.unwrap_or_else(|why| {
        println!("{why}");
        Vec::new()
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pages = Ladder::new([PageSize::Thp, PageSize::Base]);

    println!("# 256 MiB: mapped, populated, registered");
    let page = 3_274_752;
    let builder =
        Pool::builder("256 MiB").ladder(pages.clone()).registrars(registrars()).boundary(64 << 20);
    let pool = match builder.hot_sizes([page]).build() {
        Ok(pool) => pool,
        // Such as a limit on pinned memory; the error says which, and what to do.
        Err(why) => {
            println!("{why}\nwithout registrars:");
            Pool::builder("256 MiB")
                .ladder(pages.clone())
                .boundary(64 << 20)
                .hot_sizes([page])
                .build()?
        }
    };
    print!("{}", pool.report());

    println!("\n# Blocks");
    let mut block = pool.allocate(page as usize)?;
    block.bytes_mut().fill(0x5a);
    println!("{block:?} at {:p}", block.as_ptr());
    for (device, key) in block.keys()? {
        println!("  {device}: lkey {}", key.lkey);
    }
    let layer = block.sub(51_168..102_336)?;
    println!("  one layer of it: {layer:?}");
    let start = Instant::now();
    const TIMES: u32 = 1_000_000;
    for _ in 0..TIMES {
        drop(pool.allocate(page as usize)?);
    }
    println!(
        "  allocated and dropped in {:.1} ns",
        start.elapsed().as_nanos() as f64 / f64::from(TIMES)
    );
    drop(pool);
    println!("  the pool is gone, and the block has {:#x} still", block.bytes()[page as usize - 1]);
    drop(block);

    println!("\n# In the background, and growing");
    let pool = Pool::builder("128 MiB")
        .max_size("256 MiB")
        .ladder(pages.clone())
        .boundary(16 << 20)
        .in_background(true)
        .build()?;
    let start = Instant::now();
    let ready = pool.wait_ready(16 << 20, Duration::from_secs(60));
    println!("{} MiB ready after {:?}", ready >> 20, start.elapsed());
    let early = pool.allocate(10_000_000)?;
    let ready = pool.wait_ready(u64::MAX, Duration::from_secs(60));
    println!("{} MiB ready after {:?}", ready >> 20, start.elapsed());
    pool.grow_to(256 << 20)?;
    println!("grown to {} MiB", pool.capacity() >> 20);
    drop(early);
    println!("{:?}", pool.shrink()?);

    println!("\n# Two processes (here in one)");
    let pool = Pool::builder("16 MiB").ladder(pages).backing(Backing::Shared).build()?;
    let mut block = pool.allocate(11)?;
    block.bytes_mut().copy_from_slice(b"hello there");
    let (fd, bits) = (pool.share_read_only()?, block.reference()?.to_bits());
    let other = AttachedPool::attach(fd, Access::ReadOnly)?;
    // SAFETY: no thread writes to the block meanwhile.
    let bytes = unsafe { other.bytes(BlockRef::from_bits(bits)) }?;
    println!("{bits:?} is {:?}", str::from_utf8(bytes)?);
    Ok(())
}
