//! *Process-wide arena*: the one arena of this process, made at its first use or by an explicit
//! call.

use std::sync::{Mutex, OnceLock, PoisonError};

use super::arena::ProcessArena;
use super::error::SetupError;
use super::settings::ArenaSettings;

static THE_ONE: OnceLock<ProcessArena> = OnceLock::new();
/// Locked while the arena is made: no two threads map a pool.
static MAKING: Mutex<()> = Mutex::new(());

impl ProcessArena {
    /// Returns the arena of this process. The first call makes it with the settings of the
    /// environment ([`ArenaSettings::from_env`]).
    ///
    /// The arena lives until the process ends. After a failure the next call tries again.
    ///
    /// ```standalone_crate
    /// use kvmem::arena::ProcessArena;
    ///
    /// let arena = ProcessArena::get()?;
    /// // Off by default.
    /// assert!(arena.stats().pool.is_none() || arena.settings().pool_bytes.is_some());
    /// # Ok::<(), kvmem::arena::SetupError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SetupError::Setting`] if an environment variable has a wrong value, [`SetupError::Map`] if
    /// the pool cannot be mapped.
    pub fn get() -> Result<&'static ProcessArena, SetupError> {
        match THE_ONE.get() {
            Some(arena) => Ok(arena),
            None => make(|| Ok(ArenaSettings::from_env()?), Ok),
        }
    }

    /// Makes the arena of this process with these settings; does not read the environment.
    ///
    /// # Errors
    ///
    /// [`SetupError::InUse`] if the arena exists already, [`SetupError::Map`] if the pool cannot be
    /// mapped.
    ///
    /// ```standalone_crate
    /// use kvmem::arena::{ArenaSettings, ProcessArena, SetupError};
    ///
    /// let arena = ProcessArena::configure(ArenaSettings::pool(1 << 20))?;
    /// assert!(std::ptr::eq(arena, ProcessArena::get()?));
    /// assert_eq!(ProcessArena::configure(ArenaSettings::off()).unwrap_err(), SetupError::InUse);
    /// # Ok::<(), SetupError>(())
    /// ```
    pub fn configure(settings: ArenaSettings) -> Result<&'static ProcessArena, SetupError> {
        make(|| Ok(settings), |_| Err(SetupError::InUse))
    }
}

/// Makes the arena unless it exists.
#[cold]
fn make(
    settings: impl FnOnce() -> Result<ArenaSettings, SetupError>,
    there: impl FnOnce(&'static ProcessArena) -> Result<&'static ProcessArena, SetupError>,
) -> Result<&'static ProcessArena, SetupError> {
    // The lock guards no data: a panic under it leaves nothing half done.
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(arena) = THE_ONE.get() {
        return there(arena);
    }
    let arena = ProcessArena::new(settings()?)?;
    Ok(THE_ONE.get_or_init(|| arena))
}
