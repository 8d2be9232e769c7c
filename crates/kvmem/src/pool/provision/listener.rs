//! *Listener*: calls the functions of the caller that watch progress.

use std::cell::Cell;

thread_local! {
    /// The number of nested listener calls of this thread.
    static LISTENING: Cell<u32> = const { Cell::new(0) };
}

/// Calls a listener. A pool that the listener drops does not wait for the work that the listener
/// observes.
pub(in crate::pool) fn listening(call: impl FnOnce()) {
    struct EndOfCall;
    impl Drop for EndOfCall {
        fn drop(&mut self) {
            LISTENING.set(LISTENING.get() - 1);
        }
    }
    LISTENING.set(LISTENING.get() + 1);
    let _end = EndOfCall;
    call();
}

/// Returns whether this thread is inside a call of a listener.
pub(in crate::pool) fn is_listening() -> bool {
    LISTENING.get() > 0
}
