//! A tour of the registration layer: `cargo run --example register`.

use std::sync::Arc;
use std::time::Duration;

use kvmem::arena::{Ladder, PageSize, Region};
use kvmem::offset::OffsetAllocator;
use kvmem::register::{Devices, NotAvailable, Policy, RegistrationSet, discover};
use kvmem_testkit::simulated::Published;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("# Registrars of this machine");
    for found in discover() {
        println!("{found}");
    }

    println!("\n# 256 MiB with four rings: planned, populated, registered");
    let rings = "io_uring:4".parse::<Devices>()?.open();
    let registrars = match rings {
        Ok(registrars) => registrars,
        // A container may forbid rings; a simulated machine can show the plan, too.
        Err(why @ NotAvailable { .. }) => {
            println!("{why}");
            Published::PARALLEL_WINS.machine(true).nics()
        }
    };
    let builder = RegistrationSet::builder().registrars(registrars).chunk_bytes(32 << 20);
    let region =
        Region::builder(256 << 20).ladder(Ladder::new([PageSize::Thp, PageSize::Base])).map()?;
    print!("{}", builder.plan(&region)?);
    let set = builder.register(region)?;
    print!("{}", set.outcome());

    println!("\n# Offsets that have one key each");
    let boundary = set.boundary_bytes().expect("there are several chunks");
    let space = OffsetAllocator::builder(set.region().len() as u64).boundary(boundary).build()?;
    for _ in 0..3 {
        let block = space.allocate(20 << 20)?;
        let range = block.range();
        let (start, end) = (usize::try_from(range.start)?, usize::try_from(range.end)?);
        for device in set.devices().take(1) {
            println!(
                "{device}: {start:#x}..{end:#x} has lkey {}",
                set.key_for(device, start..end)?.lkey
            );
        }
        block.into_raw(); // freed with the space
    }
    drop(set);

    println!("\n# In the background: the beginning is usable before the end");
    let region = Region::builder(256 << 20).ladder(PageSize::Base).map()?;
    let work = builder.register_in_background(region)?;
    let ready = work.wait_ready(32 << 20, Duration::from_secs(10));
    println!("at least {} MiB can be used", (ready >> 20).min(32));
    println!("in the end {} keys", work.wait()?.outcome().keys);

    println!(
        "\n# Two published machines, in virtual time: parallel is 4.2 times as fast on one, and \
         2.7 times \
         slower on the other"
    );
    for published in Published::ALL {
        let region =
            Arc::new(Region::builder(published.len_bytes as usize).ladder(PageSize::Thp).map()?);
        for policy in [Policy::Sequential, Policy::all_at_once(), Policy::Auto] {
            let machine = published.machine(true);
            let builder =
                RegistrationSet::builder().registrars(machine.nics()).platform(machine.platform());
            let set = builder.policy(policy).register(Arc::clone(&region))?;
            println!(
                "{policy:>10}: {:6.1} s, {}",
                set.outcome().register_seconds,
                set.outcome().chosen()
            );
        }
    }
    Ok(())
}
