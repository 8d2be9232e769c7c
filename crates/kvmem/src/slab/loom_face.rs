//! The layer without its threads' tables, for the model check in `tests/loom`: loom knows no statics.
