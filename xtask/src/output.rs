//! *Output*: what the chores print, in one piece for each step that runs beside others.
//!
//! A thread that works beside others calls [`keep`]. What it prints with [`say!`](crate::say) is
//! then kept until [`take`], so the lines of two steps are never mixed. Other threads print at
//! once.

use std::cell::RefCell;
use std::fmt::Arguments;

thread_local! {
    /// What this thread has printed since it began to keep its output.
    static KEPT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps what this thread prints from now on.
pub(crate) fn keep() {
    KEPT.with_borrow_mut(|kept| *kept = Some(String::new()));
}

/// Whether this thread keeps its output.
pub(crate) fn is_kept() -> bool {
    KEPT.with_borrow(Option::is_some)
}

/// Returns what this thread has kept since the last call.
pub(crate) fn take() -> String {
    KEPT.with_borrow_mut(|kept| kept.as_mut().map(std::mem::take).unwrap_or_default())
}

/// Prints a text, or keeps it.
pub(crate) fn show(text: Arguments<'_>) {
    KEPT.with_borrow_mut(|kept| match kept {
        Some(kept) => kept.push_str(&text.to_string()),
        // One call, so another thread prints before or after it.
        None => print!("{text}"),
    });
}

/// Prints a line, or keeps it for the end of the step.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => {
        $crate::output::show(format_args!("{}\n", format_args!($($text)*)))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_lines_are_returned_once() {
        assert!(!is_kept() && take().is_empty());
        keep();
        say!("{} and {}", 1, 2);
        say!("three");
        assert!(is_kept());
        assert_eq!(take(), "1 and 2\nthree\n");
        assert!(is_kept() && take().is_empty());
        // Threads keep their own output.
        std::thread::spawn(|| assert!(!is_kept())).join().unwrap();
    }
}
