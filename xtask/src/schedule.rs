//! *Schedule*: tasks side by side, as many as the machine has room for.
//!
//! A task is some steps that run one after the other in a thread of their own. It can wait for
//! other tasks by name, hold *tools* that one task at a time may use (a target folder that cargo
//! locks, the machine's hugepages), and add tasks when it ends, such as the test programs that it
//! built.
//!
//! Two processors are best used by three tasks, because most tests wait for something some of
//! their time. Tasks in the background compute all the time: builds, model checks, fuzzers. Their
//! commands are nice to others, and no more than one per processor runs at a time. The *last* tasks
//! start when all others have ended, one after the other: they need all processors. Among the tasks
//! that may start, those start first that others wait for, then those that are urgent, because they
//! take long.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

use crate::output;
use crate::step::Report;

/// The machine's hugepages and `/dev/shm`: its tasks change them, or look for forgotten files.
pub(crate) const MACHINE: &str = "machine";

/// The work of a task: adds its steps to the report, and returns tasks to run after it.
type Work<'a> = Box<dyn FnOnce(&mut Report) -> Vec<Task<'a>> + Send + 'a>;

/// Steps that run one after the other.
pub(crate) struct Task<'a> {
    /// The group in which its steps are counted.
    group: &'static str,
    /// The name by which other tasks wait for it, and under which its time is kept.
    name: String,
    /// Tasks that must have ended before. Those that do not exist are not waited for.
    after: Vec<&'static str>,
    tools: Vec<&'static str>,
    urgent: bool,
    background: bool,
    last: bool,
    work: Work<'a>,
}

impl<'a> Task<'a> {
    /// Returns a task that adds no other.
    pub(crate) fn new(
        group: &'static str,
        name: impl Into<String>,
        work: impl FnOnce(&mut Report) + Send + 'a,
    ) -> Task<'a> {
        Task::growing(group, name, |report| {
            work(report);
            Vec::new()
        })
    }

    /// Returns a task that adds others when it ends.
    pub(crate) fn growing(
        group: &'static str,
        name: impl Into<String>,
        work: impl FnOnce(&mut Report) -> Vec<Task<'a>> + Send + 'a,
    ) -> Task<'a> {
        let (after, tools, work) = (Vec::new(), Vec::new(), Box::new(work));
        let name = name.into();
        Task { group, name, after, tools, urgent: false, background: false, last: false, work }
    }

    /// Waits for another task.
    pub(crate) fn after(mut self, name: &'static str) -> Task<'a> {
        self.after.push(name);
        self
    }

    /// Uses a tool alone.
    pub(crate) fn with(mut self, tool: &'static str) -> Task<'a> {
        self.tools.push(tool);
        self
    }

    /// Starts before others that may start too: what follows it takes long, and waits.
    pub(crate) fn urgent(mut self) -> Task<'a> {
        self.urgent = true;
        self
    }

    /// Leaves the processors to others.
    pub(crate) fn background(mut self) -> Task<'a> {
        self.background = true;
        self
    }

    /// Runs alone, when all tasks that are not last have ended.
    pub(crate) fn last(mut self) -> Task<'a> {
        self.last = true;
        self
    }
}

/// What a task that has not ended means for others.
struct Claim {
    name: String,
    tools: Vec<&'static str>,
    background: bool,
}

/// The tasks of a run.
struct State<'a> {
    waiting: Vec<Task<'a>>,
    running: Vec<Claim>,
    report: Report,
}

impl<'a> State<'a> {
    /// Takes the task that should start next, if any may start.
    fn take(&mut self, processors: usize) -> Option<Task<'a>> {
        let computing = self.running.iter().filter(|claim| claim.background).count();
        let ended = self.running.is_empty() && self.waiting.iter().all(|task| task.last);
        let may_start = |task: &Task<'_>| {
            let is_open = |name: &str| {
                self.running.iter().any(|claim| claim.name == name)
                    || self.waiting.iter().any(|other| other.name == name)
            };
            let is_used = |tool| self.running.iter().any(|claim| claim.tools.contains(tool));
            (!task.last || ended)
                && (!task.background || computing < processors)
                && !task.after.iter().any(|name| is_open(name))
                && !task.tools.iter().any(is_used)
        };
        let rank = |task: &Task<'_>| {
            let is_awaited =
                self.waiting.iter().any(|other| other.after.iter().any(|name| *name == task.name));
            (is_awaited, task.urgent)
        };
        let mut best: Option<usize> = None;
        for (at, task) in self.waiting.iter().enumerate().filter(|(_, task)| may_start(task)) {
            // Of equals the first.
            if best.is_none_or(|best| rank(task) > rank(&self.waiting[best])) {
                best = Some(at);
            }
        }
        let task = self.waiting.remove(best?);
        let (name, tools) = (task.name.clone(), task.tools.clone());
        self.running.push(Claim { name, tools, background: task.background });
        Some(task)
    }
}

/// Runs all tasks, `lanes` at a time, and returns their steps in the order in which they ended.
pub(crate) fn run(mut tasks: Vec<Task<'_>>, lanes: usize) -> Report {
    if let [only] = &mut tasks[..]
        && only.after.is_empty()
    {
        // Nothing runs beside it, so its output is shown as it comes.
        let mut report = Report::in_group(only.group, false);
        let more = tasks.pop().map(|only| (only.work)(&mut report)).unwrap_or_default();
        if more.is_empty() {
            return report;
        }
        return finish(more, report, lanes);
    }
    finish(tasks, Report::default(), lanes)
}

