//! The value of `--mooncake` of `kvmem serve`: the address of a master, and options of the helper.

use std::path::PathBuf;
use std::str::FromStr;

use kvmem::arena::ByteSize;
use kvmem_cluster::Codec;
use thiserror::Error;

/// A Mooncake cluster as the tier of the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeMooncake {
    /// The address of the master, as HOST:PORT.
    pub master: String,
    /// Arguments of the helper, besides that of the master.
    pub arguments: Vec<String>,
    /// Bytes of the memory through which values go; `None`: the default.
    pub staging_bytes: Option<u64>,
    /// How values are compressed.
    pub codec: Codec,
    /// The file with the keys that encrypt values.
    pub key_file: Option<PathBuf>,
}

/// A value of `--mooncake` that names no cluster.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ServeMooncakeError {
    /// The first part is no address.
    #[error("{master:?} is no HOST:PORT of a master: say one such as 10.0.0.1:50051")]
    Master {
        /// The first part.
        master: String,
    },
    /// A further part is no option.
    #[error(
        "{part:?} is no option of a cluster: there are host=ADDRESS, peers=NETWORK[+NETWORK…], \
         prefix=NAME, protocol=NAME, devices=NAME[+NAME…], metadata=URL, deadline=SECONDS, \
         staging=SIZE, codec=auto, key-file=PATH and expose"
    )]
    Option {
        /// The part.
        part: String,
    },
    /// The size of the staging memory is none, or too small.
    #[error("staging={size}: {error}; say a size from 2MiB on, such as 128MiB")]
    Staging {
        /// The size.
        size: String,
        /// The reason.
        error: String,
    },
    /// The deadline is no number of seconds.
    #[error("deadline={seconds}: deadlines are 0.01 to 60 seconds, such as 1.5")]
    Deadline {
        /// The deadline.
        seconds: String,
    },
}

/// The least bytes through which values go: 1 MiB for each direction.
const MIN_STAGING: u64 = 2 << 20;

impl FromStr for ServeMooncake {
    type Err = ServeMooncakeError;

    fn from_str(text: &str) -> Result<ServeMooncake, ServeMooncakeError> {
        let mut parts = text.split(',');
        let master = parts.next().unwrap_or_default().to_owned();
        let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
        if !master.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && is_port(port)) {
            return Err(ServeMooncakeError::Master { master });
        }
        let (mut arguments, mut staging_bytes) = (Vec::new(), None);
        let (mut codec, mut key_file) = (Codec::None, None);
        for part in parts {
            let unknown = || ServeMooncakeError::Option { part: part.to_owned() };
            if part == "expose" {
                arguments.push("--expose".to_owned());
                continue;
            }
            let (name, value) = part.split_once('=').ok_or_else(unknown)?;
            match name {
                "staging" => {
                    let fails =
                        |error: String| ServeMooncakeError::Staging { size: value.into(), error };
                    let size = value.parse::<ByteSize>().map_err(|it| fails(it.to_string()))?.0;
                    if size < MIN_STAGING {
                        return Err(fails("it is too small".to_owned()));
                    }
                    staging_bytes = Some(size);
                }
                "deadline" if !value.parse().is_ok_and(|it: f64| (0.01..=60.0).contains(&it)) => {
                    return Err(ServeMooncakeError::Deadline { seconds: value.to_owned() });
                }
                "codec" => codec = Codec::named(value).ok_or_else(unknown)?,
                "key-file" if !value.is_empty() => key_file = Some(value.into()),
                "host" | "peers" | "prefix" | "protocol" | "devices" | "metadata" | "deadline"
                    if !value.is_empty() =>
                {
                    // A comma ends the value here, and separates networks and devices there.
                    let is_list = matches!(name, "peers" | "devices");
                    let value = if is_list { value.replace('+', ",") } else { value.to_owned() };
                    arguments.push(format!("--{name}={value}"));
                }
                _ => return Err(unknown()),
            }
        }
        Ok(ServeMooncake { master, arguments, staging_bytes, codec, key_file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_a_master_and_options() {
        let parsed = "10.0.0.1:50051".parse::<ServeMooncake>().unwrap();
        assert_eq!((&*parsed.master, parsed.arguments.len()), ("10.0.0.1:50051", 0));
        let text = "[::1]:50051,host=10.0.0.7,peers=10.0.0.0/24+10.1.0.0/24,prefix=a/,\
                    protocol=rdma,devices=mlx5_0+mlx5_1,metadata=http://m:8080/x,deadline=2.5,\
                    expose,staging=1GiB,codec=auto,key-file=/etc/k=1";
        let parsed = text.parse::<ServeMooncake>().unwrap();
        assert_eq!((&*parsed.master, parsed.staging_bytes), ("[::1]:50051", Some(1 << 30)));
        assert_eq!((parsed.codec, parsed.key_file), (Codec::Auto, Some("/etc/k=1".into())));
        let expected = [
            "--host=10.0.0.7",
            "--peers=10.0.0.0/24,10.1.0.0/24",
            "--prefix=a/",
            "--protocol=rdma",
            "--devices=mlx5_0,mlx5_1",
            "--metadata=http://m:8080/x",
            "--deadline=2.5",
            "--expose",
        ];
        assert_eq!(parsed.arguments, expected);
    }

    #[test]
    fn errors_name_the_part_and_what_there_is() {
        for (text, part) in [
            ("", "\"\" is no HOST:PORT"),
            ("host", "\"host\" is no HOST:PORT"),
            (":50051", "\":50051\" is no HOST:PORT"),
            ("h:0", "\"h:0\" is no HOST:PORT"),
            ("h:65536", "\"h:65536\" is no HOST:PORT"),
            ("h:1,", "\"\" is no option of a cluster"),
            ("h:1,host", "\"host\" is no option of a cluster"),
            ("h:1,host=", "\"host=\" is no option of a cluster"),
            ("h:1,size=1GiB", "prefix=NAME"),
            ("h:1,codec=zip", "\"codec=zip\" is no option of a cluster: there are"),
            ("h:1,key-file=", "key-file=PATH"),
            ("h:1,staging=1", "from 2MiB on"),
            ("h:1,staging=x", "staging=x"),
            ("h:1,deadline=0", "0.01 to 60"),
            ("h:1,deadline=x", "0.01 to 60"),
            ("h:1,deadline=NaN", "0.01 to 60"),
        ] {
            let error = text.parse::<ServeMooncake>().expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
