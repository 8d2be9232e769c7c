//! *Sections*: tables and plots of the calls, of the values and of the look-ups, and the restart.

use kvmem_report::Scale;

use super::{NodeRow, NodeScenario, RestartFigures};
use crate::suite::columns::{decimal, distinct, side_by_side};
use crate::suite::{Section, bars};

/// Returns the sections of a report.
pub(super) fn of(rows: &[NodeRow], restart: Option<&RestartFigures>) -> Vec<Section> {
    let select = |wanted: &[NodeScenario]| -> Vec<&NodeRow> {
        rows.iter().filter(|row| wanted.contains(&row.scenario)).collect()
    };
    let restart = restart.map(|RestartFigures { blocks, first_hit_s }| {
        let note = format!(
            "A server with {blocks} blocks that is killed and started again serves the next hit \
             after {first_hit_s:.2} s."
        );
        Section::of_note("restart", note)
    });
    [
        calls(&select(&[NodeScenario::Calls])),
        values(&select(&[NodeScenario::Store, NodeScenario::Read])),
        lookups(&select(&[NodeScenario::Lookup])),
    ]
    .into_iter()
    .chain(restart)
    .collect()
}

fn contenders(rows: &[&NodeRow]) -> Vec<String> {
    distinct(rows.iter().map(|row| row.contender.clone()))
}

/// Formats millions of keys per second.
fn millions(row: &NodeRow) -> String {
    decimal(row.keys_per_s.map(|keys| keys / 1e6), 2)
}

fn calls(rows: &[&NodeRow]) -> Section {
    let line = |row: &NodeRow| format!("{} client(s)", row.clients);
    let heads = |name: String| (name.clone(), [name, "p99 µs".into(), "M keys/s".into()]);
    let cells = |row: &NodeRow| [decimal(row.p50_us, 1), decimal(row.p99_us, 1), millions(row)];
    let columns = contenders(rows).into_iter().map(heads);
    let table = side_by_side(rows, columns, line, |row| row.contender.clone(), cells);
    let plot = |title, unit, figure: fn(&NodeRow) -> Option<f64>| {
        let scale = (title, unit, Scale::Linear);
        bars(scale, contenders(rows), rows, line, |row| row.contender.clone(), figure)
    };
    Section::new("calls: p50 and p99 in µs to pin and release 64 values, and keys per second")
        .bars(plot("Middle call, less is better", "µs", |row| row.p50_us))
        .bars(plot("Keys, more is better", "1/s", |row| row.keys_per_s))
        .table(table)
}

fn values(rows: &[&NodeRow]) -> Section {
    let line = |row: &NodeRow| row.scenario.to_string();
    let columns = contenders(rows).into_iter().map(|name| (name.clone(), [name]));
    let cells = |row: &NodeRow| [decimal(row.gb_per_s, 3)];
    let table = side_by_side(rows, columns, line, |row| row.contender.clone(), cells);
    let speed = bars(
        ("Values, more is better", "GB/s", Scale::Linear),
        contenders(rows),
        rows,
        line,
        |row| row.contender.clone(),
        |row| row.gb_per_s,
    );
    Section::new("values: GB/s").bars(speed).table(table)
}

fn lookups(rows: &[&NodeRow]) -> Section {
    let line = |row: &NodeRow| row.scenario.to_string();
    let columns = contenders(rows).into_iter().map(|name| (name.clone(), [name]));
    let cells = |row: &NodeRow| [millions(row)];
    let table = side_by_side(rows, columns, line, |row| row.contender.clone(), cells);
    let speed = bars(
        ("Keys that are looked up, more is better", "1/s", Scale::Log),
        contenders(rows),
        rows,
        line,
        |row| row.contender.clone(),
        |row| row.keys_per_s,
    );
    Section::new("look-ups of 64 keys: million keys per second").bars(speed).table(table)
}
