//! Nodes whose power a controller has: Debian's simulator of IPMI 2.0 turns a machine in QEMU on and off, and
//! the manager reaches it by `ipmitool`.

use super::bare::Bare;
use super::cluster::{LIMIT, fails};
use super::machine::{MODELS, options};
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use lab::cargo::Profile;
use lab::cluster::Lab;
use lab::manager::{self, Manager};
use lab::{paths, tool};
use qemu::{Packages, die_with_this_thread};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The packages of the simulator and of its client.
const PACKAGES: [&str; 2] = ["ipmitool", "openipmi"];
/// The password of the controller, and another one.
const PASSWORD: &str = "a-Word-of-IPMI-2.0";
const WRONG: &str = "no-Word-of-IPMI-2.0";
/// The interval at which the machine's power, and the processes of the host, are looked at.
const LOOK: Duration = Duration::from_millis(10);

pub(super) fn cases() -> Vec<Case> {
    let ipmi = |log: &Path| match Packages::get(&paths::target().join("ipmi"), &PACKAGES) {
        Ok(packages) => by_ipmi(&packages, log).map(|()| Outcome::Passed),
        Err(why) => Ok(Outcome::Skipped(format!("no packages of IPMI: {why:#}"))),
    };
    vec![
        Case::new("cluster::power-by-ipmi", ipmi).full_if(true),
        Case::new("cluster::power-by-redfish", by_redfish).full_if(true),
    ]
}

