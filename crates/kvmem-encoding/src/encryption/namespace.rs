//! *Namespace*: values whose keys are forgotten together, such as those of a tenant.

use ring::digest::SHA256;

/// Returns the first 16 bytes of SHA-256: an identity that every machine computes alike.
#[must_use]
pub fn digest(bytes: &[u8]) -> [u8; 16] {
    let whole = ring::digest::digest(&SHA256, bytes);
    *whole.as_ref().first_chunk().expect("it has 32 bytes")
}

/// A namespace as the tier's file stores it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Namespace {
    /// The identity of its name: a keyed hash.
    pub id: [u8; 16],
    /// Random bytes, without which its keys cannot be derived.
    pub seed: [u8; 16],
}

impl Namespace {
    /// Makes a namespace with a new seed; `None` if the system has no random numbers.
    #[must_use]
    pub fn new(id: [u8; 16]) -> Option<Namespace> {
        Some(Namespace { id, seed: super::session::random()? })
    }
}

#[cfg(test)]
mod tests {
    /// FIPS 180-2, appendix B.1.
    #[test]
    fn it_is_sha_256() {
        let expected = 0xBA78_16BF_8F01_CFEA_4141_40DE_5DAE_2223_u128.to_be_bytes();
        assert_eq!(super::digest(b"abc"), expected);
    }
}
