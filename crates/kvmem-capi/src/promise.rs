//! *Promise*: a token for the C caller's promise about objects.

/// Proof of the C caller's promise about objects (promise 2 of the crate's head), for one call.
///
/// A reference to an object borrows it. Functions that remove an object or change it exclusively
/// borrow it mutably, so the compiler rejects a call that does so while it holds a reference.
/// Against all other calls the promise protects.
pub(crate) struct ObjectPromise(());

impl ObjectPromise {
    /// Begins a call.
    ///
    /// # Safety
    /// Until this value is dropped, no other call destroys an object that is looked up with it,
    /// takes it over or changes it exclusively: no call of another thread, and none of a callback
    /// that runs in this one.
    #[inline(always)]
    pub(crate) const unsafe fn of_caller() -> ObjectPromise {
        ObjectPromise(())
    }
}
