//! *Placement*: the choices that a caller and a cut have.

/// Selects among the holes that fit a request to an
/// [`OffsetAllocator`](crate::offset::OffsetAllocator).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// By renewal value, with a region for small objects: most live bytes under mixed sizes. While
    /// half of the space is free, and where many sizes lie in many ranges, as [`BestFit`].
    ///
    /// [`BestFit`]: Placement::BestFit
    #[default]
    Renewal,
    /// The first hole that fits, of the tightest bins, cut from its low end: fewest instructions.
    BestFit,
}

/// An end of a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoleEnd {
    Low,
    High,
}
