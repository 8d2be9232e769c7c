//! *Encryption*: from the bytes of a key file to the key that seals a value.
//!
//! ```text
//! master key          a line of the key file; named by its KeyId
//!   └ namespace key   HKDF-SHA256 with the seed of the namespace, which the tier's file stores
//!       └ session key HKDF-expand with 16 random bytes of this opening of the file
//!           └ nonce   a counter of the session
//! ```
//!
//! A nonce never repeats under a key: the counter of a session only grows, and no two openings of a
//! file have one session key, also if an older copy of the file was restored in between. Without
//! the seed of a namespace its keys cannot be derived, so erasing 16 bytes erases all its values.

mod keyring;
mod locked;
mod namespace;
mod session;

pub use keyring::{KeyId, Keyring, KeyringError};
pub use namespace::{Namespace, digest};
pub(crate) use session::{Derivation, Session, SessionId};
