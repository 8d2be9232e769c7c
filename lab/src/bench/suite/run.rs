//! *Run*: contenders take turns, and their figures become rows.
//!
//! Machines drift while a benchmark runs. Contenders that are compared therefore take turns, in an
//! order that is shuffled for each round: a rotated order would be as regular as the host, and the
//! same contender would pay each time. A row has the medians of its repetitions.

use std::fmt::Display;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use indicatif::ProgressBar;
use kvmem_cli::output::progress_bar;
use kvmem_testkit::workload::stream;
use rand::seq::SliceRandom;

use super::SuiteArgs;
use super::report::{Goal, Report, Row};
use crate::bench::stats::{mean, median};

/// How the repetitions of a figure become one.
#[derive(Clone, Copy, Debug)]
enum Summary {
    Median,
    Mean,
    Least,
}

/// The figures of one repetition, in the order in which tables show them.
#[derive(Clone, Debug, Default)]
pub struct Figures(Vec<(&'static str, f64, Summary)>);

impl Figures {
    /// Begins with a figure whose median counts.
    pub fn of(name: &'static str, value: f64) -> Self {
        Figures::default().with(name, value)
    }

    /// Adds a figure whose median counts.
    pub fn with(mut self, name: &'static str, value: f64) -> Self {
        self.0.push((name, value, Summary::Median));
        self
    }

    /// Adds a figure whose mean counts: repetitions have different seeds.
    pub fn mean(mut self, name: &'static str, value: f64) -> Self {
        self.0.push((name, value, Summary::Mean));
        self
    }

    /// Adds a figure whose least value counts.
    pub fn least(mut self, name: &'static str, value: f64) -> Self {
        self.0.push((name, value, Summary::Least));
        self
    }
}

/// The error of a row that this machine cannot measure: no contender failed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Skip(pub String);

/// How often contenders take turns.
#[derive(Clone, Copy, Debug)]
pub struct Turns {
    /// Rounds that count.
    pub reps: u32,
    /// Whether a round comes first that does not count.
    pub warm: bool,
    /// More rounds, up to `max_reps`, are made within this time.
    pub budget: Duration,
    /// The largest number of rounds that count.
    pub max_reps: u32,
}

impl Turns {
    /// Exactly `reps` rounds, all of which count.
    pub fn of(reps: u32) -> Self {
        Turns { reps, warm: false, budget: Duration::ZERO, max_reps: reps }
    }
}

/// A run of a suite.
pub struct Run {
    report: Report,
    args: SuiteArgs,
    start: Instant,
    bar: ProgressBar,
}

impl Run {
    /// Begins a run of the suite `name`.
    pub fn new(name: &'static str, args: &SuiteArgs) -> Self {
        Run {
            report: Report::new(name, args.quick),
            args: args.clone(),
            start: Instant::now(),
            bar: progress_bar(None, "{elapsed_precise} {spinner} {msg}"),
        }
    }

    /// Whether less is measured.
    pub fn quick(&self) -> bool {
        self.report.quick
    }

    /// Returns the repetitions: those of the command line, or these of a full and a quick run.
    pub fn reps(&self, full: u32, quick: u32) -> u32 {
        self.args.reps.unwrap_or(if self.quick() { quick } else { full })
    }

    /// Returns whether the command line says how often to repeat.
    pub fn has_own_reps(&self) -> bool {
        self.args.reps.is_some()
    }

    /// Returns the first of these for a full run, the second for a quick one, the third for a quick
    /// one without optimization.
    pub fn length<T>(&self, full: T, quick: T, smallest: T) -> T {
        match (self.quick(), super::SMALLEST) {
            (false, _) => full,
            (true, false) => quick,
            (true, true) => smallest,
        }
    }

    /// Returns whether this table is requested.
    pub fn wants(&self, table: &str) -> bool {
        self.args.table.is_empty() || self.args.table.iter().any(|name| name == table)
    }

    /// Returns the requested contenders among these.
    pub fn chosen<C: Copy + Display>(&self, contenders: &[C]) -> Vec<C> {
        let names = &self.args.contender;
        let wanted = |one: &&C| names.is_empty() || names.contains(&one.to_string());
        contenders.iter().filter(wanted).copied().collect()
    }

    /// Says what the figures of a table are.
    pub fn about(&mut self, table: &str, text: impl Display) {
        self.report.headings.push((table.to_owned(), text.to_string()));
    }

    /// Describes the settings in the head of the report.
    pub fn settings(&mut self, settings: impl Display) {
        self.report.settings = settings.to_string();
    }

    /// Records what this machine cannot measure, once for each reason.
    pub fn skip(&mut self, what: &str, reason: impl Display) {
        let skipped = format!("{what}: {reason}");
        if !self.report.skipped.contains(&skipped) {
            self.report.skipped.push(skipped);
        }
    }

    /// Returns the value, or records why this machine cannot measure `what`.
    pub fn or_skip<T, E: Display>(&mut self, what: &str, made: Result<T, E>) -> Option<T> {
        made.map_err(|reason| self.skip(what, reason)).ok()
    }

    /// Shows what is being done.
    pub fn step(&self, what: impl Display) {
        self.bar.set_message(what.to_string());
        self.bar.tick();
    }

    /// Adds a row that is already complete, if its table is requested.
    pub fn row(&mut self, table: &str, line: &str, contender: impl Display, figures: Figures) {
        if !self.wants(table) {
            return;
        }
        let figures = figures.0.into_iter().map(|(name, value, _)| (name.to_owned(), value));
        let (table, line) = (table.to_owned(), line.to_owned());
        let row = Row { table, line, contender: contender.to_string(), figures: figures.collect() };
        self.report.rows.push(row);
    }

    /// Measures the contenders of one line of a table in turns, and adds a row for each. `measure`
    /// takes a contender and the number of the repetition; without figures a repetition does not
    /// count.
    pub fn turns<C: Copy + Display>(
        &mut self,
        (table, line): (&str, &str),
        contenders: &[C],
        turns: Turns,
        mut measure: impl FnMut(C, u32) -> Result<Figures>,
    ) -> Result<()> {
        let contenders = self.chosen(contenders);
        if contenders.is_empty() || !self.wants(table) {
            return Ok(());
        }
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        let mut samples: Vec<Vec<Figures>> = vec![Vec::new(); contenders.len()];
        let mut random = stream(1, self.report.rows.len() as u64);
        let mut start = Instant::now();
        let warm = u32::from(turns.warm);
        for round in 0..turns.max_reps + warm {
            if round == warm {
                start = Instant::now();
            }
            if round >= turns.reps + warm && start.elapsed() > turns.budget {
                break;
            }
            order.shuffle(&mut random);
            for &at in &order {
                let contender = contenders[at];
                self.step(format_args!("{table} {line} {contender}"));
                match measure(contender, round.saturating_sub(warm)) {
                    Ok(figures) if round >= warm && !figures.0.is_empty() => {
                        samples[at].push(figures);
                    }
                    Ok(_) => {}
                    Err(error) if error.is::<Skip>() => {
                        self.skip(&format!("{table}, {line}"), error);
                        return Ok(());
                    }
                    Err(error) => {
                        return Err(error).with_context(|| format!("{table} {line} {contender}"));
                    }
                }
            }
        }
        for (contender, samples) in contenders.iter().zip(samples) {
            let Some(first) = samples.first() else { continue };
            let figures = first.0.iter().enumerate().map(|(at, &(name, _, summary))| {
                let all: Vec<f64> = samples.iter().map(|one| one.0[at].1).collect();
                (name, summarized(all, summary), summary)
            });
            self.row(table, line, contender, Figures(figures.collect()));
        }
        Ok(())
    }

    /// Returns a figure of a contender in the lines of a table that `lines` selects.
    pub fn values(
        &self,
        table: &str,
        contender: impl Display,
        figure: &str,
        lines: impl Fn(&str) -> bool,
    ) -> Vec<(f64, String)> {
        let contender = contender.to_string();
        let rows = self.report.rows.iter();
        let rows = rows.filter(|row| row.table == table && row.contender == contender);
        rows.filter(|row| lines(&row.line))
            .filter_map(|row| Some((row.figure(figure)?, row.line.clone())))
            .collect()
    }

    /// Returns the lines of a table.
    pub fn lines(&self, table: &str) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for row in self.report.rows.iter().filter(|row| row.table == table) {
            if !lines.contains(&row.line) {
                lines.push(row.line.clone());
            }
        }
        lines
    }

    /// Returns the contenders that have a row in a line of a table.
    pub fn contenders(&self, table: &str, line: &str) -> Vec<String> {
        let rows = self.report.rows.iter().filter(|row| row.table == table && row.line == line);
        rows.map(|row| row.contender.clone()).collect()
    }

    /// Divides a figure of a contender by that of another one in the same line of a table.
    pub fn over(
        &self,
        table: &str,
        (ours, theirs): (impl Display, impl Display),
        figure: &str,
        lines: impl Fn(&str) -> bool,
    ) -> Vec<(f64, String)> {
        let theirs = self.values(table, theirs, figure, |_| true);
        let ours = self.values(table, ours, figure, lines).into_iter();
        let ratio = |(value, line): (f64, String)| {
            let (their, _) = theirs.iter().find(|(_, their)| *their == line)?;
            Some((value / their, line))
        };
        ours.filter_map(ratio).collect()
    }

    /// Adds the goal that the largest of these figures is at most `limit`; nothing without figures.
    pub fn at_most(&mut self, name: &str, limit: f64, figures: Vec<(f64, String)>) {
        let worst = figures.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
        self.goal(name, limit, false, worst);
    }

    /// Adds the goal that the least of these figures is at least `limit`; nothing without figures.
    pub fn at_least(&mut self, name: &str, limit: f64, figures: Vec<(f64, String)>) {
        let worst = figures.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
        self.goal(name, limit, true, worst);
    }

    fn goal(&mut self, name: &str, limit: f64, at_least: bool, worst: Option<(f64, String)>) {
        let name = name.to_owned();
        self.report.goals.extend(worst.map(|(value, at)| Goal {
            name,
            value,
            limit,
            at_least,
            at,
        }));
    }

    /// Ends the run.
    pub fn finish(mut self) -> Result<Report> {
        self.bar.finish_and_clear();
        let SuiteArgs { table, contender, .. } = &self.args;
        let Report { rows, skipped, .. } = &self.report;
        ensure!(
            !rows.is_empty() || !skipped.is_empty(),
            "nothing is measured: --table {}, --contender {} select no row of the suite {}; \
             its full output has their names",
            table.join(","),
            contender.join(","),
            self.report.suite
        );
        self.report.seconds = self.start.elapsed().as_secs_f64();
        Ok(self.report)
    }
}

fn summarized(values: Vec<f64>, summary: Summary) -> f64 {
    let all = match summary {
        Summary::Median => median(values),
        Summary::Mean => mean(&values),
        Summary::Least => values.into_iter().min_by(f64::total_cmp),
    };
    all.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_take_turns_and_medians_count() {
        let mut run = Run::new("test", &SuiteArgs::default());
        let mut calls = Vec::new();
        let turns = Turns { warm: true, ..Turns::of(3) };
        run.turns(("table", "line"), &["a", "b", "none"], turns, |contender, rep| {
            calls.push((contender, rep));
            Ok(match contender {
                "none" => Figures::default(),
                _ => Figures::of("ns", f64::from(rep)).least("least", f64::from(rep) + 1.0),
            })
        })
        .unwrap();
        assert_eq!(calls.len(), 12, "a round that does not count, and three that do");
        assert!(calls.chunks(3).all(|round| round.iter().all(|one| one.1 == round[0].1)));
        let found = run.over("table", ("a", "b"), "ns", |_| true);
        assert_eq!(found, [(1.0, "line".to_owned())]);
        assert_eq!(run.values("table", "a", "least", |_| true)[0].0, 1.0);
        assert!(run.values("table", "none", "ns", |_| true).is_empty());
    }

    #[test]
    fn the_worst_figure_counts_and_a_machine_may_lack_a_row() {
        let mut run = Run::new("test", &SuiteArgs::default());
        let skip = |_, _| Err(Skip("no hugepages".to_owned()).into());
        run.turns(("table", "line"), &["a"], Turns::of(1), skip).unwrap();
        run.at_most("most", 2.0, vec![(1.0, String::new()), (2.5, "b".to_owned())]);
        run.at_least("nothing", 2.0, Vec::new());
        let report = run.finish().unwrap();
        assert_eq!(report.skipped, ["table, line: no hugepages"]);
        assert_eq!((report.goals.len(), report.goals[0].met()), (1, false));
        assert_eq!(report.goals[0].at, "b");
    }
}
