//! *Statics*: data of the process, made of types that a model checker replaces.
//!
//! A checker's types cannot be made in constants. Under a checker a static is made at its first
//! use, and constructors for it are ordinary functions. No model uses a static: its objects live
//! as long as one run.

/// Declares a static of a type with atomics or locks of this module.
macro_rules! per_process {
    ($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;) => {
        #[cfg(not(loom))]
        $(#[$attribute])*
        static $name: $type = $value;
        #[cfg(loom)]
        $(#[$attribute])*
        static $name: std::sync::LazyLock<$type> = std::sync::LazyLock::new(|| $value);
    };
}

/// Declares a constructor that is `const` if the atomics and locks of this module have constant
/// constructors.
macro_rules! const_new {
    ($(#[$attribute:meta])* $visibility:vis const fn $name:ident(
        $($argument:ident: $type:ty),*
    ) -> Self $body:block) => {
        #[cfg(not(loom))]
        $(#[$attribute])*
        $visibility const fn $name($($argument: $type),*) -> Self $body
        #[cfg(loom)]
        $(#[$attribute])*
        $visibility fn $name($($argument: $type),*) -> Self $body
    };
}

/// Makes an array of equal values, as a constant if possible.
macro_rules! filled {
    [$value:expr; $length:expr] => {{
        #[cfg(not(loom))]
        let filled = [const { $value }; $length];
        #[cfg(loom)]
        let filled: [_; $length] = std::array::from_fn(|_| $value);
        filled
    }};
}

/// Declares data of the running thread. Simulated threads share a thread of the system, so theirs
/// are found by the simulated thread.
macro_rules! per_thread {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = const $value:block;)+) => {
        #[cfg(not(kvmem_simulated))]
        std::thread_local! {
            $($(#[$attribute])* static $name: $type = const $value;)+
        }
        $(
            #[cfg(kvmem_simulated)]
            $(#[$attribute])*
            static $name: crate::sync::simulated::PerThread<$type> =
                crate::sync::simulated::PerThread::new(|| $value);
        )+
    };
}

pub(crate) use {const_new, filled, per_process, per_thread};
