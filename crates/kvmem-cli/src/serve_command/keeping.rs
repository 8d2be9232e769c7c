//! *Keeping*: the other process that has the files of the node.

use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use kvmem_node::{KeeperCallError, KeeperClient, KeeperError};
use sd_notify::NotifyState;

use crate::args::KeepBy;
use crate::keeper_command;
use crate::output::Failure;
use kvmem_trace::escape::shown;

/// The name of the files in a keeper.
const NAME: &str = "node";
/// The names of the files in the store of systemd.
const STORED: [&str; 3] = ["kvmem-memory", "kvmem-index", "kvmem-sessions"];
/// How long a server waits for its predecessor, which is ending, to let go of the memory.
const PATIENCE: Duration = Duration::from_secs(2);
/// After this time in which it has held nothing, a keeper ends.
const IDLE: Duration = Duration::from_secs(60);

/// What the predecessor has left.
pub(super) enum Left {
    Nothing,
    /// The memory file, the index file and the session file.
    Files([OwnedFd; 3]),
    /// Something else under the name.
    Other(usize),
}

/// The process that keeps the files.
pub(super) enum Keeping {
    Keeper { path: PathBuf, client: KeeperClient },
    Systemd,
    Nothing,
}

/// What systemd has passed to the process.
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

impl Keeping {
    /// Reaches the process that keeps the files, and takes what it has. No other server gets it
    /// while this process lives.
    pub(super) fn begin(
        by: KeepBy,
        socket: &Path,
        passed: &mut Passed,
    ) -> Result<(Keeping, Left), Failure> {
        match by {
            KeepBy::None => Ok((Keeping::Nothing, Left::Nothing)),
            KeepBy::Systemd => {
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
                Ok((Keeping::Systemd, left))
            }
            KeepBy::Keeper => {
                let mut path = socket.to_path_buf().into_os_string();
                path.push(".keeper");
                let path = PathBuf::from(path);
                let (client, found) = claim(&path, socket)?;
                let left = match <[OwnedFd; 3]>::try_from(found) {
                    Ok(files) => Left::Files(files),
                    Err(other) if other.is_empty() => Left::Nothing,
                    Err(other) => Left::Other(other.len()),
                };
                Ok((Keeping::Keeper { path, client }, left))
            }
        }
    }

    /// Gives the files to the process.
    pub(super) fn put(&self, files: &[OwnedFd; 3]) -> Result<(), Failure> {
        match self {
            Keeping::Nothing => Ok(()),
            Keeping::Keeper { client, .. } => client
                .put(NAME, &files.each_ref().map(AsFd::as_fd))
                .map_err(keeper_command::failure),
            Keeping::Systemd => store(files, STORED),
        }
    }

    /// Has the process keep what the predecessor has left under another name, which is returned.
    pub(super) fn set_aside(&self, left: &Left) -> Result<String, Failure> {
        match self {
            Keeping::Nothing => Ok(String::new()),
            Keeping::Keeper { client, .. } => {
                for number in 1.. {
                    let name = format!("{NAME}-aside-{number}");
                    match client.rename(NAME, &name) {
                        Err(KeeperError::Call(KeeperCallError::NameInUse { .. })) => {}
                        outcome => {
                            return outcome.map(|()| name).map_err(keeper_command::failure);
                        }
                    }
                }
                unreachable!("a keeper has few names")
            }
            Keeping::Systemd => {
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
            Keeping::Nothing => Ok(()),
            Keeping::Keeper { client, .. } => client.forget(NAME).map_err(keeper_command::failure),
            Keeping::Systemd => unstore(),
        }
    }

    /// Returns the number of the keeper's process.
    pub(super) fn keeper_pid(&self) -> Option<u32> {
        match self {
            Keeping::Keeper { client, .. } => Some(client.keeper_pid()),
            _ => None,
        }
    }

    /// Starts another keeper if the present one has ended, and gives it the files. Returns whether
    /// it did.
    pub(super) fn renew(&mut self, socket: &Path, files: &[OwnedFd; 3]) -> Result<bool, Failure> {
        let Keeping::Keeper { path, client } = self else { return Ok(false) };
        if client.is_connected() {
            return Ok(false);
        }
        // Another server's files are not replaced: then the claim or the put fails.
        (*client, _) = claim(path, socket)?;
        self.put(files).map(|()| true)
    }
}

impl std::fmt::Display for Keeping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Keeping::Keeper { path, client } => {
                write!(f, "kept by process {} at {}", client.keeper_pid(), shown(path))
            }
            Keeping::Systemd => f.write_str("kept by systemd"),
            Keeping::Nothing => f.write_str("kept by nothing else: the values end with it"),
        }
    }
}

/// Connects to a keeper, which is started if there is none.
fn connect(path: &Path) -> Result<KeeperClient, Failure> {
    match KeeperClient::connect(path) {
        Err(KeeperError::NoKeeper { .. }) => {}
        outcome => return outcome.map_err(keeper_command::failure),
    }
    // If it fails because another server starts one at the same time, that one answers.
    let started = keeper_command::start(path, IDLE);
    KeeperClient::connect(path).map_err(|error| match started {
        Ok(()) => keeper_command::failure(error),
        Err(why) => Failure::usage(format_args!("no keeper can be started: {why}")),
    })
}

/// Connects to a keeper, and claims the files. Returns those that it has.
fn claim(path: &Path, socket: &Path) -> Result<(KeeperClient, Vec<OwnedFd>), Failure> {
    let started = Instant::now();
    loop {
        let client = connect(path)?;
        let error = match client.claim(NAME) {
            Ok(found) => return Ok((client, found)),
            Err(error) => error,
        };
        match error {
            // A keeper or a server that is ending answers nothing, or has the files still.
            KeeperError::NoKeeper { .. } | KeeperError::Call(KeeperCallError::Claimed { .. })
                if started.elapsed() < PATIENCE =>
            {
                thread::sleep(Duration::from_millis(10));
            }
            KeeperError::Call(KeeperCallError::Claimed { pid, .. }) => {
                return Err(Failure::usage(format_args!(
                    "process {pid} serves the memory of {} already: stop it, or use another \
                     --socket",
                    shown(socket)
                )));
            }
            other => return Err(keeper_command::failure(other)),
        }
    }
}

/// Checks that systemd stores descriptors for this unit.
fn check_store() -> Result<(), Failure> {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return Err(Failure::usage(
            "--keep systemd: NOTIFY_SOCKET is not set; run it as a unit with Type=notify and \
             FileDescriptorStoreMax=8, or use --keep keeper",
        ));
    }
    // Older systemd does not say it.
    let Ok(max) = std::env::var("FDSTORE") else { return Ok(()) };
    if max.parse().is_ok_and(|max: u32| max < STORED.len() as u32) {
        return Err(Failure::usage(format_args!(
            "--keep systemd: the unit's FileDescriptorStoreMax is {max}, and the memory takes 3 \
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
