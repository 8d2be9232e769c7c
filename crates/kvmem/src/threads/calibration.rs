//! *Calibration*: the number of threads that is fastest, measured on the work itself.
//!
//! Two numbers are compared in alternation. The fastest round of each counts, because other work on
//! the machine can only slow a round down.
//!
//! *Registering* begins with one thread, because calls of several can be far slower:
//! [`choose_threads`] doubles the number until that gains nothing, and its caller does the rest.
//!
//! *Populating* begins with all threads, because most machines are fastest then, and a range of
//! half a GiB is populated in 15 ms: while one thread is measured, fifteen others would wait.
//! [`do_windows`] halves the number as long as fewer threads are as fast. Where one number is 15 %
//! faster than the other, one round decides. The rest of the work follows in windows, each a
//! quarter of what remains. Between two of them a number that lost in one round is tried again, and
//! one that is near: a choice made in noise is taken back.

/// The number of rounds in which two numbers of threads are compared.
pub(crate) const ROUNDS: usize = 3;
/// The speed-up that more threads must bring to be used.
const MIN_SPEEDUP: f64 = 1.02;

/// The work on which numbers of threads are compared.
pub(crate) trait ThreadProbe {
    /// Why a round fails.
    type Error;

    /// Returns the number of rounds in which `more` threads are compared with the best number so
    /// far. 0: too little work remains for the comparison.
    fn rounds(&self, more: usize) -> usize;

    /// Does one round with `threads` threads. All rounds of a comparison do the same amount of
    /// work, enough for its larger number, `more`. Returns the speed in GiB/s; `None` if it cannot
    /// be measured.
    fn measure(&mut self, threads: usize, more: usize) -> Result<Option<f64>, Self::Error>;
}

/// Two numbers of threads, each with the speed of its fastest round in GiB/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SpeedComparison {
    pub(crate) fewer_gib_per_s: f64,
    pub(crate) more_threads: usize,
    pub(crate) more_gib_per_s: f64,
}

/// The fastest number of threads, and the comparisons behind it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ThreadChoice {
    pub(crate) threads: usize,
    pub(crate) comparisons: Vec<SpeedComparison>,
}

/// Returns the numbers of threads that are compared with the best so far: 2, 4, … up to `max`.
pub(crate) fn ladder(max: usize) -> impl Iterator<Item = usize> {
    rungs(1, max)
}

/// Returns twice `from`, four times `from`, … up to `max`, and `max` itself.
fn rungs(from: usize, max: usize) -> impl Iterator<Item = usize> {
    let next = move |threads: &usize| (*threads < max).then(|| (2 * threads).min(max));
    std::iter::successors(next(&from), next)
}

/// Compares `start` threads with more, up to `max`. Returns `None` if a round cannot be measured.
///
/// # Errors
/// The first error of the probe.
pub(crate) fn choose_threads<P: ThreadProbe>(
    start: usize,
    max: usize,
    probe: &mut P,
) -> Result<Option<ThreadChoice>, P::Error> {
    let mut choice = ThreadChoice { threads: start, comparisons: Vec::new() };
    for more in rungs(start, max) {
        let rounds = probe.rounds(more);
        if rounds == 0 {
            break;
        }
        let (mut best_speed, mut more_speed) = (0.0f64, 0.0f64);
        for _ in 0..rounds {
            for (threads, speed) in [(choice.threads, &mut best_speed), (more, &mut more_speed)] {
                let Some(measured) = probe.measure(threads, more)? else { return Ok(None) };
                *speed = speed.max(measured);
            }
        }
        choice.comparisons.push(SpeedComparison {
            fewer_gib_per_s: best_speed,
            more_threads: more,
            more_gib_per_s: more_speed,
        });
        if more_speed < best_speed * MIN_SPEEDUP {
            break;
        }
        choice.threads = more;
    }
    Ok(Some(choice))
}

/// A comparison ends when one number is this much faster than the other.
const DECISIVE: f64 = 1.15;
/// Numbers are compared while at least this many times the bytes of a comparison remain.
const WORTH: usize = 4;

/// Work that is done from its beginning to its end, in windows of any length.
pub(crate) trait WindowedWork {
    /// Why a window fails.
    type Error;

    /// Returns the bytes that remain.
    fn remaining(&self) -> usize;

    /// Returns the bytes of a window that is long enough to measure `threads` threads.
    fn sample(&self, threads: usize) -> usize;

    /// Does the next `len` bytes, or all that remain, with `threads` threads. Returns the speed in
    /// GiB/s.
    fn run(&mut self, threads: usize, len: usize) -> Result<f64, Self::Error>;
}

/// A number of threads, and its speed.
#[derive(Clone, Copy)]
struct MeasuredThreads {
    threads: usize,
    /// The fastest round of the comparison; later the last one.
    gib_per_s: f64,
    rounds: usize,
}

