//! L2: keys.

mod verbs;
