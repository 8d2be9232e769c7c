//! *Suite*: its rows, and how they are measured.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::calls::KEYS;
use super::measure::{NodeEffort, NodeFixture, NodeParticipant, NodeSample, NodeTask};
use super::values::{BATCH, VALUE_BYTES};
use super::{
    NodeBenchOptions, NodeContenderId, NodeMeasureError, NodeScenario, RestartFigures, goals,
    sections,
};
use crate::progress::Progress;
use crate::stats::median;
use crate::suite::plan::{Group, SMALLEST, Stop};
use crate::suite::{GoalList, Measured, NothingSkipped, Plan, Report, Section, Suite, chosen};

/// The benchmark of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSuite;

/// Rows that a machine cannot measure: there are none.
pub type NodeSkipped = NothingSkipped;

/// One contender in one scenario: the medians of the repetitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRow {
    /// The subject of a measurement.
    pub scenario: NodeScenario,
    /// The contender.
    pub contender: String,
    /// Clients that call at the same time.
    pub clients: u32,
    /// Microseconds of the middle call; of the slowest of the clients.
    pub p50_us: Option<f64>,
    /// Microseconds that 99 % of the calls do not exceed; of the slowest of the clients.
    pub p99_us: Option<f64>,
    /// Keys per second of all clients together.
    pub keys_per_s: Option<f64>,
    /// Bytes of values per second, in 10^9.
    pub gb_per_s: Option<f64>,
}

/// The settings of a run, and figures that belong to no row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeDetails {
    /// Repetitions of each measurement; figures are medians.
    pub reps: u32,
    /// Milliseconds for which clients call.
    pub milliseconds: u64,
    /// Bytes of a value that is stored or read.
    pub value_bytes: u64,
    /// Values of a pass of stores or reads.
    pub values: u64,
    /// Values that are stored or read in one call.
    pub batch: usize,
    /// Calls of a pass of look-ups.
    pub lookups: u64,
    /// The figures of a restart.
    pub restart: Option<RestartFigures>,
}

impl Display for NodeDetails {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let NodeDetails { reps, milliseconds, value_bytes, values, batch, .. } = self;
        write!(
            f,
            "{reps} repetition(s), calls for {milliseconds} ms, passes of {values} values of {} \
             KiB, {batch} in a call",
            value_bytes >> 10
        )
    }
}

/// Numbers of clients that call.
const CLIENTS: [u32; 2] = [1, 4];

impl Suite for NodeSuite {
    const NAME: &'static str = "node";
    type Row = NodeRow;
    type Skipped = NodeSkipped;
    type Details = NodeDetails;

    fn goals(report: &Report<Self>, goals: &mut GoalList) {
        goals::add(&report.rows, report.details.restart.as_ref(), goals);
    }

    fn sections(report: &Report<Self>) -> Vec<Section> {
        sections::of(&report.rows, report.details.restart.as_ref())
    }
}

impl Measured for NodeSuite {
    type Options = NodeBenchOptions;
    type Task = NodeTask;
    type Sample = NodeSample;
    type Fixture = NodeFixture;
    type Error = NodeMeasureError;

