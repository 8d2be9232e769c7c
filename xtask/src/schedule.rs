//! *Schedule*: tasks side by side, as many as the machine has room for.
//!
//! A task is some steps that run one after the other in a thread of their own. It can wait for
//! other tasks by name, and hold *tools* that one task at a time may use: a target folder that
//! cargo locks, the machine's hugepages. The first task of the list that may start starts next, so
//! those that take long, or that others wait for, come first.
//!
//! Two processors are best used by three tasks, because most tests wait for something some of
//! their time. Tasks in the background compute all the time: builds, model checks, fuzzers. Their
//! commands are nice to others, and no more than one per processor runs at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

use crate::output;
use crate::step::Report;

/// The machine's hugepages and `/dev/shm`: its tasks change them, or look for forgotten files.
pub(crate) const MACHINE: &str = "machine";

/// Steps that run one after the other.
pub(crate) struct Task<'a> {
    /// The group in which its steps are counted.
    group: &'static str,
    /// The name by which other tasks wait for it.
    name: &'static str,
    /// Tasks that must have ended before. Those that do not exist are not waited for.
    after: Vec<&'static str>,
    tools: Vec<&'static str>,
    background: bool,
    work: Box<dyn FnOnce(&mut Report) + Send + 'a>,
}

impl<'a> Task<'a> {
    pub(crate) fn new(
        group: &'static str,
        name: &'static str,
        work: impl FnOnce(&mut Report) + Send + 'a,
    ) -> Task<'a> {
        let (after, tools, work) = (Vec::new(), Vec::new(), Box::new(work));
        Task { group, name, after, tools, background: false, work }
    }

    /// Waits for another task.
    pub(crate) fn after(mut self, name: &'static str) -> Task<'a> {
        self.after.push(name);
        self
    }

    /// Waits for all of these tasks: this one needs all processors.
    pub(crate) fn after_all(mut self, tasks: &[Task<'a>]) -> Task<'a> {
        self.after.extend(tasks.iter().map(|task| task.name));
        self
    }

    /// Uses a tool alone.
    pub(crate) fn with(mut self, tool: &'static str) -> Task<'a> {
        self.tools.push(tool);
        self
    }

    /// Leaves the processors to others.
    pub(crate) fn background(mut self) -> Task<'a> {
        self.background = true;
        self
    }
}

/// The tasks of a run.
struct State<'a> {
    waiting: Vec<Task<'a>>,
    /// Names, tools and places of the tasks that run.
    running: Vec<(&'static str, Vec<&'static str>, bool)>,
    report: Report,
}

impl<'a> State<'a> {
    /// Takes the task that should start next, if any may start.
    fn take(&mut self, processors: usize) -> Option<Task<'a>> {
        let computing = self.running.iter().filter(|(.., background)| *background).count();
        let may_start = |task: &Task<'_>| {
            let is_open = |name: &&str| {
                self.running.iter().any(|(running, ..)| running == name)
                    || self.waiting.iter().any(|other| other.name == *name)
            };
            let is_used = |tool| self.running.iter().any(|(_, tools, _)| tools.contains(tool));
            (!task.background || computing < processors)
                && !task.after.iter().any(is_open)
                && !task.tools.iter().any(is_used)
        };
        let at = self.waiting.iter().position(may_start)?;
        let task = self.waiting.remove(at);
        self.running.push((task.name, task.tools.clone(), task.background));
        Some(task)
    }
}

/// Runs all tasks, `lanes` at a time, and returns their steps in the order in which they ended.
pub(crate) fn run(waiting: Vec<Task<'_>>, lanes: usize) -> Report {
    let is_alone = waiting.len() == 1;
    let state = Mutex::new(State { waiting, running: Vec::new(), report: Report::default() });
    let ended = Condvar::new();
    let processors = lanes.saturating_sub(1).max(1);
    let work = || {
        if !is_alone {
            output::keep();
        }
        let mut all = lock(&state);
        while !all.waiting.is_empty() {
            let Some(task) = all.take(processors) else {
                all = ended.wait(all).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(all);
            let mut report = Report::in_group(task.group, task.background);
            if catch_unwind(AssertUnwindSafe(|| (task.work)(&mut report))).is_err() {
                report.check(task.name, || anyhow::bail!("it panicked: see above"));
            }
            print!("{}", output::take());
            all = lock(&state);
            all.report.append(report);
            all.running.retain(|(name, ..)| *name != task.name);
            ended.notify_all();
        }
    };
    thread::scope(|scope| (0..lanes).for_each(|_| drop(scope.spawn(work))));
    state.into_inner().unwrap_or_else(PoisonError::into_inner).report
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task<'a>(name: &'static str) -> Task<'a> {
        Task::new("test", name, |report| {
            report.check("step", || Ok(()));
        })
    }

    #[test]
    fn the_first_that_may_start_starts_next() {
        let waiting = vec![
            task("build").with("target"),
            task("lint").with("target"),
            task("compute").background(),
            task("more").background(),
            task("tests").after("build").after("not there"),
            task("last").after_all(&[task("tests"), task("more")]),
        ];
        let mut state = State { waiting, running: Vec::new(), report: Report::default() };
        let take = |state: &mut State<'_>| state.take(1).map(|task| task.name);
        assert_eq!(take(&mut state), Some("build"));
        // The folder is in use, and one task in the background is enough for one processor.
        assert_eq!((take(&mut state), take(&mut state)), (Some("compute"), None));
        for (ends, next) in [
            ("build", &["lint", "tests"][..]),
            ("compute", &["more"]),
            ("tests", &[]),
            ("more", &["last"]),
        ] {
            state.running.retain(|(name, ..)| *name != ends);
            next.iter().for_each(|next| assert_eq!(take(&mut state), Some(*next)));
            assert_eq!(take(&mut state), None);
        }
    }

    #[test]
    fn lanes_are_all_used_and_a_panic_is_a_failure() {
        let together = std::sync::Barrier::new(3);
        // Return only when three tasks run at once.
        let wait = |_: &mut Report| {
            together.wait();
        };
        let mut tasks: Vec<Task<'_>> =
            ["x", "y", "z"].map(|name| Task::new("test", name, wait)).into();
        tasks.push(Task::new("test", "panics", |_| panic!("on purpose")));
        tasks.push(task("behind").after("panics"));
        let total = run(tasks, 3).total();
        assert_eq!((total.passed, total.failed), (1, 1));
    }
}
