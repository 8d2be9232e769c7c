//! L3: offsets.

mod properties;
