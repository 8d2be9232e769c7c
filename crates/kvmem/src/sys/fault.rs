//! *Fault*: a plan of which system calls fail, made by a test.
//!
//! There is one plan in the process, since threads of the library must see it too. A test that
//! makes a plan holds the guard; a second one waits until the first is gone. Tests that do not take
//! part see the plan too: those that would be harmed belong into another process, or take an empty
//! plan.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::{Call, Errno};

struct Plan {
    /// For each call: from the how-manieth on (1 is the first), how often, and with what it fails.
    faults: Vec<(Call, u64, u64, Errno)>,
    made: BTreeMap<Call, u64>,
    failed: u64,
}

static PLAN: Mutex<Option<Plan>> = Mutex::new(None);
static FREE: Condvar = Condvar::new();

fn plan() -> MutexGuard<'static, Option<Plan>> {
    // A test that failed under the lock has left a plan that is as good as any.
    PLAN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The plan, as long as it is held.
#[derive(Debug)]
#[must_use = "the plan ends with its guard"]
pub struct Guard(());

/// A plan without faults, which counts the calls that are made. Waits until no other test has one.
pub fn count() -> Guard {
    let mut plan = plan();
    while plan.is_some() {
        plan = FREE.wait(plan).unwrap_or_else(PoisonError::into_inner);
    }
    *plan = Some(Plan { faults: Vec::new(), made: BTreeMap::new(), failed: 0 });
    Guard(())
}

/// A plan under which the `nth` call of this kind (1 is the first) fails with `errno`, without
/// being made.
pub fn fail(call: Call, nth: u64, errno: Errno) -> Guard {
    count().and(call, nth, 1, errno)
}

/// A plan under which every call of this kind fails with `errno`, without being made.
pub fn fail_all(call: Call, errno: Errno) -> Guard {
    count().and(call, 1, u64::MAX, errno)
}

impl Guard {
    /// One more fault: `times` calls of this kind fail, from the `nth` on.
    pub fn and(self, call: Call, nth: u64, times: u64, errno: Errno) -> Guard {
        if let Some(plan) = plan().as_mut() {
            plan.faults.push((call, nth, times, errno));
        }
        self
    }

    /// Calls of this kind since the plan was made, failed ones included.
    pub fn made(&self, call: Call) -> u64 {
        plan().as_ref().and_then(|plan| plan.made.get(&call).copied()).unwrap_or(0)
    }

    /// Calls that the plan has made to fail.
    pub fn failed(&self) -> u64 {
        plan().as_ref().map_or(0, |plan| plan.failed)
    }
}

impl Drop for Guard {
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
