//! Runs a counted loop: `count LOOP CONTENDER OPERATIONS`. `cargo xtask count` runs it under
//! cachegrind.

use std::error::Error;

use kvmem_bench::contender::ContenderId;
use kvmem_bench::loops::counted::CountedLoop;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [which, contender, ops] = &arguments[..] else {
        return Err("usage: count LOOP CONTENDER OPERATIONS".into());
    };
    let (which, contender): (CountedLoop, ContenderId) = (which.parse()?, contender.parse()?);
    Ok(which.run(contender, ops.parse()?)?)
}
