#![doc = include_str!("../docs/encoding.md")]

pub mod codec;
mod encoding;
mod encryption;
mod envelope;

pub use encoding::{Binding, Codec, DecodeError, EncodeError, Encoding, Prepared};
pub use encryption::{KeyId, Keyring, KeyringError, Namespace, digest};
pub use envelope::Envelope;
