//! *Retention*: the other process that has the files of the node.

use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use kvmem_node::{MemoryHolderCallError, MemoryHolderClient, MemoryHolderError};
use sd_notify::NotifyState;

use crate::args::RetainBy;
use crate::holder_command;
use crate::output::Failure;
use kvmem_trace::escape::shown;

/// The name of the files in a memory holder.
const NAME: &str = "node";
/// The names of the files in the store of systemd.
const STORED: [&str; 3] = ["kvmem-memory", "kvmem-index", "kvmem-sessions"];
/// How long a server waits for its predecessor, which is ending, to let go of the memory.
const PATIENCE: Duration = Duration::from_secs(2);
/// After this time in which it has held nothing, a memory holder ends.
const IDLE: Duration = Duration::from_secs(60);

/// The memory that the predecessor has left.
pub(super) enum Left {
    Nothing,
    /// The memory file, the index file and the session file.
    Files([OwnedFd; 3]),
    /// Something else under the name.
    Other(usize),
}

/// The process that retains the files.
pub(super) enum Retention {
    MemoryHolder { path: PathBuf, client: MemoryHolderClient },
    Systemd,
    Nothing,
}

/// Descriptors that systemd has passed to the process.
#[derive(Default)]
pub(super) struct Passed {
    /// A socket that listens.
    pub(super) listener: Option<OwnedFd>,
    files: [Option<OwnedFd>; 3],
}

impl Passed {
    /// Takes the descriptors that systemd has passed. Called once, before anything else is opened.
    pub(super) fn take() -> Result<Passed, Failure> {
        let all = sd_notify::listen_fds_with_names();
        let all = all.map_err(|error| Failure::usage(format_args!("LISTEN_FDS: {error}")))?;
        let mut passed = Passed::default();
        for (number, name) in all {
            let descriptor = owned(number);
            match STORED.iter().position(|stored| *stored == name) {
                Some(at) => passed.files[at] = Some(descriptor),
                // Set aside by a server before: systemd has it still.
                None if name.starts_with("kvmem-") && name.ends_with("-aside") => {}
                None => passed.listener = Some(listener(descriptor, &name)?),
            }
        }
        Ok(passed)
    }
}

fn owned(number: RawFd) -> OwnedFd {
    // SAFETY: systemd has passed the descriptor to this process, which takes it here once, before
    // it opens any other.
    unsafe { OwnedFd::from_raw_fd(number) }
}

fn listener(descriptor: OwnedFd, name: &str) -> Result<OwnedFd, Failure> {
    use rustix::net::{SocketType, sockopt};
    let is_packets = sockopt::socket_type(&descriptor) == Ok(SocketType::SEQPACKET);
    if is_packets && sockopt::socket_acceptconn(&descriptor) == Ok(true) {
        return Ok(descriptor);
    }
    Err(Failure::usage(format_args!(
        "systemd has passed {name:?}, which is no socket of packets that listens: the unit of the \
         socket says ListenSequentialPacket="
    )))
}

impl Retention {
    /// Reaches the process that retains the files, and takes what it has. No other server gets it
    /// while this process lives.
    pub(super) fn begin(
        by: RetainBy,
        socket: &Path,
        passed: &mut Passed,
    ) -> Result<(Retention, Left), Failure> {
        match by {
            RetainBy::None => Ok((Retention::Nothing, Left::Nothing)),
            RetainBy::Systemd => {
                check_store()?;
                let left = match std::mem::take(&mut passed.files) {
                    [Some(memory), Some(index), Some(sessions)] => {
                        Left::Files([memory, index, sessions])
                    }
                    files => match files.iter().flatten().count() {
                        0 => Left::Nothing,
                        count => Left::Other(count),
                    },
                };
                Ok((Retention::Systemd, left))
            }
            RetainBy::Holder => {
                let mut path = socket.to_path_buf().into_os_string();
                path.push(".holder");
                let path = PathBuf::from(path);
                let (client, found) = claim(&path, socket)?;
                let left = match <[OwnedFd; 3]>::try_from(found) {
                    Ok(files) => Left::Files(files),
                    Err(other) if other.is_empty() => Left::Nothing,
                    Err(other) => Left::Other(other.len()),
                };
                Ok((Retention::MemoryHolder { path, client }, left))
            }
        }
    }

    /// Gives the files to the process.
    pub(super) fn put(&self, files: &[OwnedFd; 3]) -> Result<(), Failure> {
        match self {
            Retention::Nothing => Ok(()),
            Retention::MemoryHolder { client, .. } => client
                .put(NAME, &files.each_ref().map(AsFd::as_fd))
                .map_err(holder_command::failure),
            Retention::Systemd => store(files, STORED),
        }
    }

    /// Moves the files of the predecessor to another name in that process, which is returned.
    pub(super) fn set_aside(&self, left: &Left) -> Result<String, Failure> {
        match self {
            Retention::Nothing => Ok(String::new()),
            Retention::MemoryHolder { client, .. } => {
                for number in 1.. {
                    let name = format!("{NAME}-aside-{number}");
                    match client.rename(NAME, &name) {
                        Err(MemoryHolderError::Call(MemoryHolderCallError::NameInUse {
                            ..
                        })) => {}
                        outcome => {
                            return outcome.map(|()| name).map_err(holder_command::failure);
                        }
                    }
                }
                unreachable!("a memory holder has few names")
            }
            Retention::Systemd => {
                let aside = ["kvmem-memory-aside", "kvmem-index-aside", "kvmem-sessions-aside"];
                // systemd ignores a descriptor that it has already, under whatever name.
                unstore()?;
                if let Left::Files(files) = left {
                    store(files, aside)?;
                }
                Ok(aside[0].to_owned())
            }
        }
    }

