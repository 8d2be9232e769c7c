//! [`Priority`]: the worth of a value compared with others.

/// The worth of a value compared with others: a tier or a node evicts values of a lower priority
/// first. From 0, the default, to 3; all interfaces of all languages have this range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Priority(u8);

impl Priority {
    /// The highest priority: 3.
    pub const MAX: Priority = Priority(3);

    /// Makes a priority; `None` above [`MAX`](Self::MAX).
    #[must_use]
    pub const fn new(level: u8) -> Option<Priority> {
        if level <= Priority::MAX.0 { Some(Priority(level)) } else { None }
    }

    /// Returns the priority that is nearest to a number, such as one that an older version stored.
    #[must_use]
    pub fn nearest(level: i8) -> Priority {
        Priority(level.clamp(0, Priority::MAX.0 as i8) as u8)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}
