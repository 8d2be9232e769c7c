//! Pages of documentation that are generated from the sources, or compared with them.

mod errors;
mod limits;
mod monitoring;
mod row;
mod source;
mod troubleshooting;
