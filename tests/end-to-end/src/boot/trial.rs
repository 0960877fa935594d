//! One boot: a machine starts from a medium, joins a manager, and counts words as coreutils do.

use super::tools::Tools;
use crate::job::inputs::{Input, compare};
use crate::job::xtask;
use anyhow::{Context, Result, bail, ensure};
use fabric::{Fabric, FabricConfig};
use lab::appliances::reason;
use lab::cargo::Profile;
use lab::cluster::Lab;
use lab::manager::{self, Manager};
use lab::tool;
use qemu::vm::{Event, EventKind, Machine, Nic, Vm, VmSpec};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The longest silence of a machine or a program on a busy host.
const LIMIT: Duration = Duration::from_secs(240);
/// The interval at which a console is read.
const LOOK: Duration = Duration::from_millis(200);
/// The name of the node.
const NODE: &str = "booted";
/// The text of the console once the node is a member.
const JOINED: &str = "joined as ";

/// The medium from which a machine boots.
pub(super) struct Medium {
    pub(super) machine: Machine,
    pub(super) memory_mb: u32,
    /// The arguments of QEMU in place of a kernel.
    pub(super) arguments: Vec<OsString>,
    /// The port of the management network.
    pub(super) nic: Nic,
}

impl Medium {
    /// Returns a medium for a machine whose firmware boots it.
    pub(super) fn new(machine: Machine, memory_mb: u32) -> Self {
        Self { machine, memory_mb, arguments: Vec::new(), nic: Nic::Management }
    }

    /// Adds an option of QEMU.
    pub(super) fn with(mut self, option: &str, value: impl Into<OsString>) -> Self {
        self.arguments.extend([option.into(), value.into()]);
        self
    }

    /// Returns true if the firmware is UEFI.
    pub(super) fn is_efi(&self) -> bool {
        self.arguments.iter().any(|argument| argument.to_string_lossy().contains("OVMF"))
    }
}

/// The surroundings of a boot: a manager, a fabric, and a directory for files.
pub(super) struct Trial<'a> {
    pub(super) tools: &'a Tools,
    pub(super) log: &'a Path,
    manager: Manager,
    fabric: Fabric,
    dir: TempDir,
}

impl<'a> Trial<'a> {
    pub(super) fn new(tools: &'a Tools, log: &'a Path) -> Result<Self> {
        let dir = TempDir::with_prefix("ferrolite-")?;
        let manager = Manager::start(&manager::build(Profile::Dev)?, 0, dir.path())?;
        let fabric = Fabric::start(&FabricConfig::plain(2, dir.path()))?;
        Ok(Self { tools, log, manager, fabric, dir })
    }

