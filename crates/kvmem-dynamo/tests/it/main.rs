//! kvmem's memory under the crates of Dynamo, as published.

mod agent;
mod layouts;
mod storage;
mod transfers;
