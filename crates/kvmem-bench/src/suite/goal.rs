//! *Goal*: a limit for a figure of a report, and the list that a suite fills.
//!
//! A goal is reported when the rows it needs exist. If several rows count, the worst is reported
//! with its name.

use serde::{Deserialize, Serialize};

use super::columns::short;

/// A performance goal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goal {
    /// The measured quantity.
    pub name: String,
    /// The figure of this run; the worst if several rows count.
    pub value: f64,
    /// The limit.
    pub limit: f64,
    /// Whether the limit is a minimum; otherwise it is a maximum.
    pub at_least: bool,
    /// The row of the worst figure.
    pub at: Option<String>,
}

impl Goal {
    /// Returns whether the figure meets the limit.
    #[must_use]
    pub fn met(&self) -> bool {
        if self.at_least { self.value >= self.limit } else { self.value <= self.limit }
    }

    /// Formats the figure.
    pub(super) fn figure(&self) -> String {
        short(self.value)
    }

    /// Formats the limit with the sign of its direction.
    pub(super) fn bound(&self) -> String {
        format!("{} {}", if self.at_least { "≥" } else { "≤" }, short(self.limit))
    }
}

/// A figure, and the name of its row if several rows count.
pub(crate) type Figure = (f64, Option<String>);

/// Returns a figure of a row that has it.
pub(crate) type FigureOf<R> = fn(&R) -> Option<f64>;

/// The goals of a report.
#[derive(Debug, Default)]
pub struct GoalList(Vec<Goal>);

impl GoalList {
    /// Returns the goals that `add` adds, in their order.
    pub(crate) fn filled(add: impl FnOnce(&mut GoalList)) -> Vec<Goal> {
        let mut goals = GoalList::default();
        add(&mut goals);
        goals.0
    }

    /// Adds the goal that the largest of `figures` is at most `limit`; nothing without figures.
    pub(crate) fn at_most(
        &mut self,
        name: impl Into<String>,
        limit: f64,
        figures: impl IntoIterator<Item = Figure>,
    ) {
        self.add(name.into(), limit, false, &mut figures.into_iter());
    }

    /// Adds the goal that the smallest of `figures` is at least `limit`; nothing without figures.
    pub(crate) fn at_least(
        &mut self,
        name: impl Into<String>,
        limit: f64,
        figures: impl IntoIterator<Item = Figure>,
    ) {
        self.add(name.into(), limit, true, &mut figures.into_iter());
    }

    fn add(
        &mut self,
        name: String,
        limit: f64,
        at_least: bool,
        figures: &mut dyn Iterator<Item = Figure>,
    ) {
        let worst = figures.reduce(|worst, figure| {
            let order = figure.0.total_cmp(&worst.0);
            let worse = if at_least { order.is_lt() } else { order.is_ge() };
            if worse { figure } else { worst }
        });
        self.0.extend(worst.map(|(value, at)| Goal { name, value, limit, at_least, at }));
    }
}

/// Divides a figure of each row that `ours` selects by the figure of the first row that `theirs`
/// pairs with it; its first argument is our row. `at` names our row.
pub(crate) fn ratios<R>(
    rows: &[R],
    ours: impl Fn(&R) -> bool,
    theirs: impl Fn(&R, &R) -> bool,
    figure: impl Fn(&R) -> Option<f64>,
    at: impl Fn(&R) -> Option<String>,
) -> impl Iterator<Item = Figure> {
    rows.iter().filter(move |row| ours(row)).filter_map(move |our| {
        let their = rows.iter().find(|row| theirs(our, row))?;
        Some((figure(our)? / figure(their)?, at(our)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_figure_counts_and_limits_are_inclusive() {
        let goals = GoalList::filled(|goals| {
            goals.at_most("most", 2.0, [(1.0, None), (2.0, Some("b".to_owned()))]);
            goals.at_least("least", 2.0, [(1.0, Some("a".to_owned())), (2.0, None)]);
            goals.at_least("nothing", 2.0, []);
        });
        let found: Vec<_> = goals.iter().map(|goal| (goal.met(), goal.at.as_deref())).collect();
        assert_eq!(found, [(true, Some("b")), (false, Some("a"))]);
        assert_eq!((goals[0].bound(), goals[1].bound()), ("≤ 2".to_owned(), "≥ 2".to_owned()));
    }

    #[test]
    fn ratios_pair_rows() {
        let rows = [(1, 'a', 6.0), (1, 'b', 3.0), (2, 'a', 5.0)];
        let found = ratios(
            &rows,
            |row| row.1 == 'a',
            |ours, row| row.1 == 'b' && row.0 == ours.0,
            |row| Some(row.2),
            |row| Some(row.0.to_string()),
        );
        assert_eq!(found.collect::<Vec<_>>(), [(2.0, Some("1".to_owned()))]);
    }
}
