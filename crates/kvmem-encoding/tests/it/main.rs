//! The form in which values leave memory.

mod codec;