impl MeasuredThreads {
    /// Returns whether this number is better: more threads must bring a speed-up.
    fn beats(self, other: MeasuredThreads) -> bool {
        if self.threads > other.threads {
            self.gib_per_s >= other.gib_per_s * MIN_SPEEDUP
        } else {
            self.gib_per_s * MIN_SPEEDUP > other.gib_per_s
        }
    }

    /// Returns whether this number is so much faster that the other need not be tried again.
    fn is_decisively_above(self, other: MeasuredThreads) -> bool {
        self.gib_per_s > other.gib_per_s * DECISIVE
    }

    /// Populates a sample with this number.
    fn sample<W: WindowedWork>(&mut self, work: &mut W) -> Result<f64, W::Error> {
        self.rounds += 1;
        work.run(self.threads, work.sample(self.threads))
    }
}

/// Does all of the work, with at most `max` threads, and with the number that is fastest as soon as
/// that is known.
///
/// # Errors
/// The first error of the work.
pub(crate) fn do_windows<W: WindowedWork>(max: usize, work: &mut W) -> Result<(), W::Error> {
    let unmeasured = |threads| MeasuredThreads { threads, gib_per_s: 0.0, rounds: 0 };
    let mut rungs: Vec<_> = std::iter::once(max).chain(halves(max)).map(unmeasured).collect();
    let mut best = descend(&mut rungs, work)?;
    while work.remaining() > 0 {
        let other = neighbour(&rungs, best);
        let (all, sample) = (work.remaining(), work.sample(rungs[best].threads));
        let window = match other {
            _ if all < 2 * WORTH * sample => all,
            // A choice of one round is checked before much depends on it.
            Some(other) if rungs[other].rounds == 1 => sample,
            _ => (all / 4).max(sample),
        };
        rungs[best].gib_per_s = work.run(rungs[best].threads, window)?;
        let Some(other) = other.or_else(|| neighbour(&rungs, best)) else { continue };
        if work.remaining() >= WORTH * work.sample(rungs[other].threads) {
            rungs[other].gib_per_s = rungs[other].sample(work)?;
            if rungs[other].beats(rungs[best]) {
                best = other;
            }
        }
    }
    Ok(())
}

/// Compares each number of threads with the next, which is half of it, as long as fewer are as
/// fast. Returns the index of the best.
fn descend<W: WindowedWork>(
    rungs: &mut [MeasuredThreads],
    work: &mut W,
) -> Result<usize, W::Error> {
    let mut best = 0;
    while let [more, fewer, ..] = &mut rungs[best..] {
        let both = work.sample(more.threads) + work.sample(fewer.threads);
        for _ in 0..ROUNDS {
            if work.remaining() < WORTH * both {
                break;
            }
            more.gib_per_s = more.sample(work)?.max(more.gib_per_s);
            fewer.gib_per_s = fewer.sample(work)?.max(fewer.gib_per_s);
            if more.is_decisively_above(*fewer) || fewer.is_decisively_above(*more) {
                break;
            }
        }
        if fewer.rounds == 0 || !fewer.beats(*more) {
            break;
        }
        best += 1;
    }
    Ok(best)
}

/// Returns the number to try beside the best: half or twice as many threads, if one round alone has
/// decided against it, or if it is near.
fn neighbour(rungs: &[MeasuredThreads], best: usize) -> Option<usize> {
    let near = |other: &usize| {
        rungs.get(*other).is_some_and(|other| {
            other.rounds == 1 || other.rounds > 1 && !rungs[best].is_decisively_above(*other)
        })
    };
    let both = [best.checked_sub(1), Some(best + 1)].into_iter().flatten().filter(near);
    both.min_by_key(|other| rungs[*other].rounds)
}