fn finish(waiting: Vec<Task<'_>>, report: Report, lanes: usize) -> Report {
    let state = Mutex::new(State { waiting, running: Vec::new(), report });
    let ended = Condvar::new();
    let processors = lanes.saturating_sub(1).max(1);
    thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                output::keep();
                let mut all = lock(&state);
                loop {
                    let Some(task) = all.take(processors) else {
                        // Tasks that wait for each other would wait forever: the last to look ends.
                        if all.running.is_empty() {
                            break;
                        }
                        all = ended.wait(all).unwrap_or_else(PoisonError::into_inner);
                        continue;
                    };
                    drop(all);
                    let mut report = Report::in_group(task.group, task.background);
                    let work = AssertUnwindSafe(|| (task.work)(&mut report));
                    let more = catch_unwind(work).unwrap_or_else(|_| {
                        report.check(&task.name, || anyhow::bail!("it panicked: see above"));
                        Vec::new()
                    });
                    print!("{}", output::take());
                    all = lock(&state);
                    all.report.append(report);
                    all.waiting.splice(0..0, more);
                    all.running.retain(|claim| claim.name != task.name);
                    ended.notify_all();
                }
            });
        }
    });
    let mut state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
    for task in &state.waiting {
        let why = format!("it waits for {}, which cannot end", task.after.join(", "));
        state.report.check(&task.name, || anyhow::bail!(why));
    }
    state.report
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    fn pass(report: &mut Report) {
        report.check("step", || Ok(()));
    }

    #[test]
    fn tasks_wait_for_others_and_for_those_that_these_add() {
        let order = Mutex::new(Vec::new());
        let record = |name: &'static str| {
            let order = &order;
            move |report: &mut Report| {
                pass(report);
                lock(order).push(name);
            }
        };
        let build = Task::growing("test", "build", |report| {
            record("build")(report);
            let add = |name| Task::new("test", name, record(name)).with("machine");
            vec![add("one"), add("two")]
        });
        let last = Task::new("last", "last", record("last")).after("two").after("build");
        let missing = Task::new("last", "missing", record("missing")).after("not there");
        let report = run(vec![last, build, missing], 3);
        let ran = lock(&order).clone();
        let at = |name| ran.iter().position(|ran| *ran == name).unwrap();
        assert!(at("build") < at("one") && at("two") < at("last"), "{ran:?}");
        assert_eq!((report.total().passed, report.total().failed), (5, 0));
    }

    #[test]
    fn a_tool_is_used_by_one_task_at_a_time_and_lanes_are_all_used() {
        let [inside, most] = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let together = std::sync::Barrier::new(3);
        let task = |name: &str| {
            let (inside, most) = (&inside, &most);
            Task::new("test", name, move |report| {
                // Relaxed: the assertions come after the threads have been joined.
                let now = inside.fetch_add(1, Ordering::Relaxed) + 1;
                most.fetch_max(now, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(5));
                inside.fetch_sub(1, Ordering::Relaxed);
                pass(report);
            })
            .with("machine")
        };
        let beside = |name: &str| {
            let together = &together;
            // Returns only when three tasks run at once.
            Task::new("test", name, move |report| {
                together.wait();
                pass(report);
            })
        };
        let mut tasks: Vec<Task<'_>> = ["a", "b", "c"].map(task).into();
        tasks.extend(["x", "y", "z"].map(beside));
        assert_eq!(run(tasks, 3).total().passed, 6);
        assert_eq!(most.into_inner(), 1);
    }

    #[test]
    fn the_awaited_and_then_the_urgent_start_first_and_the_background_leaves_a_lane() {
        let task = |name: &str| Task::new("test", name, pass);
        let waiting = vec![
            task("short"),
            task("long").background(),
            task("new").background(),
            task("middle"),
            task("urgent").urgent(),
            task("awaited"),
            task("last").after("awaited"),
        ];
        let mut state = State { waiting, running: Vec::new(), report: Report::default() };
        let mut next = || state.take(1).map(|task| task.name);
        let first = [(); 5].map(|()| next().unwrap());
        assert_eq!(first, ["awaited", "urgent", "short", "long", "middle"]);
        // One task in the background is enough for one processor.
        assert_eq!(next(), None);
    }

    #[test]
    fn last_tasks_run_alone_after_all_others() {
        let [inside, others] = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let last = |name: &str| {
            let (inside, others) = (&inside, &others);
            let alone = move |report: &mut Report| {
                // Relaxed, here and below: the scheduler's lock orders tasks that must not meet.
                assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                assert_eq!(others.load(Ordering::Relaxed), 3);
                inside.fetch_sub(1, Ordering::Relaxed);
                pass(report);
            };
            Task::new("test", name, alone).last()
        };
        let other = |name: &str| {
            let others = &others;
            Task::new("test", name, move |report| {
                others.fetch_add(1, Ordering::Relaxed);
                pass(report);
            })
        };
        let (one, two) = (last("one"), last("two"));
        let growing = Task::growing("test", "growing", move |report| {
            pass(report);
            vec![two, other("added")]
        });
        let report = run(vec![one, other("a"), growing, other("b")], 3);
        assert_eq!((report.total().passed, report.total().failed), (6, 0));
    }

    #[test]
    fn tasks_that_panic_or_wait_for_each_other_fail() {
        let panics = Task::new("test", "panics", |_| panic!("on purpose"));
        let one = Task::new("test", "one", pass).after("two");
        let two = Task::new("test", "two", pass).after("one");
        let report = run(vec![one, two, panics, Task::new("test", "three", pass)], 2);
        assert_eq!((report.total().passed, report.total().failed), (1, 3));
    }
}
