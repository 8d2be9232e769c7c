//! *Cores*: threads on simulated cores, in virtual time.
//!
//! Each simulated thread is a coroutine with a core and a clock of its own. The one with the
//! smallest clock runs. The library reports its accesses, and each takes time:
//!
//! 1. *Work.* Each load, each store and each block of instructions takes [`CoreCosts::step`]. A
//!    block that neither the block before it nor the last six were followed by when they were last
//!    entered was *mispredicted*, and takes more.
//! 2. *Lines.* The caches hold copies of lines of 64 bytes. A core that has the line goes on. A
//!    line that another core wrote last takes a *request*, during which the writer still has it,
//!    and a *handoff*, which one core after the other gets. A core has a line for at least the time
//!    of a request. Any other line takes a *fetch*. A core holds [`CACHE_LINES`] lines; a line in
//!    excess replaces another one.
//! 3. *Writes.* A write takes the line from all other cores. A store does not wait for its line:
//!    no other core sees it, or a later store of the core, before the line has come. A
//!    read-modify-write waits for its line, and for all stores before it.
//!
//! A core that has its lines runs ahead of the others by at most [`CoreCosts::slack`]. An access
//! that another core takes part in happens in the order of the clocks. Handoffs and pauses take a
//! quarter more or less, by a generator with a fixed seed: otherwise cores can meet in the same
//! order for ever. Nothing depends on addresses or real time, so equal programs take equal times.
//!
//! Not modelled: the cost of instructions that differ, translation of addresses, bandwidth and
//! topology, fetches that overlap, several threads on a core, and atomics that the library takes
//! from the standard library, whose loads and stores alone are reported.
//!
//! Compiled under `--cfg kvmem_simulated` only, with the compiler's reports for the crates `kvmem`
//! and `kvmem-lab` (`xtask/rustc/simulated`). This crate is compiled without them.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

mod waits;

pub use self::waits::{WaitPlace, record_waits};

/// The largest number of cores.
pub const MAX_CORES: usize = 64;
/// Lines that a core's own caches hold: 2 MiB.
pub const CACHE_LINES: usize = 1 << 15;

const LINE_BYTES_LOG2: u32 = 6;
/// Entries of the table by which a core finds most of its lines at once.
const FILTER: usize = 1 << 12;
/// Entries of each of the two tables by which a core predicts the next block.
const PREDICTIONS: usize = 1 << 13;
const STACK_BYTES: usize = 256 << 10;

/// What takes how long, in picoseconds.
#[derive(Clone, Copy, Debug)]
pub struct CoreCosts {
    /// A load, a store, or the entry of a block of instructions.
    pub step: u64,
    /// The entry of a block that was not predicted, beyond that.
    pub mispredicted: u64,
    /// A read-modify-write or a fence, without waits.
    pub change: u64,
    /// A line that no other core wrote last.
    pub fetch: u64,
    /// From the miss of a line that another core has written until that core loses it, and how long
    /// a core has a line at least.
    pub request: u64,
    /// From then on until the line has come.
    pub handoff: u64,
    /// A pause of a thread that spins.
    pub pause: u64,
    /// A system call.
    pub system_call: u64,
    /// How far a core may run ahead.
    pub slack: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Load,
    Store,
    Change,
}

/// A line of the simulated memory.
#[derive(Default)]
struct Line {
    /// In the order of the first accesses.
    number: usize,
    /// A bit for each core that has a copy.
    holders: u64,
    /// The only holder has changed its copy.
    dirty: bool,
    /// When its latest transfer ends.
    free_at: u64,
    /// When the last of the cores that wait to change it will have had it for the time of a
    /// request.
    booked: u64,
}

struct Core {
    clock: u64,
    /// When all stores so far can be seen.
    drained: u64,
    /// Address and right to write of lines that the core has, by address.
    filter: Box<[u64; FILTER]>,
    /// The lines that the core has, by number.
    cached: Box<[u64]>,
    /// The latest blocks of instructions, six bits or more of each.
    blocks: u64,
    /// The block that followed the last one, and that which followed the last six, by their hashes.
    predictions: Box<[[u32; PREDICTIONS]; 2]>,
    yielder: *const Yielder<(), ()>,
    /// An address near the start of the thread's stack.
    stack: usize,
}

