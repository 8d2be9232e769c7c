//! Keys of prefixes: the vectors that the tests of all languages read, and what a chain promises.

use std::num::NonZeroUsize;

use kvmem::cache::{PREFIX_KEY_BYTES, PrefixKey, prefix_keys};
use proptest::prelude::*;

const VECTORS: &str = include_str!("../../data/prefix_keys.txt");

fn block(tokens: usize) -> NonZeroUsize {
    NonZeroUsize::new(tokens).expect("it is not 0")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn list(text: &str) -> Vec<&str> {
    text.split(',').filter(|part| *part != "-").collect()
}

#[test]
fn keys_are_those_of_all_languages() {
    let lines = VECTORS.lines().filter(|line| !line.starts_with('#'));
    let mut compared = 0;
    for line in lines {
        let parts: Vec<&str> = line.split(' ').collect();
        let [salt, tokens_in_block, tokens, keys] = parts[..] else { panic!("{line}") };
        let salt = salt.trim_matches('-').as_bytes();
        let digits = salt.chunks(2).map(|two| std::str::from_utf8(two).expect("hex digits"));
        let salt: Vec<u8> =
            digits.map(|two| u8::from_str_radix(two, 16).expect("hex digits")).collect();
        let tokens: Vec<i32> =
            list(tokens).iter().map(|token| token.parse().expect("a number")).collect();
        let got = prefix_keys(&tokens, block(tokens_in_block.parse().expect("a number")), &salt);
        let got: Vec<String> = got.iter().map(|key| hex(key)).collect();
        assert_eq!(got, list(keys), "{line}");
        compared += got.len();
    }
    assert!(compared > 10);
}

#[test]
fn a_key_fits_into_a_node_twice() {
    // A node's keys have at most 64 bytes, and a disk tier's are longer.
    assert_eq!(PREFIX_KEY_BYTES * 2, 64);
}

proptest! {
    #[test]
    fn prompts_share_the_keys_of_their_common_blocks(
        common in prop::collection::vec(any::<i32>(), 0..200),
        mut one in prop::collection::vec(any::<i32>(), 0..50),
        mut other in prop::collection::vec(any::<i32>(), 0..50),
        size in 1_usize..40,
    ) {
        // The prompts differ behind the common part.
        one.insert(0, 1);
        other.insert(0, 2);
        let keys = |rest: &[i32]| -> Vec<PrefixKey> {
            prefix_keys(&[&common, rest].concat(), block(size), b"salt")
        };
        let (one, other) = (keys(&one), keys(&other));
        let shared = one.iter().zip(&other).take_while(|(one, other)| one == other).count();
        prop_assert_eq!(shared, common.len() / size);
        // Nor does a later block have the key of another one.
        prop_assert!(one[shared..].iter().all(|key| !other.contains(key)));
    }
}
