//! Enums whose values have names on the command line and in JSON.

/// An enum whose values have names.
pub trait Named: Copy + PartialEq + 'static {
    /// All values, in the order in which reports list them.
    const ALL: &'static [Self];
}

/// Implements `Display` and `FromStr` for an enum with `ALL` and `name`, and defines the error for
/// an unknown name.
macro_rules! names {
    ($type:ident, $error:ident, $what:literal, $doc:literal) => {
        impl $crate::names::Named for $type {
            const ALL: &'static [Self] = &$type::ALL;
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        #[doc = $doc]
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
