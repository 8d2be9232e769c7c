//! *Goals* of a node, evaluated on the rows.

use super::{NodeContenderId, NodeRow, NodeScenario, RestartFigures};
use crate::suite::{Figure, FigureOf, GoalList, ratios};

use NodeContenderId::{Memcpy, Ring, Socket};
use NodeScenario::{Calls, Lookup, Read, Store};

/// Contenders that are programs of other people's code, by the names that the repository's command
/// gives them.
const REDIS: &str = "redis";
const LMCACHE: &str = "lmcache";

/// Adds every goal that the rows and the figures of the restart can decide.
pub(super) fn add(rows: &[NodeRow], restart: Option<&RestartFigures>, goals: &mut GoalList) {
    for (id, limit) in [(Socket, 40.0), (Ring, 12.0)] {
        goals.at_most(
            format!("{id}, one client: µs to pin and release 64 values, p50"),
            limit,
            calls(rows, 1, |row| row.p50_us).filter(|(_, at)| at.as_deref() == Some(id.name())),
        );
    }
    for (name, clients, limit) in [("one client", 1, 1.5e6), ("four clients", 4, 2.5e6)] {
        goals.at_least(
            format!("{name}: keys pinned and released per second"),
            limit,
            calls(rows, clients, |row| row.keys_per_s),
        );
    }
    let speed: FigureOf<NodeRow> = |row| row.gb_per_s;
    let plain = Memcpy.name();
    for scenario in [Store, Read] {
        goals.at_least(
            format!("{scenario}: bytes per second over those of memcpy"),
            0.95,
            over(rows, scenario, plain, speed),
        );
    }
    goals.at_least(
        "read: bytes per second over those of redis",
        5.0,
        over(rows, Read, REDIS, speed),
    );
    goals.at_least(
        "lookup: keys per second over those of lmcache",
        20.0,
        over(rows, Lookup, LMCACHE, |row| row.keys_per_s),
    );
    goals.at_least(
        "store: bytes per second over those of lmcache",
        3.0,
        over(rows, Store, LMCACHE, speed),
    );
    let Some(RestartFigures { blocks, first_hit_s }) = restart else { return };
    let name = format!("restart with {blocks} blocks: seconds to the first hit");
    goals.at_most(name, 2.0, [(*first_hit_s, None)]);
}

/// Returns a figure of the calls of this number of clients, by each contender.
fn calls(
    rows: &[NodeRow],
    clients: u32,
    figure: FigureOf<NodeRow>,
) -> impl Iterator<Item = Figure> {
    let of_clients = move |row: &&NodeRow| row.scenario == Calls && row.clients == clients;
    rows.iter()
        .filter(of_clients)
        .filter_map(move |row| Some((figure(row)?, Some(row.contender.clone()))))
}

/// Divides a figure of each client of a node by that of another contender.
fn over(
    rows: &[NodeRow],
    scenario: NodeScenario,
    other: &'static str,
    figure: FigureOf<NodeRow>,
) -> impl Iterator<Item = Figure> {
    let is_node = |row: &NodeRow| [Ring.name(), Socket.name()].contains(&row.contender.as_str());
    ratios(
        rows,
        move |row| row.scenario == scenario && is_node(row),
        move |ours, row| row.contender == other && row.scenario == ours.scenario,
        figure,
        |row| Some(row.contender.clone()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Goal;

    fn row(scenario: NodeScenario, contender: &str, clients: u32) -> NodeRow {
        NodeRow {
            scenario,
            contender: contender.to_owned(),
            clients,
            p50_us: None,
            p99_us: None,
            keys_per_s: None,
            gb_per_s: None,
        }
    }

    fn called(contender: &str, clients: u32, p50_us: f64, keys_per_s: f64) -> NodeRow {
        let (p50_us, keys_per_s) = (Some(p50_us), Some(keys_per_s));
        NodeRow { p50_us, keys_per_s, ..row(Calls, contender, clients) }
    }

    fn pass(scenario: NodeScenario, contender: &str, figure: f64) -> NodeRow {
        match scenario {
            Lookup => NodeRow { keys_per_s: Some(figure), ..row(scenario, contender, 1) },
            _ => NodeRow { gb_per_s: Some(figure), ..row(scenario, contender, 1) },
        }
    }

    #[test]
    fn both_ways_to_call_count_and_each_program_beside() {
        let rows = [
            called("ring", 1, 11.0, 5e6),
            called("socket", 1, 41.0, 1.4e6),
            called("ring", 4, 90.0, 4e6),
            called("socket", 4, 99.0, 3e6),
            pass(Store, "ring", 9.5),
            pass(Store, "socket", 9.0),
            pass(Store, "memcpy", 10.0),
            pass(Store, "lmcache", 2.0),
            pass(Read, "ring", 8.0),
            pass(Read, "memcpy", 8.0),
            pass(Read, "redis", 2.0),
            pass(Lookup, "ring", 40.0),
            pass(Lookup, "lmcache", 2.0),
        ];
        let restart = RestartFigures { blocks: 1000, first_hit_s: 2.5 };
        let goals: Vec<Goal> = GoalList::filled(|goals| add(&rows, Some(&restart), goals));
        let found: Vec<_> =
            goals.iter().map(|goal| (goal.value, goal.met(), goal.at.as_deref())).collect();
        assert_eq!(
            found,
            [
                (41.0, false, Some("socket")),
                (11.0, true, Some("ring")),
                (1.4e6, false, Some("socket")),
                (3e6, true, Some("socket")),
                (0.9, false, Some("socket")), // stores over memcpy
                (1.0, true, Some("ring")),    // reads over memcpy
                (4.0, false, Some("ring")),   // reads over redis
                (20.0, true, Some("ring")),   // look-ups over lmcache
                (4.5, true, Some("socket")),  // stores over lmcache
                (2.5, false, None),
            ]
        );
        assert!(GoalList::filled(|goals| add(&[], None, goals)).is_empty());
    }
}
