//! Limits and faults of simulated NICs.

use kvmem::arena::Errno;
use kvmem::register::{Account, Memlock, RegisterLimit, Registrar};
use kvmem_testkit::simulated::{Fault, NicLimits, SimulatedMachine};

use super::{GIB, PLAIN, addresses, machine, register};

#[test]
fn limits_are_reported_and_enforced() {
    let memlock =
        |used_bytes| Memlock { account: Account::Pinned, limit_bytes: 10 << 30, used_bytes };
    let limits = NicLimits {
        max_bytes: 4 << 30,
        max_keys: 2,
        preferred_chunk_bytes: Some(1 << 30),
        memlock: Some(memlock(1 << 30)),
    };
    let machine = SimulatedMachine::builder().limits(limits).nics(2).build();
    let region = addresses(8 * GIB);
    let nics = machine.nics();
    let reported = nics[0].limits();
    assert_eq!(
        (reported.device.as_str(), reported.max_bytes, reported.max_keys),
        ("simulated:0", 4 << 30, 2)
    );
    assert_eq!(
        (reported.preferred_chunk_bytes, reported.memlock),
        (Some(1 << 30), Some(memlock(1 << 30)))
    );
    let exceeded =
        |nic: usize, bytes| register(&*nics[nic], &region, 0, bytes).unwrap_err().exceeded;
    assert_eq!(
        exceeded(0, 4 * GIB + 1),
        Some(RegisterLimit::KeyBytes { limit_bytes: 4 << 30, need_bytes: (4 << 30) + 1 })
    );
    let key = register(&*nics[0], &region, 0, 4 * GIB).expect("just within");
    register(&*nics[0], &region, 0, 1).expect("the second key");
    assert_eq!(exceeded(0, 1), Some(RegisterLimit::Keys { limit: 0, need: 1 }));
    assert_eq!(nics[0].limits().max_keys, 0);
    // Both NICs share an account.
    register(&*nics[1], &region, 0, 4 * GIB).expect("8 GiB and a byte");
    let used_bytes = (9 << 30) + 1;
    assert_eq!(nics[1].limits().memlock, Some(memlock(used_bytes)));
    let Some(RegisterLimit::Memlock { used_bytes: used, .. }) = exceeded(1, GIB) else {
        panic!("the limit on locked memory is exceeded");
    };
    assert_eq!(used, used_bytes);
    nics[0].deregister(key).expect("the key is live");
    register(&*nics[1], &region, 0, GIB).expect("below the limit again");
    assert_eq!(register(&*nics[1], &region, 0, 0).unwrap_err().errno, Errno::EINVAL);
    machine.nic(0).expect("the first").set_limits(NicLimits::default());
    register(&*nics[0], &region, 0, 8 * GIB).expect("no limits");
    assert_eq!((machine.live_keys(), machine.counts().failed), (4, 4));
}

#[test]
fn injected_faults_fail_the_chosen_calls() {
    let machine = machine(PLAIN, 2, true);
    let region = addresses(GIB);
    let (nic, other) = (machine.nic(0).expect("the first"), machine.nic(1).expect("the second"));
    nic.inject(Fault::register(1).errno(Errno::EIO).times(2));
    nic.inject(Fault::deregister(0));
    let register_all = || register(&*nic, &region, 0, GIB);
    let key = register_all().expect("the first call succeeds");
    assert_eq!(register_all().unwrap_err().errno, Errno::EIO);
    assert_eq!(register_all().unwrap_err().errno, Errno::EIO);
    let more = register_all().expect("it failed twice");
    assert_eq!(nic.deregister(key).unwrap_err().errno, Errno::EBUSY);
    assert_eq!(nic.live_keys(), 2, "the key is still valid");
    nic.deregister(key).expect("it failed once");
    assert_eq!(nic.deregister(key).unwrap_err().errno, Errno::EINVAL, "it is deregistered");
    assert_eq!(other.deregister(more).unwrap_err().errno, Errno::EINVAL, "a key of another NIC");
    nic.inject(Fault::deregister(0).forever());
    for _ in 0..5 {
        nic.deregister(more).unwrap_err();
    }
    nic.clear_faults();
    nic.deregister(more).expect("no faults remain");
    let counts = machine.counts();
    assert_eq!(
        (counts.registers, counts.deregisters, counts.failed, counts.unknown_keys),
        (4, 10, 10, 2)
    );
    assert_eq!(counts.live_keys, 0);
}
