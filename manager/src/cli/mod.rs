//! The command line: its arguments, and one function for each command.

mod machine;
mod progress;
mod report;
mod signals;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};
use manager::client::{Client, Inputs, Job, Output};
use manager::core::Config;
use manager::daemon::{Daemon, Options};
use manager::key;
use manager::pxe::{self, Service};
use platform::TimeLimit;
use progress::Progress;
use proto::channel::Role;
use proto::{Dataset, JobId};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The manager of a Ferrolite cluster: the daemon, and the commands that talk to it.
#[derive(Debug, Parser)]
#[command(version, about)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the manager until SIGINT or SIGTERM. Logs each membership and job event as a line on standard
    /// error.
    Daemon(DaemonArgs),
    /// Boots the nodes of an inventory by PXE, and gives each the key of a node for a token. Answers beside
    /// the network's DHCP server, and never a machine that is not in the inventory.
    Pxe(PxeArgs),
    /// Lists the nodes of the cluster.
    Nodes(NodesArgs),
    /// Runs a job: streams the input files to the nodes and writes the output file.
    Submit(SubmitArgs),
    /// Lists the jobs that run, and those that are ending.
    Jobs(JobsArgs),
    /// Ends a job. Its submission fails with that reason. Its nodes are idle once they have ended their part.
    Cancel {
        #[command(flatten)]
        manager: ManagerArgs,
        /// The number of the job (see `jobs`).
        #[arg(value_parser = job_id)]
        job: JobId,
    },
    /// Lists the datasets: outputs of jobs that were kept on the nodes.
    Datasets(DatasetsArgs),
    /// Frees a dataset, unless a job reads it.
    Drop {
        #[command(flatten)]
        manager: ManagerArgs,
        /// The name of the dataset (see `datasets`).
        name: String,
    },
    /// Makes all nodes leave the cluster and power off.
    Shutdown {
        #[command(flatten)]
        manager: ManagerArgs,
    },
    /// Turns the machine of a node off, or resets it. The node leaves the cluster first. Returns once it has
    /// left.
    Power(machine::PowerArgs),
    /// Boots another image on the machine of a node, in place: without its firmware, and with the command
    /// line, settings and key that the node has. The node checks the image, and leaves the cluster first.
    /// Returns once it has left.
    Boot(machine::BootArgs),
    /// Makes the cluster key if there is none, and prints the name of its file. With --role, also makes a
    /// file with the key of that role alone. Never prints a secret key.
    Key {
        #[command(flatten)]
        key: KeyArgs,
        /// Prints the setting with the manager's public key instead, which images for PXE must have built in.
        #[arg(long, conflicts_with = "role")]
        public: bool,
        /// The role: a client can submit jobs, list the nodes and shut the cluster down, but cannot join; a
        /// node can only join.
        #[arg(long, value_enum, requires = "output")]
        role: Option<RoleWord>,
        /// The new file with the key of the role, for use with `--key-file` on another host.
        #[arg(long, value_name = "FILE", requires = "role")]
        output: Option<PathBuf>,
    },
}

/// A role, as it is written on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleWord {
    Node,
    Client,
}

#[derive(Debug, Args)]
struct KeyArgs {
    /// The file with the cluster key: 64 hexadecimal digits, after `client:` or `node:` if it is the key of
    /// one role alone. Only its owner may have access to it [default: cluster.key in the state directory].
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

impl KeyArgs {
    fn path(&self, state: Option<&Path>) -> Result<PathBuf> {
        match (&self.key_file, state) {
            (Some(file), _) => Ok(file.clone()),
            (None, Some(state)) => Ok(state.join("cluster.key")),
            (None, None) => Ok(default_state()?.join("cluster.key")),
        }
    }
}

/// Returns `$XDG_STATE_HOME/ferrolite`, or `~/.local/state/ferrolite`.
fn default_state() -> Result<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("XDG_STATE_HOME")
        .or_else(|| Some(variable("HOME")?.join(".local/state")))
        .map(|state| state.join("ferrolite"))
        .context("neither HOME nor XDG_STATE_HOME is set: say --state or --key-file")
}

#[derive(Debug, Args)]
struct ManagerArgs {
    /// The manager's address.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:18500")]
    manager: String,
    #[command(flatten)]
    key: KeyArgs,
}