    /// Returns the path of a file of this trial.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes a directory of this trial.
    pub(super) fn directory(&self, name: &str) -> Result<PathBuf> {
        let dir = self.path(name);
        fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    /// Returns the file with the cluster key.
    pub(super) fn key(&self) -> &Path {
        self.manager.key()
    }

    /// Returns the command line of the node.
    pub(super) fn words(&self) -> Result<String> {
        Ok(format!("manager=10.0.2.2:{} node={NODE} nic=softroce", self.manager.port()?))
    }

    /// Makes a boot file with `cargo xtask image` and these options, and returns its path.
    pub(super) fn image(&self, format: &str, options: &[&str]) -> Result<PathBuf> {
        let out = self.directory("image")?;
        let mut command = xtask();
        command.args(["image", "--format", format, "--out"]).arg(&out).args(options);
        tool::run_ok(&mut command, self.log, LIMIT)?;
        let made = fs::read_dir(&out)?.next().context("cargo xtask image has written nothing")?;
        Ok(made?.path())
    }

    /// Makes a boot file in which the configuration and the key are built in.
    pub(super) fn image_with_all(&self, format: &str) -> Result<PathBuf> {
        self.image_with(format, &[])
    }

    /// Makes a boot file as [`image_with_all`](Self::image_with_all) does, with more options.
    pub(super) fn image_with(&self, format: &str, more: &[&str]) -> Result<PathBuf> {
        let config = self.path("config");
        fs::write(&config, format!("# of a test\n{}\n", self.words()?.replace(' ', "\n")))?;
        let [config, key] = [&config, self.key()].map(|path| path.to_string_lossy().into_owned());
        let options = [&["--config", &config, "--key", &key][..], more].concat();
        self.image(format, &options)
    }

    /// Boots a machine from the medium. The node must join, count words as coreutils do, and its console must
    /// contain each text of `says`.
    pub(super) fn joins(&self, medium: Medium, says: &[&str]) -> Result<()> {
        let (vm, events) = self.boot(medium)?;
        wait_for(&vm, &events, JOINED)?;
        self.count_words()?;
        self.check(says)
    }

    /// Boots a machine from the medium, which must print `refusal` and must not start the kernel.
    pub(super) fn is_refused(&self, medium: Medium, refusal: &str) -> Result<()> {
        let (vm, events) = self.boot(medium)?;
        wait_for(&vm, &events, refusal)?;
        drop(vm);
        let console = self.console()?;
        ensure!(!console.contains("stub: "), "the stub has started: {console}");
        Ok(())
    }

    /// Boots a machine from the medium, and waits until it prints a line with `text`.
    pub(super) fn says(&self, medium: Medium, text: &str) -> Result<()> {
        let (vm, events) = self.boot(medium)?;
        wait_for(&vm, &events, text)
    }

    /// Waits until the console of a machine that runs already has a whole line with `text`, and returns what
    /// it has printed.
    pub(super) fn console_says(&self, text: &str) -> Result<String> {
        let (mut seen, mut since) = (0, Instant::now());
        loop {
            let console = self.console()?;
            if console.split_once(text).is_some_and(|(_, rest)| rest.contains('\n')) {
                return Ok(console);
            }
            if console.len() > seen {
                (seen, since) = (console.len(), Instant::now());
            }
            ensure!(since.elapsed() < LIMIT, "the console does not say `{text}`");
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until a machine that runs already has joined, and lets it count words.
    pub(super) fn counts_words(&self, says: &[&str]) -> Result<()> {
        let mut nodes = self.manager.client("nodes");
        nodes.args(["--wait", "1", "--timeout", &LIMIT.as_secs().to_string()]);
        tool::run_ok(&mut nodes, self.log, LIMIT + Duration::from_secs(30))?;
        self.count_words()?;
        self.check(says)
    }

    /// Returns the fabric, whose first port is the machine's.
    pub(super) fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Returns the file for the machine's console.
    pub(super) fn console_file(&self) -> PathBuf {
        self.log.with_extension("console.log")
    }

    /// Returns the text on the machine's console.
    pub(super) fn console(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(self.console_file())?).into_owned())
    }

    fn check(&self, says: &[&str]) -> Result<()> {
        let console = self.console()?;
        for text in says {
            ensure!(console.contains(text), "the console does not say `{text}`");
        }
        Ok(())
    }

    fn boot(&self, medium: Medium) -> Result<(Vm, Receiver<Event>)> {
        let lab = Lab::get()?;
        let spec = VmSpec {
            name: NODE.into(),
            index: 0,
            machine: medium.machine,
            accel: lab.accel,
            cpus: 1,
            memory_mb: medium.memory_mb,
            kernel: lab.kernel.clone(),
            cmdline: String::new(),
            fw_cfg: Vec::new(),
            initrd: None,
            nics: vec![medium.nic, Nic::Fabric { plug: self.fabric.plug(0) }],
            boots_again: false,
        };
        let (sender, events) = channel();
        let vm = Vm::start_from(&lab.qemu, spec, Some(medium.arguments), Some(&self.console_file()), sender)?;
        Ok((vm, events))
    }

    fn count_words(&self) -> Result<()> {
        let input = Input::SmallText.prepared(self.log)?;
        let output = self.path("output");
        let mut submit = self.manager.client("submit");
        submit.args(["--app", "wordcount", "--nodes", "1", "--input"]).arg(&input.input);
        submit.arg("--output").arg(&output);
        tool::run_ok(&mut submit, self.log, LIMIT)?;
        compare(&input.expected, &output, self.log)
    }
}

/// Waits until a machine prints a line with `text`.
fn wait_for(vm: &Vm, events: &Receiver<Event>, text: &str) -> Result<()> {
    loop {
        match events.recv_timeout(LIMIT) {
            Ok(Event { kind: EventKind::Line(line), .. }) if line.contains(text) => return Ok(()),
            Ok(Event { kind: EventKind::Exited(exit), .. }) => {
                bail!("{exit}: {}", reason(&vm.tail()).unwrap_or("it said nothing"))
            }
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => {
                bail!(
                    "silent for {} s; last: {}",
                    LIMIT.as_secs(),
                    vm.tail().last().cloned().unwrap_or_default()
                )
            }
            Err(RecvTimeoutError::Disconnected) => bail!("the machine has ended"),
        }
    }
}
