//! *Files in `/dev/shm`*: memory that inference engines leave behind.
//!
//! An engine that is killed cannot remove its files there. They keep their memory until the machine
//! starts again, and an engine that starts under the same name may fail because of them.
//!
//! Whether a file is in use can be told only from the initial PID namespace and with the right to
//! see every process: each process's mappings and descriptors are searched. A container sees its
//! own processes alone, although the files may belong to others.

use std::collections::BTreeSet;

use super::files::MachineFiles;
use super::files::Read;

/// The beginnings of file names, and the programs that make such files.
const MAKERS: [(&str, &str); 12] = [
    ("vllm_offload_", "vLLM"),
    ("vllm_ec_", "vLLM"),
    ("sgl_shm_", "SGLang"),
    ("sglang_", "SGLang"),
    ("shared_mla_", "SGLang"),
    ("multi_tokenizer_args_", "SGLang"),
    ("lmcache", "LMCache"),
    ("moe_shared_", "TensorRT-LLM"),
    ("torch_", "PyTorch"),
    ("nccl-", "NCCL"),
    ("ucx_shm_", "UCX"),
    ("psm_", "Python"),
];

/// The folder of the files.
pub(crate) const FOLDER: &str = "/dev/shm";
/// The link that names the PID namespace.
const PID_NAMESPACE: &str = "/proc/self/ns/pid";
/// The initial PID namespace: `PROC_PID_INIT_INO` in the kernel's `include/linux/proc_ns.h`.
const INITIAL: &str = "pid:[4026531836]";

/// A file of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineFile {
    pub(crate) name: String,
    /// The program that makes files of this name.
    pub(crate) maker: &'static str,
    pub(crate) bytes: u64,
    /// The number of the user that owns it.
    pub(crate) user: u32,
    pub(crate) usage: FileUse,
}

/// Whether a process uses a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileUse {
    /// This process has it mapped or open.
    By(u32),
    /// No process of the machine has it mapped or open.
    Unused,
    /// No visible process has it, but not all processes are visible.
    Unknown,
}

impl EngineFile {
    pub(crate) fn path(&self) -> String {
        format!("{FOLDER}/{}", self.name)
    }

    /// Returns whether the name is safe in a command: letters, digits and `._-`.
    pub(crate) fn has_plain_name(&self) -> bool {
        self.name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    }
}

/// Returns the engines' files in `/dev/shm`, the largest first. Searches the processes only if
/// there are any.
pub(crate) fn engine_files(files: &MachineFiles) -> Read<Vec<EngineFile>> {
    let mut found = Vec::new();
    for name in files.names(FOLDER)? {
        let Some((_, maker)) = MAKERS.iter().find(|(begin, _)| name.starts_with(begin)) else {
            continue;
        };
        match files.stored(&format!("{FOLDER}/{name}")) {
            Ok(Some(stored)) => {
                let (bytes, user) = (stored.stored_bytes, stored.user);
                found.push(EngineFile { name, maker, bytes, user, usage: FileUse::Unknown });
            }
            // It has gone meanwhile, so it is no leftover.
            Ok(None) => {}
            Err(unread) if unread.absent => {}
            Err(unread) => return Err(unread),
        }
    }
    if !found.is_empty() {
        let processes = Processes::read(files);
        for file in &mut found {
            file.usage = processes.usage(&file.path());
        }
    }
    found.sort_by(|one, next| next.bytes.cmp(&one.bytes).then_with(|| one.name.cmp(&next.name)));
    Ok(found)
}

/// The visible processes, with the files in `/dev/shm` that they have mapped or open.
struct Processes {
    used: Vec<(u32, BTreeSet<String>)>,
    /// Whether every process of the machine is visible.
    complete: bool,
}

impl Processes {
    fn read(files: &MachineFiles) -> Processes {
        let initial = files.link(PID_NAMESPACE).is_ok_and(|name| name == INITIAL);
        let names = files.names("/proc");
        let mut processes = Processes { used: Vec::new(), complete: initial && names.is_ok() };
        for process in names.unwrap_or_default().iter().filter_map(|name| name.parse().ok()) {
            match used_by(files, process) {
                Ok(used) => processes.used.push((process, used)),
                // It has ended since.
                Err(unread) if unread.absent => {}
                Err(_) => processes.complete = false,
            }
        }
        processes
    }

    fn usage(&self, path: &str) -> FileUse {
        match self.used.iter().find(|(_, used)| used.contains(path)) {
            Some((process, _)) => FileUse::By(*process),
            None if self.complete => FileUse::Unused,
            None => FileUse::Unknown,
        }
    }
}

/// Returns the files in `/dev/shm` that a process has mapped or open.
fn used_by(files: &MachineFiles, process: u32) -> Read<BTreeSet<String>> {
    let maps = files.text(&format!("/proc/{process}/maps"))?;
    let mut used: BTreeSet<String> = maps
        .lines()
        .filter_map(|line| line.find(FOLDER).map(|at| line[at..].trim_end().to_owned()))
        .collect();
    let folder = format!("/proc/{process}/fd");
    for descriptor in files.names(&folder)? {
        // A descriptor that is closed meanwhile has no target.
        used.extend(files.link(&format!("{folder}/{descriptor}")).ok());
    }
    Ok(used)
}
