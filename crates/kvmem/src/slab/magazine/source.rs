//! *Source*: where rounds come from and where they return to.

/// The layer below the magazines: slabs, or an allocator of offsets.
///
/// Its functions are called without a lock of this layer, except the one that serializes trims. A
/// source must not trim the instance that calls it. It may use that instance, and so may the memory
/// allocator below it: such nested requests are served from the thread's magazines, or one by one
/// from the source.
pub(crate) trait RoundSource<R>: Send + Sync + 'static {
    /// Whether callers query if anything is cached. If so, caches count puts, and threads
    /// that move rounds announce their moves: see [`core`](super::core).
    const TRACKED: bool = false;

    /// Returns whether a round may be cached under this class. Called on slow paths, under the
    /// owner's lock. The answer therefore changes between all rounds before
    /// [`rebind`](super::core::MagazineCore::rebind) and all rounds after it.
    fn keeps(&self, _class: usize, _round: &R) -> bool {
        true
    }

    /// Returns whether threads can use the source at once, as a rule. Called on slow paths, under
    /// the owner's lock.
    fn is_spread(&self) -> bool {
        false
    }

    /// Appends up to `want` rounds of a class to `out`; fewer only if there are no more.
    fn refill(&self, class: usize, want: usize, out: &mut Vec<R>);

    /// Takes all of these rounds back.
    fn drain(&self, class: usize, rounds: &mut Vec<R>);

    /// Returns one round. A source below a global allocator must do so without allocating.
    fn refill_one(&self, class: usize) -> Option<R> {
        let mut one = Vec::with_capacity(1);
        self.refill(class, 1, &mut one);
        one.pop()
    }

    /// Takes one round back. A source below a global allocator must do so without allocating.
    fn drain_one(&self, class: usize, round: R) {
        self.drain(class, &mut vec![round]);
    }

    /// Returns the bytes that one cached round of this class keeps from other uses.
    fn round_bytes(&self, class: usize) -> usize;

    /// Takes the source's own locks before a fork, so the child finds them free. Called last before
    /// the fork.
    fn prefork(&self) {}

    /// Releases these locks after the fork, in the parent and in the child.
    fn postfork(&self) {}

    /// Repairs the source in the child, after `postfork`: the operations of other threads never
    /// continue.
    ///
    /// # Safety
    ///
    /// The process has only this thread.
    unsafe fn postfork_child(&self) {}
}
