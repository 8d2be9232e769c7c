//! The suite of the disk tier.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvmem_bench::tier::{self, Beside, TierBenchOptions, TierContenderId, TierTransfer};
use tempfile::TempDir;

/// A directory for the files and programs of a run.
pub(crate) struct SuiteDir(TempDir);

impl SuiteDir {
    pub(crate) fn new() -> SuiteDir {
        SuiteDir(tempfile::tempdir().unwrap())
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a program that reads calls and runs `answer` of the shell for each.
    pub(crate) fn program(&self, name: &str, answer: &str) -> Beside {
        let program = self.join(name);
        fs::write(&program, format!("#!/bin/sh\nwhile read -r call; do\n{answer}\ndone\n"))
            .unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        Beside { name: name.to_owned(), program }
    }

    fn options(&self) -> TierBenchOptions {
        TierBenchOptions {
            quick: true,
            dir: Some(self.join("files")),
            value_bytes: vec![10_000],
            bytes: Some(8 << 20),
            ..TierBenchOptions::default()
        }
    }
}

#[test]
fn every_contender_stores_and_fetches_and_nothing_is_left() {
    let dir = SuiteDir::new();
    let report = tier::run(&dir.options(), &mut ()).unwrap();
    let found: Vec<_> =
        report.rows.iter().map(|row| (row.transfer, row.contender.as_str())).collect();
    let wanted: Vec<_> = TierTransfer::ALL
        .into_iter()
        .flat_map(|transfer| TierContenderId::ALL.map(|id| (transfer, id.name())))
        .collect();
    assert_eq!(found, wanted);
    for row in &report.rows {
        assert!(row.gb_per_s > 0.0 && row.cpu_s_per_gb > 0.0 && row.value_bytes == 10_000);
    }
    let index = report.details.index.as_ref().unwrap();
    assert!(index.bytes_per_entry > 32.0 && index.open_s > 0.0, "{index:?}");
    assert!((0.9..=1.0).contains(&index.utilization) && index.samples > 10, "{index:?}");
    assert_eq!(fs::read_dir(dir.join("files")).unwrap().count(), 0);
    let text = report.to_string();
    assert!(text.contains("10000 bytes") && text.contains("bytes for each of 1000"), "{text}");
    let json = serde_json::to_string(&report).unwrap();
    let again: tier::TierReport = serde_json::from_str(&json).unwrap();
    assert_eq!(again.to_string(), text);
}

#[test]
fn a_program_takes_part_by_lines_of_json() {
    let dir = SuiteDir::new();
    let log = dir.join("calls").display().to_string();
    let answer = format!(
        r#"echo "$call" >> {log}
        echo 'what a library prints'
        case $call in
        *'"call":"open"'*) echo '{{}}' ;;
        *) echo '{{"seconds":0.5,"cpu_seconds":0.25}}' ;;
        esac"#
    );
    let beside = vec![dir.program("theirs", &answer)];
    let contenders = vec![TierContenderId::Plain];
    let options = TierBenchOptions { beside, contenders, reps: Some(1), ..dir.options() };
    let report = tier::run(&options, &mut ()).unwrap();
    let theirs: Vec<_> = report.rows.iter().filter(|row| row.contender == "theirs").collect();
    // A pass has an eighth of the bytes: 85 values in blocks of their own.
    let gb = 85.0 * 10_000.0 / 1e9;
    assert_eq!(theirs.len(), 2);
    for row in theirs {
        assert!((row.gb_per_s - gb / 0.5).abs() < 1e-9, "{row:?}");
        assert!((row.cpu_s_per_gb - 0.25 / gb).abs() < 1e-6, "{row:?}");
    }
    let calls = fs::read_to_string(dir.join("calls")).unwrap();
    let calls: Vec<serde_json::Value> =
        calls.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&calls[0]["bytes"], &calls[0]["value_bytes"]), (&(8 << 20).into(), &10_000.into()));
    assert_eq!((&calls[1]["call"], &calls[1]["first"]), (&"store".into(), &0.into()));
    let fetch = calls.last().unwrap();
    assert_eq!((&fetch["call"], fetch["numbers"].as_array().unwrap().len()), (&"fetch".into(), 85));
}

#[test]
fn fio_takes_part_by_its_script() {
    let works = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !works("fio") || !works("python3") {
        return println!("skipped: fio or python3 is missing");
    }
    let dir = SuiteDir::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/contenders/fio.py");
    // Its value is padded to whole blocks.
    let options = TierBenchOptions {
        beside: vec![Beside { name: "fio".to_owned(), program: script }],
        contenders: vec![TierContenderId::Kvmem],
        reps: Some(1),
        value_bytes: vec![60_000],
        ..dir.options()
    };
    let report = match tier::run(&options, &mut ()) {
        Err(error) if error.to_string().contains("Operation not permitted") => {
            return println!("skipped: {error}");
        }
        result => result.unwrap(),
    };
    let rows: Vec<_> = report.rows.iter().filter(|row| row.contender == "fio").collect();
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert!(row.gb_per_s > 0.001 && row.gb_per_s < 1000.0, "{row:?}");
        assert!(row.cpu_s_per_gb > 0.0 && row.cpu_s_per_gb < 100.0, "{row:?}");
    }
    let text = report.to_string();
    for goal in ["bytes per second over those of fio", "processor time for a byte over that of fio"]
    {
        assert!(text.contains(goal), "{text}");
    }
    assert_eq!(fs::read_dir(dir.join("files")).unwrap().count(), 0);
}

#[test]
fn a_program_that_fails_ends_the_run_with_what_it_said() {
    let dir = SuiteDir::new();
    for (name, answer, wanted) in [
        ("says", r#"echo '{"error":"no space"}'"#, "says: no space"),
        ("ends", "exit 0", "ends: it ended without an answer"),
        ("vague", "echo '{}'", "vague: it answered without `seconds`"),
        ("odd", "echo '{odd'", "in its answer"),
    ] {
        let beside = vec![dir.program(name, answer)];
        let contenders = vec![TierContenderId::Plain];
        let options = TierBenchOptions { beside, contenders, ..dir.options() };
        let error = tier::run(&options, &mut ()).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
        assert_eq!(fs::read_dir(dir.join("files")).unwrap().count(), 0);
    }
    let program = dir.join("missing");
    let beside = vec![Beside { name: "missing".to_owned(), program }];
    let options = TierBenchOptions { beside, ..dir.options() };
    assert!(tier::run(&options, &mut ()).unwrap_err().to_string().contains("No such file"));
}

#[test]
fn a_program_has_a_name_of_its_own() {
    let foyer: Beside = "foyer=/opt/foyer".parse().unwrap();
    assert_eq!((foyer.name.as_str(), foyer.program.to_str()), ("foyer", Some("/opt/foyer")));
    for text in ["foyer", "=x", "x=", "plain=/opt/x", ""] {
        assert!(text.parse::<Beside>().unwrap_err().to_string().contains("NAME=PROGRAM"), "{text}");
    }
}
