//! Options about KV events.

use std::net::{Ipv4Addr, SocketAddr};

use clap::Args as ClapArgs;

/// Whether and where KV events are published.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct KvEventsArgs {
    /// Publish what the node holds for routers, as vLLM's KV events over ZeroMQ, at an address of
    /// this machine and a port, such as tcp://127.0.0.1:5557 (port 0: any that is free). The same
    /// address answers requests for replays
    #[arg(long = "kv-events", value_name = "tcp://ADDRESS:PORT", value_parser = endpoint)]
    pub endpoint: Option<SocketAddr>,

    /// Let --kv-events name an address that other machines can reach, or `*`. Reading the events
    /// takes no authentication
    #[arg(id = "kv_events_anywhere", long = "kv-events-anywhere", requires = "endpoint")]
    pub anywhere: bool,

    /// The topic of the events
    #[arg(
        id = "kv_events_topic",
        long = "kv-events-topic",
        value_name = "TOPIC",
        default_value = "",
        requires = "endpoint"
    )]
    pub topic: String,

    /// Publish the values of namespace NAME alone. Events do not name namespaces: without this
    /// option, equal keys of two of them are one for a router
    #[arg(
        id = "kv_events_namespace",
        long = "kv-events-namespace",
        value_name = "NAME",
        requires = "endpoint"
    )]
    pub namespace: Option<String>,

    /// Publish whole hashes, as vLLM does with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0, instead of
    /// their last 64 bits as a number
    #[arg(long = "kv-events-whole-hashes", requires = "endpoint")]
    pub whole_hashes: bool,
}

/// Parses an address of ZeroMQ.
fn endpoint(text: &str) -> Result<SocketAddr, String> {
    let known = || format!("{text:?} is no address: say one such as tcp://127.0.0.1:5557");
    let address = text.strip_prefix("tcp://").ok_or_else(known)?;
    match address.strip_prefix("*:") {
        Some(port) => {
            let port = port.parse().map_err(|_| known())?;
            Ok(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))
        }
        None => address.parse().map_err(|_| known()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_of_zeromq() {
        let parsed = |text: &str| endpoint(text).map(|address| address.to_string());
        assert_eq!(parsed("tcp://127.0.0.1:5557"), Ok("127.0.0.1:5557".to_owned()));
        assert_eq!(parsed("tcp://[::1]:5557"), Ok("[::1]:5557".to_owned()));
        assert_eq!(parsed("tcp://*:5557"), Ok("0.0.0.0:5557".to_owned()));
        for bad in
            ["127.0.0.1:5557", "ipc:///tmp/events", "tcp://localhost:1", "tcp://*:", "tcp://"]
        {
            let error = parsed(bad).expect_err(bad);
            assert!(error.contains("tcp://127.0.0.1:5557"), "{error}");
        }
    }
}
