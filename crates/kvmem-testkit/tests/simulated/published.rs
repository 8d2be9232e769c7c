//! Published figures: they are reproduced, and the same each time.

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kvmem_testkit::simulated::{LoggedCall, Published, Seconds};

use super::{GIB, addresses, ends, fixed};

/// A published run, and its simulated result.
#[derive(PartialEq)]
struct Run {
    name: &'static str,
    published: Seconds,
    register: f64,
    deregister: f64,
    log: Vec<LoggedCall>,
}

/// The four published runs of a machine.
fn runs(published: &Published) -> Vec<Run> {
    let region = addresses(published.len_bytes as usize);
    [
        ("resident, sequential", published.resident_sequential, true, false),
        ("resident, parallel", published.resident_parallel, true, true),
        ("untouched, sequential", published.untouched_sequential, false, false),
        ("untouched, parallel", published.untouched_parallel, false, true),
    ]
    .into_iter()
    .map(|(name, seconds, resident, parallel)| {
        let machine = published.machine(resident);
        let (register, deregister) = fixed(&machine, &region, parallel);
        let mut log = machine.take_log();
        // The region may be at another address than before.
        log.iter_mut().for_each(|entry| entry.address -= region.base().addr().get());
        Run { name, published: seconds, register, deregister, log }
    })
    .collect()
}

#[test]
fn published_figures_are_reproduced() {
    for published in Published::ALL {
        for run in runs(&published) {
            let near = |what: &str, simulated: f64, measured: f64| {
                let error = simulated / measured - 1.0;
                let text = format!(
                    "{} | {} | {what} | published {measured} s | simulated {simulated:.3} s | \
                     {:+.2} %",
                    published.name,
                    run.name,
                    error * 100.0
                );
                println!("{text}");
                assert!(error.abs() < 0.03, "{text}");
            };
            near("register", run.register, run.published.register);
            if let Some(measured) = run.published.deregister {
                near("deregister", run.deregister, measured);
            }
        }
    }
}

#[test]
fn results_do_not_depend_on_other_load() {
    let first: Vec<_> = Published::ALL.iter().map(runs).collect();
    let again: Vec<_> = Published::ALL.iter().map(runs).collect();
    assert!(first == again);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                // Relaxed: the flag only has to become visible eventually.
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let result = catch_unwind(|| {
            for round in 0..8 {
                let again: Vec<_> = Published::ALL.iter().map(runs).collect();
                assert!(first == again, "round {round}");
            }
        });
        stop.store(true, Ordering::Relaxed);
        result.expect("the same each time");
    });
}

#[test]
fn the_chunk_length_does_not_change_the_faster_policy() {
    for published in Published::ALL {
        let chunks = published.len_bytes as usize / GIB;
        for (resident, seconds) in
            [(true, published.resident_parallel), (false, published.untouched_parallel)]
        {
            let ends = ends(&published.machine(resident), published.nics, chunks).concat();
            let last = ends.into_iter().max().expect("there are chunks") as f64 / 1e6;
            let error = last / seconds.register - 1.0;
            assert!(error.abs() < 0.03, "{}, resident: {resident}: {error}", published.name);
        }
    }
}
