//! *Simulated* servers: each iteration of the loop is a call of the
//! [simulator](crate::simulator).

use std::ops::Range;
use std::sync::Arc;

use kvmem::tier::Tier;

use super::ServerOptions;
use super::client_socket::ClientSocket;
use super::event_source::EventSource;
use super::server::NodeServer;
use crate::error::NodeError;
use crate::node::Node;
use crate::simulator::ServerEnd;
use crate::socket::{Peer, has_ended, now_ms};
use crate::tier::{TierOptions, TierWorker};

/// The server's end of a new connection, and the process at the other end.
pub(crate) type Accepted = (ServerEnd, Peer);

impl NodeServer {
    /// Makes a server without a listener.
    pub(crate) fn simulated(node: Node, options: ServerOptions) -> NodeServer {
        NodeServer::with(node, None, options).expect("there are descriptors")
    }

    /// Returns the time of the first tick.
    pub(crate) fn first_tick(&self) -> u64 {
        now_ms() + self.tick_ms()
    }

    /// Returns the milliseconds that the loop may wait for an event; `None`: it is not over.
    pub(crate) fn waits(&self, next_tick: u64) -> u64 {
        self.may_wait(next_tick)
    }

    /// Returns whether epoll has an event of a process.
    pub(crate) fn sees_an_end(&self) -> bool {
        self.processes.values().any(has_ended)
    }

    /// Serves one iteration of the loop: new connections, those with packets, those whose doorbell
    /// has rung, and the ends of processes. Returns whether the loop ends.
    pub(crate) fn iteration(
        &mut self,
        accepted: Vec<Accepted>,
        packets: &[u32],
        bells: &[u32],
        next_tick: &mut u64,
    ) -> bool {
        let now = now_ms();
        for (end, peer) in accepted {
            self.admit(ClientSocket::Simulated(end), peer, now);
        }
        let packets = packets.iter().map(|key| EventSource::Connection(*key));
        let bells = bells.iter().map(|key| EventSource::Doorbell(*key));
        let mut ended: Vec<usize> = self.processes.keys().copied().collect();
        ended.sort_unstable();
        ended.retain(|number| has_ended(&self.processes[number]));
        let ended = ended.into_iter().map(|number| EventSource::Process(number as u32));
        let events: Vec<EventSource> = packets.chain(bells).chain(ended).collect();
        self.iterate(events, next_tick, now)
    }

    /// Ends the loop as [`Stopper::stop`](super::Stopper::stop) does.
    pub(crate) fn stop_simulated(&mut self) -> bool {
        self.stopper().stop();
        self.stop_requested(now_ms())
    }

    pub(crate) fn end_simulated(self) -> Node {
        self.end(now_ms())
    }

    pub(crate) fn node_mut(&mut self) -> &mut Node {
        &mut self.node
    }

    /// Attaches a tier whose threads are [workers](Self::workers).
    pub(crate) fn attach_simulated(
        &mut self,
        tier: Arc<dyn Tier>,
        store_above: f64,
    ) -> Result<bool, NodeError> {
        let options = TierOptions { store_above, ..TierOptions::default() };
        self.attach_tier_with(tier, options)
    }

    /// Returns the workers of the tier.
    pub(crate) fn workers(&mut self) -> &mut [TierWorker] {
        self.tier.as_mut().map_or(&mut [], |tier| &mut tier.workers)
    }

    /// Returns the addresses of the memory of all rings.
    pub(crate) fn ring_memory(&self) -> Vec<Range<usize>> {
        let rings = self.connections.values().filter_map(|it| it.rings.as_ref());
        rings.map(|it| it.ends.memory()).collect()
    }
}
