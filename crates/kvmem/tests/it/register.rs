//! L2: keys.

mod simulated;