impl ManagerArgs {
    fn connect(&self) -> Result<Client> {
        let key = key::load(&self.key.path(None)?)?;
        Ok(Client::connect(&self.manager, &key)?)
    }
}

#[derive(Debug, Args)]
struct DaemonArgs {
    /// The address to listen on. Port 0 chooses a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:18500")]
    listen: SocketAddr,
    /// The directory that keeps the identities of nodes across restarts [default: ~/.local/state/ferrolite,
    /// or ferrolite in $XDG_STATE_HOME].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    #[command(flatten)]
    key: KeyArgs,
    /// The file to which the daemon writes its address once it listens.
    #[arg(long, value_name = "FILE")]
    port_file: Option<PathBuf>,
    /// The lease, in milliseconds: a node without a heartbeat for that long loses its membership.
    #[arg(long, value_name = "MS", default_value_t = 5000, value_parser = lease_ms)]
    lease_ms: u64,
    /// Lets appliances and processes on hosts share a cluster. Either can then reach all memory of the other
    /// that its key covers.
    #[arg(long)]
    trust_hosts: bool,
}

#[derive(Debug, Args)]
struct PxeArgs {
    /// The inventory of the nodes.
    #[arg(long, value_name = "FILE", default_value = "cluster.toml")]
    cluster: PathBuf,
    /// The interface of the network on which machines boot.
    #[arg(long, value_name = "NAME")]
    interface: String,
    /// This host's address on that network.
    #[arg(long, value_name = "IP")]
    address: Ipv4Addr,
    #[command(flatten)]
    key: KeyArgs,
}

#[derive(Debug, Args)]
struct NodesArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// Waits until this number of nodes have joined.
    #[arg(long, value_name = "N", value_parser = count)]
    wait: Option<u16>,
    /// The longest time to wait, in seconds.
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = seconds)]
    timeout: u64,
    /// A file to which the list is also written, as a JSON object.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct JobsArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// A file to which the list is also written, as a JSON object.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct DatasetsArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// A file to which the list is also written, as a JSON object.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct SubmitArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The application. The nodes have it compiled in (see `nodes`).
    #[arg(long, value_name = "NAME")]
    app: String,
    /// The number of nodes that take part [default: all that have the application].
    #[arg(long, value_name = "N", value_parser = count)]
    nodes: Option<u16>,
    /// The name of a node that takes part. It can be given several times; then only the named nodes take
    /// part.
    #[arg(long, value_name = "NAME", conflicts_with = "nodes")]
    on: Vec<String>,
    /// An input file, or lite:NAME for a dataset. It can be given several times, and an application may need
    /// none. Datasets come after files.
    #[arg(long, value_name = "FILE")]
    input: Vec<PathBuf>,
    /// The output file. It exists only if the job succeeds.
    #[arg(long, value_name = "FILE", required_unless_present = "keep", conflicts_with = "keep")]
    output: Option<PathBuf>,
    /// Keeps the output on the nodes, as a dataset of this name, and sends it to nobody.
    #[arg(long, value_name = "NAME")]
    keep: Option<String>,
    /// The longest time that the job may take, counted from when its nodes are told of it, as in 90s, 15m or
    /// 2h; then it fails [default: no limit].
    #[arg(long, value_name = "LIMIT")]
    time: Option<TimeLimit>,
    /// A file to which the summary is also written, as a JSON object.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The arguments of the application: all words that follow.
    #[arg(long, value_name = "ARG", num_args = 0.., allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Parses a number from `least` to `most`.
fn number<T: TryFrom<u64>>(text: &str, least: u64, most: u64) -> Result<T, String> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    let number = number.and_then(|number: u64| T::try_from(number).ok());
    number.ok_or_else(|| format!("want a number from {least} to {most}"))
}

/// Parses a number of nodes.
fn count(text: &str) -> Result<u16, String> {
    number(text, 1, 4095)
}

/// Parses a lease, in milliseconds.
fn lease_ms(text: &str) -> Result<u64, String> {
    number(text, 100, 600_000)
}

/// Parses a time to wait, in seconds.
fn seconds(text: &str) -> Result<u64, String> {
    number(text, 0, 1_000_000_000)
}

/// Parses the number of a job.
fn job_id(text: &str) -> Result<JobId, String> {
    text.parse().map(JobId).map_err(|_| format!("{text} is not a number of a job"))
}

