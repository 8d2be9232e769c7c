//! # kvmem-fuzz — fuzz targets that run on a stable toolchain
//!
//! `cargo run --profile checks --package kvmem-fuzz --bin TARGET -- --seconds 10` replays the
//! stored corpus of a target and then runs it on mutated and random inputs until the time is up.
//!
//! With a nightly toolchain, cargo-fuzz runs the same targets coverage-guided.
//! `mkdir -p fuzz/found/TARGET` and
//! `cargo +nightly fuzz run TARGET fuzz/found/TARGET fuzz/corpus/TARGET` keep new inputs apart from
//! the stored ones.
//!
//! If a target fails, panics or does not end on an input, the input is saved in
//! `fuzz/artifacts/TARGET`, and the exit status is 1. `-- FILE…` replays files.

mod mutate;
pub mod node;

use std::ffi::OsString;
use std::fs::File;
use std::io::{Seek, Write};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, fs, thread};

use anyhow::{Context, Result, anyhow, bail};
use kvmem_testkit::random::Random;

use crate::mutate::{mutate, random_input};

/// Runs one input.
pub type Target = fn(&[u8]) -> Result<()>;
/// Returns the names and bytes of the inputs to store.
pub type Seeds = fn() -> Vec<(String, Vec<u8>)>;

/// The time limit of one input.
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// Attempts to shorten a failing input.
const REDUCTIONS: usize = 3000;

struct Options {
    seconds: f64,
    seed: u64,
    write_corpus: bool,
    files: Vec<PathBuf>,
}

fn options() -> Result<Options> {
    use lexopt::prelude::*;

    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let mut options = Options { seconds: 10.0, seed: now, write_corpus: false, files: Vec::new() };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("seconds") => options.seconds = parser.value()?.parse()?,
            Long("seed") => options.seed = parser.value()?.parse()?,
            Long("write-corpus") => options.write_corpus = true,
            Value(file) => options.files.push(file.into()),
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(options)
}

/// The seeds of a target whose stored corpus is the only one: any bytes are a test, so it stays of
/// use when the operations change.
pub fn no_seeds() -> Vec<(String, Vec<u8>)> {
    Vec::new()
}

/// Makes the program of a target: what cargo-fuzz calls, or the command of this crate. Takes the
/// [`Target`] and the [`Seeds`].
#[macro_export]
macro_rules! run {
    ($target:expr, $seeds:expr) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
            if let Err(failure) = $target(bytes) {
                panic!("{failure:#}");
            }
        });

        #[cfg(not(fuzzing))]
        fn main() -> std::process::ExitCode {
            $crate::main(env!("CARGO_BIN_NAME"), $target, $seeds)
        }
    };
}

