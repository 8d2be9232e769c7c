//! *Traffic*: request sizes, counted on a grid.

/// Grid points up to the largest recent size.
pub(super) const GRID: usize = 320;
/// Sizes are few while fewer cells than this are non-empty.
pub(super) const FEW_CELLS: usize = 24;

/// Request sizes on the grid.
pub(super) struct Traffic {
    /// Cell j contains the sizes in (j, j + 1] points.
    pub(super) cells: [GridCell; GRID],
    pub(super) requests: f32,
    /// The largest size; it is on the last point.
    pub(super) largest: u64,
    /// Number of non-empty cells.
    pub(super) filled: usize,
}

impl Traffic {
    pub(super) fn of(sizes: impl Iterator<Item = u64> + Clone) -> Option<Self> {
        // The largest size is on a point. Where there is one size only, the step of U is therefore
        // at that size. It is at least as large as the grid is long, so the scale fits.
        let largest = sizes.clone().max()?.max(GRID as u64 + 1);
        let mut traffic =
            Traffic { cells: [GridCell::default(); GRID], requests: 0.0, largest, filled: 0 };
        let points_a_byte = GRID as f32 / largest as f32;
        for size in sizes {
            let points = size as f32 * points_a_byte;
            let whole = points as usize;
            // A size on a point belongs to the cell below it.
            let j = whole - usize::from(whole as f32 == points && whole > 0);
            let cell = &mut traffic.cells[j.min(GRID - 1)];
            traffic.filled += usize::from(cell.requests == 0.0);
            cell.requests += 1.0;
            cell.sum += points;
            traffic.requests += 1.0;
        }
        Some(traffic)
    }

    pub(super) fn is_few(&self) -> bool {
        self.filled < FEW_CELLS
    }
}

/// Requests within one cell of the grid.
#[derive(Clone, Copy, Default)]
pub(super) struct GridCell {
    pub(super) requests: f32,
    pub(super) sum: f32,
}
