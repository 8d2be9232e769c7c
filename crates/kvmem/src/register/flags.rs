//! *Flags*: sets of named bits, as C libraries take them.

/// A set of bits: constants for them, `|`, and names when shown.
macro_rules! flags {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$flag_doc:meta])* $flag:ident = $bits:expr, $shown:literal;)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(u32);

        impl $name {
            /// Nothing.
            pub const NONE: $name = $name(0);
            $($(#[$flag_doc])* pub const $flag: $name = $name($bits);)*

            /// The bits, as C has them.
            #[must_use]
            pub const fn bits(self) -> u32 {
                self.0
            }

            /// Whether all of those are among these.
            #[must_use]
            pub const fn contains(self, those: $name) -> bool {
                self.0 & those.0 == those.0
            }

            /// These and those: `|` for constants.
            #[must_use]
            pub const fn with(self, those: $name) -> $name {
                $name(self.0 | those.0)
            }

            /// These but not those.
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
            /// The names, with `+` between them.
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let all = [$(($name::$flag, $shown)),*];
                let names: Vec<&str> =
                    all.into_iter().filter(|(flag, _)| self.contains(*flag)).map(|(_, shown)| shown).collect();
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
