//! Options of `kvmem serve` and `kvmem holder`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args as ClapArgs, ValueEnum};
use kvmem::arena::{ByteSize, Ladder, Numa, Populate};
use kvmem_node::{NO_BOUNDARY, NamespaceLimits};

use super::{KvEventsArgs, MetricsArgs, Policy, ServeMooncake, ServeTier, size};

/// Options of `kvmem serve`.
#[derive(Clone, Debug, ClapArgs)]
pub struct ServeArgs {
    /// Size of the memory in bytes, or with a unit: 64GiB, 1TiB (GiB is 2^30 bytes, GB is 10^9, G
    /// is GiB). Memory that is recovered becomes as large, and keeps the values that fit, those
    /// that were used last
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: u64,

    /// Give memory back to the machine while it is short of it, or the server's cgroup is, but stay
    /// at this size, and take it again afterwards [default: --size, which never gives any back]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub min: Option<u64>,

    /// The largest size that `kvmem resize` can give the memory while clients have it mapped. It
    /// takes addresses and no memory. A device that a client registers pins all of it, and then
    /// nothing is given back; hugepages of a pool must be there for all of it [default: --size]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max: Option<u64>,

    /// The folder of the cgroup (v2) whose pressure counts for --min [default: those of this
    /// process, and the machine]
    #[arg(long, value_name = "FOLDER", requires = "min")]
    pub cgroup: Option<PathBuf>,

    /// The socket that clients connect to: a path of at most 100 bytes in a folder that exists
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,

