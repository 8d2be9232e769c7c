//! *MemoryHolder*: a process that holds the files of a node while no server runs.
//!
//! The memory of a node and its index are files without names: they live while some process has a
//! descriptor of them. The server has one, and it can end at any time. The memory holder has a
//! second one. It maps nothing, knows no format and changes no byte, so there is little in it that
//! can fail. Its memory does not grow with the node's, and the kernel counts no page of the files
//! as its own.
//!
//! A memory holder listens on a `SOCK_SEQPACKET` socket of mode 0600. It serves processes of its
//! own user, and closes the connections of all others, root's included, before it reads a byte. A
//! process that is root in its container has the number of root. A client accepts a memory holder
//! of its own user or of root only: the kernel says which user listens.
//!
//! | message | what the memory holder does |
//! |---|---|
//! | claim NAME | gives the connection the sole use of a name, and the descriptors under it |
//! | put NAME, with descriptors | holds up to four descriptors under a name that has none |
//! | get NAME | answers with duplicates of the descriptors |
//! | list | names all that it holds, and the process that has claimed each |
//! | forget NAME | closes the descriptors |
//! | rename NAME, NAME | sets descriptors aside under another name |
//! | stop | closes everything and ends |
//!
//! # One server at a time
//!
//! Two servers on one index would destroy it. A server therefore *claims* the name before it looks
//! at the files, and stays connected. The claim ends with the connection, and the kernel closes the
//! connection of a killed process only after the process can no longer write. A name that another
//! connection has claimed can be listed and nothing else.
//!
//! # A put never replaces anything
//!
//! A name that has descriptors takes no others, and one message has all descriptors of a node. A
//! server that ends in the middle leaves either both files or none. The memory holder ends when it
//! is stopped, or when it has held nothing, without a connection, for
//! [`MemoryHolderOptions::idle`].

mod client;
mod error;

mod holder;
mod messages;
mod retained;

pub use client::MemoryHolderClient;
pub use error::{MemoryHolderCallError, MemoryHolderError};
pub use holder::{MemoryHolder, MemoryHolderOptions};
pub use messages::RetainedListed;
pub use retained::{MAX_RETAINED, MAX_RETAINED_NAME};