impl Core {
    /// Enters a block of instructions; returns whether it was predicted.
    fn enter(&mut self, block: u32) -> bool {
        let long = self.blocks.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 51;
        let short = (self.blocks & 0xffff_ffff).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 51;
        let tables = self.predictions.iter_mut().zip([short, long]);
        let predicted = tables.fold(false, |predicted, (table, at)| {
            std::mem::replace(&mut table[at as usize % PREDICTIONS], block) == block || predicted
        });
        // The upper half has a hash of the five blocks before the last one.
        let older = (self.blocks >> 32 << 6) ^ (self.blocks & 0xffff_ffff);
        self.blocks = older << 32 | u64::from(block);
        predicted
    }
}

/// Multiplies: the keys are numbers of lines.
#[derive(Default)]
struct LineHasher(u64);

impl Hasher for LineHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64");
    }

    fn write_u64(&mut self, line: u64) {
        self.0 = line.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

struct Machine {
    costs: CoreCosts,
    cores: Vec<Core>,
    running: usize,
    /// The cores that wait to go on, by their clocks.
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    /// The clock at which the running core lets the next one go on.
    deadline: u64,
    lines: HashMap<u64, Line, BuildHasherDefault<LineHasher>>,
    /// Cores at the barrier.
    met: usize,
    /// The sum of all numbers that the threads passed to `count`.
    count: u64,
    /// The state of the generator.
    random: u64,
}

/// A thread's value: its key, the value, and what ends it.
type Local = (*const (), *mut (), unsafe fn(*mut ()));

thread_local! {
    /// Whether accesses take time now.
    static COUNTS: Cell<bool> = const { Cell::new(false) };
    /// The number of cores that the program sees.
    static PROCESSORS: Cell<usize> = const { Cell::new(1) };
    /// The running core, if one runs.
    static CORE: Cell<Option<usize>> = const { Cell::new(None) };
    static MACHINE: RefCell<Option<Machine>> = const { RefCell::new(None) };
    /// The values of each simulated thread, and last those of the thread of the system, which live
    /// as long as the process.
    static LOCALS: RefCell<[Vec<Local>; MAX_CORES + 1]> =
        const { RefCell::new([const { Vec::new() }; MAX_CORES + 1]) };
}

impl Machine {
    fn new(costs: CoreCosts, cores: usize) -> Machine {
        let core = |_| Core {
            clock: 0,
            drained: 0,
            filter: Box::new([u64::MAX; FILTER]),
            cached: vec![u64::MAX; CACHE_LINES].into(),
            blocks: 0,
            predictions: Box::new([[0; PREDICTIONS]; 2]),
            yielder: std::ptr::null(),
            stack: 0,
        };
        Machine {
            costs,
            cores: (0..cores).map(core).collect(),
            running: 0,
            queue: (0..cores).map(|core| Reverse((0, core))).collect(),
            deadline: 0,
            lines: HashMap::default(),
            met: 0,
            count: 0,
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Makes the core with the smallest clock the running one.
    fn next(&mut self) -> Option<usize> {
        let Reverse((_, core)) = self.queue.pop()?;
        self.running = core;
        let other = self.queue.peek().map_or(u64::MAX, |Reverse((clock, _))| *clock);
        self.deadline = other.saturating_add(self.costs.slack);
        Some(core)
    }

    fn here(&mut self) -> &mut Core {
        &mut self.cores[self.running]
    }

    /// Puts the running core into the queue if another one comes first.
    fn lets_others_go(&mut self) -> bool {
        let clock = self.cores[self.running].clock;
        let lets = self.queue.peek().is_some_and(|Reverse((other, _))| *other < clock);
        if lets {
            self.queue.push(Reverse((clock, self.running)));
        }
        lets
    }

    /// Makes an access that no other core takes part in, and returns true; or returns false.
    #[inline]
    fn hit(&mut self, line: u64, access: Access) -> bool {
        let costs = self.costs;
        let core = &mut self.cores[self.running];
        core.clock += costs.step;
        let entry = core.filter[line as usize % FILTER];
        let owned = line << 1 | 1;
        match access {
            Access::Load if entry | 1 == owned => true,
            Access::Store if entry == owned && core.drained <= core.clock => true,
            _ => {
                let me = 1 << self.running;
                let Some(of) = self.lines.get(&line) else { return false };
                let alone = of.holders == me;
                let had = of.holders & me != 0 && (access == Access::Load || alone);
                if access == Access::Store && alone && of.dirty && core.drained <= core.clock {
                    // As if the filter had it: times must not depend on addresses.
                    core.filter[line as usize % FILTER] = owned;
                } else if had {
                    self.take(line, access);
                }
                had
            }
        }
    }

    /// Returns about this time, a quarter more or less.
    fn about(&mut self, time: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        time - time / 4 + (self.random >> 33) % (time / 2 + 1)
    }

    /// Advances the clock to when the core that has the line lets it go, and the cores that came
    /// before this one have changed it. Cores that load share it.
    fn queue_for(&mut self, line: u64, access: Access) {
        let CoreCosts { request, handoff, .. } = self.costs;
        if let Some(of) = self.lines.get_mut(&line) {
            let clock = &mut self.cores[self.running].clock;
            *clock = (*clock).max(of.booked).max(of.free_at + request);
            if access != Access::Load {
                of.booked = *clock + handoff + request;
            }
        }
    }

    /// Returns whether another core has changed the line last, or a write has to invalidate it.
    fn is_contended(&self, line: u64, access: Access) -> bool {
        let me = 1 << self.running;
        let others = |of: &Line| of.holders & !me != 0 && (of.dirty || access != Access::Load);
        access != Access::Store && self.lines.get(&line).is_some_and(others)
    }

    /// Makes an access; the core has waited for its turn. Returns when it is done, if other cores
    /// had the line.
    fn take(&mut self, line: u64, access: Access) -> Option<u64> {
        let (mut costs, running) = (self.costs, self.running);
        let me = 1u64 << running;
        // Only a handoff draws, and not the hits, of which a filter has some.
        let hands_off = |of: &Line| {
            let is_load = access == Access::Load;
            of.holders & !me != 0 && (!is_load || of.dirty && of.holders & me == 0)
        };
        if self.lines.get(&line).is_some_and(hands_off) {
            costs.handoff = self.about(costs.handoff);
        }
        let next = self.lines.len();
        let of = self.lines.entry(line).or_insert_with(|| Line { number: next, ..Line::default() });
        let core = &mut self.cores[running];
        let had = of.holders & me != 0;
        if access == Access::Change {
            core.clock = core.clock.max(core.drained) + costs.change;
        }
        let from = core.clock.max(of.free_at);
        let others = of.holders & !me;
        // When the access is done.
        let mut done = core.clock;
        match access {
            Access::Load if had => {}
            Access::Load if others != 0 && of.dirty => {
                done = from + costs.handoff;
                (of.free_at, of.dirty) = (done, false);
                let owner = others.trailing_zeros() as usize;
                forget(&mut self.cores[owner], line);
            }
            Access::Load => done = from + costs.fetch,
            _ if others != 0 => {
                done = from + costs.handoff;
                of.free_at = done;
                of.holders = 0;
                let mut others = others;
                while others != 0 {
                    forget(&mut self.cores[others.trailing_zeros() as usize], line);
                    others &= others - 1;
                }
            }
            _ if had => {}
            _ => done = from + costs.fetch,
        }
        of.holders |= me;
        of.dirty |= access != Access::Load;
        let core = &mut self.cores[running];
        if access == Access::Store {
            core.drained = core.drained.max(done);
            // Seen after all earlier stores.
            of.free_at = of.free_at.max(core.drained);
        } else {
            core.clock = done;
        }
        // Only a holder that is the only one may write.
        let writes = of.dirty && of.holders == me;
        core.filter[line as usize % FILTER] = line << 1 | u64::from(writes);
        let number = of.number;
        if !had {
            self.replace(line, number);
        }
        let travels = if access == Access::Load { !had } else { true };
        (others != 0 && travels).then_some(done)
    }

    /// Records a wait for a line, or a pause, if the threads count. `here` is an address in the
    /// frame of the function that the running thread called.
    fn record<T>(&mut self, here: *const T, picoseconds: u64, is_line: bool) {
        if self.count > 0 {
            let core = self.here();
            let site = (core.blocks as u32, core.stack.wrapping_sub(here.addr()));
            waits::record(site, picoseconds, is_line);
        }
    }

    /// Puts a line among those that the running core has, in the place of another one.
    fn replace(&mut self, line: u64, number: usize) {
        let core = &mut self.cores[self.running];
        let old = std::mem::replace(&mut core.cached[number % CACHE_LINES], line);
        if old == line || old == u64::MAX {
            return;
        }
        forget(core, old);
        if let Some(old) = self.lines.get_mut(&old) {
            let me = 1 << self.running;
            old.dirty &= old.holders & me == 0;
            old.holders &= !me;
        }
    }
}

/// Takes a line out of a core's filter.
fn forget(core: &mut Core, line: u64) {
    let entry = &mut core.filter[line as usize % FILTER];
    if *entry >> 1 == line {
        *entry = u64::MAX;
    }
}

/// Runs `what` on the machine; nothing that it does takes time.
fn on_machine<T>(what: impl FnOnce(&mut Machine) -> T) -> Option<T> {
    MACHINE.with_borrow_mut(|machine| machine.as_mut().map(what))
}

/// Suspends the running core, which waits in the queue or at the barrier.
fn suspend() {
    let yielder = on_machine(|machine| machine.here().yielder);
    if let Some(yielder) = yielder {
        // SAFETY: the running coroutine has stored its yielder, which lives as long as it does.
        unsafe { (*yielder).suspend(()) };
    }
}

/// Lets other cores go on until this one comes first.
fn settle() {
    if on_machine(Machine::lets_others_go) == Some(true) {
        suspend();
    }
}

/// Runs `what` unless it is called from within the simulation itself.
#[inline]
fn counted(what: impl FnOnce()) {
    if COUNTS.get() {
        COUNTS.set(false);
        what();
        COUNTS.set(true);
    }
}

fn access(address: usize, access: Access) {
    counted(|| {
        let line = (address >> LINE_BYTES_LOG2) as u64;
        let hit = on_machine(|machine| {
            let hit = machine.hit(line, access);
            (hit, !hit || machine.here().clock > machine.deadline)
        });
        let (hit, settles) = hit.unwrap_or((true, false));
        if settles {
            settle();
        }
        if hit {
            return;
        }
        let missed = on_machine(|machine| {
            let (contended, clock) = (machine.is_contended(line, access), machine.here().clock);
            machine.here().clock += if contended { machine.costs.request } else { 0 };
            (contended, clock)
        });
        let (contended, clock) = missed.unwrap_or_default();
        if contended {
            settle();
            on_machine(|machine| machine.queue_for(line, access));
            settle();
        }
        on_machine(|machine| {
            if let Some(done) = machine.take(line, access) {
                machine.record(&raw const access, done - clock, true);
            }
        });
        settle();
    });
}

fn wait(time: impl Fn(&mut Machine) -> u64, is_pause: bool) {
    counted(|| {
        on_machine(|machine| {
            let time = time(machine);
            machine.here().clock += time;
            if is_pause {
                machine.record(&raw const is_pause, time, false);
            }
        });
        settle();
    });
}

/// Lets this thread work for some time without an access.
pub fn work(picoseconds: u64) {
    wait(|_| picoseconds, false);
}

/// Lets this thread pause once, as one that spins does.
pub fn pause() {
    wait(|machine| machine.about(machine.costs.pause), true);
}

/// Charges for a read-modify-write that the library or its caller makes with an atomic of the
/// standard library.
pub fn change<T>(word: *const T) {
    access(word.addr(), Access::Change);
}

/// Returns the virtual time of this thread in nanoseconds; 0 on no simulated core.
pub fn now() -> u64 {
    on_machine(|machine| machine.here().clock / 1000).unwrap_or(0)
}

/// Adds to a count that all threads share, in no time; returns the sum.
pub fn count(more: u64) -> u64 {
    let add = |machine: &mut Machine| {
        machine.count += more;
        machine.count
    };
    on_machine(add).unwrap_or(0)
}

/// Returns the places at which cores have waited for lines, or paused, while the threads counted,
/// the longest waits first, and forgets them. Times and numbers are those of a unit of the sum
/// `count`.
pub fn take_waits(count: u64) -> Vec<WaitPlace> {
    waits::take(count)
}

/// Waits until every thread is here; all clocks then show the same time.
pub fn meet() {
    let counts = COUNTS.replace(false);
    let waits = on_machine(|machine| {
        machine.met += 1;
        if machine.met < machine.cores.len() {
            return true;
        }
        machine.met = 0;
        let latest = machine.cores.iter().map(|core| core.clock.max(core.drained)).max();
        for (number, core) in machine.cores.iter_mut().enumerate() {
            core.clock = latest.unwrap_or(0);
            machine.queue.push(Reverse((core.clock, number)));
        }
        true
    });
    if waits == Some(true) {
        suspend();
    }
    COUNTS.set(counts);
}

/// Lets all that follows on this thread take no time.
pub fn stop_counting() {
    COUNTS.set(false);
}

/// Sets the number of processors that the program sees from now on, also before it
/// [runs](run).
pub fn set_processors(cores: usize) {
    PROCESSORS.set(cores);
}

/// Runs `threads`, each on a core of its own, and returns the sum of what they [`count`]. No thread
/// may end before all others have come to their last [`meet`].
///
/// # Panics
///
/// If one of them does, or if there are more than [`MAX_CORES`].
pub fn run(costs: &CoreCosts, threads: Vec<Box<dyn FnOnce() + '_>>) -> u64 {
    assert!(threads.len() <= MAX_CORES, "{} threads on {MAX_CORES} cores", threads.len());
    let machine = Machine::new(*costs, threads.len());
    assert!(MACHINE.replace(Some(machine)).is_none(), "one simulation at a time");
    let _ends = Ends;
    let mut coroutines = Vec::with_capacity(threads.len());
    for (number, thread) in threads.into_iter().enumerate() {
        let stack = DefaultStack::new(STACK_BYTES).expect("memory for a stack");
        let body = move |yielder: &Yielder<(), ()>, ()| {
            let stack = (&raw const number).addr();
            on_machine(|machine| {
                let core = machine.here();
                (core.yielder, core.stack) = (yielder, stack);
            });
            COUNTS.set(true);
            thread();
            COUNTS.set(false);
            end_locals(number);
        };
        // SAFETY: the coroutine has ended, or is dropped, before this function returns, and so
        // before what the thread borrows.
        coroutines.push(unsafe {
            Coroutine::<(), (), (), DefaultStack>::with_stack_unchecked(stack, body)
        });
    }
    while let Some(core) = on_machine(Machine::next).flatten() {
        CORE.set(Some(core));
        let result = coroutines[core].resume(());
        CORE.set(None);
        debug_assert!(!COUNTS.get() || matches!(result, CoroutineResult::Return(())));
    }
    assert!(coroutines.iter().all(Coroutine::done), "a thread ended before all had met");
    count(0)
}

/// Ends the simulation.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        COUNTS.set(false);
        CORE.set(None);
        drop(MACHINE.take());
    }
}

fn end_locals(thread: usize) {
    // The last one first, and one after the other: the end of a value may look for another one.
    while let Some((_, value, end)) = LOCALS.with_borrow_mut(|locals| locals[thread].pop()) {
        // SAFETY: `make` returned the two together, and no other code has the value.
        unsafe { end(value) };
    }
}

#[unsafe(no_mangle)]
fn kvmem_simulated_change(at: *const ()) {
    if at.is_null() {
        return counted(|| {
            on_machine(|machine| {
                let change = machine.costs.change;
                let core = machine.here();
                core.clock = core.clock.max(core.drained) + change;
            });
            settle();
        });
    }
    change(at);
}

#[unsafe(no_mangle)]
fn kvmem_simulated_wait(nanoseconds: u64) {
    wait(|_| nanoseconds.saturating_mul(1000), true);
}

#[unsafe(no_mangle)]
fn kvmem_simulated_pause() {
    pause();
}

#[unsafe(no_mangle)]
fn kvmem_simulated_system_call() {
    wait(|machine| machine.costs.system_call, true);
}

#[unsafe(no_mangle)]
fn kvmem_simulated_now() -> u64 {
    now()
}

#[unsafe(no_mangle)]
fn kvmem_simulated_processors() -> usize {
    PROCESSORS.get()
}

#[unsafe(no_mangle)]
fn kvmem_simulated_core() -> u32 {
    CORE.get().unwrap_or(0) as u32
}

#[unsafe(no_mangle)]
fn kvmem_simulated_local(
    key: *const (),
    make: &dyn Fn() -> (*mut (), unsafe fn(*mut ())),
) -> *mut () {
    let thread = CORE.get().unwrap_or(MAX_CORES);
    let found = LOCALS.with_borrow(|locals| {
        locals[thread].iter().find(|(of, ..)| *of == key).map(|(_, value, _)| *value)
    });
    found.unwrap_or_else(|| {
        let (value, end) = make();
        LOCALS.with_borrow_mut(|locals| locals[thread].push((key, value, end)));
        value
    })
}

/// Defines the functions that the compiler calls before each load and each store.
macro_rules! reports {
    ($($load:ident $store:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $load(at: *const u8) {
                access(at.addr(), Access::Load);
            }

            #[unsafe(no_mangle)]
            extern "C" fn $store(at: *const u8) {
                access(at.addr(), Access::Store);
            }
        )*
    };
}

reports! {
    __sanitizer_cov_load1 __sanitizer_cov_store1
    __sanitizer_cov_load2 __sanitizer_cov_store2
    __sanitizer_cov_load4 __sanitizer_cov_store4
    __sanitizer_cov_load8 __sanitizer_cov_store8
    __sanitizer_cov_load16 __sanitizer_cov_store16
}

/// The compiler calls it at the entry of each block of instructions.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_trace_pc_guard(block: &u32) {
    if COUNTS.get() {
        on_machine(|machine| {
            let CoreCosts { step, mispredicted, .. } = machine.costs;
            let core = machine.here();
            core.clock += step + if core.enter(*block) { 0 } else { mispredicted };
        });
    }
}

