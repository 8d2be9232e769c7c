//! Runs a counted loop: `count LOOP CONTENDER OPERATIONS [LIBRARY]`. `cargo xtask count` runs it
//! under cachegrind. With a library, the contender is one of `contenders.cpp`, from which the
//! library was built.

mod loaded;

use std::error::Error;

use kvmem_bench::contender::ContenderId;
use kvmem_bench::loops::counted::CountedLoop;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [which, contender, ops] => {
            let (which, contender): (CountedLoop, ContenderId) =
                (which.parse()?, contender.parse()?);
            Ok(which.run(contender, ops.parse()?)?)
        }
        [which, contender, ops, library] => {
            let which: CountedLoop = which.parse()?;
            loaded::load(library, contender)?;
            Ok(which.run_with::<loaded::Loaded>(ops.parse()?)?)
        }
        _ => Err("usage: count LOOP CONTENDER OPERATIONS [LIBRARY]".into()),
    }
}
