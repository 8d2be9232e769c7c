//! *Placement*: the choices that a caller and a cut have.

/// Selects among the holes that fit a request to an
/// [`OffsetAllocator`](crate::offset::OffsetAllocator).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// By renewal value, with a region for small objects: most live bytes under mixed sizes.
    #[default]
    Renewal,
    /// The tightest of the first four holes that fit, cut from its low end: fewest instructions.
    /// While one hole fills half of the space, the first hole that fits.
    BestFit,
}

/// An end of a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoleEnd {
    Low,
    High,
}
