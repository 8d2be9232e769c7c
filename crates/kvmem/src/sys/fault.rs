//! *Fault*: a test's plan of failing system calls.
//!
//! The process has one plan, because threads of the library must see it too. A test that makes a
//! plan holds its guard; a second test waits until the first guard is dropped. Other tests of the
//! process see the plan as well: a test that it would disturb belongs into another process, or
//! takes an empty plan.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::call::Call;
use super::errno::Errno;

struct FaultPlan {
    /// For each fault: the call, the first failing call (counted from 1), the number of failures,
    /// and the error.
    faults: Vec<(Call, u64, u64, Errno)>,
    made: BTreeMap<Call, u64>,
    failed: u64,
}

static PLAN: Mutex<Option<FaultPlan>> = Mutex::new(None);
static FREE: Condvar = Condvar::new();

fn plan() -> MutexGuard<'static, Option<FaultPlan>> {
    // A panic under the lock leaves a valid plan.
    PLAN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A plan that is active until the guard is dropped.
#[derive(Debug)]
#[must_use = "the plan ends with its guard"]
pub struct FaultGuard(());

/// Makes a plan without faults, which counts calls. Waits until no other test has a plan.
pub fn count() -> FaultGuard {
    let mut plan = plan();
    while plan.is_some() {
        plan = FREE.wait(plan).unwrap_or_else(PoisonError::into_inner);
    }
    *plan = Some(FaultPlan { faults: Vec::new(), made: BTreeMap::new(), failed: 0 });
    FaultGuard(())
}

/// Makes a plan under which the `nth` call of this kind (counted from 1) fails with `errno`,
/// without being made.
pub fn fail(call: Call, nth: u64, errno: Errno) -> FaultGuard {
    count().and(call, nth, 1, errno)
}

/// Makes a plan under which every call of this kind fails with `errno`, without being made.
pub fn fail_all(call: Call, errno: Errno) -> FaultGuard {
    count().and(call, 1, u64::MAX, errno)
}

impl FaultGuard {
    /// Adds a fault: `times` calls of this kind fail, from the `nth` on.
    pub fn and(self, call: Call, nth: u64, times: u64, errno: Errno) -> FaultGuard {
        if let Some(plan) = plan().as_mut() {
            plan.faults.push((call, nth, times, errno));
        }
        self
    }

    /// Returns the number of calls of this kind since the plan was made, including failed ones.
    #[must_use]
    pub fn made(&self, call: Call) -> u64 {
        plan().as_ref().and_then(|plan| plan.made.get(&call).copied()).unwrap_or(0)
    }

    /// Returns the number of calls that the plan has made fail.
    #[must_use]
    pub fn failed(&self) -> u64 {
        plan().as_ref().map_or(0, |plan| plan.failed)
    }
}

impl Drop for FaultGuard {
    fn drop(&mut self) {
        *plan() = None;
        FREE.notify_one();
    }
}

pub(super) fn check(call: Call) -> Result<(), Errno> {
    let mut plan = plan();
    let Some(plan) = plan.as_mut() else { return Ok(()) };
    let nth = plan.made.entry(call).or_insert(0);
    *nth += 1;
    let nth = *nth;
    let fault = plan
        .faults
        .iter()
        .find(|(of, from, times, _)| *of == call && nth >= *from && nth - from < *times);
    match fault {
        Some((.., errno)) => {
            plan.failed += 1;
            Err(*errno)
        }
        None => Ok(()),
    }
}
