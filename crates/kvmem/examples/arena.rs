//! A tour of the arena layer: `cargo run --example arena`.

use kvmem::arena::{ArenaError, Backing, Ladder, PageSize, Populate, Region};

fn main() -> Result<(), ArenaError> {
    println!("# 256 MiB, the best available pages, populated");
    let region = Region::builder(256 << 20)
        .ladder(Ladder::new([PageSize::Huge2M, PageSize::Thp, PageSize::Base]))
        .populate(Populate::Auto)
        .map()?;
    print!("{}", region.receipt());

    println!("\n# Two halves that share the mapping");
    let (left, right) = region.split_at(128 << 20)?;
    drop(left);
    println!("right half: {:?}", right.residency(..)?);

    println!("\n# 1 TiB of addresses, nothing resident");
    let large = Region::builder(1 << 40).ladder(Ladder::new([PageSize::Thp])).map()?;
    print!("{}", large.receipt());

    println!("\n# An impossible request returns an error with a remedy");
    match large.populate(.., Populate::Auto, &Default::default()) {
        Ok(done) => println!("a large machine: {:.2} GiB/s", done.gib_per_s()),
        Err(error) => println!("{error}"),
    }
    match Region::builder(1 << 40).ladder(Ladder::only(PageSize::Huge1G)).map() {
        Ok(region) => print!("{}", region.receipt()),
        Err(error) => println!("{error}"),
    }

    println!("\n# Shared memory, for another process to attach by descriptor");
    let shared = Region::builder(8 << 20).backing(Backing::Shared).map()?;
    let fd = shared.share()?.expect("a shared region has a descriptor");
    let attached = Region::attach(fd, Some(shared.len()))?;
    // SAFETY: no other code has this memory.
    unsafe { shared.slice(..)?.as_mut_bytes()[0] = 42 };
    // SAFETY: no code writes any more.
    println!("byte 0 from the other side: {}", unsafe { attached.bytes()[0] });
    Ok(())
}