impl Cli {
    /// Runs the chosen command.
    pub(crate) fn run(self) -> Result<()> {
        match self.command {
            Command::Daemon(args) => daemon(args),
            Command::Nodes(args) => nodes(&args),
            Command::Submit(args) => submit(args),
            Command::Jobs(args) => jobs(&args),
            Command::Datasets(args) => datasets(&args),
            Command::Drop { manager, name } => Ok(manager.connect()?.drop_dataset(&name)?),
            Command::Cancel { manager, job } => Ok(manager.connect()?.cancel(job)?),
            Command::Shutdown { manager } => Ok(manager.connect()?.shutdown()?),
            Command::Power(args) => machine::power(&args),
            Command::Boot(args) => machine::boot(&args),
            Command::Pxe(args) => boot_by_pxe(args),
            Command::Key { key, public: true, .. } => {
                let (key, _) = key::load_or_make(&key.path(None)?)?;
                println!("manager_key={}", key.registrar()?.public());
                Ok(())
            }
            Command::Key { key, role, output, public: false } => {
                let path = key.path(None)?;
                // The key of a role comes from the key of an existing cluster.
                let (key, made) =
                    if role.is_some() { (key::load(&path)?, false) } else { key::load_or_make(&path)? };
                println!("{} {}", if made { "made" } else { "found" }, path.display());
                if let (Some(role), Some(output)) = (role, output) {
                    let role = match role {
                        RoleWord::Node => Role::Node,
                        RoleWord::Client => Role::Client,
                    };
                    key::make_for_role(&output, &key, role)?;
                    println!("made {} with the key of a {role}", output.display());
                }
                Ok(())
            }
        }
    }
}

fn daemon(args: DaemonArgs) -> Result<()> {
    let state = args.state.map_or_else(default_state, Ok)?;
    let path = args.key.path(Some(&state))?;
    let (key, made) = key::load_or_make(&path)?;
    if made {
        eprintln!("made a new cluster key in {}", path.display());
    }
    let config = Config {
        lease: Duration::from_millis(args.lease_ms),
        trust_hosts: args.trust_hosts,
        ..Config::default()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let stop = signals::stopped()?;
        let daemon = Daemon::bind(Options { listen: args.listen, key, state, config }).await?;
        let address = daemon.local_addr()?;
        if let Some(file) = &args.port_file {
            write_whole(file, format!("{address}\n").as_bytes())?;
        }
        eprintln!("listening on {address}");
        tell_systemd_ready()?;
        Ok(daemon.serve(stop).await?)
    })
}

fn boot_by_pxe(args: PxeArgs) -> Result<()> {
    let key = key::load(&args.key.path(None)?)?;
    let PxeArgs { cluster, interface, address, .. } = args;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let stop = signals::stopped()?;
        let service = Service::bind(pxe::Options { cluster, interface, address, key }).await?;
        eprintln!("boots nodes by PXE on {address}");
        tell_systemd_ready()?;
        service.serve(stop).await;
        Ok(())
    })
}

/// Tells systemd that this service is ready. Does nothing unless a unit of systemd waits for that.
fn tell_systemd_ready() -> Result<()> {
    sd_notify::notify(&[sd_notify::NotifyState::Ready])
        .context("systemd cannot be told that the service is ready")
}

/// Writes a file in one step: a reader sees all of it or nothing.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut output = Output::create(path)?;
    output.write(bytes)?;
    Ok(output.finish()?)
}

fn nodes(args: &NodesArgs) -> Result<()> {
    let mut client = args.manager.connect()?;
    let nodes = match args.wait {
        Some(count) => client.wait_nodes(count, Duration::from_secs(args.timeout))?,
        None => client.nodes()?,
    };
    print!("{}", report::table(&nodes));
    match &args.json {
        Some(file) => write_whole(file, report::nodes_json(&nodes).to_string().as_bytes()),
        None => Ok(()),
    }
}

fn jobs(args: &JobsArgs) -> Result<()> {
    let mut client = args.manager.connect()?;
    let jobs = client.jobs()?;
    let names = names(&mut client)?;
    print!("{}", report::jobs_table(&jobs, &names));
    match &args.json {
        Some(file) => write_whole(file, report::jobs_json(&jobs, &names).to_string().as_bytes()),
        None => Ok(()),
    }
}

