//! *Prefix keys*: the chain of hashes. The head of [`pool::prefix`](super) says what it is for.

use std::num::NonZeroUsize;

use super::blake2b::{Blake2b, DIGEST_BYTES};

/// Length of a [`PrefixKey`] in bytes. A key of a node has at most twice as many, so there is space
/// for what a program adds, such as the number of a layer.
pub const PREFIX_KEY_BYTES: usize = DIGEST_BYTES;

/// The key of a block, and of all tokens up to its end.
pub type PrefixKey = [u8; PREFIX_KEY_BYTES];

/// Tells the hashes of blocks from those of salts.
const PERSON: &[u8; 16] = b"kvmem-prefix-key";

/// Returns the keys of the complete blocks of a prompt, the first one first. Tokens behind the last
/// complete block have no key.
///
/// - `tokens`: the numbers of the tokens.
/// - `block`: tokens in a block.
/// - `salt`: all else that the values depend on, such as the weights, the type of the KV cache and
///   the release of the engine. Prompts with different salts share no key.
///
/// The key of a block is the BLAKE2b hash, with 32 bytes and the person `kvmem-prefix-key`, of the
/// key before it and the tokens as 32-bit numbers, lowest byte first. The hash of the salt, without
/// a person, stands before the first block. C, C++ and Python have the same keys under the same
/// name, on all machines. O(tokens): about a millisecond for 128 Ki tokens.
///
/// ```
/// use std::num::NonZeroUsize;
///
/// use kvmem::cache::prefix_keys;
///
/// let block = NonZeroUsize::new(2).expect("it is not 0");
/// let keys = prefix_keys(&[1, 2, 3, 4, 5], block, b"my-model");
/// assert_eq!(keys.len(), 2);
/// // The same beginning has the same keys.
/// assert_eq!(prefix_keys(&[1, 2, 9, 9], block, b"my-model")[0], keys[0]);
/// assert_ne!(prefix_keys(&[1, 2, 9, 9], block, b"my-model")[1], keys[1]);
/// assert_ne!(prefix_keys(&[1, 2], block, b"other weights")[0], keys[0]);
/// ```
#[must_use]
pub fn prefix_keys(tokens: &[i32], block: NonZeroUsize, salt: &[u8]) -> Vec<PrefixKey> {
    let mut root = Blake2b::new(&[0; 16]);
    root.update(salt);
    let mut key = root.finish();
    let next = |tokens: &[i32]| {
        let mut hash = Blake2b::new(PERSON);
        hash.update(&key);
        // A hash takes whole blocks of bytes at a time.
        for some in tokens.chunks(TOKENS_AT_ONCE) {
            let mut bytes = [0; TOKENS_AT_ONCE * size_of::<i32>()];
            let (bytes, _) = bytes.split_at_mut(size_of_val(some));
            for (bytes, token) in bytes.chunks_exact_mut(size_of::<i32>()).zip(some) {
                bytes.copy_from_slice(&token.to_le_bytes());
            }
            hash.update(bytes);
        }
        key = hash.finish();
        key
    };
    tokens.chunks_exact(block.get()).map(next).collect()
}

/// Tokens that are converted to bytes at a time.
const TOKENS_AT_ONCE: usize = 64;
