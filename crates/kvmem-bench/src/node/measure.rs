//! One measurement, and what measurements share.

use std::time::Duration;

use tempfile::TempDir;

use super::calls::{CallTimes, CallsFixture};
use super::values::ValuesFixture;
use super::{NodeChild, NodeContenderId, NodeMeasureError, NodeScenario, RestartFigures, restart};
use crate::beside::Beside;

/// A contender, in this program or another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeParticipant {
    Here(NodeContenderId),
    Beside(Beside),
}

impl NodeParticipant {
    pub(super) fn name(&self) -> &str {
        match self {
            NodeParticipant::Here(id) => id.name(),
            NodeParticipant::Beside(beside) => &beside.name,
        }
    }
}

/// A measurement.
#[derive(Clone, Debug)]
pub(crate) enum NodeTask {
    /// Clients call at the same time.
    Calls { contender: NodeContenderId, clients: u32 },
    /// A pass of stores, reads or look-ups.
    Pass { scenario: NodeScenario, participant: NodeParticipant },
    /// A server is killed.
    Restart,
}

/// Its result.
#[derive(Clone, Debug)]
pub(crate) enum NodeSample {
    Calls(CallTimes),
    /// Seconds of a pass.
    Pass(f64),
    Restart(RestartFigures),
}

/// What runs now.
#[derive(Default)]
enum RunningNodes {
    #[default]
    Nothing,
    Calls(CallsFixture),
    Values(Box<ValuesFixture>),
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeEffort {
    /// How long clients call.
    pub(super) time: Duration,
    /// Values of a pass.
    pub(super) values: u64,
    /// Calls of a pass of look-ups.
    pub(super) lookups: u64,
    /// Blocks of the server that is killed.
    pub(super) blocks: u32,
}

/// What measurements share.
pub(crate) struct NodeFixture {
    participants: Vec<NodeParticipant>,
    effort: NodeEffort,
    child: NodeChild,
    running: RunningNodes,
}

fn new_dir() -> Result<TempDir, NodeMeasureError> {
    TempDir::with_prefix("kvmem-bench-").map_err(NodeMeasureError::system("make a directory"))
}

impl NodeFixture {
    pub(super) fn new(
        participants: Vec<NodeParticipant>,
        effort: NodeEffort,
        child: NodeChild,
    ) -> NodeFixture {
        NodeFixture { participants, effort, child, running: RunningNodes::default() }
    }

    /// Starts what the tasks of a group share.
    pub(super) fn prepare(&mut self, first: &NodeTask) -> Result<(), NodeMeasureError> {
        let is_pass = matches!(first, NodeTask::Pass { .. });
        if is_pass && matches!(self.running, RunningNodes::Values(_)) {
            return Ok(());
        }
        // The processes of the group before end first.
        self.running = RunningNodes::Nothing;
        self.running = match first {
            NodeTask::Calls { .. } => {
                RunningNodes::Calls(CallsFixture::new(new_dir()?, self.child)?)
            }
            NodeTask::Pass { .. } => {
                let NodeEffort { values, lookups, .. } = self.effort;
                let all = &self.participants;
                let fixture = ValuesFixture::new(new_dir()?, all, values, lookups, self.child)?;
                RunningNodes::Values(Box::new(fixture))
            }
            NodeTask::Restart => RunningNodes::Nothing,
        };
        Ok(())
    }

    pub(super) fn measure(
        &mut self,
        task: &NodeTask,
        rep: u32,
    ) -> Result<NodeSample, NodeMeasureError> {
        match (task, &mut self.running) {
            (NodeTask::Calls { contender, clients }, RunningNodes::Calls(calls)) => {
                let rings = *contender == NodeContenderId::Ring;
                let times = calls.measure(rings, *clients, self.effort.time, self.child)?;
                Ok(NodeSample::Calls(times))
            }
            (NodeTask::Pass { scenario, participant }, RunningNodes::Values(values)) => {
                Ok(NodeSample::Pass(values.measure(*scenario, participant, rep)?))
            }
            (NodeTask::Restart, _) => {
                let figures = restart::measure(&new_dir()?, self.effort.blocks, self.child)?;
                Ok(NodeSample::Restart(figures))
            }
            _ => unreachable!("a group is prepared for its tasks"),
        }
    }
}
