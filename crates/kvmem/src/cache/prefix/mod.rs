//! *Prefix*: keys of the blocks of a prompt, each of which stands for all tokens up to its end.
//!
//! The KV cache of a block depends on all tokens before it. A key that is chained, as vLLM's and
//! SGLang's are, names them all: two prompts have the same key for a block only if they have the
//! same tokens up to its end. A cache then finds the longest stored prefix with one look-up of a
//! list.

mod blake2b;
mod prefix_keys;

pub use prefix_keys::{PREFIX_KEY_BYTES, PrefixKey, prefix_keys};
