//! *Target*: an architecture that wheels are built for, and the oldest system that they run on.

/// The oldest glibc that a wheel runs with, from 2018. It names the tag of the wheel,
/// `manylinux_2_28`. kvmem calls `memfd_create`, which 2.27 is the first to have.
pub(crate) const GLIBC: (u32, u32) = (2, 28);

/// An architecture of a wheel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// Intel and AMD.
    X86_64,
    /// Arm, 64 bits.
    Aarch64,
}

impl Target {
    /// Returns the name that the kernel gives to the machine.
    pub(crate) fn machine(self) -> &'static str {
        match self {
            Target::X86_64 => "x86_64",
            Target::Aarch64 => "aarch64",
        }
    }

    /// Returns the name that Debian gives to the architecture.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Target::X86_64 => "amd64",
            Target::Aarch64 => "arm64",
        }
    }

    /// Returns the target of the Rust compiler.
    pub(crate) fn triple(self) -> String {
        format!("{}-unknown-linux-gnu", self.machine())
    }

    /// Returns the platform tag of the wheel.
    pub(crate) fn platform(self) -> String {
        format!("manylinux_{}_{}_{}", GLIBC.0, GLIBC.1, self.machine())
    }

    /// Whether its programs run on this machine without emulation.
    pub(crate) fn is_native(self) -> bool {
        self.machine() == std::env::consts::ARCH
    }
}

/// The targets that one call builds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Targets {
    /// Intel and AMD.
    #[value(name = "x86_64")]
    X86_64,
    /// Arm, 64 bits.
    Aarch64,
    /// Both.
    All,
}

impl Targets {
    /// Returns the target of this machine.
    pub(crate) fn host() -> Self {
        if Target::Aarch64.is_native() { Targets::Aarch64 } else { Targets::X86_64 }
    }

    /// Returns the targets, this machine's first.
    pub(crate) fn each(self) -> Vec<Target> {
        let mut each = match self {
            Targets::X86_64 => vec![Target::X86_64],
            Targets::Aarch64 => vec![Target::Aarch64],
            Targets::All => vec![Target::X86_64, Target::Aarch64],
        };
        each.sort_by_key(|target| !target.is_native());
        each
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_native_target_comes_first() {
        let all = Targets::All.each();
        assert_eq!(all.len(), 2);
        assert_eq!(Targets::host().each(), all[..1]);
        assert!(all[0].is_native() && !all[1].is_native());
    }

    #[test]
    fn names_follow_the_platform() {
        assert_eq!(Target::Aarch64.triple(), "aarch64-unknown-linux-gnu");
        let tag = format!("manylinux_{}_{}_x86_64", GLIBC.0, GLIBC.1);
        assert_eq!(Target::X86_64.platform(), tag);
    }
}