/// Runs the command of the target `name`.
pub fn main(name: &str, target: Target, seeds: Seeds) -> ExitCode {
    match options().and_then(|options| Session::new(name, target).run(&options, seeds)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

struct Session {
    name: String,
    target: Target,
    corpus: PathBuf,
    artifacts: PathBuf,
    /// The file with the running input. It remains after an abort or a hang.
    current: Option<File>,
    executions: u64,
}

impl Session {
    fn new(name: &str, target: Target) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        Session {
            name: name.to_owned(),
            target,
            corpus: folder.join("corpus").join(name),
            artifacts: folder.join("artifacts").join(name),
            current: None,
            executions: 0,
        }
    }

    fn run(&mut self, options: &Options, seeds: Seeds) -> Result<()> {
        if options.write_corpus {
            return self.write_corpus(seeds);
        }
        fs::create_dir_all(&self.artifacts)
            .with_context(|| format!("cannot create {:?}", self.artifacts))?;
        let current = self.artifacts.join("current");
        self.current =
            Some(File::create(&current).with_context(|| format!("cannot write {current:?}"))?);
        end_on_hang(current.clone());
        if !options.files.is_empty() {
            for file in &options.files {
                let input = fs::read(file).with_context(|| format!("cannot read {file:?}"))?;
                self.execute(&input).with_context(|| format!("{file:?}"))?;
            }
            println!("{}: {} files replayed", self.name, options.files.len());
            return Ok(());
        }
        let corpus = self.stored()?;
        for (file, input) in &corpus {
            self.execute(input).with_context(|| format!("stored input {file:?}"))?;
        }
        println!("{}: {} stored inputs replayed; seed {}", self.name, corpus.len(), options.seed);
        let start = Instant::now();
        let mut random = Random::new(options.seed);
        let inputs: Vec<Vec<u8>> = corpus.into_iter().map(|(_, input)| input).collect();
        while start.elapsed().as_secs_f64() < options.seconds {
            let input = if inputs.is_empty() || random.once_in(4) {
                random_input(&mut random)
            } else {
                mutate(&inputs, &mut random)
            };
            self.execute(&input).with_context(|| format!("seed {}", options.seed))?;
        }
        println!(
            "{}: {} executions in {:.0?}, no failure",
            self.name,
            self.executions,
            start.elapsed()
        );
        fs::remove_file(current)?;
        Ok(())
    }

    fn stored(&self) -> Result<Vec<(OsString, Vec<u8>)>> {
        let folder = fs::read_dir(&self.corpus).with_context(|| {
            format!("no corpus at {:?}; create it with --write-corpus", self.corpus)
        })?;
        let mut stored = Vec::new();
        for entry in folder {
            let entry = entry?;
            stored.push((entry.file_name(), fs::read(entry.path())?));
        }
        stored.sort();
        Ok(stored)
    }

    fn write_corpus(&self, seeds: Seeds) -> Result<()> {
        fs::create_dir_all(&self.corpus)?;
        let seeds = seeds();
        for (name, bytes) in &seeds {
            fs::write(self.corpus.join(name), bytes)?;
        }
        println!("{}: {} inputs written to {:?}", self.name, seeds.len(), self.corpus);
        Ok(())
    }

    fn execute(&mut self, input: &[u8]) -> Result<()> {
        if let Some(current) = &mut self.current {
            current.rewind()?;
            current.write_all(input)?;
            current.set_len(input.len() as u64)?;
        }
        self.executions += 1;
        STARTED.store(now_millis(), Ordering::Relaxed);
        let result = attempt(self.target, input);
        STARTED.store(IDLE, Ordering::Relaxed);
        let Err(error) = result else { return Ok(()) };
        let failing = reduce(self.target, input);
        let hash = failing.iter().fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
        });
        let file = self.artifacts.join(format!("crash-{hash:016x}"));
        fs::write(&file, &failing)?;
        bail!(
            "{error:#}\nThe failing input, {} of {} bytes, is saved as {file:?}",
            failing.len(),
            input.len()
        );
    }
}

/// Runs one input; a panic counts as a failure.
fn attempt(target: Target, input: &[u8]) -> Result<()> {
    panic::catch_unwind(AssertUnwindSafe(|| target(input))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without text");
        Err(anyhow!("panic: {text}"))
    })
}

/// Shortens a failing input while it still fails.
fn reduce(target: Target, input: &[u8]) -> Vec<u8> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let mut failing = input.to_vec();
    let (mut len, mut tries) = (failing.len() / 2, 0);
    while len > 0 && tries < REDUCTIONS {
        let before = failing.len();
        let mut at = 0;
        while at + len <= failing.len() && tries < REDUCTIONS {
            let mut shorter = failing.clone();
            shorter.drain(at..at + len);
            tries += 1;
            if attempt(target, &shorter).is_err() {
                failing = shorter;
            } else {
                at += len;
            }
        }
        if failing.len() == before {
            len /= 2;
        }
    }
    panic::set_hook(hook);
    failing
}

const IDLE: u64 = u64::MAX;
/// The start of the running input, in milliseconds of [`now_millis`].
static STARTED: AtomicU64 = AtomicU64::new(IDLE);

fn now_millis() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64
}

/// Ends the process if an input exceeds the time limit.
fn end_on_hang(current: PathBuf) {
    thread::spawn(move || {
        loop {
            thread::sleep(Duration::from_secs(1));
            let started = STARTED.load(Ordering::Relaxed);
            if started != IDLE
                && now_millis().saturating_sub(started) > TIME_LIMIT.as_millis() as u64
            {
                eprintln!("the input ran longer than {TIME_LIMIT:?}; it is in {current:?}");
                std::process::exit(1);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails_on_seven(input: &[u8]) -> Result<()> {
        if input.contains(&7) { Err(anyhow!("seven")) } else { Ok(()) }
    }

    fn panics_on_seven(input: &[u8]) -> Result<()> {
        assert!(!input.contains(&7), "seven");
        Ok(())
    }

    #[test]
    fn failures_and_panics_are_found_and_reduced() {
        let mut random = Random::new(1);
        for target in [fails_on_seven as Target, panics_on_seven] {
            let inputs = vec![vec![1, 2, 3, 4, 5, 6]];
            let failing = (0..100_000)
                .map(|_| mutate(&inputs, &mut random))
                .find(|input| attempt(target, input).is_err())
                .expect("mutation reaches every byte");
            assert_eq!(reduce(target, &failing), [7]);
        }
    }
}
