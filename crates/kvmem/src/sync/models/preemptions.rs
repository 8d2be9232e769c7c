//! *Preemptions*: the bound of models whose operations have many steps.

/// Checks all orders with up to `preemptions` preemptions.
pub(crate) fn check(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}
