//! *Sections*: a table and plots for each kind of pass, and the figures of the index.

use kvmem_report::Scale;

use super::index::IndexFigures;
use super::{TierRow, TierTransfer};
use crate::suite::columns::{distinct, side_by_side};
use crate::suite::{Section, bars};

/// Returns a section for each kind of pass, and the figures of the index.
pub(super) fn of(rows: &[TierRow], index: Option<&IndexFigures>) -> Vec<Section> {
    let passes = TierTransfer::ALL.map(|transfer| {
        let rows: Vec<&TierRow> = rows.iter().filter(|row| row.transfer == transfer).collect();
        section(transfer, &rows)
    });
    let index = index.map(|figures| {
        let IndexFigures { entries, bytes_per_entry, open_s, utilization, samples } = figures;
        let note = format!(
            "The index has {bytes_per_entry:.1} bytes for each of {entries} values, and is open \
             again after {open_s:.2} s.\nA file of pairs of objects is {:.3} % full when the next \
             one has no room (mean of {samples}).",
            100.0 * utilization
        );
        Section::of_note("index", note)
    });
    passes.into_iter().chain(index).collect()
}

fn section(transfer: TierTransfer, rows: &[&TierRow]) -> Section {
    let heading = format!("{transfer}: GB/s, and seconds of processor time for a GB");
    let names = || distinct(rows.iter().map(|row| row.contender.clone()));
    let line = |row: &TierRow| format!("{} bytes", row.value_bytes);
    let columns = names().into_iter().map(|name| (name.clone(), [name, "s/GB".to_owned()]));
    let cells =
        |row: &TierRow| [format!("{:.3}", row.gb_per_s), format!("{:.3}", row.cpu_s_per_gb)];
    let table = side_by_side(rows, columns, line, |row| row.contender.clone(), cells);
    let speed = bars(
        ("Values, more is better", "GB/s", Scale::Linear),
        names(),
        rows,
        line,
        |row| row.contender.clone(),
        |row| Some(row.gb_per_s),
    );
    let processor = bars(
        ("Processor time, less is better", "s/GB", Scale::Linear),
        names(),
        rows,
        line,
        |row| row.contender.clone(),
        |row| Some(row.cpu_s_per_gb),
    );
    Section::new(heading).bars(speed).bars(processor).table(table)
}
