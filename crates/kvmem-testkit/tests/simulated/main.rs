//! The simulated machine: it reproduces published figures, and is deterministic.

use std::sync::Barrier as Rendezvous;
use std::thread;

use kvmem::arena::Region;
use kvmem::register::{Key, Platform, Registrar, RegistrarError};
use kvmem_testkit::simulated::{CallCosts, Costs, SimulatedMachine};

mod gatherings;
mod keys;
mod published;

const GIB: usize = 1 << 30;

/// Maps addresses that are never touched.
fn addresses(bytes: usize) -> Region {
    Region::builder(bytes).map().expect("addresses cost nothing")
}

fn register(
    nic: &dyn Registrar,
    region: &Region,
    offset: usize,
    len: usize,
) -> Result<Key, RegistrarError> {
    assert!(offset + len <= region.len());
    // SAFETY: within the region, which outlives the key; a simulated NIC does not write.
    unsafe { nic.register(region.base().add(offset), len) }
}

/// Leaves the gathering, also on a panic.
struct LeaveGuard<'a>(&'a SimulatedMachine);

impl Drop for LeaveGuard<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Runs `work(number)` on `threads` gathered threads, this one included, and returns their results.
fn together<T: Send>(
    machine: &SimulatedMachine,
    threads: usize,
    work: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let gate = Rendezvous::new(threads);
    let act = |number| {
        machine.enter(number);
        let _guard = LeaveGuard(machine);
        work(number)
    };
    thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads)
            .map(|number| {
                let (gate, act) = (&gate, &act);
                scope.spawn(move || {
                    gate.wait();
                    act(number)
                })
            })
            .collect();
        machine.gather(threads);
        gate.wait();
        let first = act(0);
        [first]
            .into_iter()
            .chain(helpers.into_iter().map(|helper| helper.join().expect("no panic")))
            .collect()
    })
}

fn seconds(machine: &SimulatedMachine, work: impl FnOnce()) -> f64 {
    let start = machine.now();
    work();
    (machine.now() - start).as_secs_f64()
}

/// Registers all of the region with each NIC and deregisters the keys; returns the times of both.
fn fixed(machine: &SimulatedMachine, region: &Region, parallel: bool) -> (f64, f64) {
    let nics = machine.nics();
    let mut keys = Vec::new();
    let register_seconds = seconds(machine, || {
        keys = match parallel {
            true => together(machine, nics.len(), |n| register(&*nics[n], region, 0, region.len())),
            false => nics.iter().map(|nic| register(&**nic, region, 0, region.len())).collect(),
        };
    });
    let keys: Vec<Key> = keys.into_iter().map(|key| key.expect("no limit, no fault")).collect();
    let deregister_seconds = seconds(machine, || match parallel {
        true => {
            together(machine, nics.len(), |n| {
                nics[n].deregister(keys[n]).expect("the key is live")
            });
        }
        false => nics
            .iter()
            .zip(&keys)
            .for_each(|(nic, key)| nic.deregister(*key).expect("the key is live")),
    });
    assert_eq!(machine.live_keys(), 0);
    (register_seconds, deregister_seconds)
}

/// 10 ms for each GiB, and no other costs.
const PLAIN: CallCosts = CallCosts {
    us_per_call: 0.0,
    ms_per_gib: 10.0,
    untouched_ms_per_gib: 0.0,
    serial_share: 0.0,
    serial_bytes: GIB as u64,
    contention: 0.0,
    untouched_contention: 0.0,
};

fn machine(register: CallCosts, nics: usize, resident: bool) -> SimulatedMachine {
    let costs = Costs { register, deregister: PLAIN, ..Costs::default() };
    SimulatedMachine::builder().costs(costs).nics(nics).resident(resident).build()
}

/// Each of the threads registers `chunks` chunks of 1 GiB; returns when each call ended, in
/// microseconds, by thread.
fn ends(machine: &SimulatedMachine, threads: usize, chunks: usize) -> Vec<Vec<u128>> {
    let region = addresses(chunks * GIB);
    let nics = machine.nics();
    together(machine, threads, |n| {
        let end = |chunk| {
            register(&*nics[n], &region, chunk * GIB, GIB).expect("no limit");
            machine.now().as_micros()
        };
        (0..chunks).map(end).collect()
    })
}
