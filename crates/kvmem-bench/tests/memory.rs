//! Memory in use: the test needs a process of its own.

use kvmem_bench::contender::ContenderId;
use kvmem_bench::offset::{self, OffsetOptions, WorkloadId};

#[test]
fn the_metadata_of_contenders_is_reported() {
    let options = OffsetOptions {
        workloads: vec![WorkloadId::Metadata],
        contenders: vec![ContenderId::Binned],
        ..OffsetOptions::default()
    };
    let report = offset::run(&options, &mut ()).unwrap();
    let packed = report.rows.iter().find(|row| row.variant.as_deref() == Some("packed")).unwrap();
    let each = packed.metadata_bytes_per_live.unwrap();
    assert!((72.0..72.1).contains(&each), "{each} bytes");
    // Tables for a million objects exist from the start.
    assert!(packed.resident_bytes.is_none_or(|bytes| bytes > 60 << 20));
}
