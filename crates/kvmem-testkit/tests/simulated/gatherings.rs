//! A thread that panics.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kvmem::register::Platform;

use super::{GIB, PLAIN, addresses, machine, register, together};

#[test]
fn a_thread_that_panics_leaves() {
    let machine = machine(PLAIN, 3, true);
    let region = addresses(GIB);
    let nics = machine.nics();
    let work = |n: usize| {
        register(&*nics[n], &region, 0, GIB).expect("no limit");
        assert!(n != 1, "as planned");
        register(&*nics[n], &region, 0, GIB).expect("no limit");
    };
    let caught = together(&machine, 3, |n| catch_unwind(AssertUnwindSafe(|| work(n))).is_err());
    assert_eq!(caught, [false, true, false]);
    assert_eq!(machine.now().as_millis(), 20);
}
