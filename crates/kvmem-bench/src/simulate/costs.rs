//! *Costs* of the model, in picoseconds of virtual time.

/// Picoseconds in a nanosecond.
pub(super) const NS: u64 = 1_000;

/// One turn of a waiting loop: the pause instruction.
pub(super) const PAUSE: u64 = 13 * NS;
/// From one look at an answer to the next: four pauses, and one of the backoff.
pub(super) const LOOK: u64 = 5 * PAUSE;
/// A call of the kernel that yields the processor when no other thread wants it.
pub(super) const YIELD: u64 = 300 * NS;
/// A sleep of 50 µs, and what the kernel's timer adds.
pub(super) const NAP: u64 = 105_000 * NS;
/// Turns of a waiting loop before it yields, and before it sleeps.
pub(super) const SPINS: u64 = 100;
pub(super) const SPINS_AND_YIELDS: u64 = 150;

/// A call that a magazine serves.
pub(super) const HIT: u64 = 8 * NS;

/// What a call and a transfer cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    /// A cache line, from one core to another.
    pub(super) line: u64,
    /// Lines of metadata that a call on another core than the last one fetches, one after another.
    pub(super) metadata_lines: u64,
    /// From the end of a call to the begin of the next call of the same thread.
    pub(super) think: u64,
}

/// Returns when turn `turn` of a waiting loop with turns of `spin` picoseconds begins, counted from
/// the begin of the loop.
pub(super) fn turn_time(spin: u64, turn: u64) -> u64 {
    let spins = turn.min(SPINS);
    let yields = turn.clamp(SPINS, SPINS_AND_YIELDS) - SPINS;
    let naps = turn.max(SPINS_AND_YIELDS) - SPINS_AND_YIELDS;
    spins * spin + yields * (spin - PAUSE + YIELD) + naps * (spin - PAUSE + NAP)
}

/// Returns the first moment, counted from the begin of the loop, at or after `elapsed` at which a
/// waiting loop looks again.
pub(super) fn next_look(spin: u64, elapsed: u64) -> u64 {
    let yields = turn_time(spin, SPINS);
    let naps = turn_time(spin, SPINS_AND_YIELDS);
    let (from, step) = match elapsed {
        _ if elapsed <= yields => (0, spin),
        _ if elapsed <= naps => (yields, spin - PAUSE + YIELD),
        _ => (naps, spin - PAUSE + NAP),
    };
    from + (elapsed - from).next_multiple_of(step)
}

/// Returns whether a waiting loop still spins after `elapsed`.
pub(super) fn is_spinning(elapsed: u64) -> bool {
    elapsed < turn_time(PAUSE, SPINS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_become_rare() {
        for spin in [PAUSE, LOOK] {
            for turn in [0, 1, 99, 100, 101, 149, 150, 151, 170] {
                let at = turn_time(spin, turn);
                assert_eq!(next_look(spin, at), at, "turn {turn}");
                assert_eq!(next_look(spin, at + 1), turn_time(spin, turn + 1), "turn {turn}");
            }
        }
        assert!(is_spinning(1_299 * NS) && !is_spinning(1_300 * NS));
        assert_eq!(turn_time(PAUSE, 151) - turn_time(PAUSE, 150), NAP);
    }
}
