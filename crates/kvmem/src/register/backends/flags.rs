//! *Flags*: sets of named bits, as C libraries take them.

/// Defines a set of bits: constants, `|`, and the names of the bits for display.
macro_rules! flags {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$flag_doc:meta])* $flag:ident = $bits:expr, $shown:literal;)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(u32);

        impl $name {
            /// No flags.
            pub const NONE: $name = $name(0);
            $($(#[$flag_doc])* pub const $flag: $name = $name($bits);)*

            /// Returns the bits as C defines them.
            #[must_use]
            pub const fn bits(self) -> u32 {
                self.0
            }

            /// Returns whether `self` contains all flags of `those`.
            #[must_use]
            pub const fn contains(self, those: $name) -> bool {
                self.0 & those.0 == those.0
            }

            /// Returns the union of both sets; `|` for constants.
            #[must_use]
            pub const fn with(self, those: $name) -> $name {
                $name(self.0 | those.0)
            }

            /// Returns `self` without the flags of `those`.
            #[must_use]
            pub const fn without(self, those: $name) -> $name {
                $name(self.0 & !those.0)
            }
        }

        impl std::ops::BitOr for $name {
            type Output = $name;

            fn bitor(self, those: $name) -> $name {
                self.with(those)
            }
        }

        impl std::fmt::Display for $name {
            /// Writes the names, separated by `+`.
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let all = [$(($name::$flag, $shown)),*];
                let contained = all.into_iter().filter(|(flag, _)| self.contains(*flag));
                let names: Vec<&str> = contained.map(|(_, shown)| shown).collect();
                f.pad(&if names.is_empty() { "none".to_owned() } else { names.join("+") })
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

pub(super) use flags;