/// Returns the powers of two below `max`, the largest first.
fn halves(max: usize) -> impl Iterator<Item = usize> {
    let first = max.next_power_of_two() / 2;
    std::iter::successors((max > 1).then_some(first), |threads| (*threads > 1).then(|| threads / 2))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Seconds between two times at which the kernel renews a quota.
    const PERIOD: f64 = 0.1;

    /// A machine that populates, in virtual time.
    struct Populating<'a> {
        /// GiB/s by number of threads.
        speed: &'a dyn Fn(usize) -> f64,
        /// The window in which the threads are stopped for 20 ms.
        stopped: Option<usize>,
        /// A quota of processors.
        quota: Option<f64>,
        /// What remains of the quota's period, and the processor time spent in it, in seconds.
        period: f64,
        spent: f64,
        remaining: usize,
        seconds: f64,
        windows: usize,
        started: usize,
    }

    impl<'a> Populating<'a> {
        fn new(bytes: usize, speed: &'a dyn Fn(usize) -> f64, stopped: Option<usize>) -> Self {
            Populating {
                speed,
                stopped,
                quota: None,
                period: PERIOD,
                spent: 0.0,
                remaining: bytes,
                seconds: 0.0,
                windows: 0,
                started: 1,
            }
        }

        /// Returns the seconds that `threads` threads take for work of `busy` seconds. When they
        /// have spent the quota of a period of 100 ms, the kernel stops them until the next.
        fn throttled(&mut self, threads: usize, busy: f64) -> f64 {
            let Some(quota) = self.quota else { return busy };
            let (n, mut left, mut took) = (threads as f64, busy, 0.0);
            loop {
                let can = ((quota * PERIOD - self.spent) / n).max(0.0);
                if left <= can.min(self.period) {
                    self.spent += n * left;
                    self.period -= left;
                    return took + left;
                }
                left -= can.min(self.period);
                took += self.period;
                (self.period, self.spent) = (PERIOD, 0.0);
            }
        }
    }

    impl WindowedWork for Populating<'_> {
        type Error = ();

        fn remaining(&self) -> usize {
            self.remaining
        }

        fn sample(&self, threads: usize) -> usize {
            (self.remaining / 64).clamp(threads << 21, 256 << 20)
        }

        fn run(&mut self, threads: usize, len: usize) -> Result<f64, ()> {
            let len = len.min(self.remaining);
            let stopped = if self.stopped == Some(self.windows) { 0.02 } else { 5e-6 };
            let busy = len as f64 / f64::from(1 << 30) / (self.speed)(threads) + stopped;
            let took = self.throttled(threads, busy);
            // A thread starts in 20 µs.
            self.seconds += took + threads.saturating_sub(self.started) as f64 * 2e-5;
            self.started = self.started.max(threads);
            self.windows += 1;
            self.remaining -= len;
            Ok(len as f64 / f64::from(1 << 30) / took)
        }
    }

    /// Returns the seconds of the best fixed number of threads over those of `do_windows`.
    fn share_of_best(bytes: usize, cores: usize, speed: &dyn Fn(usize) -> f64) -> f64 {
        let mut work = Populating::new(bytes, speed, None);
        do_windows(cores, &mut work).unwrap();
        assert_eq!(work.remaining, 0);
        let fixed = std::iter::once(cores).chain(halves(cores)).map(|threads| {
            let mut work = Populating::new(bytes, speed, None);
            work.run(threads, bytes).unwrap();
            work.seconds
        });
        fixed.fold(f64::INFINITY, f64::min) / work.seconds
    }

    #[test]
    fn halves_are_powers_of_two() {
        let all = |max| halves(max).collect::<Vec<_>>();
        assert_eq!((all(1), all(2), all(3)), (vec![], vec![1], vec![2, 1]));
        assert_eq!(all(16), [8, 4, 2, 1]);
        assert_eq!(all(24), [16, 8, 4, 2, 1]);
    }

    #[test]
    fn sixteen_cores_reach_nine_tenths_of_the_best_fixed_number() {
        // Measured on 16 cores: 4.61, 7.51 and 14.03 GiB/s of THP with 1, 2 and 4 threads; the
        // bandwidth of the memory ends the growth somewhere.
        let thp = |bound: f64| move |threads: usize| (4.61 * threads as f64 * 0.8).min(bound);
        for bound in [7.0, 14.0, 25.0, 60.0] {
            for gib in [0.5, 2.0, 32.0] {
                let bytes = (gib * f64::from(1 << 30)) as usize;
                let share = share_of_best(bytes, 16, &thp(bound));
                assert!(share >= 0.9, "{gib} GiB, at most {bound} GiB/s: {share}");
            }
        }
        // A lock in the kernel: more than 4 threads are slower.
        let lock = |threads: usize| [1.0, 1.9, 3.0, 2.6, 1.9][threads.ilog2() as usize];
        assert!(share_of_best(1 << 29, 16, &lock) >= 0.9);
        // The pages come from the host, at its own pace.
        assert!(share_of_best(1 << 29, 16, &|_| 2.0) >= 0.97);
    }

    #[test]
    fn a_choice_made_in_noise_is_taken_back() {
        // Others stopped the threads of one round of the comparison, whichever it was.
        let doubles = |threads: usize| threads as f64;
        for noisy in 0..8 {
            for cores in [2, 16] {
                let mut work = Populating::new(4 << 30, &doubles, Some(noisy));
                do_windows(cores, &mut work).unwrap();
                let share = (4.0 / doubles(cores) + 0.02) / work.seconds;
                assert!(share >= 0.85, "{cores} cores, window {noisy}: {share}");
            }
        }
    }

    #[test]
    fn a_quota_of_one_and_a_half_processors_is_used_up() {
        // Measured on two cores: base pages, and huge ones.
        for (one, gib) in [(3.0, 0.5), (3.0, 2.0), (10.5, 2.0), (10.5, 32.0)] {
            let speed = |threads: usize| one * threads as f64;
            let bytes = (gib * f64::from(1 << 30)) as usize;
            let (mut shares, phases) = (0.0, 40);
            for phase in 0..phases {
                let seconds = |work: &dyn Fn(&mut Populating<'_>)| {
                    let mut populating = Populating::new(bytes, &speed, None);
                    populating.quota = Some(1.5);
                    populating.period = PERIOD * f64::from(phase + 1) / f64::from(phases);
                    work(&mut populating);
                    populating.seconds
                };
                let fixed = |threads| seconds(&|work| _ = work.run(threads, bytes));
                let chosen = seconds(&|work| do_windows(2, work).unwrap());
                shares += fixed(1).min(fixed(2)) / chosen / f64::from(phases);
            }
            assert!(shares >= 0.9, "{gib} GiB at {one} GiB/s a thread: {shares}");
        }
    }

    proptest! {
        #[test]
        fn any_machine_comes_near_its_best(
            gib in 0.5f64..64.0,
            (cores, peak) in (1u32..5).prop_flat_map(|log| (Just(1usize << log), 0..=log)),
            gain in 1.0f64..2.0,
            loss in 0.75f64..1.0,
        ) {
            let speed = |threads: usize| {
                let log = threads.ilog2();
                4.0 * gain.powi(log.min(peak) as i32) * loss.powi(log.saturating_sub(peak) as i32)
            };
            let share = share_of_best((gib * f64::from(1 << 30)) as usize, cores, &speed);
            // In a short range, a sample of 16 threads is a part that counts. Where each further
            // thread is a loss, all samples are.
            prop_assert!(share >= if gib < 2.0 { 0.75 } else { 0.88 }, "{}", share);
        }
    }

    /// The speed of each number of threads, with a slow first round.
    struct Machine {
        speed: fn(usize) -> f64,
        /// Comparisons that the work suffices for.
        comparisons: usize,
        log: Vec<usize>,
    }

    impl ThreadProbe for Machine {
        type Error = ();

        fn rounds(&self, _more: usize) -> usize {
            if self.log.len() < self.comparisons * 2 * ROUNDS { ROUNDS } else { 0 }
        }

        fn measure(&mut self, threads: usize, _more: usize) -> Result<Option<f64>, ()> {
            let slow = self.log.len().is_multiple_of(2 * ROUNDS);
            self.log.push(threads);
            let speed = (self.speed)(threads);
            Ok((speed > 0.0).then_some(if slow { speed / 10.0 } else { speed }))
        }
    }

    fn choose(start: usize, max: usize, speed: fn(usize) -> f64, comparisons: usize) -> Machine {
        let mut machine = Machine { speed, comparisons, log: Vec::new() };
        let choice = choose_threads(start, max, &mut machine);
        machine.log.push(choice.unwrap().map_or(0, |choice| choice.threads));
        machine
    }

    #[test]
    fn the_ladder_doubles_up_to_the_largest_number() {
        let all = |max| ladder(max).collect::<Vec<_>>();
        assert!(all(0).is_empty() && all(1).is_empty());
        assert_eq!(all(2), [2]);
        assert_eq!(all(6), [2, 4, 6]);
        assert_eq!(all(8), [2, 4, 8]);
    }

    #[test]
    fn doubling_ends_when_it_gains_nothing() {
        let chosen = |start, max, speed, comparisons| {
            choose(start, max, speed, comparisons).log.pop().expect("the choice")
        };
        assert_eq!(chosen(1, 8, |threads| threads as f64, 9), 8);
        assert_eq!(chosen(1, 6, |threads| threads as f64, 9), 6);
        assert_eq!(chosen(1, 8, |threads| threads.min(4) as f64, 9), 4);
        assert_eq!(chosen(1, 8, |_| 1.0, 9), 1);
        assert_eq!(chosen(1, 8, |threads| 1.0 + threads as f64 / 100.0, 9), 1, "1 % is no gain");
        assert_eq!(chosen(1, 8, |threads| threads as f64, 2), 4, "the work ended");
        assert_eq!(chosen(8, 8, |threads| threads as f64, 9), 8, "there is nothing to compare");
        assert_eq!(chosen(1, 8, |threads| if threads < 4 { 1.0 } else { 0.0 }, 9), 1);
        assert_eq!(chosen(1, 8, |threads| if threads < 4 { threads as f64 } else { 0.0 }, 9), 0);
    }

    #[test]
    fn two_numbers_take_turns() {
        let machine = choose(1, 4, |threads| threads as f64, 9);
        assert_eq!(machine.log, [1, 2, 1, 2, 1, 2, 2, 4, 2, 4, 2, 4, 4]);
    }
}
