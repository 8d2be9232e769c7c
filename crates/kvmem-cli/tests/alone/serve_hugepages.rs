//! `kvmem serve --memory-file` on a hugetlbfs. Needs root, and a pool that can be resized.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::pool::{Machine, PAGES, POOL};
use crate::serving::Place;

/// A hugetlbfs that goes with the test.
struct HugeMount(PathBuf);

impl HugeMount {
    fn new(place: &Place, options: &str) -> Result<HugeMount, String> {
        let path = place.folder().join(options.replace(['=', ','], "-"));
        fs::create_dir_all(&path).map_err(|error| error.to_string())?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "hugetlbfs", "-o", options, "none"]).arg(&path);
        let output = mount.output().map_err(|error| format!("mount: {error}"))?;
        match output.status.success() {
            true => Ok(HugeMount(path)),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    fn file(&self) -> String {
        self.0.join("memory").into_os_string().into_string().expect("a plain path")
    }
}

impl Drop for HugeMount {
    fn drop(&mut self) {
        // A child of another test, which has not executed its program yet, may have a file open.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Returns the pages that are neither used nor reserved by a mapping.
fn free_pages() -> u64 {
    let count = |name| {
        let file = POOL.replace("nr_hugepages", name);
        let text = fs::read_to_string(file).expect("it is there");
        text.trim().parse::<u64>().expect("a number")
    };
    count("free_hugepages") - count("resv_hugepages")
}

#[test]
fn values_survive_in_hugepages() {
    let Some(_machine) = Machine::take() else { return };
    fs::write(POOL, PAGES.to_string()).expect("root may");
    let place = Place::new();
    let mount = match HugeMount::new(&place, "pagesize=2M") {
        Ok(mount) => mount,
        Err(why) => return println!("skipped: no hugetlbfs can be mounted here: {why}"),
    };
    let file = mount.file();
    let before = free_pages();
    let options = ["--memory-file", &file];
    let server = place.serve_in("2M,thp,4k", "16MiB", &options);
    let range = &server.report["receipt"]["ranges"][0];
    assert_eq!(range["obtained"], "2M", "{}", server.report);
    // Eight pages, one for the index and one for the session file.
    assert_eq!(free_pages(), before - 10);
    let client = place.client();
    for key in 0..100_u32 {
        client.insert(key.to_le_bytes(), &[key as u8; 100_000]).expect("there is space");
    }
    drop(client);
    server.kill();
    assert_eq!(free_pages(), before - 10, "the files have them");
    let server = place.serve_in("2M", "16MiB", &options);
    assert_eq!(server.report["recovered"]["values"], 100);
    let client = place.client();
    for key in 0..100_u32 {
        let found = client.get(key.to_le_bytes()).expect("a call").expect("it is there");
        assert_eq!(found.bytes().expect("it is valid"), [key as u8; 100_000]);
    }
    drop(client);
    server.kill();
    let (status, errors) = place.fails_in("2M", "18MiB", &options);
    assert_eq!(status, Some(2), "{errors}");
    assert!(errors.contains("instead of the requested 18874368"), "{errors}");
    let fresh = ["--memory-file", &file, "--fresh"];
    let server = place.serve_in("2M", "8MiB", &fresh);
    assert_eq!(free_pages(), before - 6);
    server.kill();
    let (status, errors) = place.fails("8MiB", &fresh);
    assert_eq!(status, Some(2), "{errors}");
    assert!(errors.contains("--pages 4k") && errors.contains("add one of 2M"), "{errors}");
    assert_eq!(free_pages(), before);
    let server = place.serve_in("2M", "8MiB", &fresh);
    server.kill();
    for file in [file.clone(), format!("{file}.index"), format!("{file}.sessions")] {
        fs::remove_file(file).expect("it is there");
    }
    assert_eq!(free_pages(), before);
}

#[test]
fn a_hugetlbfs_that_is_too_small_is_told() {
    let Some(_machine) = Machine::take() else { return };
    fs::write(POOL, PAGES.to_string()).expect("root may");
    let place = Place::new();
    let mount = match HugeMount::new(&place, "pagesize=2M,size=8M") {
        Ok(mount) => mount,
        Err(why) => return println!("skipped: no hugetlbfs can be mounted here: {why}"),
    };
    let options = ["--memory-file", &mount.file()];
    let (status, errors) = place.fails_in("2M", "16MiB", &options);
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.contains("of 8388608") && errors.contains("size="), "{errors}");
    // More than the pool has.
    let (status, errors) = place.fails_in("2M", "64GiB", &options);
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.contains("hugepages"), "{errors}");
    assert_eq!(fs::read_dir(&mount.0).expect("it is there").count(), 1, "the lock alone");
}
