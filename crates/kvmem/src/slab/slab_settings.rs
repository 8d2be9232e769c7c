//! *Slice settings*: how objects are allocated when somebody looks for a mistake.
//!
//! | variable | alias | meaning |
//! |---|---|---|
//! | `KVMEM_SLICE` | `G_SLICE` | a list of `always-malloc` and `debug-blocks`; `all` is both |
//!
//! The list is separated by commas, colons, semicolons or blanks, as GLib's is; large letters and
//! `_` for `-` are read alike. The first variable that is set and not blank counts; its alias is
//! then not read. A word that is none of these is an error: who asks for debugging and mistypes
//! would else be told that all is well.

use std::ffi::OsString;

use thiserror::Error;

const NAMES: [&str; 2] = ["KVMEM_SLICE", "G_SLICE"];

/// How objects are allocated.
///
/// ```
/// use kvmem::slab::SlabSettings;
///
/// let variable = |name: &str| (name == "G_SLICE").then(|| "debug-blocks".into());
/// let settings = SlabSettings::from_lookup(variable)?;
/// assert!(settings.debug_blocks && !settings.always_malloc);
///
/// let variable = |name: &str| (name == "KVMEM_SLICE").then(|| "debug-block".into());
/// let error = SlabSettings::from_lookup(variable).unwrap_err();
/// assert!(error.to_string().starts_with(r#"KVMEM_SLICE="debug-block": "debug-block" is unknown"#), "{error}");
/// # Ok::<(), kvmem::slab::SlabSettingError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlabSettings {
    /// Every block comes from the system's `malloc`: for tools that watch that one.
    pub always_malloc: bool,
    /// Every block is entered into books: double free, wrong size, foreign pointers, writes after
    /// free and leaks are found. Slow, and what is freed stays away for a while.
    pub debug_blocks: bool,
}

/// A setting that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{variable}={value:?}: {word:?} is unknown; give always-malloc, debug-blocks, both or all, or unset it"
)]
pub struct SlabSettingError {
    /// The variable, by the name that was set.
    pub variable: &'static str,
    /// Its value. What is not Unicode is replaced by U+FFFD.
    pub value: String,
    /// The part of it that is wrong.
    pub word: String,
}

impl SlabSettings {
    /// What the environment says.
    ///
    /// # Errors
    ///
    /// [`SlabSettingError`] names the variable, its value and what may stand there.
    pub fn from_env() -> Result<Self, SlabSettingError> {
        Self::from_lookup(|name| std::env::var_os(name))
    }

    /// What these variables say: as [`from_env`](Self::from_env), but from anywhere.
    ///
    /// # Errors
    ///
    /// As [`from_env`](Self::from_env).
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: &str) -> Result<(bool, bool), String> {
        SlabSettings::from_lookup(|name| (name == "KVMEM_SLICE").then(|| value.into()))
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
                Some(if name == "KVMEM_SLICE" { first.into() } else { "debug-blocks".into() })
            }
        };
        assert!(!SlabSettings::from_lookup(both("always-malloc")).unwrap().debug_blocks);
        assert!(SlabSettings::from_lookup(both("")).unwrap().debug_blocks);
        let error =
            SlabSettings::from_lookup(|name| (name == "G_SLICE").then(|| "x".into())).unwrap_err();
        assert_eq!(error.variable, "G_SLICE");
    }
}
