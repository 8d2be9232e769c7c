//! *Names*: enums whose values have names in options and reports.

/// No value has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} {name:?}: use one of {all}")]
pub struct UnknownNameError {
    pub what: &'static str,
    pub name: String,
    pub all: String,
}

/// Defines an enum whose values have names: the values with their names in the order of reports,
/// and the noun for its values. `Display` and `FromStr` use the names.
macro_rules! names {
    (
        $(#[$attribute:meta])*
        pub enum $type:ident ($what:literal) {
            $($(#[$value_attribute:meta])* $value:ident = $name:literal,)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type {
            $($(#[$value_attribute])* $value,)+
        }

        impl $type {
            /// All values, in the order in which reports list them.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// Returns the name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::bench::suite::UnknownNameError;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                Self::ALL.into_iter().find(|one| one.name() == name).ok_or_else(|| {
                    let all = Self::ALL.map(Self::name).join(", ");
                    Self::Err { what: $what, name: name.to_owned(), all }
                })
            }
        }
    };
}

pub(crate) use names;
