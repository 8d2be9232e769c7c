//! *Pool*: the hugepages of 2 MiB that the kernel keeps apart.

use std::fs;
use std::path::Path;

const FOLDER: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// A pool of hugepages.
pub(super) trait Pool {
    /// All its pages.
    fn total(&self) -> Result<u64, String>;
    /// Pages that nobody uses, nor has a right to.
    fn free(&self) -> Result<u64, String>;
    /// Asks for this many pages in all. The kernel may find fewer.
    fn resize(&self, pages: u64) -> Result<(), String>;
}

/// The kernel's.
pub(super) struct SystemPool;

impl Pool for SystemPool {
    fn total(&self) -> Result<u64, String> {
        number("nr_hugepages")
    }

    fn free(&self) -> Result<u64, String> {
        Ok(number("free_hugepages")?.saturating_sub(number("resv_hugepages")?))
    }

    fn resize(&self, pages: u64) -> Result<(), String> {
        fs::write(Path::new(FOLDER).join("nr_hugepages"), pages.to_string())
            .map_err(|error| format!("{FOLDER}/nr_hugepages cannot be set to {pages}: {error}"))
    }
}

fn number(name: &str) -> Result<u64, String> {
    let text = fs::read_to_string(Path::new(FOLDER).join(name));
    let number = text.ok().and_then(|text| text.trim().parse().ok());
    number.ok_or_else(|| format!("{FOLDER}/{name} cannot be read"))
}
