//! `KVMEM_SLAB` in processes of their own: without a rebuild, a misuse is reported and aborts the
//! process.

use std::os::unix::process::ExitStatusExt;
use std::process::Output;

use kvmem::slab::{SlabAllocator, SlabSetupError};

use super::alone;
use super::child::{again, role};

/// Runs a test again with this setting and this role.
fn child(test: &str, variable: &str, value: &str, role: &str) -> Output {
    let mut command = again(test, role);
    command.env_remove("KVMEM_SLAB").env_remove("G_SLICE").env(variable, value);
    command.output().expect("a child")
}

/// Commits a misuse; prints the block's address first.
fn misuse(role: &str) {
    let slabs = SlabAllocator::get().expect("a right setting");
    let block = slabs.allocate(40).expect("there is memory");
    println!("\nat {:#x}", block.addr().get());
    // SAFETY: with debugging enabled, any address may be freed; the written memory still exists.
    unsafe {
        match role {
            "leak" => {}
            "wrong size" => slabs.free(block, 41),
            "foreign pointer" => slabs.free(block.add(8), 40),
            _ => slabs.free(block, 40),
        }
        match role {
            "double free" => slabs.free(block, 40),
            "write after free" => {
                block.add(39).write(0);
                slabs.trim();
            }
            _ => {}
        }
    }
}

#[test]
fn misuse_is_reported_with_address_and_size() {
    let _alone = alone();
    if let Some(role) = role() {
        return misuse(&role);
    }
    let test = "slab_allocator::misuse_is_reported_with_address_and_size";
    for (variable, value) in
        [("KVMEM_SLAB", "debug-blocks"), ("G_SLICE", "always-malloc,debug-blocks")]
    {
        for role in
            ["double free", "wrong size", "foreign pointer", "write after free", "leak", "nothing"]
        {
            let output = child(test, variable, value, role);
            let (said, printed) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            let fine = matches!(role, "leak" | "nothing");
            assert_eq!(
                output.status.signal(),
                (!fine).then_some(libc::SIGABRT),
                "{role}: {printed}"
            );
            if role == "nothing" {
                assert!(!printed.contains("kvmem:"), "{printed}");
                continue;
            }
            let address = said
                .lines()
                .find_map(|line| line.strip_prefix("at 0x"))
                .expect("the child said it");
            let address = usize::from_str_radix(address, 16).expect("an address");
            let address = if role == "foreign pointer" { address + 8 } else { address };
            assert!(printed.contains(&format!("kvmem: {role}")), "{role}: {printed}");
            assert!(
                printed.contains(&format!("{address:#x}")) && printed.contains("40"),
                "{role}: {printed}"
            );
        }
    }
}

#[test]
fn an_unknown_setting_is_an_error_with_its_name() {
    let _alone = alone();
    if role().is_some() {
        let error = SlabAllocator::get().expect_err("a wrong setting");
        assert!(
            matches!(&error, SlabSetupError::Setting(setting) if setting.word == "debug"),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.starts_with(r#"KVMEM_SLAB="debug": "debug" is unknown"#), "{text}");
        return;
    }
    let test = "slab_allocator::an_unknown_setting_is_an_error_with_its_name";
    let output = child(test, "KVMEM_SLAB", "debug", "read it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn allocations_fail_without_pages() {
    use kvmem::arena::{Call, Errno};
    use kvmem::fault;
    use kvmem::slab::{SlabError, SlabSettings};

    let _alone = alone();
    let slabs =
        SlabAllocator::builder().settings(SlabSettings::default()).build().expect("no pages yet");
    let guard = fault::fail_all(Call::MapAnonymous, Errno::ENOMEM);
    assert_eq!(slabs.allocate(100), Err(SlabError::NoMemory { requested: 100 }));
    assert!(guard.failed() > 0);
    drop(guard);
    let block = slabs.allocate(100).expect("there are pages now");
    // SAFETY: allocated with this size, freed once.
    unsafe { slabs.free(block, 100) };
    let guard =
        fault::fail_all(Call::Unmap, Errno::ENOMEM).and(Call::Advise, 1, u64::MAX, Errno::ENOMEM);
    slabs.trim();
    assert_eq!(slabs.stats().slab_bytes, 0);
    assert!(slabs.stats().mapped_bytes > 0 && guard.failed() > 0);
    drop(guard);
    let block = slabs.allocate(100).expect("the block that could not be returned serves again");
    // SAFETY: allocated with this size, freed once.
    unsafe { slabs.free(block, 100) };
    slabs.trim();
    assert_eq!(slabs.stats().mapped_bytes, 0);
}
