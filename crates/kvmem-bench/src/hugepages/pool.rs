//! The kernel's pool of hugepages of 2 MiB.

use std::fs;
use std::path::Path;

const FOLDER: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// A pool of hugepages.
pub(super) trait HugepagePool {
    /// Returns the number of all its pages.
    fn total(&self) -> Result<u64, String>;
    /// Returns the number of pages that are neither used nor reserved.
    fn free(&self) -> Result<u64, String>;
    /// Requests `pages` in all. The kernel may find fewer.
    fn resize(&self, pages: u64) -> Result<(), String>;
}

/// The kernel's pool.
pub(super) struct SystemPool;

impl HugepagePool for SystemPool {
    fn total(&self) -> Result<u64, String> {
        number("nr_hugepages")
    }

    fn free(&self) -> Result<u64, String> {
        Ok(number("free_hugepages")?.saturating_sub(number("resv_hugepages")?))
    }

    fn resize(&self, pages: u64) -> Result<(), String> {
        fs::write(Path::new(FOLDER).join("nr_hugepages"), pages.to_string())
            .map_err(|error| format!("cannot set {FOLDER}/nr_hugepages to {pages}: {error}"))
    }
}

fn number(name: &str) -> Result<u64, String> {
    let text = fs::read_to_string(Path::new(FOLDER).join(name));
    let number = text.ok().and_then(|text| text.trim().parse().ok());
    number.ok_or_else(|| format!("cannot read {FOLDER}/{name}"))
}