    /// Kinds of pages to try, in this order: 1G, 2M, thp, 4k
    #[arg(
        long, value_name = "PAGES,…", default_value = "2M,thp,4k",
        value_parser = clap::value_parser!(Ladder)
    )]
    pub pages: Ladder,

    /// NUMA nodes: none, bind:0,2-3 or interleave:0-3
    #[arg(
        long, value_name = "POLICY", default_value = "none",
        value_parser = clap::value_parser!(Numa)
    )]
    pub numa: Numa,

    /// How pages are made resident: auto (measures how many threads pay), a number of threads, or
    /// none
    #[arg(
        long, value_name = "THREADS", default_value = "auto",
        value_parser = clap::value_parser!(Populate)
    )]
    pub populate: Populate,

    /// Maximum values and reservations at once; the index takes 192 bytes for each that was ever
    /// used [default: one for each 64 KiB]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_blocks: Option<u32>,

    /// Alignment of all values, a power of two
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = size)]
    pub align: u64,

    /// No value crosses a multiple of this length, nor is longer: a power of two, or none. A GPU
    /// cannot copy a value that lies in two of the pieces in which it registers the memory, which
    /// are 1 GiB long, or as long as the boundary if that is longer. Memory that is recovered has
    /// its boundary
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = boundary)]
    pub boundary: u64,

    /// Which values are evicted first. Ends of prefixes are evicted before starts in any case
    #[arg(long, value_enum, default_value = "lru")]
    pub policy: Policy,

    /// After this time without a message, the reservations of a client end: a number with ms,
    /// s, min or h
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    pub lease: Duration,

    /// Let the pins of such a client end, too. If it still reads, it may read other values
    #[arg(long)]
    pub reclaim_pins: bool,

    /// Let members of this group use all namespaces without a --namespace of their own: a name of
    /// /etc/group, or a number. With :ro they only read, which the kernel enforces. May be
    /// repeated. Without it, --namespace and --operator, only this user may connect, and not
    /// root
    #[arg(long = "allow-group", value_name = "GROUP[:ro]")]
    pub allow_groups: Vec<GroupRule>,

    /// Let this user, or the members of this group, use namespace NAME, and close it to all others:
    /// names of /etc/passwd and /etc/group, or numbers. With :ro they only read. May be
    /// repeated, also for one NAME. A client that may write in one namespace can write to all
    /// bytes of the memory: tenants that do not trust each other have servers of their own
    #[arg(long = "namespace", value_name = "NAME=USER|@GROUP[:ro]")]
    pub namespaces: Vec<NamespaceAccess>,

    /// Let this user, besides this server's own, list, evict, drop and reclaim, without the quota
    /// of a user: a name of /etc/passwd, or a number. 0 is root, and every process that is root in
    /// its container. May be repeated
    #[arg(long = "operator", value_name = "USER")]
    pub operators: Vec<String>,

    /// Limits of a namespace; may be repeated. NAME is empty for clients without a
    /// namespace, BYTES is a size or `max`; pins and pinned limit the pinned values and their bytes
    #[arg(long = "quota", value_name = "NAME=BYTES[,pins=N][,pinned=BYTES][,share=N]")]
    pub quotas: Vec<NamespaceQuota>,

    /// Limits of each namespace without a --quota of its own. Without this option it has none
    #[arg(
        long, value_name = "BYTES[,pins=N][,pinned=BYTES][,share=N]", value_parser = limits
    )]
    pub default_quota: Option<NamespaceLimits>,

    /// Maximum connections. One of 16 is for this user and operators only
    #[arg(
        long, value_name = "N", default_value_t = 512,
        value_parser = clap::value_parser!(u16).range(1..=4096)
    )]
    pub max_connections: u16,

    /// Maximum bytes that one client has reserved at a time [default: all]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_reserved: Option<u64>,

    /// Maximum bytes of values that one client has pinned at a time [default: all]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_pinned: Option<u64>,

    /// Use a disk tier for the memory, in a file or on a block device: values that are evicted
    /// are found there, also by servers with other memory. A file that is new or shorter becomes
    /// SIZE bytes long; without SIZE its length does not change, and a new one has four times the
    /// memory. Given several times, the files share the values, each on a device of its own. A PATH
    /// with commas is followed by a comma, also without SIZE. OPTIONs: codec=auto compresses values
    /// without loss; key-file=PATH encrypts them, with the first of the keys in that file, of 64
    /// hexadecimal digits a line, and reads those of all. Its mode is 0400, and its path has no
    /// comma; /dev/fd/3 is a descriptor. A tier is cleared if a server without it has removed or
    /// evicted values of the same memory
    #[arg(
        long = "tier", value_name = "disk:PATH[,SIZE][,OPTION…]",
        value_parser = OsStringValueParser::new().try_map(ServeTier::parse)
    )]
    pub tiers: Vec<ServeTier>,

    /// Open disk tiers that a process of another host had open, which has ended without closing
    /// them. A server of this host that was killed needs no such word
    #[arg(long, requires = "tiers")]
    pub tier_take_over: bool,

    /// Make a disk tier of a file or device that has something else on it, or a damaged one. All of
    /// that is lost. A tier that is there stays, also when the server is started again
    #[arg(long, requires = "tiers")]
    pub tier_format: bool,

    /// How long to wait for a disk tier that another process has open, such as a server that was
    /// killed and whose last writes a slow disk has still to make
    #[arg(long, requires = "tiers", value_name = "SECONDS", default_value_t = 60)]
    pub tier_wait: u32,

    /// Open disk tiers with O_DSYNC: a value survives a power cut as soon as it is stored, and
    /// storing takes longer. Removals survive it without
    #[arg(long, requires = "tiers")]
    pub tier_dsync: bool,

    /// Use a Mooncake cluster as the tier of the memory, or of the disk tier: servers with
    /// one cluster share the values, whose keys must name their contents. OPTIONs: host=ADDRESS of
    /// this machine, peers=NETWORK[+NETWORK…], prefix=NAME of the keys, protocol=tcp, devices=NAME,
    /// metadata=URL, deadline=SECONDS of a call, staging=SIZE of the memory through which values
    /// go, expose, codec=auto and key-file=PATH, which compress and encrypt values as for a disk
    /// tier. Needs the Python package, in a process of its own that is started again when it
    /// fails
    #[arg(
        long, value_name = "HOST:PORT[,OPTION…]",
        value_parser = clap::value_parser!(ServeMooncake)
    )]
    pub mooncake: Option<ServeMooncake>,

    /// The Python that has the package kvmem and Mooncake's wheel [default: python3 of the virtual
    /// environment in which this program is, or of PATH]
    #[arg(long, value_name = "PROGRAM", requires = "mooncake")]
    pub mooncake_python: Option<PathBuf>,

    /// After SIGTERM or SIGINT, store values that the tier lacks for this many seconds at most, and
    /// serve clients meanwhile. A second signal ends the server at once
    #[arg(
        long, value_name = "N", default_value_t = 30,
        value_parser = clap::value_parser!(u32).range(0..=86_400)
    )]
    pub drain_seconds: u32,

    /// Verify values with checksums in the background, so many bytes a second, and remove damaged
    /// ones
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub scrub: Option<u64>,

    /// The process that holds the memory while no server runs: one of holder, systemd, none
    #[arg(
        long,
        value_name = "BY",
        value_enum,
        default_value = "holder",
        hide_possible_values = true
    )]
    pub retain: RetainBy,

    /// Start with fresh memory, and retain the memory that an earlier server left under another
    /// name
    #[arg(long)]
    pub set_aside: bool,

    /// Start with fresh memory, and drop the memory that an earlier server left, with all values
    #[arg(long, conflicts_with = "set_aside")]
    pub fresh: bool,

    /// Where metrics are served.
    #[command(flatten)]
    pub metrics: MetricsArgs,

    /// Where KV events are published.
    #[command(flatten)]
    pub kv_events: KvEventsArgs,

    /// When clients can connect, write what was mapped and recovered as JSON to FILE; - for
    /// standard output instead of the text
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
}

