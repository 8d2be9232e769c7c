//! *The* process arena: made once, by the first who needs it or by a call that says how.

use std::sync::{Mutex, OnceLock, PoisonError};

use super::{ArenaSettings, ProcessArena, SetupError};

static THE_ONE: OnceLock<ProcessArena> = OnceLock::new();
/// Held while it is made, so that no pool is mapped twice.
static MAKING: Mutex<()> = Mutex::new(());

impl ProcessArena {
    /// The arena of this process. The first call makes it, as the environment says
    /// ([`ArenaSettings::from_env`]).
    ///
    /// It lives as long as the process. When it cannot be made nothing is remembered: the next call
    /// tries again.
    ///
    /// ```standalone_crate
    /// use kvmem::arena::ProcessArena;
    ///
    /// let arena = ProcessArena::get()?;
    /// // Off unless requested for.
    /// assert!(arena.stats().pool.is_none() || arena.settings().pool_bytes.is_some());
    /// # Ok::<(), kvmem::arena::SetupError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SetupError::Setting`], [`SetupError::Map`].
    pub fn get() -> Result<&'static ProcessArena, SetupError> {
        match THE_ONE.get() {
            Some(arena) => Ok(arena),
            None => make(|| Ok(ArenaSettings::from_env()?), Ok),
        }
    }

    /// Makes the arena of this process as these settings say; the environment is not read.
    ///
    /// # Errors
    ///
    /// [`SetupError::InUse`] if it has been made already, [`SetupError::Map`].
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

/// Makes it, unless it is there.
#[cold]
fn make(
    settings: impl FnOnce() -> Result<ArenaSettings, SetupError>,
    there: impl FnOnce(&'static ProcessArena) -> Result<&'static ProcessArena, SetupError>,
) -> Result<&'static ProcessArena, SetupError> {
    // The lock guards no data: whoever panicked under it left nothing half done.
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(arena) = THE_ONE.get() {
        return there(arena);
    }
    let arena = ProcessArena::new(settings()?)?;
    Ok(THE_ONE.get_or_init(|| arena))
}