    /// Has the process drop what the predecessor has left.
    pub(super) fn forget(&self) -> Result<(), Failure> {
        match self {
            Retention::Nothing => Ok(()),
            Retention::MemoryHolder { client, .. } => {
                client.forget(NAME).map_err(holder_command::failure)
            }
            Retention::Systemd => unstore(),
        }
    }

    /// Returns the number of the memory holder's process.
    pub(super) fn holder_pid(&self) -> Option<u32> {
        match self {
            Retention::MemoryHolder { client, .. } => Some(client.holder_pid()),
            _ => None,
        }
    }

    /// Starts another memory holder if the present one has ended, and gives it the files. Returns
    /// whether it did.
    pub(super) fn renew(&mut self, socket: &Path, files: &[OwnedFd; 3]) -> Result<bool, Failure> {
        let Retention::MemoryHolder { path, client } = self else { return Ok(false) };
        if client.is_connected() {
            return Ok(false);
        }
        // Another server's files are not replaced: then the claim or the put fails.
        (*client, _) = claim(path, socket)?;
        self.put(files).map(|()| true)
    }
}

impl std::fmt::Display for Retention {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Retention::MemoryHolder { path, client } => {
                write!(f, "retained by process {} at {}", client.holder_pid(), shown(path))
            }
            Retention::Systemd => f.write_str("retained by systemd"),
            Retention::Nothing => f.write_str("retained by nothing else: the values end with it"),
        }
    }
}

/// Connects to a memory holder, which is started if there is none.
fn connect(path: &Path) -> Result<MemoryHolderClient, Failure> {
    match MemoryHolderClient::connect(path) {
        Err(MemoryHolderError::NoHolder { .. }) => {}
        outcome => return outcome.map_err(holder_command::failure),
    }
    // If it fails because another server starts one at the same time, that one answers.
    let started = holder_command::start(path, IDLE);
    MemoryHolderClient::connect(path).map_err(|error| match started {
        Ok(()) => holder_command::failure(error),
        Err(why) => Failure::usage(format_args!("no memory holder can be started: {why}")),
    })
}

/// Connects to a memory holder, and claims the files. Returns those that it has.
fn claim(path: &Path, socket: &Path) -> Result<(MemoryHolderClient, Vec<OwnedFd>), Failure> {
    let started = Instant::now();
    loop {
        let client = connect(path)?;
        let error = match client.claim(NAME) {
            Ok(found) => return Ok((client, found)),
            Err(error) => error,
        };
        match error {
            // A memory holder or a server that is ending answers nothing, or has the files still.
            MemoryHolderError::NoHolder { .. }
            | MemoryHolderError::Call(MemoryHolderCallError::Claimed { .. })
                if started.elapsed() < PATIENCE =>
            {
                thread::sleep(Duration::from_millis(10));
            }
            MemoryHolderError::Call(MemoryHolderCallError::Claimed { pid, .. }) => {
                return Err(Failure::usage(format_args!(
                    "process {pid} serves the memory of {} already: stop it, or use another \
                     --socket",
                    shown(socket)
                )));
            }
            other => return Err(holder_command::failure(other)),
        }
    }
}

/// Checks that systemd stores descriptors for this unit.
fn check_store() -> Result<(), Failure> {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return Err(Failure::usage(
            "--retain systemd: NOTIFY_SOCKET is not set; run it as a unit with Type=notify and \
             FileDescriptorStoreMax=8, or use --retain holder",
        ));
    }
    // Older systemd does not say it.
    let Ok(max) = std::env::var("FDSTORE") else { return Ok(()) };
    if max.parse().is_ok_and(|max: u32| max < STORED.len() as u32) {
        return Err(Failure::usage(format_args!(
            "--retain systemd: the unit's FileDescriptorStoreMax is {max}, and the memory takes 3 \
             descriptors, as does each that is set aside: set FileDescriptorStoreMax=8"
        )));
    }
    Ok(())
}

fn store(files: &[OwnedFd; 3], names: [&str; 3]) -> Result<(), Failure> {
    for (file, name) in files.iter().zip(names) {
        // systemd would watch them, and drop what it takes for a closed connection.
        let poll = NotifyState::Custom("FDPOLL=0");
        let states = [NotifyState::FdStore, NotifyState::FdName(name), poll];
        sd_notify::notify_with_fds(&states, &[file.as_fd()]).map_err(|error| {
            Failure::new(format_args!("systemd does not take descriptor {name}: {error}"), 1)
        })?;
    }
    Ok(())
}

fn unstore() -> Result<(), Failure> {
    for name in STORED {
        let states = [NotifyState::FdStoreRemove, NotifyState::FdName(name)];
        sd_notify::notify(&states).map_err(|error| {
            Failure::new(format_args!("systemd does not drop descriptor {name}: {error}"), 1)
        })?;
    }
    Ok(())
}
