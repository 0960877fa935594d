//! The options of `cargo xtask run`.

use crate::share::RdmaOptions;
use anyhow::{Context, Result, bail};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use lab::appliances::{CardKey, Plan, RdmaNic};
use lab::image::Apps;
use lab::manager::Job;
use netfault::Faults;
use platform::TimeLimit;
use qemu::accel::Choice;
use qemu::vm::Machine;
use std::fs::File;
use std::path::PathBuf;

/// The job, the machines, and the destinations of results.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Number of appliances, 1 to 16
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = RangedU64ValueParser::<u16>::new().range(1..=16))]
    pub nodes: u16,
    /// Processors of each appliance, 1 to 8
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<u32>::new().range(1..=8))]
    pub cpus: u32,
    /// Memory of each appliance in MiB [default: 64, plus the larger of 8 times its share of the input and 4
    /// times the whole input (at most 1024), because a word is never cut]; at least 8, for the image alone
    #[arg(long, value_name = "MIB", value_parser = RangedU64ValueParser::<u32>::new().range(8..=1_048_576))]
    pub memory: Option<u32>,
    /// Application to run; the appliances list theirs when they join
    #[arg(long, value_name = "NAME", default_value = "wordcount")]
    pub app: String,
    /// Applications in the image, separated by commas, as in wordcount,grep [default: all]
    #[arg(long, value_name = "LIST", conflicts_with = "programs")]
    pub apps: Option<Apps>,
    /// Runs the nodes as processes of this host (`lite-node`), without QEMU
    #[arg(long, conflicts_with_all = ["apps", "nic", "card_keys", "one_nic", "remote", "fabric_socket", "machine", "accel", "programs"])]
    pub linux: bool,
    /// Argument of the application; repeatable
    #[arg(long = "arg", value_name = "ARG", allow_hyphen_values = true)]
    pub args: Vec<String>,
    /// Time limit of the job, as in 90s, 15m or 2h; then the job fails [default: limited by --timeout only]
    #[arg(long, value_name = "LIMIT")]
    pub time: Option<TimeLimit>,
    #[command(flatten)]
    pub rdma: RdmaOptions,
    /// Number of times that the job runs, one after the other on the same cluster; the result and the
    /// figures are those of the last, and the JSON object has those of the others as `earlier`
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    pub repeat: u32,
    /// Keeps the output of the job on the nodes as a dataset of this name, which the application of --then
    /// reads
    #[arg(long, value_name = "NAME", requires = "then", conflicts_with = "repeat")]
    pub keep: Option<String>,
    /// Application that reads the dataset of --keep, in a second job; the result and the figures are its own,
    /// and the JSON object has those of the first as `earlier`
    #[arg(long, value_name = "NAME", requires = "keep")]
    pub then: Option<String>,
    /// Argument of the application of --then; repeatable
    #[arg(long = "then-arg", value_name = "ARG", requires = "then", allow_hyphen_values = true)]
    pub then_args: Vec<String>,
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
    /// Setting of the appliances' LITE, as in scheme=hw-sep; repeatable; docs/reference/settings.md lists
    /// them
    #[arg(long = "lite", value_name = "NAME=VALUE")]
    pub settings: Vec<String>,
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
    /// Directory with the kernel (`ferrolite.elf`) and the manager (`ferrolite`) to run
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
    /// Returns the plan of the appliances. Fails if options contradict each other.
    pub(crate) fn plan(&self) -> Result<Plan> {
        let plan = Plan {
            nodes: self.nodes,
            cpus: self.cpus,
            machine: self.machine,
            nics: self.nic.clone(),
            card_keys: self.card_keys.clone(),
            one_nic: self.one_nic,
            remote: self.remote.clone(),
            settings: self.settings.clone(),
            faults: self.fabric,
            seed: self.seed,
            fabric_socket: self.fabric_socket.clone(),
            free_ports: 0,
            pcap: self.pcap.clone(),
        };
        if plan.one_nic && plan.has_infiniband() {
            bail!("--one-nic: an InfiniBand port carries no control connection");
        }
        plan.check_card_keys().context("--card")?;
        Ok(plan)
    }

    /// Returns the job. `more` are the options of its RDMA.
    pub(crate) fn job<'a>(&'a self, more: &'a [String]) -> Job<'a> {
        let keep = self.keep.as_deref();
        Job {
            app: &self.app,
            nodes: self.nodes,
            inputs: &self.input,
            args: &self.args,
            time: self.time,
            keep,
            more,
        }
    }

    /// Returns the job that reads what the first has kept from `inputs`, if there is one.
    pub(crate) fn next_job<'a>(&'a self, inputs: &'a [PathBuf], more: &'a [String]) -> Option<Job<'a>> {
        let app = self.then.as_deref()?;
        let args = &self.then_args;
        Some(Job { app, nodes: self.nodes, inputs, args, time: self.time, keep: None, more })
    }

    /// Returns the RDMA devices as they were given.
    pub(crate) fn nics(&self) -> String {
        self.nic.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }

    /// Returns the length of the input in bytes. An error names the file that cannot be read.
    pub(crate) fn input_bytes(&self) -> Result<u64> {
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
    pub(crate) fn memory_mb(&self, input_bytes: u64) -> u32 {
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
    use super::default_memory_mb;

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
}
