//! *Names*: enums whose values have names on the command line and in JSON.

use std::fmt::Display;

/// An enum whose values have names.
pub trait Named: Copy + PartialEq + Display + 'static {
    /// All values, in the order in which reports list them.
    const ALL: &'static [Self];

    /// Returns the name on the command line and in JSON.
    fn name(self) -> &'static str;
}

/// Returns the values in `named`, in the order of reports; all values if `named` is empty.
pub(crate) fn chosen<T: Named>(named: &[T]) -> Vec<T> {
    T::ALL.iter().copied().filter(|one| named.is_empty() || named.contains(one)).collect()
}

/// Defines an enum whose values have names: the values with their names in the order of reports,
/// the noun for its values, and the error for an unknown name. `Display` and `FromStr` use the
/// names.
macro_rules! names {
    (
        $(#[$attribute:meta])*
        pub enum $type:ident ($what:literal, $error:ident) {
            $($(#[$value_attribute:meta])* $value:ident = $name:literal,)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord,
            serde::Serialize, serde::Deserialize,
        )]
        pub enum $type {
            $($(#[$value_attribute])* #[serde(rename = $name)] $value,)+
        }

        impl $type {
            /// All values, in the order in which reports list them.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// Returns the name on the command line and in JSON.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)+
                }
            }
        }

        impl $crate::suite::Named for $type {
            const ALL: &'static [Self] = &$type::ALL;

            fn name(self) -> &'static str {
                $type::name(self)
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        #[doc = concat!("No ", $what, " has this name.")]
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        #[error(
            "unknown {} {:?}: use one of {}", $what, .0, $type::ALL.map($type::name).join(", ")
        )]
        pub struct $error(pub String);

        impl std::str::FromStr for $type {
            type Err = $error;

            fn from_str(s: &str) -> Result<Self, Self::Err> {
                Self::ALL.into_iter().find(|id| id.name() == s).ok_or_else(|| $error(s.to_owned()))
            }
        }
    };
}

pub(crate) use names;