    fn plan(options: &NodeBenchOptions) -> Plan<Self> {
        let ms = Duration::from_millis;
        let (effort, reps) = match options.quick {
            false => {
                let time = ms(1000);
                (NodeEffort { time, values: 128, lookups: 2000, blocks: 1_000_000 }, 9)
            }
            true if SMALLEST => {
                (NodeEffort { time: ms(50), values: 4, lookups: 10, blocks: 2000 }, 1)
            }
            true => {
                let time = ms(250);
                (NodeEffort { time, values: 64, lookups: 500, blocks: 100_000 }, 3)
            }
        };
        let reps = options.reps.unwrap_or(reps);
        let here = chosen(&options.contenders);
        let is_node = |id: &NodeContenderId| *id != NodeContenderId::Memcpy;
        let nodes: Vec<NodeContenderId> = here.iter().copied().filter(is_node).collect();
        let beside = options.beside.iter().cloned().map(NodeParticipant::Beside);
        let participants: Vec<NodeParticipant> =
            here.into_iter().map(NodeParticipant::Here).chain(beside).collect();
        let calls = CLIENTS.into_iter().flat_map(|clients| {
            nodes.iter().map(move |&contender| NodeTask::Calls { contender, clients })
        });
        let mut groups = vec![Group::rotated(calls, reps, effort.time.as_millis() as u64)];
        for scenario in [NodeScenario::Store, NodeScenario::Read, NodeScenario::Lookup] {
            let plain = NodeParticipant::Here(NodeContenderId::Memcpy);
            let takes_part =
                |it: &&NodeParticipant| scenario != NodeScenario::Lookup || **it != plain;
            let tasks = participants.iter().filter(takes_part).cloned();
            let tasks = tasks.map(|participant| NodeTask::Pass { scenario, participant });
            groups.push(Group::rotated(tasks, reps, effort.values / 4));
        }
        if !nodes.is_empty() {
            groups.push(Group::rotated([NodeTask::Restart], reps.min(3), 5000));
        }
        Plan {
            quick: options.quick,
            groups,
            skipped: Vec::new(),
            fixture: NodeFixture::new(participants, effort, options.child),
            details: NodeDetails {
                reps,
                milliseconds: effort.time.as_millis() as u64,
                value_bytes: VALUE_BYTES,
                values: effort.values,
                batch: BATCH,
                lookups: effort.lookups,
                restart: None,
            },
        }
    }

    fn name(task: &NodeTask) -> String {
        match task {
            NodeTask::Calls { contender, clients } => format!("calls ×{clients}: {contender}"),
            NodeTask::Pass { scenario, participant } => {
                format!("{scenario}: {}", participant.name())
            }
            NodeTask::Restart => "restart".to_owned(),
        }
    }

    fn prepare(
        fixture: &mut NodeFixture,
        first: &NodeTask,
        _: &mut dyn Progress<NodeRow>,
    ) -> Result<(), Stop<NodeSkipped, NodeMeasureError>> {
        Ok(fixture.prepare(first)?)
    }

    fn measure(
        fixture: &mut NodeFixture,
        task: &NodeTask,
        rep: u32,
    ) -> Result<NodeSample, Stop<NodeSkipped, NodeMeasureError>> {
        Ok(fixture.measure(task, rep)?)
    }

    fn row(details: &mut NodeDetails, task: &NodeTask, samples: &[NodeSample]) -> Option<NodeRow> {
        let (mut calls, mut seconds, mut restarts) = (Vec::new(), Vec::new(), Vec::new());
        for sample in samples {
            match sample {
                NodeSample::Calls(times) => calls.push(*times),
                NodeSample::Pass(time) => seconds.push(*time),
                NodeSample::Restart(figures) => restarts.push(figures.clone()),
            }
        }
        let seconds = median(seconds);
        let row = |scenario, contender: &str, clients| NodeRow {
            scenario,
            contender: contender.to_owned(),
            clients,
            p50_us: None,
            p99_us: None,
            keys_per_s: None,
            gb_per_s: None,
        };
        match task {
            NodeTask::Calls { contender, clients } => Some(NodeRow {
                p50_us: median(calls.iter().map(|times| times.p50_us).collect()),
                p99_us: median(calls.iter().map(|times| times.p99_us).collect()),
                keys_per_s: median(calls.iter().map(|times| times.keys_per_s).collect()),
                ..row(NodeScenario::Calls, contender.name(), *clients)
            }),
            NodeTask::Pass { scenario: NodeScenario::Lookup, participant } => Some(NodeRow {
                keys_per_s: Some((details.lookups * KEYS as u64) as f64 / seconds?),
                ..row(NodeScenario::Lookup, participant.name(), 1)
            }),
            NodeTask::Pass { scenario, participant } => Some(NodeRow {
                gb_per_s: Some((details.values * details.value_bytes) as f64 / 1e9 / seconds?),
                ..row(*scenario, participant.name(), 1)
            }),
            NodeTask::Restart => {
                let blocks = restarts.first()?.blocks;
                let times = restarts.iter().map(|figures| figures.first_hit_s).collect();
                details.restart = Some(RestartFigures { blocks, first_hit_s: median(times)? });
                None
            }
        }
    }
}
