//! *Source*: where rounds come from and go to.

/// Where rounds come from and go to: slabs, or an allocator of offsets.
///
/// Called with no lock of this layer held, but for that by which trims wait for each other. It must
/// not trim the instance that calls it. It may use that instance, and so may the memory allocator
/// under it: what it then asks for is served by the thread's magazines, or one by one from here.
pub(crate) trait RoundSource<R>: Send + Sync + 'static {
    /// Whether anybody asks when nothing is cached. Then caches count what is put, and whoever
    /// moves rounds from place to place says so: see [`core`](super::core).
    const TRACKED: bool = false;

    /// Whether a round may be cached under this class. Asked on the slow ways, under the owner's
    /// lock: so it changes between all rounds before [`rebind`](super::core::MagazineCore::rebind) and
    /// all rounds after it.
    fn keeps(&self, _class: usize, _round: &R) -> bool {
        true
    }

    /// Appends up to `want` rounds of a class to `out`: fewer only if there are no more.
    fn refill(&self, class: usize, want: usize, out: &mut Vec<R>);

    /// Takes rounds back: all that are there.
    fn drain(&self, class: usize, rounds: &mut Vec<R>);

    /// One round. A source under a global allocator must give it without allocating.
    fn refill_one(&self, class: usize) -> Option<R> {
        let mut one = Vec::with_capacity(1);
        self.refill(class, 1, &mut one);
        one.pop()
    }

    /// Takes one round back. As above.
    fn drain_one(&self, class: usize, round: R) {
        self.drain(class, &mut vec![round]);
    }

    /// Bytes that one round of this class strands while it is cached.
    fn round_bytes(&self, class: usize) -> usize;

    /// A fork is to come: takes the source's own locks, so that the child finds them free. The last
    /// thing before it.
    fn prefork(&self) {}

    /// Lets go of them, in the parent and in the child.
    fn postfork(&self) {}

    /// In the child, after that: whatever other threads were about is over.
    ///
    /// # Safety
    ///
    /// This is the only thread of the process.
    unsafe fn postfork_child(&self) {}
}
