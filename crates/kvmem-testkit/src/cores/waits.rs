//! *Waits*: the places of a program at which cores wait for lines of other cores, or pause.
//!
//! A place is a chain of calls. It is taken when a core first waits at a block of instructions and
//! a depth of the stack, which costs microseconds of real time, and no virtual time.

use std::backtrace::Backtrace;
use std::cell::RefCell;
use std::collections::HashMap;

/// Calls of a place, the innermost one first.
const CALLS: usize = 4;

/// Waits at one place, for each unit that the threads counted.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitPlace {
    /// Files and lines of the innermost calls.
    pub place: String,
    /// Lines that came from other cores, or that other cores had to give up; 0 where threads pause.
    pub lines: f64,
    /// Nanoseconds until they came, or of the pauses. Those of stores pass while the core goes on.
    pub ns: f64,
}

/// The block of instructions, and the depth of the stack.
pub(super) type Site = (u32, usize);

struct Wait {
    lines: u64,
    picoseconds: u64,
    calls: Backtrace,
}

thread_local! {
    /// `None` while no waits are recorded.
    static WAITS: RefCell<Option<HashMap<Site, Wait>>> = const { RefCell::new(None) };
}

/// Records waits on this thread of the system from now on, while the threads count.
pub fn record_waits() {
    WAITS.set(Some(HashMap::new()));
}

/// Records a wait, if waits are recorded.
pub(super) fn record(site: Site, picoseconds: u64, is_line: bool) {
    WAITS.with_borrow_mut(|waits| {
        let Some(waits) = waits else { return };
        let calls = || Wait { lines: 0, picoseconds: 0, calls: Backtrace::force_capture() };
        let wait = waits.entry(site).or_insert_with(calls);
        wait.lines += u64::from(is_line);
        wait.picoseconds += picoseconds;
    });
}

/// Returns the places by the time of their waits, divided by `count`, and forgets them.
pub(super) fn take(count: u64) -> Vec<WaitPlace> {
    let waits = WAITS.with_borrow_mut(|waits| waits.as_mut().map(std::mem::take));
    let mut places: HashMap<String, WaitPlace> = HashMap::new();
    let count = count.max(1) as f64;
    for Wait { lines, picoseconds, calls } in waits.into_iter().flatten().map(|(_, wait)| wait) {
        let place = innermost(&calls.to_string());
        let empty = WaitPlace { place: place.clone(), lines: 0.0, ns: 0.0 };
        let sum = places.entry(place).or_insert(empty);
        sum.lines += lines as f64 / count;
        sum.ns += picoseconds as f64 / 1e3 / count;
    }
    let mut places: Vec<WaitPlace> = places.into_values().collect();
    places.sort_by(|a, b| b.ns.total_cmp(&a.ns).then_with(|| a.place.cmp(&b.place)));
    places
}

/// Returns the files and lines of the innermost calls of the program, or the functions whose lines
/// are unknown. The text has a line for each function, and then one for its place.
fn innermost(calls: &str) -> String {
    let mut lines = calls.lines().map(str::trim).peekable();
    let mut places: Vec<String> = Vec::new();
    while let (Some(line), true) = (lines.next(), places.len() < CALLS) {
        let Some((_, function)) = line.split_once(": ") else { continue };
        let at = lines.next_if(|line| line.starts_with("at "));
        let at = at.and_then(|at| at.rsplit_once(':')).map(|(place, _column)| place);
        let is_other = match at {
            Some(at) => !at.contains("/src/") || OTHERS.iter().any(|other| at.contains(other)),
            None => !function.starts_with("kvmem::") && !function.starts_with("<kvmem::"),
        };
        if !is_other {
            let short = at.map(|at| at.rsplit_once("/src/").map_or(at, |(_, file)| file));
            places.push(short.unwrap_or(function).to_owned());
        }
    }
    places.join(" < ")
}

/// Parts of the paths of files whose calls no place has: the simulation, and other crates.
const OTHERS: [&str; 4] = ["kvmem-testkit/", "sync/simulated.rs", "/library/", "/registry/"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_the_innermost_calls_of_the_library() {
        let calls = "   0: kvmem_testkit::access\n             at ./kvmem-testkit/src/a.rs:3:4\n   \
                     1: kvmem::sync::simulated::atomics::AtomicU64::charge\n             at \
                     ./crates/kvmem/src/sync/simulated.rs:1:1\n   2: kvmem::a::b\n             at \
                     ./crates/kvmem/src/a/b.rs:17:9\n   3: core::ops::call\n   4: <kvmem::c::D as \
                     E>::f\n   5: kvmem_lab::main\n             at ./lab/src/main.rs:8:1\n";
        assert_eq!(innermost(calls), "a/b.rs:17 < <kvmem::c::D as E>::f < main.rs:8");
    }

    #[test]
    fn waits_at_a_place_are_added_up() {
        assert_eq!(take(1), []);
        record((1, 1), 5, true);
        record_waits();
        for (site, time, is_line) in
            [((1, 1), 7_000, true), ((1, 2), 9_000, true), ((1, 1), 4_000, false)]
        {
            record(site, time, is_line);
        }
        let places = take(2);
        assert_eq!(places.iter().map(|place| place.lines).sum::<f64>(), 1.0);
        assert_eq!(places.iter().map(|place| place.ns).sum::<f64>(), 10.0);
        assert_eq!(take(1), [], "a second look finds them again");
        WAITS.set(None);
    }
}