/// A board with a machine, which files turn on and off: the words `0` and `1` in `want` are orders, and those
/// in `power` are answers. The machine belongs to a thread of this.
struct Board {
    over: Arc<AtomicBool>,
    /// The process of the machine; 0 while it is off.
    process: Arc<AtomicU32>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Board {
    /// Makes a board in `dir`, whose machine is off and starts with `start`.
    fn new(dir: &Path, start: impl Fn() -> Result<Bare> + Send + 'static) -> Result<Self> {
        fs::write(dir.join("power"), "0\n")?;
        let (over, process) = (Arc::<AtomicBool>::default(), Arc::<AtomicU32>::default());
        let (ends, runs, dir) = (over.clone(), process.clone(), dir.to_owned());
        let thread = std::thread::spawn(move || {
            let mut machine = None;
            while !ends.load(Ordering::SeqCst) {
                let wanted = fs::read_to_string(dir.join("want")).unwrap_or_default();
                match (wanted.trim(), &machine) {
                    ("1", None) => machine = Some(start()?),
                    ("0", Some(_)) => machine = None,
                    _ => {}
                }
                runs.store(machine.as_ref().map_or(0, Bare::process), Ordering::SeqCst);
                let power = if machine.is_some() { "1\n" } else { "0\n" };
                if fs::read_to_string(dir.join("power"))? != power {
                    fs::write(dir.join("power.new"), power)?;
                    fs::rename(dir.join("power.new"), dir.join("power"))?;
                }
                std::thread::sleep(LOOK);
            }
            Ok(())
        });
        Ok(Self { over, process, thread: Some(thread) })
    }

    /// Stops all processors of the machine, which then does nothing any more, but for its death.
    fn hang(&self) -> Result<()> {
        let process = self.process.load(Ordering::SeqCst);
        let process = i32::try_from(process).ok().and_then(Pid::from_raw).context("the machine is off")?;
        kill_process(process, Signal::STOP).context("cannot stop the machine")
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        if let Some(Ok(Err(error))) = self.thread.take().map(JoinHandle::join) {
            eprintln!("the board: {error:#}");
        }
    }
}

/// A process that is killed at the end.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a UDP port that nobody has at present.
fn free_port() -> Result<u16> {
    Ok(UdpSocket::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn program(file: &Path, text: &str) -> Result<()> {
    fs::write(file, format!("#!/bin/sh\n{text}"))?;
    Ok(fs::set_permissions(file, Permissions::from_mode(0o700))?)
}

fn secret(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text)?;
    Ok(fs::set_permissions(file, Permissions::from_mode(0o600))?)
}

/// Starts the simulator on a UDP port, as the controller of the board in `dir`.
fn simulator(packages: &Packages, dir: &Path, port: u16, log: &Path) -> Result<Killed> {
    let shown = dir.display();
    // The words are the address of the controller, `get`, `set` or `check`, and pairs of a name and a value.
    program(
        &dir.join("board"),
        &format!(
            "cd {shown} && shift && verb=$1 && shift\n\
             while [ $# -gt 0 ]; do\n\
             case $verb-$1 in\n\
             get-power) echo power:$(cat power) ;;\n\
             set-power) echo $2 > want.new; mv want.new want; while [ $(cat power) != $2 ]; do sleep 0.05; done ;;\n\
             esac\n\
             [ $verb = set ] && shift\n\
             shift\n\
             done\n"
        ),
    )?;
    let auths = "none md2 md5 straight";
    let lan = format!(
        "name \"board\"\nset_working_mc 0x20\n startlan 1\n  addr 127.0.0.1 {port}\n  priv_limit admin\n  \
         allowed_auths_callback {auths}\n  allowed_auths_user {auths}\n  allowed_auths_operator {auths}\n  \
         allowed_auths_admin {auths}\n  guid a123456789abcdefa123456789abcdef\n endlan\n \
         chassis_control \"{shown}/board 0x20\"\n \
         user 2 true \"ferro\" \"{PASSWORD}\" operator 10 {auths}\n"
    );
    secret(&dir.join("lan.conf"), &lan)?;
    let controller = "mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr\n\
                      mc_enable 0x20\n";
    fs::write(dir.join("emu.cmd"), controller)?;
    fs::create_dir_all(dir.join("sdrs"))?;
    let said = fs::File::create(log.with_extension("ipmi_sim.log"))?;
    let mut command = packages.command("ipmi_sim")?;
    command.arg("-c").arg(dir.join("lan.conf")).arg("-f").arg(dir.join("emu.cmd"));
    command
        .arg("-s")
        .arg(dir.join("sdrs"))
        .arg("-n")
        .stdin(Stdio::null())
        .stdout(said.try_clone()?)
        .stderr(said);
    Ok(Killed(die_with_this_thread(&mut command).spawn().context("cannot start ipmi_sim")?))
}

/// Makes a program that runs the manager's with the unpacked `ipmitool` in its search path.
fn with_ipmitool(packages: &Packages, dir: &Path) -> Result<PathBuf> {
    let bin = dir.join("bin");
    fs::create_dir_all(&bin)?;
    let tool = packages.command("ipmitool")?;
    let variable = tool.get_envs().find(|(name, _)| *name == "LD_LIBRARY_PATH").and_then(|(_, value)| value);
    let libraries = variable.and_then(|value| value.to_str()).context("no path of libraries")?;
    let found = Path::new(tool.get_program()).display().to_string();
    program(&bin.join("ipmitool"), &format!("LD_LIBRARY_PATH='{libraries}' exec '{found}' \"$@\"\n"))?;
    let (shown, ferrolite) = (bin.display(), manager::build(Profile::Dev)?);
    let file = dir.join("ferrolite");
    program(&file, &format!("PATH='{shown}':$PATH exec '{}' \"$@\"\n", ferrolite.display()))?;
    Ok(file)
}

/// Looks at the words of all processes of the host, again and again.
struct Watch {
    over: Arc<AtomicBool>,
    /// Returns the numbers of the processes of `ipmitool`, and the words that have a password.
    thread: JoinHandle<(BTreeSet<String>, Vec<String>)>,
}

impl Watch {
    fn start() -> Self {
        let over = Arc::<AtomicBool>::default();
        let ends = over.clone();
        let thread = std::thread::spawn(move || {
            let (mut tools, mut leaks) = (BTreeSet::new(), Vec::new());
            while !ends.load(Ordering::SeqCst) {
                for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
                    for part in ["cmdline", "environ"] {
                        // A process may end meanwhile.
                        let words = fs::read(entry.path().join(part)).unwrap_or_default();
                        let words = String::from_utf8_lossy(&words).replace('\0', " ");
                        if words.contains("ipmitool") && words.contains("lanplus") {
                            tools.insert(entry.file_name().to_string_lossy().into_owned());
                        }
                        if [PASSWORD, WRONG].iter().any(|password| words.contains(password)) {
                            leaks.push(words);
                        }
                    }
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            (tools, leaks)
        });
        Self { over, thread }
    }

    /// Ends the watch. No process may have had a password, and some must have been seen.
    fn end(self) -> Result<()> {
        self.over.store(true, Ordering::SeqCst);
        let (tools, leaks) = self.thread.join().ok().context("the watch has failed")?;
        ensure!(leaks.is_empty(), "a process has a password: {}", leaks[0]);
        ensure!(!tools.is_empty(), "no process of ipmitool was seen");
        Ok(())
    }
}

fn inventory(port: u16, silent: u16) -> String {
    let node = |name: &str, port: u16, file: &str| {
        format!(
            "[[nodes]]\nname = '{name}'\ncpus = 1\nbmc = {{ kind = 'ipmi', address = '127.0.0.1:{port}', \
             user = 'ferro', password_file = '{file}' }}\n"
        )
    };
    node("node0", port, "password") + &node("node1", silent, "password") + &node("node2", port, "wrong")
}

/// A machine that hangs is turned off and on, and its node joins again. A controller that does not answer
/// delays nothing, and a wrong password is told as that.
fn by_ipmi(packages: &Packages, log: &Path) -> Result<()> {
    let dir = tempfile::TempDir::with_prefix("ferrolite-")?;
    let (dir, port) = (dir.path(), free_port()?);
    let silent = UdpSocket::bind("127.0.0.1:0")?;
    secret(&dir.join("password"), PASSWORD)?;
    secret(&dir.join("wrong"), WRONG)?;
    let file = dir.join("manager.toml");
    fs::write(&file, inventory(port, silent.local_addr()?.port()))?;
    let ferrolite = with_ipmitool(packages, dir)?;
    let config = file.to_str().context("a path that is text")?;
    let mut manager = Manager::start_with(&ferrolite, 0, dir, &["--config", config])?;

    let nics: String = (0..2)
        .map(|n| {
            format!(" -netdev user,id=n{n} -device virtio-net-pci,netdev=n{n},disable-legacy=on,romfile=")
        })
        .collect();
    let machine = options(MODELS[1].1, &format!("-smp 1 -m 128M -device virtio-rng-pci{nics}"))?;
    let append = format!("nic=softroce node=node0 manager=10.0.2.2:{}", manager.port()?);
    let key = format!("name=opt/ferrolite/key,file={}", manager.key().display());
    let console = log.with_extension("node0.log");
    let start =
        move || Bare::start(&Lab::get()?.qemu, &machine, &["-append", &append, "-fw_cfg", &key], &console);
    // All programs are built.
    let watch = Watch::start();
    let board = Board::new(dir, start)?;
    let _simulator = simulator(packages, dir, port, log)?;

    let client = |words: &[&str]| {
        let mut command: Command = manager.client("power");
        command.args(words);
        command
    };
    let said = log.with_extension("power.log");
    let power = |words: &[&str]| tool::run_ok(&mut client(words), &said, LIMIT);
    let deadline = Instant::now() + LIMIT;
    // The simulator takes a moment to listen.
    while power(&["status", "node0"]).is_err() {
        ensure!(Instant::now() < deadline, "the simulator does not answer");
        std::thread::sleep(Duration::from_millis(100));
    }
    ensure!(power(&["status", "node0"])?.contains("node0 is off"), "the machine is on");
    ensure!(power(&["on", "node0"])?.contains("node0 is on"), "the machine stays off");
    let joined = || {
        let mut nodes = manager.client("nodes");
        tool::run_ok(nodes.args(["--wait", "1", "--timeout", "240"]), &said, LIMIT).map(drop)
    };
    joined()?;
    fails(&mut client(&["on", "node2"]), "the BMC of node2 (ipmi): wrong password", &said)?;

    // A controller does not answer, while another one turns a machine that hangs off and on.
    let mut unheard = client(&["status", "node1"]);
    unheard.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let unheard = die_with_this_thread(&mut unheard).spawn()?;
    board.hang()?;
    ensure!(power(&["cycle", "node0", "--bmc"])?.contains("node0 is on"), "the machine stays off");
    joined()?;
    let unheard = unheard.wait_with_output()?;
    let line = String::from_utf8_lossy(&unheard.stderr);
    ensure!(line.contains("the BMC of node1 (ipmi): no answer"), "node1: {line}");

    // A node that is asked to leave does not answer, and its machine is reset all the same.
    board.hang()?;
    let node = |words: &[&str]| {
        let mut command = Command::new(&ferrolite);
        command
            .arg("node")
            .args(words)
            .args(["--manager", manager.address(), "--key-file"])
            .arg(manager.key());
        tool::run_ok(&mut command, &said, LIMIT)
    };
    let rebooted = node(&["reboot", "node0", "--timeout", "240"])?;
    ensure!(rebooted.contains("node0 has joined again"), "{rebooted}");
    let (inventory, absent) = (["inventory", "-o", "json"], "\"presence\":\"absent\"");
    let listed = node(&inventory)?;
    ensure!(listed.contains("\"presence\":\"present\"") && listed.matches(absent).count() == 2, "{listed}");
    ensure!(power(&["off", "node0", "--bmc"])?.contains("node0 is off"), "the machine stays on");
    let listed = node(&inventory)?;
    ensure!(listed.matches(absent).count() == 3, "{listed}");
    let power_is_off = "(node0) is gone: its power is off, as its BMC confirms";
    manager.wait_for_line(power_is_off, LIMIT).context("the node's life does not end with its power")?;
    watch.end()
}

/// Writes the file of passwords of the emulator of Redfish: `FILE USER PASSWORD`.
const HTPASSWD: &str = "import bcrypt, sys\n\
    hashed = bcrypt.hashpw(sys.argv[3].encode(), bcrypt.gensalt(4)).decode()\n\
    open(sys.argv[1], 'w').write(sys.argv[2] + ':' + hashed + '\\n')\n";

/// OpenStack's emulator of Redfish, whose machine takes seconds to change its power, obeys the manager. A
/// wrong password is told as that.
fn by_redfish(log: &Path) -> Result<Outcome> {
    let dir = tempfile::TempDir::with_prefix("ferrolite-")?;
    let dir = dir.path();
    let environment = dir.join("python");
    let python = environment.join("bin/python");
    let fetched = tool::run_ok(Command::new("python3").args(["-m", "venv"]).arg(&environment), log, LIMIT)
        .and_then(|_| {
            let pip = ["-m", "pip", "install", "--quiet", "sushy-tools"];
            tool::run_ok(Command::new(&python).args(pip), log, LIMIT)
        });
    if let Err(error) = fetched {
        return Ok(Outcome::Skipped(format!("sushy-tools cannot be had: {error:#}")));
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    secret(&dir.join("htpasswd"), "")?;
    let mut hash = Command::new(&python);
    tool::output(hash.args(["-c", HTPASSWD]).arg(dir.join("htpasswd")).args(["ferro", PASSWORD]))?;
    let shown = dir.display();
    let settings = format!(
        "SUSHY_EMULATOR_LISTEN_IP = '127.0.0.1'\nSUSHY_EMULATOR_LISTEN_PORT = {port}\n\
         SUSHY_EMULATOR_FAKE_DRIVER = True\nSUSHY_EMULATOR_AUTH_FILE = '{shown}/htpasswd'\n\
         SUSHY_EMULATOR_STATE_DIR = '{shown}'\nSUSHY_EMULATOR_FEATURE_SET = 'minimum'\n"
    );
    fs::write(dir.join("emulator.conf"), settings)?;
    let said = fs::File::create(log.with_extension("sushy.log"))?;
    let mut emulator = Command::new(environment.join("bin/sushy-emulator"));
    emulator.arg("--config").arg(dir.join("emulator.conf"));
    emulator.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said);
    let _emulator =
        Killed(die_with_this_thread(&mut emulator).spawn().context("cannot start sushy-emulator")?);

    secret(&dir.join("password"), PASSWORD)?;
    secret(&dir.join("wrong"), WRONG)?;
    let node = |name: &str, file: &str| {
        format!(
            "[[nodes]]\nname = '{name}'\n[nodes.bmc]\nkind = 'redfish'\naddress = 'http://127.0.0.1:{port}'\n\
             user = 'ferro'\npassword_file = '{file}'\ninsecure = true\ntimeout = 50\n"
        )
    };
    fs::write(dir.join("manager.toml"), node("node0", "password") + &node("node1", "wrong"))?;
    let file = dir.join("manager.toml");
    let config = file.to_str().context("a path that is text")?;
    let manager = Manager::start_with(&manager::build(Profile::Dev)?, 0, dir, &["--config", config])?;
    let client = |words: &[&str]| {
        let mut command = manager.client("power");
        command.args(words);
        command
    };
    let said = log.with_extension("power.log");
    let power = |words: &[&str]| tool::run_ok(&mut client(words), &said, LIMIT);
    let deadline = Instant::now() + LIMIT;
    while power(&["status", "node0"]).is_err() {
        ensure!(Instant::now() < deadline, "the emulator does not answer");
        std::thread::sleep(Duration::from_millis(200));
    }
    for (words, state) in [
        (&["status", "node0"][..], "off"),
        (&["on", "node0"], "on"),
        (&["cycle", "node0"], "on"),
        (&["off", "node0", "--bmc"], "off"),
        (&["status", "node0"], "off"),
    ] {
        let answer = power(words)?;
        ensure!(answer.contains(&format!("node0 is {state}")), "{words:?}: {answer}");
    }
    fails(&mut client(&["on", "node1"]), "the BMC of node1 (redfish): wrong user or password (401)", &said)?;
    Ok(Outcome::Passed)
}
