//! `cargo xtask chaos`: attacks on the built command and on the library's tests.
//!
//! A step is a kind of attack: many small runs of `kvmem` in surroundings that are hostile in one
//! way. After each run these hold, whatever the attack was:
//!
//! - it ended in time, with a status that is documented: 0, 1 or 2, or by the signal that it was
//!   sent;
//! - it printed no panic, and no escape character where there is no terminal;
//! - an error is one line that begins with `kvmem: ` or `error: `, and contains what the step
//!   expects;
//! - it left no process, no temporary file, nothing in `/dev/shm`, and the settings of hugepages as
//!   they were.
//!
//! Random choices come from a seed that is printed. Attacks that this machine does not allow (no
//! root, no cgroups) are reported as skipped.
//!
//! - [`attack`] is one run and its checks, [`context`] the step that it belongs to,
//! - [`machine`] is the state that a run must leave unchanged, and cgroups of our own,
//! - [`surroundings`], [`outputs`], [`files`], [`lives`], [`tiers`] and [`nodes`] are the steps,
//! - [`groups`] repeats tests of the library with larger counts.

mod attack;
mod context;
mod files;
mod groups;
mod lives;
pub(crate) mod machine;
mod nodes;
mod outputs;
mod surroundings;
mod tiers;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::say;
use crate::step::{Kind, Report};
use crate::workspace::{cargo, target_folder};
use context::Chaos;

/// The attacks, and their duration.
#[derive(Args)]
pub(crate) struct ChaosOptions {
    /// Run all chosen steps this many times, with other random choices each time.
    #[arg(long, value_name = "N", default_value_t = 1)]
    rounds: u64,
    /// Repeat them until this many seconds have passed.
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// The seed of all random choices, which is printed; the default comes from the clock.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Only attacks that take less than a minute, as in `cargo xtask test`.
    #[arg(long)]
    quick: bool,
    /// Attack a build with optimization.
    #[arg(long)]
    release: bool,
    /// Attack this command, and the `kvmem-lab` beside it, instead of building them.
    #[arg(long, value_name = "FILE", conflicts_with = "release")]
    command: Option<PathBuf>,
    /// Repeat these tests of the library instead of the built-in groups: PACKAGE:TARGET:FILTER, as
    /// in kvmem:it:cache. TARGET is a test target, or lib.
    #[arg(long, value_name = "GROUP,…", value_delimiter = ',')]
    groups: Vec<String>,
    /// Repetitions of each group of tests.
    #[arg(long, value_name = "N", default_value_t = 1)]
    repeat: u64,
    /// Factor of the cases and rounds of tests that take their number from the environment.
    #[arg(long, value_name = "N", default_value_t = 2)]
    times: u64,
    /// Kill servers and clients of a node N times while clients read, write and verify, once by
    /// sockets and once by rings. Without a STEP, nothing else.
    #[arg(long, value_name = "N")]
    kills: Option<u64>,
    /// Print the names of the steps and stop.
    #[arg(long)]
    list: bool,
    /// Run only these steps (default: all).
    #[arg(value_name = "STEP")]
    steps: Vec<String>,
}

impl ChaosOptions {
    /// The options of `cargo xtask test`, for a command that is built.
    pub(crate) fn quick(command: PathBuf) -> ChaosOptions {
        ChaosOptions {
            rounds: 1,
            seconds: None,
            seed: None,
            quick: true,
            release: false,
            command: Some(command),
            groups: Vec::new(),
            repeat: 1,
            times: 1,
            kills: None,
            list: false,
            steps: Vec::new(),
        }
    }

    fn wanted(&self) -> Result<Vec<&'static Step>> {
        for name in &self.steps {
            ensure!(
                STEPS.iter().any(|step| step.name == name),
                "there is no step `{name}`: see --list"
            );
        }
        let named = |step: &&Step| self.steps.iter().any(|name| step.name == name);
        let wanted = |step: &&Step| {
            if self.steps.is_empty() {
                (step.quick || !self.quick) && self.groups.is_empty() && self.kills.is_none()
            } else {
                named(step)
            }
        };
        Ok(STEPS.iter().filter(wanted).collect())
    }
}

/// A kind of attack.
struct Step {
    name: &'static str,
    about: &'static str,
    /// Whether `--quick` includes it.
    quick: bool,
    run: fn(&Chaos) -> Result<()>,
}

