//! The options of `cargo xtask run`.

use crate::image::Apps;
use anyhow::{Context, Result, bail};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use connectx3::device::{LinkType, Profile};
use netfault::Faults;
use platform::TimeLimit;
use qemu::accel::Choice;
use qemu::vm::Machine;
use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::str::FromStr;
use verbs::MacAddr;

/// The RDMA device of an appliance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RdmaNic {
    /// RoCE v2 and v1 in software over virtio-net.
    SoftRoce,
    /// An emulated ConnectX-3 of a profile, for which QEMU must have vfio-user devices.
    Card(&'static str),
}

impl RdmaNic {
    /// The usual card.
    pub const USUAL: Self = Self::Card(Profile::NAMES[0]);
    pub const VIRTUAL: Self = Self::Card("vf");
    /// An InfiniBand card.
    pub const INFINIBAND: Self = Self::Card("ib");

    /// Returns the profile of the device's card.
    pub const fn profile(&self) -> Option<&'static str> {
        match self {
            Self::SoftRoce => None,
            Self::Card(profile) => Some(profile),
        }
    }

    /// Returns true if the device has an InfiniBand port.
    pub fn is_infiniband(&self) -> bool {
        let profile = self.profile().and_then(|name| Profile::named(name, MacAddr([0; 6])));
        let link = profile.and_then(|profile| Some(profile.ports.first()?.links.suggested()));
        link == Some(LinkType::InfiniBand)
    }

    /// Returns the driver's name on the kernel's command line.
    pub const fn driver(&self) -> &'static str {
        match self {
            Self::SoftRoce => "softroce",
            Self::Card(_) => "mlx4",
        }
    }
}

impl fmt::Display for RdmaNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SoftRoce => f.write_str("softroce"),
            card if *card == Self::USUAL => f.write_str("cx3"),
            card if *card == Self::VIRTUAL => f.write_str("cx3-vf"),
            Self::Card(profile) => write!(f, "cx3:{profile}"),
        }
    }
}

impl FromStr for RdmaNic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "softroce" => return Ok(Self::SoftRoce),
            "cx3" => return Ok(Self::USUAL),
            "cx3-vf" => return Ok(Self::VIRTUAL),
            _ => {}
        }
        let profile = text.strip_prefix("cx3:").and_then(|name| Profile::NAMES.iter().find(|p| **p == name));
        profile.map(|profile| Self::Card(profile)).ok_or_else(|| {
            format!("want softroce, cx3, cx3-vf or cx3:PROFILE, of {}", Profile::NAMES.join(", "))
        })
    }
}

/// An option of an appliance's card for `cx3`, in addition to the profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardKey {
    pub node: u16,
    /// The option, as `key=value`.
    pub key: String,
}

impl FromStr for CardKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once(':').and_then(|(node, key)| Some((node.parse().ok()?, key)));
        let (node, key) = parts.ok_or("want N:KEY=VALUE, as in 1:fails=500")?;
        // Checked here, because otherwise the program that serves the card would fail later.
        connectx3::options::card(&format!("card,{key}"), 0).map_err(|error| format!("{error:#}"))?;
        Ok(Self { node, key: key.to_owned() })
    }
}

