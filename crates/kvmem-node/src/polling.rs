//! *Polling*: whether a thread waits for a message awake.
//!
//! A thread that polls has the next message sooner than one that the kernel has to wake, if a
//! processor is idle. If none is, it holds up the threads that have work, such as the one that is
//! to answer: the kernel takes the processor from it after a slice of a millisecond or more, and
//! such a wait is the slowest call of another client.
//!
//! A thread that polls therefore *looks* some thousand times a second: it yields, and asks the
//! kernel how often it lost its processor to another thread (`ru_nivcsw`). A yield returns at once
//! if no other thread can run on this processor. The threads of the kernel take a processor a
//! hundred times a second, and a thread that wakes every few milliseconds, such as the
//! [publisher](crate::kv_events) and its subscribers, two times in a row, so a switch between two
//! looks says little. After switches before [`IN_A_ROW`] looks in a row the processors are busy,
//! and the thread *rests*: it sleeps whenever it waits. Each rest is twice as long as the one
//! before, and half as long again after some calm polling.
//!
//! The signal counts threads of all programs, needs no word in shared memory, and is that of the
//! thread's own processors, also in a container.

use std::cell::RefCell;
use std::time::{Duration, Instant};

/// The shortest time between two looks. A look takes half a microsecond.
const LOOK: Duration = Duration::from_micros(100);

/// Looks in a row with a switch before each of them after which the thread rests.
const IN_A_ROW: u32 = 4;

/// A time of polling after which the next rest is shorter: longer than a slice of the scheduler.
const CALM: Duration = Duration::from_millis(20);

const FIRST_REST: Duration = Duration::from_millis(4);

/// Of the calls of busy clients, less than one in a hundred meets a thread that polls.
const LONGEST_REST: Duration = Duration::from_millis(64);

/// How a thread fared while it polled.
#[derive(Debug)]
struct Polling {
    /// No poll before this time.
    rest_until: Instant,
    next_rest: Duration,
    /// The look before, if the thread has polled since its rest.
    look: Option<Look>,
    calm_since: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Look {
    at: Instant,
    /// How often the kernel had taken the processor from the thread.
    switches: i64,
    /// Looks in a row, up to this one, before which there was a switch.
    switched: u32,
}

impl Polling {
    fn new(now: Instant) -> Polling {
        Polling { rest_until: now, next_rest: FIRST_REST, look: None, calm_since: now }
    }

    /// Returns whether the thread polls at the time `now`. `switches` lets others run, and returns
    /// how often the kernel has taken the processor from the thread.
    fn may_poll(&mut self, now: Instant, switches: impl FnOnce() -> i64) -> bool {
        if now < self.rest_until {
            return false;
        }
        let Some(before) = self.look else {
            self.look = Some(Look { at: now, switches: switches(), switched: 0 });
            self.calm_since = now;
            return true;
        };
        if now < before.at + LOOK {
            return true;
        }
        let switches = switches();
        let switched = if switches == before.switches { 0 } else { before.switched + 1 };
        if switched == IN_A_ROW {
            self.look = None;
            self.rest_until = now + self.next_rest;
            self.next_rest = (2 * self.next_rest).min(LONGEST_REST);
            return false;
        }
        self.look = Some(Look { at: now, switches, switched });
        if now >= self.calm_since + CALM {
            self.calm_since = now;
            self.next_rest = (self.next_rest / 2).max(FIRST_REST);
        }
        true
    }
}

/// Returns whether this thread polls at the time `now`, because a processor is likely to be idle.
pub(crate) fn may_poll(now: Instant) -> bool {
    // No other thread runs in a simulation.
    #[cfg(all(test, not(loom)))]
    if crate::simulator::is_on() {
        return true;
    }
    thread_local! {
        static POLLING: RefCell<Polling> = RefCell::new(Polling::new(Instant::now()));
    }
    POLLING.with_borrow_mut(|polling| polling.may_poll(now, yield_and_count))
}

/// Lets the threads run that wait for this processor. Returns how often the kernel has taken it
/// from this thread, which could run, now and before.
fn yield_and_count() -> i64 {
    std::thread::yield_now();
    // SAFETY: all bytes 0 are a value of this struct of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes to the struct alone. With these arguments it cannot fail.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nivcsw
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Polls for `time` with a switch every `period` looks, and returns how long it polled.
    fn poll(polling: &mut Polling, now: &mut Instant, time: Duration, period: i64) -> Duration {
        let (mut looks, mut polled) = (0, Duration::ZERO);
        for _ in 0..time.as_micros() / LOOK.as_micros() {
            let polls = polling.may_poll(*now, || {
                looks += 1;
                looks / period
            });
            polled += if polls { LOOK } else { Duration::ZERO };
            *now += LOOK;
        }
        polled
    }

    #[test]
    fn a_thread_on_a_busy_processor_rests_ever_longer_and_begins_anew_after_calm() {
        let mut now = Instant::now();
        let mut polling = Polling::new(now);
        let time = Duration::from_secs(10);
        assert_eq!(poll(&mut polling, &mut now, time, i64::MAX), time);
        // A switch now and then is one of the kernel's threads, or of one that wakes for a moment.
        for period in [10, 2] {
            assert_eq!(poll(&mut polling, &mut now, time, period), time);
        }
        let busy = poll(&mut polling, &mut now, time, 1);
        assert!(busy < time / 100, "{busy:?} of polls beside other threads");
        assert_eq!(polling.next_rest, LONGEST_REST);
        let calm = poll(&mut polling, &mut now, time, i64::MAX);
        assert!(calm > time - 2 * LONGEST_REST, "{calm:?} of polls after that");
        assert_eq!(polling.next_rest, FIRST_REST);
    }

    #[test]
    fn the_kernel_counts_the_switches_of_this_thread() {
        let before = yield_and_count();
        assert!(before >= 0 && yield_and_count() >= before);
    }
}
