//! *Switched mutants*: all mutants of a crate in one build, one of them active in each process.
//!
//! A build takes seconds and a unit test milliseconds, so cargo-mutants spends its time on builds.
//! *Mutant schemata* (Untch, Offutt and Harrold, "Mutation analysis using mutant schemata", ISSTA
//! 1993) need one build: each changed place of a copy of the sources looks at the number of the
//! active mutant, which the program reads once from its environment ([`rewrite`](super::rewrite)).
//! A mutant that the compiler does not take is left out, and the build is repeated.
//!
//! Each test runs once alone, and records the places that it reaches. A mutant is judged by the
//! tests that reach its place, the quick ones first, and is caught by the first one that fails or
//! takes several times as long. A mutant whose place no test reaches is missed.
//!
//! The list, the numbers of lines and the descriptions are those of cargo-mutants, so
//! `cargo xtask mutants EXPRESSION` repeats a result. Constants and what the compiler does not take
//! as a part of a `match` are not switched; the results name them.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::rewrite::{Mutant, Rewritten, rewrite};
use super::{CRATES, FOLDER, MutantsOptions};
use crate::run::output;
use crate::scratch::{self, Scratch};
use crate::workspace::cargo;

/// The module that the rewritten code calls. `RECORDS` stands for a process that records places.
const SWITCH: &str = r#"
#[allow(dead_code)]
pub(crate) mod mutant_switch {
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
    const RECORDS: u32 = u32::MAX - 1;
    const PLACES;
    static ACTIVE: AtomicU32 = AtomicU32::new(u32::MAX);
    static REACHED: [AtomicBool; PLACES] = [const { AtomicBool::new(false) }; PLACES];
    static FILE: std::sync::OnceLock<std::fs::File> = std::sync::OnceLock::new();
    #[inline]
    pub(crate) fn at(place: u32) -> u32 {
        let active = ACTIVE.load(Relaxed);
        if active < RECORDS { active } else { first(place) }
    }
    #[cold]
    fn first(place: u32) -> u32 {
        if ACTIVE.load(Relaxed) == u32::MAX {
            ACTIVE.store(0, Relaxed);
            let number = std::env::var("KVMEM_MUTANT").ok().and_then(|it| it.parse().ok());
            if let Some(path) = std::env::var_os("KVMEM_MUTANT_PLACES") {
                let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
                let _ = FILE.set(file.unwrap());
                ACTIVE.store(RECORDS, Relaxed);
            } else {
                ACTIVE.store(number.unwrap_or(0), Relaxed);
                return number.unwrap_or(0);
            }
        }
        if let Some(mut file) = FILE.get()
            && !REACHED[place as usize].swap(true, Relaxed)
        {
            let _ = file.write_all(&place.to_le_bytes());
        }
        0
    }
}
"#;
/// Processors that judge at the same time.
const WORKERS: usize = 2;

/// A test and the places that it reaches.
struct Test {
    binary: usize,
    name: String,
    seconds: f64,
    places: HashSet<u32>,
}

/// A program of tests, and the folder that it runs in.
type Program = (PathBuf, PathBuf);

