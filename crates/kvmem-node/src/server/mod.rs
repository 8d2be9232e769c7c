//! *Server*: a [`Node`](crate::Node) behind a Unix socket.
//!
//! One thread waits with epoll for the listener, the connections, and the processes of the clients.
//! It never blocks on a client: an answer that the socket does not take is queued, and the
//! connection is not read until it is sent. A client that does not read its answers so holds at
//! most one of them in the server. Of each connection at most
//! [`MESSAGES_PER_QUANTUM`](quantum::MESSAGES_PER_QUANTUM) messages are served before the next
//! connection is served, and the [users](ready) are served round robin, whatever connections they
//! have. A call that is more work is done in [parts](deferred), as is a change of the memory's
//! [size](resize), which the server also makes by itself under [pressure].
//!
//! Clients that call often have [rings] in shared memory instead of packets. The same thread polls
//! them while they are in use.
//!
//! # When a client's blocks are free again
//!
//! A client writes to its reservations directly, and so do devices that it has started. The blocks
//! are used for other values only when that has certainly ended:
//!
//! | what happens | what ends the session |
//! |---|---|
//! | the client says goodbye, and closes | the end of the connection |
//! | the client closes without an answer to its greeting | the end of the connection |
//! | the client is closed while the server is away | its goodbye to the next server |
//! | the process ends, in any way | its pidfd, which the kernel signals after it has unmapped the memory |
//! | the connection ends, the process lives | the pidfd |
//! | the server restarts, the process lives | the pidfd, unless the client resumes the session |
//! | the client is silent for longer than the lease | nothing: its reservations are fenced, and their blocks stay unused until one of the above |

mod access;
mod client_socket;
mod closer;
mod connection;
mod deferred;
mod dispatch;
mod drain;
mod event_source;
mod latency;
mod observer;
mod options;
mod pressure;
mod probe;
mod publishing;
mod quantum;
mod ready;
mod resize;
mod rings;
mod scrubber;
#[expect(clippy::module_inception, reason = "one noun a file")]
mod server;
mod server_rings;
#[cfg(all(test, not(loom)))]
mod simulated;
#[cfg(all(test, not(loom)))]
mod tests;

pub use drain::DrainProgress;
pub use observer::NodeObserver;
pub use options::{AllowedGroup, NamespaceRule, Principal, ServerOptions};
pub use server::{NodeServer, Stopper};
#[cfg(all(test, not(loom)))]
pub(crate) use simulated::Accepted;
