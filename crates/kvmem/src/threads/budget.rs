//! *Budget*: the two ways in which long work ends early: a cancelled token, and a limit of time.

use std::time::Duration;

use super::cancel::CancelToken;

/// A token that cancels work, and a limit of its time.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkBudget {
    pub(crate) cancel: CancelToken,
    /// `None`: no limit.
    pub(crate) time: Option<Duration>,
}

/// The reason why work ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interruption {
    /// The token was cancelled.
    Cancelled,
    /// This much time has passed.
    OutOfTime(Duration),
}

impl WorkBudget {
    /// Returns an error if the work is cancelled or out of time. `elapsed` returns the time since
    /// its start; it is called only if there is a limit.
    pub(crate) fn check(&self, elapsed: impl FnOnce() -> Duration) -> Result<(), Interruption> {
        if self.cancel.is_cancelled() {
            return Err(Interruption::Cancelled);
        }
        match self.time {
            Some(time) if elapsed() >= time => Err(Interruption::OutOfTime(time)),
            _ => Ok(()),
        }
    }

    /// Returns the budget of work that begins when `elapsed` has passed: the same token, and the
    /// remaining time.
    pub(crate) fn remaining(&self, elapsed: Duration) -> WorkBudget {
        let time = self.time.map(|time| time.saturating_sub(elapsed));
        WorkBudget { cancel: self.cancel.clone(), time }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn work_ends_when_it_is_cancelled_or_out_of_time() {
        let second = Duration::from_secs(1);
        let budget = WorkBudget { cancel: CancelToken::new(), time: Some(2 * second) };
        assert_eq!(budget.check(|| second), Ok(()));
        assert_eq!(budget.check(|| 2 * second), Err(Interruption::OutOfTime(2 * second)));
        let rest = budget.remaining(second);
        assert_eq!(rest.check(Duration::default), Ok(()));
        assert_eq!(rest.check(|| second), Err(Interruption::OutOfTime(second)));
        budget.cancel.cancel();
        assert_eq!(rest.check(|| second), Err(Interruption::Cancelled), "it is the same token");
        assert_eq!(WorkBudget::default().check(|| unreachable!("there is no limit")), Ok(()));
    }
}