/// How a mutant was judged: by which test, or why not.
type Verdict = (&'static str, String);

/// Judges the mutants of the crates, and prints a row for each crate.
pub(super) fn run(root: &Path, options: &MutantsOptions) -> Result<ExitCode> {
    let _scratch = Scratch::begin()?;
    let end = Instant::now() + Duration::from_secs(60 * options.minutes);
    for of in CRATES {
        if options.package.as_deref().is_none_or(|only| only == of.0) {
            judge_crate(root, of, options, end)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn judge_crate(
    root: &Path,
    (package, targets, filters): (&str, &[&str], &[&str]),
    options: &MutantsOptions,
    end: Instant,
) -> Result<()> {
    let mutants = listed(root, package, options.only.as_deref())?;
    let tree = copied(root)?;
    let file = root.join(FOLDER).join(format!("{package}.txt"));
    let known = results(&file)?;
    let results_file = OpenOptions::new().append(true).create(true).open(&file)?;
    let judged = Mutex::new((known, results_file));
    let record = |mutant: &Mutant, (verdict, detail): Verdict| -> Result<()> {
        let (known, file) = &mut *judged.lock().expect("no thread panics with the results");
        writeln!(file, "{verdict}\t{}\t{detail}", mutant.name)?;
        known.insert(mutant.name.clone(), verdict.to_owned());
        Ok(())
    };
    let verdict_of =
        |it: &Mutant| judged.lock().expect("no thread panics").0.get(&it.name).cloned();
    let (place_of, binaries) =
        build(root, &tree, package, targets, &mutants, &verdict_of, &record)?;
    let tests = recorded(&binaries, filters, options.slowest)?;
    // What no test has judged comes first.
    let mut open: Vec<&Mutant> = mutants
        .iter()
        .filter(|it| place_of.contains_key(&it.number))
        .filter(|it| verdict_of(it).is_none_or(|verdict| verdict == "missed"))
        .collect();
    open.sort_by_key(|it| verdict_of(it).is_some());
    let queue = Mutex::new(VecDeque::from(open));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    while Instant::now() < end {
                        let next = queue.lock().expect("no worker panics").pop_front();
                        let Some(mutant) = next else { break };
                        let place = place_of[&mutant.number];
                        let reach = tests.iter().filter(|test| test.places.contains(&place));
                        record(
                            mutant,
                            judge(mutant.number, &reach.collect::<Vec<_>>(), &binaries)?,
                        )?;
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|it| it.join().expect("a worker does not panic"))
    })?;
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for mutant in &mutants {
        *counts.entry(verdict_of(mutant).unwrap_or("open".into())).or_default() += 1;
    }
    println!("{package}: {} mutants, {counts:?}; {}", mutants.len(), file.display());
    Ok(())
}

/// Returns the results of earlier runs.
fn results(file: &Path) -> Result<HashMap<String, String>> {
    let text = if file.exists() { fs::read_to_string(file)? } else { String::new() };
    let rows = text.lines().filter_map(|row| {
        let mut cells = row.split('\t');
        Some((cells.next()?, cells.next()?))
    });
    Ok(rows.map(|(verdict, name)| (name.to_owned(), verdict.to_owned())).collect())
}

/// Returns cargo-mutants' list.
fn listed(root: &Path, package: &str, only: Option<&str>) -> Result<Vec<Mutant>> {
    let mut list = Command::new(cargo());
    list.current_dir(root).args(["mutants", "--list", "--json", "--package", package]);
    list.args(only.iter().flat_map(|it| ["--re", it]));
    let rows: Vec<Value> = serde_json::from_str(&output(&mut list)?)?;
    let mutants = (1..).zip(&rows).map(|(number, row)| {
        let text = |key: &str| row[key].as_str().map(str::to_owned);
        let position = |end: &str| {
            let at = |key: &str| row["span"][end][key].as_u64().map(|it| it as usize);
            Some((at("line")?, at("column")?))
        };
        Some(Mutant {
            number,
            name: text("name")?.replace(['\n', '\t'], " "),
            file: text("file")?,
            genre: text("genre")?,
            replacement: text("replacement")?,
            span: [position("start")?, position("end")?],
        })
    });
    mutants.collect::<Option<_>>().context("cargo-mutants' list has another form")
}

/// Returns the files of the working tree that git does not ignore, with whether they are code of
/// the crates.
fn files(root: &Path) -> Result<Vec<(String, bool)>> {
    let mut list = Command::new("git");
    let list = list.current_dir(root).args(["ls-files", "-zco", "--exclude-standard"]);
    let is_code =
        |file: &str| CRATES.iter().any(|it| file.starts_with(&format!("crates/{}/src", it.0)));
    let list = output(list)?;
    let exist = list.split_terminator('\0').filter(|file| root.join(file).is_file());
    Ok(exist.map(|file| (file.to_owned(), is_code(file))).collect())
}

/// Copies all but the code, which is written when it is built.
fn copied(root: &Path) -> Result<PathBuf> {
    let tree = root.join(FOLDER).join("tree");
    for (file, _) in files(root)?.iter().filter(|(_, is_code)| !is_code) {
        let (from, to) = (root.join(file), tree.join(file));
        write_changed(&to, &fs::read(&from)?)?;
        fs::set_permissions(&to, from.metadata()?.permissions())?;
    }
    Ok(tree)
}

/// Writes a file, unless it has these bytes: cargo looks at its time.
fn write_changed(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|it| it == bytes) {
        return Ok(());
    }
    fs::create_dir_all(path.parent().context("a file has no folder")?)?;
    fs::write(path, bytes).with_context(|| path.display().to_string())
}

/// Builds the tests with all mutants that the compiler takes. Returns the place of each, and the
/// programs of the tests.
fn build(
    root: &Path,
    tree: &Path,
    package: &str,
    targets: &[&str],
    mutants: &[Mutant],
    verdict_of: &dyn Fn(&Mutant) -> Option<String>,
    record: &dyn Fn(&Mutant, Verdict) -> Result<()>,
) -> Result<(HashMap<u32, u32>, Vec<Program>)> {
    let is_left_out = |it: &Mutant| verdict_of(it).is_some_and(|it| LEFT_OUT.contains(&&*it));
    loop {
        let mut changed: HashMap<String, Vec<&Mutant>> = HashMap::new();
        for mutant in mutants.iter().filter(|it| !is_left_out(it)) {
            changed.entry(mutant.file.clone()).or_default().push(mutant);
        }
        let mut written: HashMap<String, Rewritten> = HashMap::new();
        let mut place_of = HashMap::new();
        for (file, _) in files(root)?.iter().filter(|(_, is_code)| *is_code) {
            let mut text = fs::read_to_string(root.join(file))?;
            if let Some(mutants) = changed.get(file) {
                let rewritten = rewrite(&text, mutants).with_context(|| file.to_owned())?;
                for (_, numbers) in &rewritten.sites {
                    place_of.extend(numbers.iter().map(|number| (*number, numbers[0])));
                }
                text.clone_from(&rewritten.text);
                written.insert(file.to_owned(), rewritten);
            }
            if *file == format!("crates/{package}/src/lib.rs") {
                let places = format!("const PLACES: usize = {};", mutants.len() + 1);
                text = format!("{ALLOW} {text}{}", SWITCH.replace("const PLACES;", &places));
            }
            write_changed(&tree.join(file), text.as_bytes())?;
        }
        for mutant in changed.values().flatten().filter(|it| !place_of.contains_key(&it.number)) {
            // Conditions with `let` are joined by `&&` alone.
            let is_viable = mutant.replacement != "||";
            record(mutant, (LEFT_OUT[usize::from(is_viable)], "no place".into()))?;
        }
        let messages = test_command(tree, package, targets).output()?;
        if messages.status.success() {
            let programs: Vec<Program> =
                json(&messages.stdout).filter_map(|it| program(&it)).collect();
            ensure!(!programs.is_empty(), "cargo built no tests of {package}");
            return Ok((place_of, programs));
        }
        let mut blamed = 0;
        let mut others = Vec::new();
        for message in json(&messages.stdout).filter(|it| it["message"]["level"] == "error") {
            let message = &message["message"];
            let mut spans = message["spans"].as_array().cloned().unwrap_or_default();
            spans.sort_by_key(|span| span["is_primary"] != true);
            let found = spans.iter().filter_map(|span| {
                let file = written.get(span["file_name"].as_str()?)?;
                let (numbers, own) = file.blamed(span["byte_start"].as_u64()? as usize);
                (!numbers.is_empty()).then(|| (numbers.to_vec(), own))
            });
            let Some((numbers, own)) = found.min_by_key(|(_, own)| !own) else {
                others.push(message["rendered"].as_str().unwrap_or_default().to_owned());
                continue;
            };
            let text = message["message"].as_str().unwrap_or_default().replace(['\n', '\t'], " ");
            for mutant in mutants.iter().filter(|it| numbers.contains(&it.number)) {
                if !is_left_out(mutant) {
                    blamed += 1;
                    record(mutant, (LEFT_OUT[usize::from(!own)], text.clone()))?;
                }
            }
        }
        println!("{package}: the compiler does not take {blamed} mutants");
        let stderr = String::from_utf8_lossy(&messages.stderr);
        ensure!(blamed > 0, "errors of no mutant: {}{stderr}", others.join("\n"));
    }
}

/// Mutants that no build has: no compiler takes them, or none takes them behind a switch.
const LEFT_OUT: [&str; 2] = ["unviable", "not switched"];
/// Lints that mutants may break.
const ALLOW: &str = "#![allow(warnings, arithmetic_overflow, unconditional_panic)]";

/// Builds the tests. Optimized a little they take a fraction of the time.
fn test_command(tree: &Path, package: &str, targets: &[&str]) -> Command {
    let mut tests = Command::new(cargo());
    tests.current_dir(tree).args(["test", "--no-run", "--locked", "-j2"]);
    tests.args(["--message-format=json", "--package", package]).args(targets);
    tests.arg("--target-dir").arg(tree.with_file_name("build"));
    tests.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1").env("CARGO_INCREMENTAL", "1");
    tests
}

fn json(lines: &[u8]) -> impl Iterator<Item = Value> {
    lines.split(|it| *it == b'\n').filter_map(|line| serde_json::from_slice(line).ok())
}

/// Returns the program of tests that a message of cargo names, and the folder that it runs in.
fn program(message: &Value) -> Option<Program> {
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let program = PathBuf::from(message["executable"].as_str()?);
    (message["profile"]["test"] == true).then_some((program, folder))
}

/// Prepares a process of tests, with limits of processor time and of memory.
fn process((program, folder): &Program, seconds: f64) -> Command {
    let mut command = Command::new("prlimit");
    command.arg(format!("--cpu={}", 2 + (4.0 * seconds) as u64));
    command.args(["--core=0", "--data=8589934592"]).arg(program);
    command.args(["--exact", "--test-threads=1"]).current_dir(folder).process_group(0);
    command.env("CARGO_MANIFEST_DIR", folder);
    scratch::give(&mut command);
    command
}

/// Runs each test alone whose name has one of these parts, and returns those that pass within this
/// time.
fn recorded(binaries: &[Program], filters: &[&str], slowest: f64) -> Result<Vec<Test>> {
    let places = std::env::temp_dir().join(format!("kvmem-places-{}", std::process::id()));
    let mut tests = Vec::new();
    let mut left_out = Vec::new();
    for (binary, program) in binaries.iter().enumerate() {
        let list = output(Command::new(&program.0).current_dir(&program.1).args(["--list"]))?;
        let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
        let is_of = |name: &&str| filters.is_empty() || filters.iter().any(|it| name.contains(it));
        for name in names.filter(is_of) {
            File::create(&places)?;
            let mut command = process(program, slowest);
            command.arg(name).env("KVMEM_MUTANT_PLACES", &places);
            let start = Instant::now();
            let verdict = ended(command, 2.0 * slowest)?;
            let seconds = start.elapsed().as_secs_f64();
            if verdict.is_some() || seconds > slowest {
                left_out.push(name.to_owned());
                continue;
            }
            let bytes = fs::read(&places)?;
            let (numbers, _) = bytes.as_chunks::<4>();
            let places = numbers.iter().map(|it| u32::from_le_bytes(*it)).collect();
            tests.push(Test { binary, name: name.to_owned(), seconds, places });
        }
    }
    fs::remove_file(&places)?;
    tests.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    println!("{} tests; slower than {slowest} s, or failed: {}", tests.len(), left_out.join(" "));
    Ok(tests)
}

/// Judges a mutant by the tests that reach it, in groups of which each takes longer.
fn judge(number: u32, tests: &[&Test], binaries: &[Program]) -> Result<Verdict> {
    let mut rest = tests;
    let mut limit = 0.05;
    while let Some(first) = rest.first() {
        let mut seconds = 0.0;
        let mut group = 0;
        while let Some(test) = rest.get(group)
            && test.binary == first.binary
            && (group == 0 || seconds + test.seconds <= limit)
        {
            seconds += test.seconds;
            group += 1;
        }
        let mut command = process(&binaries[first.binary], seconds);
        command.args(rest[..group].iter().map(|it| &it.name));
        command.env("KVMEM_MUTANT", number.to_string());
        if let Some(verdict) = ended(command, seconds)? {
            return Ok(verdict);
        }
        rest = &rest[group..];
        limit *= 3.0;
    }
    Ok(("missed", format!("{} tests", tests.len())))
}

/// Waits for a process of tests, and returns how it failed. Its time is counted in short waits, in
/// which a stopped machine counts once.
fn ended(mut command: Command, seconds: f64) -> Result<Option<Verdict>> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let stdout = child.stdout.take().context("a process has no output")?;
    let (send, failed) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            if line.starts_with("test ") && line.ends_with("FAILED") {
                let _ = send.send(Some(line));
            }
        }
        let _ = send.send(None);
    });
    let mut waits = 0;
    let end = loop {
        match failed.recv_timeout(Duration::from_millis(20)) {
            Ok(Some(line)) => break Some(("caught", line)),
            Ok(None) | Err(RecvTimeoutError::Disconnected) => break None,
            Err(RecvTimeoutError::Timeout) => waits += 1,
        }
        if f64::from(waits) * 0.02 > 5.0 + 8.0 * seconds {
            break Some(("timeout", format!("longer than {seconds:.2} s")));
        }
    };
    if end.is_some() {
        // The group has its number, and the processes that it started.
        let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).output();
    }
    let status = child.wait()?;
    Ok(match end {
        None if !status.success() => Some(("caught", status.to_string())),
        end => end,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_judged_by_their_output_status_and_time() {
        let ended = |script: &str, seconds: f64| {
            let mut shell = Command::new("sh");
            shell.args(["-c", script]).process_group(0);
            ended(shell, seconds).unwrap()
        };
        assert_eq!(ended("echo test a ... ok", 1.0), None);
        let (verdict, test) = ended("echo 'test a ... FAILED'; sleep 100", 1.0).unwrap();
        assert_eq!((verdict, test.as_str()), ("caught", "test a ... FAILED"));
        assert_eq!(ended("kill -ABRT $$", 1.0).unwrap().0, "caught");
        assert_eq!(ended("sleep 100", -0.6).unwrap().0, "timeout");
    }

    #[test]
    fn the_last_result_of_a_mutant_counts() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("results");
        assert!(results(&file).unwrap().is_empty());
        fs::write(&file, "missed\ta\t3 tests\ncaught\tb\tc\ncaught\ta\td\n").unwrap();
        let found = results(&file).unwrap();
        assert_eq!((found.len(), &*found["a"], &*found["b"]), (2, "caught", "caught"));
    }

    #[test]
    fn files_are_written_when_they_change() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a/b");
        write_changed(&file, b"1").unwrap();
        let time = fs::metadata(&file).unwrap().modified().unwrap();
        write_changed(&file, b"1").unwrap();
        assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), time);
        write_changed(&file, b"2").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"2");
    }
}