/// All attacks, in the order in which they run.
const STEPS: [Step; 19] = [
    Step {
        name: "options",
        about: "values that make no sense",
        quick: true,
        run: surroundings::options,
    },
    Step {
        name: "memlock",
        about: "RLIMIT_MEMLOCK 0 and 64 KiB",
        quick: true,
        run: surroundings::memlock,
    },
    Step {
        name: "descriptors",
        about: "few descriptors",
        quick: true,
        run: surroundings::descriptors,
    },
    Step {
        name: "addresses",
        about: "little address space, small files",
        quick: true,
        run: surroundings::addresses,
    },
    Step {
        name: "threads",
        about: "few processes and threads",
        quick: false,
        run: surroundings::threads,
    },
    Step {
        name: "user",
        about: "another user, a folder that is read-only",
        quick: true,
        run: surroundings::user,
    },
    Step { name: "shm", about: "a tiny /dev/shm", quick: true, run: surroundings::shm },
    Step { name: "seccomp", about: "no io_uring", quick: true, run: surroundings::seccomp },
    Step {
        name: "outputs",
        about: "closed and full outputs, readers that go away",
        quick: true,
        run: outputs::streams,
    },
    Step {
        name: "traces",
        about: "files with garbage, folders, pipes",
        quick: true,
        run: files::traces,
    },
    Step {
        name: "names",
        about: "escape characters in the names of files",
        quick: true,
        run: files::names,
    },
    Step {
        name: "written",
        about: "outputs that are inputs, or cannot be written",
        quick: true,
        run: outputs::written,
    },
    Step {
        name: "cgroup",
        about: "a small memory cgroup, alone and six at once",
        quick: false,
        run: lives::cgroup,
    },
    Step { name: "pairs", about: "two instances at once", quick: false, run: lives::pairs },
    Step {
        name: "connections",
        about: "many connections to the metrics server",
        quick: false,
        run: lives::connections,
    },
    Step {
        name: "tiers",
        about: "files of disk tiers: damaged, cut off, no files; no space; runs that are killed",
        quick: false,
        run: tiers::tiers,
    },
    Step {
        name: "nodes",
        about: "servers of nodes and their operators: limits, sockets, memory files, sudden ends",
        quick: false,
        run: nodes::nodes,
    },
    Step {
        name: "service-level",
        about: "how long clients wait beside attacks on a server, and fetches beside stores",
        quick: false,
        run: nodes::service_level,
    },
    Step {
        name: "signals",
        about: "interrupted and killed at random moments",
        quick: false,
        run: lives::signals,
    },
];

/// Runs the steps and prints the summary; the exit status is a failure if anything failed.
pub(crate) fn run(root: &Path, options: &ChaosOptions) -> Result<ExitCode> {
    if options.list {
        for Step { name, about, quick, .. } in &STEPS {
            println!("{name:12} {about}{}", if *quick { "" } else { " (not with --quick)" });
        }
        println!(
            "{:12} tests of the library, again and with larger counts (not with --quick)",
            "groups"
        );
        return Ok(ExitCode::SUCCESS);
    }
    let mut report = Report::default();
    attack_all(root, options, &mut report)?;
    report.print();
    Ok(if report.total().failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the steps into a report.
pub(crate) fn attack_all(root: &Path, options: &ChaosOptions, report: &mut Report) -> Result<()> {
    let wanted = options.wanted()?;
    let command = match &options.command {
        Some(command) => command.clone(),
        None => {
            let mut build = Command::new(cargo());
            build.current_dir(root).args(["build", "--locked", "--package", "kvmem-cli"]);
            build.args(["--package", "kvmem-lab"]);
            if options.release {
                build.arg("--release");
            }
            if !wanted.is_empty() {
                report.command("chaos: build", Kind::Plain, &mut build);
            }
            target_folder(root)?
                .join(if options.release { "release" } else { "debug" })
                .join("kvmem")
        }
    };
    ensure!(wanted.is_empty() || command.exists(), "there is no {}", command.display());
    let seed = options.seed.unwrap_or_else(clock);
    let start = Instant::now();
    let enough = |round| match options.seconds {
        Some(seconds) => round > 0 && start.elapsed() >= Duration::from_secs(seconds),
        None => round >= options.rounds,
    };
    let mut round = 0;
    while !enough(round) {
        let seed = seed.wrapping_add(round);
        say!("\nround {} of chaos, with --seed {seed}", round + 1);
        for step in &wanted {
            report.check(&format!("chaos: {}", step.name), || {
                let chaos =
                    Chaos::begin(root, &command, seed, options.quick).context("cannot begin")?;
                let ran = (step.run)(&chaos);
                chaos.end(ran)
            });
        }
        round += 1;
    }
    if let Some(kills) = options.kills {
        groups::kill(root, kills, report);
    }
    let chosen = options.quick || !options.steps.is_empty() || options.kills.is_some();
    if options.groups.is_empty() && chosen {
        return Ok(());
    }
    groups::run(root, &options.groups, options.repeat, options.times, report)
}

/// Returns a number that differs from run to run.
fn clock() -> u64 {
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    now.as_millis() as u64 % 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_chosen_by_name_or_by_their_time() {
        let names = |options: &ChaosOptions| {
            options.wanted().map(|steps| steps.iter().map(|step| step.name).collect::<Vec<_>>())
        };
        let quick = ChaosOptions::quick("kvmem".into());
        let chosen = names(&quick).unwrap();
        assert!(chosen.contains(&"options") && !chosen.contains(&"signals"));
        let all = ChaosOptions { quick: false, ..ChaosOptions::quick("kvmem".into()) };
        assert_eq!(names(&all).unwrap().len(), STEPS.len());
        let named = ChaosOptions {
            steps: vec!["signals".to_owned()],
            ..ChaosOptions::quick("kvmem".into())
        };
        assert_eq!(names(&named).unwrap(), ["signals"]);
        let tests = ChaosOptions {
            quick: false,
            groups: vec!["kvmem:it:fork".to_owned()],
            ..ChaosOptions::quick("kvmem".into())
        };
        assert_eq!(names(&tests).unwrap(), [""; 0]);
        let kills =
            ChaosOptions { quick: false, kills: Some(1000), ..ChaosOptions::quick("kvmem".into()) };
        assert_eq!(names(&kills).unwrap(), [""; 0]);
        assert!(
            names(&ChaosOptions {
                steps: vec!["none".to_owned()],
                ..ChaosOptions::quick("kvmem".into())
            })
            .is_err()
        );
    }
}
