//! L2: keys.

mod cuda;
mod verbs;