/// The process that retains the memory of a server while it does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RetainBy {
    /// A `kvmem holder` at the path of the socket with `.holder` behind it; started if there is
    /// none
    Holder,
    /// systemd, whose unit sets FileDescriptorStoreMax
    Systemd,
    /// Nothing: the values end with the server
    None,
}

/// A namespace and its limits.
#[derive(Clone, Debug, PartialEq)]
pub struct NamespaceQuota {
    /// The name.
    pub name: String,
    /// The limits.
    pub limits: NamespaceLimits,
}

impl FromStr for NamespaceQuota {
    type Err = String;

    fn from_str(text: &str) -> Result<NamespaceQuota, String> {
        let (name, rest) = text
            .split_once('=')
            .ok_or_else(|| format!("{text:?} has no `=`: say NAME=BYTES, such as chat=16GiB"))?;
        Ok(NamespaceQuota { name: name.to_owned(), limits: limits(rest)? })
    }
}

/// A group whose members may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRule {
    /// The name or number of the group.
    pub group: String,
    /// Whether its members only read.
    pub read_only: bool,
}

impl FromStr for GroupRule {
    type Err = String;

    fn from_str(text: &str) -> Result<GroupRule, String> {
        let (group, read_only) = split_mode(text)?;
        Ok(GroupRule { group: group.to_owned(), read_only })
    }
}

/// A namespace, and a user or group that may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceAccess {
    /// The name of the namespace.
    pub name: String,
    /// The name or number of the user, or that of the group behind an `@`.
    pub who: String,
    /// Whether the user or group only reads.
    pub read_only: bool,
}

impl FromStr for NamespaceAccess {
    type Err = String;

    fn from_str(text: &str) -> Result<NamespaceAccess, String> {
        // No user and no group has an `=`, and a namespace may.
        let (name, who) = text.rsplit_once('=').ok_or_else(|| {
            format!("{text:?} has no `=`: say NAME=USER or NAME=@GROUP, such as chat=@engines:ro")
        })?;
        let (who, read_only) = split_mode(who)?;
        Ok(NamespaceAccess { name: name.to_owned(), who: who.to_owned(), read_only })
    }
}

/// Splits a user or group and `:ro`.
fn split_mode(text: &str) -> Result<(&str, bool), String> {
    match text.split_once(':') {
        None => Ok((text, false)),
        Some((who, "ro")) => Ok((who, true)),
        Some((who, mode)) => Err(format!(
            "{text:?} has {mode:?} behind the colon: say {who}:ro for reading only, or {who}"
        )),
    }
}

/// Parses limits such as `16GiB,pins=100,share=2`.
fn limits(text: &str) -> Result<NamespaceLimits, String> {
    let mut limits = NamespaceLimits::default();
    let mut parts = text.split(',');
    let bytes = parts.next().unwrap_or_default();
    if bytes != "max" {
        limits.max_bytes = bytes.parse::<ByteSize>().map_err(|error| error.to_string())?.0;
    }
    for part in parts {
        let number = |value: &str| {
            value.parse::<u64>().map_err(|_| format!("{part:?}: {value:?} is no number"))
        };
        match part.split_once('=') {
            Some(("pins", value)) => limits.max_pins = number(value)?,
            Some(("pinned", value)) => {
                let bytes = value.parse::<ByteSize>();
                limits.max_pinned_bytes = bytes.map_err(|error| format!("{part:?}: {error}"))?.0;
            }
            Some(("share", value)) => {
                let share = number(value)?;
                limits.share = u32::try_from(share)
                    .ok()
                    .filter(|share| *share > 0)
                    .ok_or_else(|| format!("share={share}: shares are 1 to {}", u32::MAX))?;
            }
            _ => return Err(format!("{part:?} is no limit: say pins=N, pinned=BYTES or share=N")),
        }
    }
    Ok(limits)
}

