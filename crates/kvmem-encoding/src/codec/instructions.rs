/// A set of instructions that this processor has.
///
/// A value of this type proves that the processor has them: only detection makes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instructions(pub(super) Set);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Set {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Instructions {
    /// The code for all processors.
    pub const PORTABLE: Instructions = Instructions(Set::Portable);

    /// Returns the fastest set of this processor. The standard library reads the processor's
    /// features once for each process.
    #[must_use]
    pub fn detected() -> Instructions {
        #[cfg(target_arch = "x86_64")]
        {
            if Instructions::has_avx512() {
                return Instructions(Set::Avx512);
            }
            if Instructions::has_avx2() {
                return Instructions(Set::Avx2);
            }
        }
        Instructions::PORTABLE
    }

    /// Returns all sets of this processor, the fastest last.
    #[must_use]
    pub fn available() -> Vec<Instructions> {
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut))]
        let mut sets = vec![Instructions::PORTABLE];
        #[cfg(target_arch = "x86_64")]
        {
            if Instructions::has_avx2() {
                sets.push(Instructions(Set::Avx2));
            }
            if Instructions::has_avx512() {
                sets.push(Instructions(Set::Avx512));
            }
        }
        sets
    }

    /// Returns its name: `portable`, `avx2` or `avx512`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Set::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => "avx512",
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn has_avx2() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt")
    }

    #[cfg(target_arch = "x86_64")]
    fn has_avx512() -> bool {
        // The code for AVX-512 uses some instructions of the older sets, too.
        Instructions::has_avx2()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("avx512vbmi2")
    }
}