/// The compiler calls it at the start of the program, once for each crate, with the numbers of its
/// blocks, which are 0.
///
/// # Safety
///
/// The words from `from` to `to` are the compiler's, and no other code has them.
#[unsafe(no_mangle)]
unsafe extern "C" fn __sanitizer_cov_trace_pc_guard_init(mut from: *mut u32, to: *mut u32) {
    static BLOCKS: AtomicU32 = AtomicU32::new(0);
    while from < to {
        // SAFETY: the caller's promise. Relaxed: only the numbers count.
        unsafe {
            if *from == 0 {
                *from = BLOCKS.fetch_add(1, Ordering::Relaxed) + 1;
            }
            from = from.add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: CoreCosts = CoreCosts {
        step: 1,
        mispredicted: 0,
        change: 10,
        fetch: 1_000,
        request: 10_000,
        handoff: 100_000,
        pause: 0,
        system_call: 0,
        slack: 50,
    };

    /// A line of its own.
    #[repr(align(64))]
    struct Word(u64);

    /// Runs `thread` on each of `cores`; returns the clocks at their ends, in picoseconds.
    fn run_on(cores: usize, thread: impl Fn(usize) + Copy) -> Vec<u64> {
        let ends = RefCell::new(vec![0; cores]);
        let body = |core: usize| {
            let ends = &ends;
            Box::new(move || {
                thread(core);
                let clock = on_machine(|machine| machine.here().clock);
                ends.borrow_mut()[core] = clock.expect("a core");
                meet();
            }) as Box<dyn FnOnce()>
        };
        run(&COSTS, (0..cores).map(body).collect());
        ends.into_inner()
    }

    fn load(word: &Word) {
        access((&raw const word.0).addr(), Access::Load);
    }

    fn store(word: &Word) {
        access((&raw const word.0).addr(), Access::Store);
    }

    #[test]
    fn a_line_that_a_core_has_costs_nothing_more() {
        let word = Word(0);
        let ends = run_on(1, |_| (0..100).for_each(|_| change(&word.0)));
        assert_eq!(ends, [COSTS.fetch + 100 * (COSTS.step + COSTS.change)]);
    }

    #[test]
    fn cores_that_change_a_line_get_it_one_after_the_other() {
        let word = Word(0);
        for cores in [2, 8, 64] {
            let ends = run_on(cores, |_| {
                (0..100).for_each(|_| {
                    change(&word.0);
                    // Longer than a core has the line at least.
                    work(2 * COSTS.request);
                });
            });
            let all = *ends.iter().max().expect("cores");
            let (changes, each) = (cores as u64 * 100, COSTS.request + COSTS.handoff);
            let handoffs = all / each;
            assert!(handoffs >= changes / 2 && handoffs <= changes * 5 / 4, "{cores}: {handoffs}");
        }
    }

    #[test]
    fn readers_share_a_line_until_it_is_written() {
        let word = Word(0);
        let ends = run_on(8, |core| {
            if core == 0 {
                store(&word);
            }
            meet();
            (0..100).for_each(|_| load(&word));
        });
        // The writer has it, the first reader gets it from the writer, the others fetch it.
        let most = 2 * COSTS.request + COSTS.handoff * 5 / 4 + 2 * COSTS.fetch + 1000;
        assert!(ends.iter().all(|end| *end < most), "{ends:?}");
        assert!(ends[1..].iter().all(|end| *end > COSTS.handoff / 2), "{ends:?}");
    }

    #[test]
    fn a_store_does_not_wait_and_a_change_waits_for_the_stores_before_it() {
        let (word, other) = (Word(0), Word(0));
        let ends = run_on(1, |_| store(&word));
        assert_eq!(ends, [COSTS.step]);
        let ends = run_on(1, |_| {
            change(&other.0);
            store(&word);
            change(&other.0);
        });
        assert!(ends[0] >= 2 * COSTS.fetch, "{ends:?}");
    }

    #[test]
    fn a_core_holds_as_many_lines_as_its_caches() {
        let words: Vec<Word> = (0..=CACHE_LINES).map(|_| Word(0)).collect();
        let twice =
            |words: &[Word]| run_on(1, |_| (0..2).for_each(|_| words.iter().for_each(load)))[0];
        let fits = twice(&words[..CACHE_LINES]);
        // The last line takes the place of the first, and then the first that of the last.
        let exceeds = twice(&words);
        assert_eq!(fits / COSTS.fetch, CACHE_LINES as u64 + 65);
        assert!(exceeds >= fits + 3 * COSTS.fetch, "{fits} {exceeds}");
    }

    #[test]
    fn what_takes_longer_happens_later() {
        let order = RefCell::new(Vec::new());
        run_on(4, |core| {
            work([40_000, 10_000, 30_000, 20_000][core]);
            order.borrow_mut().push(core);
        });
        assert_eq!(order.into_inner(), [1, 3, 2, 0]);
    }

    #[test]
    fn equal_programs_take_equal_times() {
        let times = || {
            let words: Vec<Word> = (0..16).map(|_| Word(0)).collect();
            run_on(16, |core| {
                for step in 0..1000 {
                    let at = (core * 7 + step * step) % 16;
                    match step % 3 {
                        0 => change(&words[at].0),
                        1 => load(&words[at]),
                        _ => store(&words[at]),
                    }
                }
            })
        };
        assert_eq!(times(), times());
    }

    /// Lines at addresses that share places of the filter take as long as others.
    #[test]
    fn times_do_not_depend_on_addresses() {
        let times = |distance: usize| {
            run_on(4, |core| {
                for step in 0..2000 {
                    // Some lines are shared by neighbours; each core has others alone.
                    let line =
                        if step % 5 == 0 { core / 2 } else { 4 + core * 16 + step * step % 7 };
                    let kind = [Access::Store, Access::Load, Access::Store, Access::Change];
                    access((1 << 30) + line * distance, kind[step * 3 % 4]);
                    work(step as u64 % 11);
                }
            })
        };
        assert_eq!(times(64), times(64 * FILTER));
    }

    #[test]
    fn waits_are_recorded_while_threads_count() {
        let word = Word(0);
        record_waits();
        let loops = |_| {
            (0..50).for_each(|_| change(&word.0));
            meet();
            for _ in 0..50 {
                count(1);
                change(&word.0);
            }
        };
        run_on(2, loops);
        let places = take_waits(100);
        let transfers: f64 = places.iter().map(|place| place.lines).sum();
        assert!((0.01..=1.0).contains(&transfers), "{places:?}");
        assert!(places.iter().all(|place| place.ns > 0.0), "{places:?}");
    }

    #[test]
    fn each_thread_has_its_own_values_until_it_ends() {
        static ENDED: AtomicU32 = AtomicU32::new(0);
        unsafe fn end(value: *mut ()) {
            ENDED.fetch_add(1, Ordering::Relaxed);
            // SAFETY: `make` made the box.
            drop(unsafe { Box::from_raw(value.cast::<usize>()) });
        }
        static KEY: u8 = 0;
        let key = (&raw const KEY).cast();
        let make = || (Box::into_raw(Box::new(0usize)).cast(), end as unsafe fn(*mut ()));
        run_on(3, |core| {
            let value = kvmem_simulated_local(key, &make).cast::<usize>();
            // SAFETY: the value is this thread's.
            unsafe { *value = core };
            meet();
            assert_eq!(kvmem_simulated_local(key, &make).cast(), value);
            // SAFETY: as above.
            assert_eq!(unsafe { *value }, kvmem_simulated_core() as usize);
        });
        assert_eq!(ENDED.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_panic_ends_the_simulation() {
        let panics = std::panic::catch_unwind(|| run_on(2, |core| assert_eq!(core, 0)));
        assert!(panics.is_err());
        assert_eq!(run_on(1, |_| work(5)), [5]);
    }
}
