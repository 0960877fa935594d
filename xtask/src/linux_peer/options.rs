//! The options of `cargo xtask linux-peer`.

use clap::Args;
use clap::builder::RangedU64ValueParser;
use lab::peer::Plan;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::str::FromStr;

/// The peer's properties, and the commands to run in it.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Opens a shell in the peer; without a terminal, runs the commands on standard input. Ctrl-] or `exit`
    /// ends shell and peer
    #[arg(long, conflicts_with = "run")]
    pub shell: bool,
    /// Runs a shell command in the peer; standard input, output and exit status are the command's
    #[arg(long, value_name = "CMD")]
    pub run: Option<String>,
    /// Time limit of the command in seconds [default: no limit]
    #[arg(long, value_name = "S", requires = "run", value_parser = RangedU64ValueParser::<u64>::new().range(1..=86_400))]
    pub timeout: Option<u64>,
    /// Socket of a fabric to join, as made by `cargo xtask run --fabric-socket`
    /// [default: a fabric of its own]
    #[arg(long, value_name = "SOCKET")]
    pub fabric: Option<PathBuf>,
    /// Address on the fabric, as ADDRESS or ADDRESS/BITS; the MAC address is derived from it
    /// [default: 10.0.0.1/24; on another's fabric 10.77.255.1/16, which is in the appliances' network]
    #[arg(long, value_name = "IP")]
    pub ip: Option<Address>,
    /// Largest IP packet on the fabric in bytes; 1500 gives RoCE a path MTU of 1024, 4200 one of 4096
    #[arg(long, value_name = "BYTES", default_value_t = 4200, value_parser = RangedU64ValueParser::<u16>::new().range(1280..=9000))]
    pub mtu: u16,
    /// Processors
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<u32>::new().range(1..=8))]
    pub cpus: u32,
    /// Memory in MiB [default: 256, or what the packages and files need]
    #[arg(long, value_name = "MIB", value_parser = RangedU64ValueParser::<u32>::new().range(128..=1_048_576))]
    pub memory: Option<u32>,
    /// File of the host to copy into the peer, as FILE (to /root) or FILE:PATH; repeatable
    #[arg(long, value_name = "FILE[:PATH]")]
    pub copy: Vec<Copied>,
    /// Debian package to include, with its dependencies; repeatable
    #[arg(long, value_name = "NAME")]
    pub package: Vec<String>,
    /// File for the peer's description (and, at the end, the command's status), as one JSON object
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Options {
    /// Returns the plan of the peer.
    pub(crate) fn plan(&self) -> Plan {
        Plan {
            fabric: self.fabric.clone(),
            address: self.ip.map(|Address { ip, prefix }| (ip, prefix)),
            mtu: self.mtu,
            cpus: self.cpus,
            memory_mib: self.memory,
            files: self.copy.iter().map(|copied| (copied.guest.clone(), copied.host.clone())).collect(),
        }
    }
}

/// An address and the length of its network's prefix, in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub ip: Ipv4Addr,
    pub prefix: u8,
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (ip, prefix) = text.split_once('/').unwrap_or((text, "24"));
        let ip: Ipv4Addr = ip.parse().map_err(|_| format!("`{ip}` is not an IPv4 address"))?;
        let prefix = prefix.parse().ok().filter(|bits| (1..=30).contains(bits));
        let prefix = prefix.ok_or("a network has 1 to 30 bits")?;
        if ip.is_multicast() || ip.is_loopback() || ip.is_unspecified() || ip.is_broadcast() {
            return Err(format!("{ip} is not the address of a machine"));
        }
        Ok(Self { ip, prefix })
    }
}

/// A file of the host and its path in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Copied {
    pub host: PathBuf,
    pub guest: String,
}

impl FromStr for Copied {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, guest) = match text.rsplit_once(':') {
            Some((host, guest)) if guest.starts_with('/') => (host, guest.to_owned()),
            Some(_) => return Err("a path in the guest must begin with /".into()),
            None => {
                let name = text.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
                (text, format!("/root/{name}"))
            }
        };
        if host.is_empty() || guest.ends_with('/') || guest.split('/').any(|part| part == "..") {
            return Err("want FILE or FILE:PATH".into());
        }
        Ok(Self { host: host.into(), guest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!("10.1.2.3/16".parse(), Ok(Address { ip: Ipv4Addr::new(10, 1, 2, 3), prefix: 16 }));
        assert_eq!("10.1.2.3".parse(), Ok(Address { ip: Ipv4Addr::new(10, 1, 2, 3), prefix: 24 }));
        for bad in
            ["", "10.0.0", "10.0.0.1/", "10.0.0.1/33", "10.0.0.1/0", "127.0.0.1", "224.0.0.1", "fe80::1"]
        {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }

    #[test]
    fn files() {
        let copied = |host: &str, guest: &str| Ok(Copied { host: host.into(), guest: guest.into() });
        assert_eq!("a/b".parse(), copied("a/b", "/root/b"));
        assert_eq!("a/b:/c/d".parse(), copied("a/b", "/c/d"));
        for bad in ["", ":/x", "a:b", "a:/", "a:/../x"] {
            assert!(bad.parse::<Copied>().is_err(), "{bad}");
        }
    }
}
