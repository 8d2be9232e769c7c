//! What needs the pools of the machine alone.

mod hugepages;