/// The job, the machines, and the destinations of results.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Number of appliances, 1 to 16
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = RangedU64ValueParser::<u16>::new().range(1..=16))]
    pub nodes: u16,
    /// Processors of each appliance, 1 to 8
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<u32>::new().range(1..=8))]
    pub cpus: u32,
    /// Memory of each appliance in MiB [default: 64, plus the larger of 8 times its share of the input and 4
    /// times the whole input (at most 1024), because a word is never cut]
    #[arg(long, value_name = "MIB", value_parser = RangedU64ValueParser::<u32>::new().range(1..=1_048_576))]
    pub memory: Option<u32>,
    /// Application to run; the appliances list theirs when they join
    #[arg(long, value_name = "NAME", default_value = "wordcount")]
    pub app: String,
    /// Applications in the image, separated by commas, as in wordcount,grep [default: all]
    #[arg(long, value_name = "LIST", conflicts_with = "programs")]
    pub apps: Option<Apps>,
    /// Argument of the application; repeatable
    #[arg(long = "arg", value_name = "ARG", allow_hyphen_values = true)]
    pub args: Vec<String>,
    /// Time limit of the job, as in 90s, 15m or 2h; then the job fails [default: limited by --timeout only]
    #[arg(long, value_name = "LIMIT")]
    pub time: Option<TimeLimit>,
    /// Input file; repeatable [default: a text of several MB from a Debian package, or from this machine]
    #[arg(long, value_name = "FILE")]
    pub input: Vec<PathBuf>,
    /// File for the whole result [default: only the first ten lines are printed]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// File for the figures of the run, as one JSON object
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// RDMA device of the appliances: softroce (RoCE in software), cx3 (an emulated ConnectX-3
    /// Pro), cx3-vf (a virtual function of one), or cx3:PROFILE (a card of
    /// docs/reference/emulated-card.md); several, as in cx3,softroce, are assigned to the
    /// appliances in turn; for InfiniBand cards (cx3:ib) a Linux machine is the subnet manager
    #[arg(long, value_name = "NIC", default_value = "softroce", value_delimiter = ',')]
    pub nic: Vec<RdmaNic>,
    /// Further option of an appliance's emulated card, as NODE:KEY=VALUE with nodes from 0, as in
    /// 1:fails=500; repeatable; docs/reference/emulated-card.md lists the options
    #[arg(long = "card", value_name = "N:KEY=VALUE")]
    pub card_keys: Vec<CardKey>,
    /// Connects the appliances by the RDMA device alone: the control connection uses it too, with DHCP and
    /// the route to the manager on the same fabric
    #[arg(long)]
    pub one_nic: bool,
    /// Memory of an appliance that its peers can access: all (that can be lent), arena (LITE's part), or
    /// physical (all that its card can address)
    #[arg(long, value_name = "PART", default_value = "all", value_parser = ["all", "arena", "physical"])]
    pub remote: String,
    /// Faults of the network between the appliances: loss, dup, reorder, corrupt (probabilities per frame),
    /// delay_us, reorder_us; rate and queue: rate_mbit, queue (frames); congestion marks: ecn (probability),
    /// ecn_queue (least number of frames in the queue); as in
    /// loss=0.01,reorder=0.01,corrupt=0.001,delay_us=50 [default: none]
    #[arg(long, value_name = "FAULTS", default_value = "", hide_default_value = true)]
    pub fabric: Faults,
    /// Seed that decides which frames the faults hit
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Path for a socket by which another machine can join the appliances' fabric during the run, as with
    /// `cargo xtask linux-peer --fabric` [default: none]
    #[arg(long, value_name = "PATH")]
    pub fabric_socket: Option<PathBuf>,
    /// File for a capture of all frames between the appliances as they were sent (before faults), for
    /// Wireshark
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Directory for each appliance's console, as nodeN.log, and for the output of a subnet manager
    /// [default: not kept]
    #[arg(long, value_name = "DIR")]
    pub console: Option<PathBuf>,
    /// Machine model of QEMU: microvm or q35
    #[arg(long, value_name = "MODEL", default_value_t = Machine::Microvm)]
    pub machine: Machine,
    /// Accelerator of the guests: auto (KVM if our own kernel runs under it, else TCG), tcg, kvm
    #[arg(long, value_name = "ACCEL", default_value_t = Choice::Auto)]
    pub accel: Choice,
    /// Directory with the kernel (`ferrolite`) and the manager (`ferrolite-manager`) to run
    /// [default: built here]
    #[arg(long, value_name = "DIR")]
    pub programs: Option<PathBuf>,
    /// TCP port of the manager on 127.0.0.1; 0 selects a free port, so that several runs can run at once
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,
    /// Time limit of the run in seconds, from the start of the appliances
    #[arg(long, value_name = "S", default_value_t = 600, value_parser = RangedU64ValueParser::<u64>::new().range(1..=86_400))]
    pub timeout: u64,
}

impl Options {
    /// Returns the RDMA device of the appliance `index`.
    pub fn nic(&self, index: u16) -> &RdmaNic {
        self.nic.iter().cycle().nth(index.into()).unwrap_or(&RdmaNic::SoftRoce)
    }

    /// Returns the appliances that have a card, each with its profile.
    pub fn cards(&self) -> impl Iterator<Item = (u16, &'static str)> {
        (0..self.nodes).filter_map(|index| Some((index, self.nic(index).profile()?)))
    }