/// Parses a boundary: a size, or `none`.
fn boundary(text: &str) -> Result<u64, String> {
    match text {
        "none" => Ok(NO_BOUNDARY),
        _ => size(text).map_err(|error| format!("{error}; or none")),
    }
}

/// Parses a time such as `60s`.
fn time(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let known = || format!("{text:?} is no time: say a number with ms, s, min or h, such as 60s");
    let number: u64 = number.parse().map_err(|_| known())?;
    let unit = match unit {
        "ms" => 1,
        "s" => 1000,
        "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(known()),
    };
    match number.checked_mul(unit) {
        Some(ms @ 100..=86_400_000) => Ok(Duration::from_millis(ms)),
        _ => Err(format!("{text}: times are 100ms to 24h")),
    }
}

/// Options of `kvmem holder`.
#[derive(Clone, Debug, ClapArgs)]
pub struct HolderArgs {
    /// The socket of the memory holder. `kvmem serve` uses the path of its own with `.holder`
    /// behind it
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,

    /// Start the memory holder in the background, and return when it listens
    #[arg(long)]
    pub detach: bool,

    /// End the memory holder after this time in which it has held nothing, without a connection.
    /// One in the background also ends when its server leaves nothing
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    pub idle: Duration,

    /// List what the memory holder at the socket holds
    #[arg(long, group = "ask", conflicts_with = "detach")]
    pub list: bool,

    /// Make the memory holder at the socket drop the memory under NAME, as --list shows it
    #[arg(long, value_name = "NAME", group = "ask", conflicts_with = "detach")]
    pub forget: Option<String>,

    /// End the memory holder at the socket, which drops everything that no server uses
    #[arg(long, group = "ask", conflicts_with = "detach")]
    pub stop: bool,

    /// Begin a session of its own, and let go of standard input and outputs when it listens: what
    /// --detach starts.
    #[arg(long, hide = true, conflicts_with_all = ["ask", "detach"])]
    pub session: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_parsed() {
        let quota = |text: &str| text.parse::<NamespaceQuota>();
        let chat = quota("chat=16GiB,pins=5,pinned=2GiB,share=3").unwrap();
        let limits = NamespaceLimits {
            max_bytes: 16 << 30,
            max_pins: 5,
            max_pinned_bytes: 2 << 30,
            share: 3,
        };
        assert_eq!(chat, NamespaceQuota { name: "chat".to_owned(), limits });
        let limits = NamespaceLimits { share: 2, ..NamespaceLimits::default() };
        let quota_of_none = quota("=max,share=2").unwrap();
        assert_eq!(quota_of_none, NamespaceQuota { name: String::new(), limits });
        assert_eq!(super::limits("16GiB,pins=5,pinned=2GiB,share=3"), Ok(chat.limits));
        assert!(super::limits("chat=16GiB").is_err() && super::limits("").is_err());
        for bad in [
            "chat",
            "chat=",
            "chat=1x",
            "a=1,pins",
            "a=1,pins=x",
            "a=1,share=0",
            "a=1,pinned=x",
            "a=1,b=2",
        ] {
            assert!(quota(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn users_and_groups_have_a_mode() {
        let group = |text: &str| text.parse::<GroupRule>();
        let rule = |group: &str, read_only| GroupRule { group: group.to_owned(), read_only };
        assert_eq!(group("engines"), Ok(rule("engines", false)));
        assert_eq!(group("1500:ro"), Ok(rule("1500", true)));
        for bad in ["engines:rw", "engines:", "engines:ro:ro"] {
            let error = group(bad).expect_err(bad);
            assert!(error.contains("say engines:ro"), "{error}");
        }
        let namespace = |text: &str| text.parse::<NamespaceAccess>();
        let access = |name: &str, who: &str, read_only| NamespaceAccess {
            name: name.to_owned(),
            who: who.to_owned(),
            read_only,
        };
        assert_eq!(namespace("chat=1000"), Ok(access("chat", "1000", false)));
        assert_eq!(namespace("=@engines:ro"), Ok(access("", "@engines", true)));
        assert_eq!(namespace("model=a:b=kv:ro"), Ok(access("model=a:b", "kv", true)));
        for bad in ["chat", "chat=1:w"] {
            assert!(namespace(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(time("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(time("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(time("2min"), Ok(Duration::from_secs(120)));
        assert_eq!(time("1h"), Ok(Duration::from_secs(3600)));
        for bad in ["", "60", "s", "1.5s", "-1s", "99ms", "25h", "99999999999999999999s"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }
}