/// Returns the names of all nodes.
fn names(client: &mut Client) -> Result<report::Names> {
    Ok(client.nodes()?.into_iter().map(|node| (node.node, node.name)).collect())
}

fn datasets(args: &DatasetsArgs) -> Result<()> {
    let mut client = args.manager.connect()?;
    let datasets = client.datasets()?;
    let names = names(&mut client)?;
    print!("{}", report::datasets_table(&datasets, &names));
    match &args.json {
        Some(file) => write_whole(file, report::datasets_json(&datasets, &names).to_string().as_bytes()),
        None => Ok(()),
    }
}

/// Divides inputs into files and the names of datasets.
fn divided(inputs: Vec<PathBuf>) -> (Vec<PathBuf>, Vec<String>) {
    let (mut files, mut datasets) = (Vec::new(), Vec::new());
    for input in inputs {
        match input.to_str().and_then(|text| text.strip_prefix(Dataset::SCHEME)) {
            Some(name) => datasets.push(name.to_owned()),
            None => files.push(input),
        }
    }
    (files, datasets)
}

fn submit(args: SubmitArgs) -> Result<()> {
    let (files, datasets) = divided(args.input);
    let inputs = Inputs::open(&files)?;
    let mut output = args.output.as_deref().map_or_else(|| Ok(Output::none()), Output::create)?;
    if args.output.is_some() {
        signals::remove_when_stopped(output.temporary())?;
    }
    let mut client = args.manager.connect()?;
    let names = names(&mut client)?;
    let progress = Progress::new(inputs.total());
    let job = Job {
        app: args.app,
        args: args.args,
        nodes: args.nodes.unwrap_or(0),
        on: args.on,
        limit: args.time.map(TimeLimit::get),
        datasets,
        keep: args.keep,
    };
    let done = client.submit(&job, inputs, &mut output, &|update| progress.show(update));
    progress.end();
    let done = done?;
    output.finish()?;
    print!("{}", report::summary(&job, &done, &names));
    match &args.json {
        Some(file) => write_whole(file, report::job_json(&job, &done, &names).to_string().as_bytes()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn words_are_consistent() {
        Cli::command().debug_assert();
    }

    /// Returns the message of the command line about the value of an argument.
    fn objection(words: &[&str]) -> String {
        let error = Cli::try_parse_from([&["ferrolite-manager"], words].concat()).unwrap_err().to_string();
        error.lines().next().unwrap().rsplit_once("': ").expect("a value and what is wrong with it").1.into()
    }

    #[test]
    fn values_that_are_none_are_refused_in_a_sentence() {
        let submit = ["submit", "--app", "a", "--input", "i", "--output", "o"];
        for time in ["5", "0s", "soon"] {
            assert_eq!(
                objection(&[&submit[..], &["--time", time]].concat()),
                "want a time as in 90s, 15m or 2h"
            );
        }
        for job in ["banana", "-1", "1.5", ""] {
            assert_eq!(objection(&["cancel", "--", job]), format!("{job} is not a number of a job"));
        }
        for nodes in ["0", "4096", "many"] {
            let wanted = "want a number from 1 to 4095";
            assert_eq!(objection(&[&submit[..], &["--nodes", nodes]].concat()), wanted);
            assert_eq!(objection(&["nodes", "--wait", nodes]), wanted);
        }
        assert_eq!(objection(&["nodes", "--timeout", "1m"]), "want a number from 0 to 1000000000");
        assert_eq!(objection(&["daemon", "--lease-ms", "5s"]), "want a number from 100 to 600000");
    }

    #[test]
    fn zero_nodes_are_refused() {
        let words =
            ["ferrolite-manager", "submit", "--app", "a", "--input", "i", "--output", "o", "--nodes", "0"];
        assert!(Cli::try_parse_from(words).is_err());
    }

    #[test]
    fn arguments_of_the_application_may_look_like_options() {
        let words = [
            "ferrolite-manager",
            "submit",
            "--app",
            "a",
            "--input",
            "i",
            "--output",
            "o",
            "--args",
            "-v",
            "x",
        ];
        let Command::Submit(args) = Cli::try_parse_from(words).unwrap().command else {
            panic!("another command")
        };
        assert_eq!(args.args, ["-v", "x"]);
    }
}