    /// Returns true if there are InfiniBand ports, which need a subnet manager.
    pub fn has_infiniband(&self) -> bool {
        (0..self.nodes).any(|index| self.nic(index).is_infiniband())
    }

    /// Returns the further options of an appliance's card.
    pub fn card_keys(&self, index: u16) -> impl Iterator<Item = String> {
        self.card_keys.iter().filter(move |card| card.node == index).map(|card| card.key.clone())
    }

    /// Fails if options contradict each other.
    pub fn check(&self) -> Result<()> {
        if self.one_nic && self.has_infiniband() {
            bail!("--one-nic: an InfiniBand port carries no control connection");
        }
        match self.card_keys.iter().find(|card| self.cards().all(|(index, _)| index != card.node)) {
            Some(CardKey { node, key }) => bail!("--card {node}:{key}: appliance {node} has no card"),
            None => Ok(()),
        }
    }

    /// Returns the RDMA devices as they were given.
    pub fn nics(&self) -> String {
        self.nic.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }

    /// Returns the length of the input in bytes. An error names the file that cannot be read.
    pub fn input_bytes(&self) -> Result<u64> {
        let mut total = 0;
        for path in &self.input {
            let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
            let meta = file.metadata().with_context(|| format!("cannot read {}", path.display()))?;
            if !meta.is_file() {
                bail!("cannot read {}: not a file", path.display());
            }
            total += meta.len();
        }
        Ok(total)
    }

    /// Returns the memory of each node in MiB. The host allocates only memory that a machine touches.
    pub fn memory_mb(&self, input_bytes: u64) -> u32 {
        self.memory.unwrap_or_else(|| default_memory_mb(self.nodes, input_bytes))
    }
}

/// Returns memory for a node's share, and for the node that gets a single record as long as the whole input.
fn default_memory_mb(nodes: u16, input_bytes: u64) -> u32 {
    const MIB: u64 = 1024 * 1024;
    let share = input_bytes.div_ceil(u64::from(nodes) * MIB) * 8;
    let record = (input_bytes.div_ceil(MIB) * 4).min(1024);
    64 + u32::try_from(share.max(record)).unwrap_or(u32::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::{CardKey, RdmaNic, default_memory_mb};

    #[test]
    fn memory_for_the_share_and_for_one_long_record() {
        assert_eq!(default_memory_mb(4, 0), 64);
        assert_eq!(default_memory_mb(1, 50 << 20), 64 + 400);
        assert_eq!(default_memory_mb(8, 50 << 20), 64 + 200);
        assert_eq!(default_memory_mb(16, 4 << 30), 64 + 2048);
    }

    /// Words that are none are refused when they are read: before anything is built.
    #[test]
    fn a_time_has_a_unit() {
        #[derive(clap::Parser)]
        struct Run {
            #[command(flatten)]
            options: super::Options,
        }
        let parse = |time| <Run as clap::Parser>::try_parse_from(["run", "--time", time]);
        let limit = parse("15m").ok().and_then(|run| run.options.time);
        assert_eq!(limit.map(|limit| limit.get().as_secs()), Some(900));
        for time in ["banana", "5"] {
            let refused = parse(time).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(refused.contains("want a time as in 90s"), "{refused}");
        }
    }

    #[test]
    fn nics_have_one_name_each() {
        for (text, driver) in
            [("softroce", "softroce"), ("cx3", "mlx4"), ("cx3-vf", "mlx4"), ("cx3:blueflame", "mlx4")]
        {
            let nic: RdmaNic = text.parse().unwrap();
            assert_eq!((nic.to_string().as_str(), nic.driver()), (text, driver));
            assert!(!nic.is_infiniband());
        }
        assert_eq!("cx3:pro".parse::<RdmaNic>(), "cx3".parse());
        assert!("cx3:ib".parse::<RdmaNic>().is_ok_and(|nic| nic.is_infiniband()));
        for wrong in ["", "cx4", "cx3:", "cx3:none", "cx3-"] {
            assert!(wrong.parse::<RdmaNic>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_of_cards_are_those_that_cx3_takes() {
        let key = "2:fails=500".parse::<CardKey>();
        assert_eq!(key, Ok(CardKey { node: 2, key: "fails=500".into() }));
        for wrong in ["", "fails=500", "x:fails=500", "1:fails=0", "1:colour=red"] {
            assert!(wrong.parse::<CardKey>().is_err(), "{wrong}");
        }
    }
}
