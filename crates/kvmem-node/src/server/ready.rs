//! *Ready* connections, and which of them is served next.
//!
//! The users are served round robin, and so are the connections of each user. A user with hundreds
//! of connections that always have messages so makes another one wait for one quantum.

use std::collections::VecDeque;

/// What of a connection is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Its packets.
    Packets,
    /// Its ring, and an answer that waits for space.
    Ring,
}

/// A connection that is ready.
pub(super) type ReadyConnection = (u32, Source);

/// The connections of one user that are ready.
#[derive(Debug)]
struct ReadyUser {
    uid: u32,
    connections: VecDeque<ReadyConnection>,
}

/// The connections of all users that are ready. Each is in here at most once for each source, which
/// its [`AcceptedConnection`](super::connection::AcceptedConnection) knows.
#[derive(Debug, Default)]
pub(super) struct Ready {
    /// The user that is served next comes first. None is without connections.
    users: VecDeque<ReadyUser>,
    /// Queues of users that had nothing left, for others.
    spare: Vec<VecDeque<ReadyConnection>>,
}

impl Ready {
    /// Adds a connection behind the others of its user. O(users that are ready).
    pub(super) fn add(&mut self, uid: u32, connection: ReadyConnection) {
        if let Some(user) = self.users.iter_mut().find(|it| it.uid == uid) {
            user.connections.push_back(connection);
            return;
        }
        let mut connections = self.spare.pop().unwrap_or_default();
        connections.push_back(connection);
        self.users.push_back(ReadyUser { uid, connections });
    }

    /// Takes the next connection of the user that is served next.
    pub(super) fn next(&mut self) -> Option<ReadyConnection> {
        let mut user = self.users.pop_front()?;
        let connection = user.connections.pop_front();
        if user.connections.is_empty() {
            self.spare.push(user.connections);
        } else {
            self.users.push_back(user);
        }
        connection
    }

    pub(super) fn is_empty(&self) -> bool {
        self.users.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_take_turns_whatever_they_have() {
        let mut ready = Ready::default();
        (0..100).for_each(|key| ready.add(7, (key, Source::Packets)));
        ready.add(8, (100, Source::Ring));
        ready.add(9, (101, Source::Packets));
        let first: Vec<u32> = (0..5).map_while(|_| Some(ready.next()?.0)).collect();
        assert_eq!(first, [0, 100, 101, 1, 2]);
        // A user that comes back waits for one quantum of each other one.
        ready.add(8, (102, Source::Ring));
        let next: Vec<u32> = (0..3).map_while(|_| Some(ready.next()?.0)).collect();
        assert_eq!(next, [3, 102, 4]);
        assert_eq!(std::iter::from_fn(|| ready.next()).count(), 95);
        assert!(ready.is_empty() && ready.spare.len() == 3);
    }
}
