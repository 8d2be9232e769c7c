//! *Settings of the slab allocator* for debugging, from environment variables.
//!
//! | variable | alias | meaning |
//! |---|---|---|
//! | `KVMEM_SLAB` | `G_SLICE` | a list of `always-malloc` and `debug-blocks`; `all` is both |
//!
//! The list is separated by commas, colons, semicolons or blanks, as GLib's is. Case does not
//! matter, and `_` may stand for `-`. The first variable that is set and not blank counts; the
//! other one is then ignored. An unknown word is an error: otherwise a user who mistypes a debug
//! setting would believe that no fault was found.

use std::ffi::OsString;

use thiserror::Error;

const NAMES: [&str; 2] = ["KVMEM_SLAB", "G_SLICE"];

/// Debug settings of a slab allocator.
///
/// ```
/// use kvmem::slab::SlabSettings;
///
/// let variable = |name: &str| (name == "G_SLICE").then(|| "debug-blocks".into());
/// let settings = SlabSettings::from_lookup(variable)?;
/// assert!(settings.debug_blocks && !settings.always_malloc);
///
/// let variable = |name: &str| (name == "KVMEM_SLAB").then(|| "debug-block".into());
/// let error = SlabSettings::from_lookup(variable).unwrap_err().to_string();
/// let start = r#"KVMEM_SLAB="debug-block": "debug-block" is unknown"#;
/// assert!(error.starts_with(start), "{error}");
/// # Ok::<(), kvmem::slab::SlabSettingError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlabSettings {
    /// Allocate every block with the system's `malloc`, for tools that check that allocator.
    pub always_malloc: bool,
    /// Track every block and detect double frees, wrong sizes, foreign pointers, writes after
    /// free, and leaks. Slow, and freed memory stays in quarantine for a while.
    pub debug_blocks: bool,
}

/// A setting with an unknown word.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{variable}={value:?}: {word:?} is unknown; use always-malloc, debug-blocks, both or all, \
     or unset the variable"
)]
pub struct SlabSettingError {
    /// The name of the variable that was set.
    pub variable: &'static str,
    /// Its value. Bytes that are not Unicode are replaced by U+FFFD.
    pub value: String,
    /// The unknown word.
    pub word: String,
}

impl SlabSettings {
    /// Reads the settings from the environment.
    ///
    /// # Errors
    ///
    /// Returns a [`SlabSettingError`] with the variable, its value and the allowed words if a word
    /// is unknown.
    pub fn from_env() -> Result<Self, SlabSettingError> {
        Self::from_lookup(|name| std::env::var_os(name))
    }

    /// Reads the settings through `variable`, which returns the value of a variable by its name.
    /// For callers that have their own source of variables.
    ///
    /// # Errors
    ///
    /// Returns a [`SlabSettingError`] with the variable, its value and the allowed words if a word
    /// is unknown.
    pub fn from_lookup(
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, SlabSettingError> {
        let found = NAMES.into_iter().find_map(|name| {
            let value = variable(name)?.to_string_lossy().into_owned();
            (!value.trim().is_empty()).then_some((name, value))
        });
        let mut settings = SlabSettings::default();
        let Some((variable, value)) = found else { return Ok(settings) };
        let separates = |letter: char| matches!(letter, ',' | ':' | ';') || letter.is_whitespace();
        for word in value.split(separates).filter(|word| !word.is_empty()) {
            match word.to_ascii_lowercase().replace('_', "-").as_str() {
                "always-malloc" => settings.always_malloc = true,
                "debug-blocks" => settings.debug_blocks = true,
                "all" => settings = SlabSettings { always_malloc: true, debug_blocks: true },
                _ => {
                    let (value, word) = (value.trim().to_owned(), word.to_owned());
                    return Err(SlabSettingError { variable, value, word });
                }
            }
        }
        Ok(settings)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn parse(value: &str) -> Result<(bool, bool), String> {
        SlabSettings::from_lookup(|name| (name == "KVMEM_SLAB").then(|| value.into()))
            .map(|settings| (settings.always_malloc, settings.debug_blocks))
            .map_err(|error| error.word)
    }

    #[test]
    fn lists_are_read_as_glib_reads_them() {
        assert_eq!(parse(" "), Ok((false, false)));
        assert_eq!(parse("always-malloc"), Ok((true, false)));
        assert_eq!(parse("debug_blocks"), Ok((false, true)));
        assert_eq!(parse("ALWAYS-MALLOC:debug-blocks;"), Ok((true, true)));
        assert_eq!(parse("all"), Ok((true, true)));
        assert_eq!(parse("debug-blocks,never"), Err("never".to_owned()));
    }

    #[test]
    fn the_first_name_that_is_set_counts() {
        let both = |first: &'static str| {
            move |name: &str| {
                Some(if name == "KVMEM_SLAB" { first.into() } else { "debug-blocks".into() })
            }
        };
        assert!(!SlabSettings::from_lookup(both("always-malloc")).unwrap().debug_blocks);
        assert!(SlabSettings::from_lookup(both("")).unwrap().debug_blocks);
        let error =
            SlabSettings::from_lookup(|name| (name == "G_SLICE").then(|| "x".into())).unwrap_err();
        assert_eq!(error.variable, "G_SLICE");
    }
}
