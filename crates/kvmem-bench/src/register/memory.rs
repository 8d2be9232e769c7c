//! *Memory*: the regions, hugepages and ballast that the cells of a group share.

use std::sync::Arc;

use kvmem::arena::Region;

use super::ballast::Ballast;
use super::cell::{Cell, RegisterGroup};
use super::fixture::GroupFixture;
use super::measure::{RegisterSample, measure};
use super::plan::RegisterTask;
use super::{Pages, RegisterMeasureError, RegisterRow, RegisterSkipped};
use crate::arena::mapping;
use crate::hugepages::Hugepages;
use crate::progress::Progress;
use crate::suite::plan::Stop;

type RegisterStop = Stop<RegisterSkipped, RegisterMeasureError>;

/// The groups of a run, and the memory of the current one.
pub(crate) struct RegisterFixture {
    groups: Vec<RegisterGroup>,
    borrow_hugepages: bool,
    /// The number of the current group, and its memory or the reason why it has none.
    current: Option<(usize, Result<GroupMemory, RegisterSkipped>)>,
}

impl RegisterFixture {
    pub(super) fn new(groups: Vec<RegisterGroup>, borrow_hugepages: bool) -> Self {
        RegisterFixture { groups, borrow_hugepages, current: None }
    }

    /// Prepares the memory of the task's cell. The cells of a group are measured one after another.
    pub(super) fn prepare(
        &mut self,
        task: &RegisterTask,
        progress: &mut dyn Progress<RegisterRow>,
    ) -> Result<(), RegisterStop> {
        let group = &self.groups[task.group];
        if self.current.as_ref().is_none_or(|(number, _)| *number != task.group) {
            self.current = None;
            let memory = match GroupMemory::open(group, self.borrow_hugepages, progress) {
                Err(Stop::Fail(error)) => return Err(Stop::Fail(error)),
                Err(Stop::Skip(reason)) => Err(group.skipped(None, reason)),
                Ok(memory) => Ok(memory),
            };
            self.current = Some((task.group, memory));
        }
        match &mut self.current {
            Some((_, Ok(memory))) => memory
                .prepare(&task.cell, progress)
                .map_err(|stop| stopped(stop, group, task.cell.contexts)),
            Some((_, Err(skipped))) => Err(Stop::Skip(skipped.clone())),
            None => Ok(()),
        }
    }

    /// Registers and deregisters once.
    pub(super) fn measure(&mut self, task: &RegisterTask) -> Result<RegisterSample, RegisterStop> {
        let Some((_, Ok(memory))) = &self.current else {
            return Err(Stop::Fail(RegisterMeasureError::Limited("no memory".to_owned())));
        };
        memory
            .measure(task)
            .map_err(|error| stopped(stop(error), &self.groups[task.group], task.cell.contexts))
    }
}

fn stopped(
    stop: Stop<String, RegisterMeasureError>,
    group: &RegisterGroup,
    contexts: u32,
) -> RegisterStop {
    match stop {
        Stop::Skip(reason) => Stop::Skip(group.skipped(Some(contexts), reason)),
        Stop::Fail(error) => Stop::Fail(error),
    }
}

/// Distinguishes limits of this machine from failures of a contender.
fn stop(error: RegisterMeasureError) -> Stop<String, RegisterMeasureError> {
    match error {
        RegisterMeasureError::Limited(_) | RegisterMeasureError::System(_) => {
            Stop::Skip(error.to_string())
        }
        error => Stop::Fail(error),
    }
}

/// The memory of a group.
struct GroupMemory {
    /// Free memory that the host cannot reclaim, once a cell needs it.
    ballast: Option<Ballast>,
    /// The region of the cells that are resident beforehand.
    resident: Option<Arc<Region>>,
    _hugepages: Option<Hugepages>,
    fixture: GroupFixture,
}

impl GroupMemory {
    /// Opens the registrars of `group`, and provides its hugepages.
    fn open(
        group: &RegisterGroup,
        borrow_hugepages: bool,
        progress: &mut dyn Progress<RegisterRow>,
    ) -> Result<Self, Stop<String, RegisterMeasureError>> {
        let fixture = GroupFixture::open(group).map_err(stop)?;
        // Reported once if it holds for all cells: a cell without a reason sorts first.
        let reasons = group.cells.iter().map(|cell| fixture.too_little_memlock(cell));
        if let Some(reason) = reasons.min().flatten() {
            return Err(Stop::Skip(reason));
        }
        let hugepages = match group.pages {
            Some(Pages::Huge) => {
                let pages = Hugepages::provide(group.region_bytes, borrow_hugepages);
                Some(pages.map_err(Stop::Skip)?)
            }
            _ => None,
        };
        if let Some(first) = group.cells.first() {
            progress.step(&format!("{first}: memory"));
        }
        if group.pages == Some(Pages::Huge) {
            // Pages of a pool stay backed by the host.
            mapping::map_populate(Pages::Huge, group.region_bytes as usize)
                .map_err(|error| stop(error.into()))?;
        }
        Ok(GroupMemory { ballast: None, resident: None, _hugepages: hugepages, fixture })
    }

    /// Prepares `cell`. Cells that are resident beforehand come first and share one region.
    fn prepare(
        &mut self,
        cell: &Cell,
        progress: &mut dyn Progress<RegisterRow>,
    ) -> Result<(), Stop<String, RegisterMeasureError>> {
        if let Some(reason) = self.fixture.too_little_memlock(cell) {
            return Err(Stop::Skip(reason));
        }
        if cell.resident {
            if self.resident.is_none() {
                self.resident = Some(self.fixture.region(true).map_err(stop)?);
            }
            return Ok(());
        }
        self.resident = None;
        if cell.pages == Some(Pages::Base) && self.ballast.is_none() {
            // A quarter more than a run needs: other processes take from it too.
            progress.step(&format!("{cell}: memory"));
            let ballast = Ballast::new(cell.region_bytes / 4 * 5);
            self.ballast = Some(ballast.map_err(|error| Stop::Skip(error.to_string()))?);
        }
        Ok(())
    }

    fn measure(&self, task: &RegisterTask) -> Result<RegisterSample, RegisterMeasureError> {
        let RegisterTask { cell, contender, .. } = task;
        if !cell.resident && matches!(cell.pages, Some(Pages::Base | Pages::Thp)) {
            // Fetches from the host the memory that the run is about to take.
            drop(self.fixture.region(true)?);
        }
        let run = self.fixture.for_run(cell);
        match &self.resident {
            Some(region) => measure(*contender, &run, region),
            None => measure(*contender, &run, &self.fixture.region(cell.resident)?),
        }
    }
}
