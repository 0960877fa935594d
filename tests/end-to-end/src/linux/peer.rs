//! Tests of Linux as a peer: `cargo xtask linux-peer`, and our transport against its `rdma_rxe`.

use crate::job::disturbed::children;
use crate::job::misuse::one_error;
use crate::job::xtask;
use crate::runner::cargo_test::cargo_test;
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, bail, ensure};
use lab::cargo::LIBIBVERBS;
use lab::cluster::Lab;
use lab::tool;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The time limit of downloading and unpacking a kernel, on a busy host.
const LIMIT: Duration = Duration::from_secs(1200);
/// The longest time from an interrupt to the end.
const BOUND: Duration = Duration::from_secs(30);

pub(crate) fn cases() -> Vec<Case> {
    let simple = |name: &str, check: fn(&Path) -> Result<()>| {
        Case::new(format!("linux-peer::{name}"), move |log| check(log).map(|()| Outcome::Passed))
    };
    vec![
        simple("command", command),
        simple("bad-command", bad_command),
        simple("interrupted-leaves-nothing", interrupted),
        simple("shell-without-terminal", shell),
        simple("two-on-a-fabric", two).full_if(true),
        simple("joins-a-run", joins).full_if(true),
        Case::new("interop::rxe-quick", |log| {
            let args = [
                "--workspace",
                "--features",
                LIBIBVERBS,
                "--test",
                "rxe",
                "--",
                "--ignored",
                "--nocapture",
                "quick",
            ];
            cargo_test(&args, log)
        }),
    ]
}

fn peer() -> Command {
    let mut command = xtask();
    command.arg("linux-peer");
    command
}

/// Checks that output, error, status and input of a command pass through.
fn command(log: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let json = dir.path().join("json");
    let copied = dir.path().join("it's");
    std::fs::write(&copied, "copied")?;
    let mut command = peer();
    command.args(["--run", "ibv_devinfo -d rxe0; cat \"/root/it's\" - >&2; exit 7", "--json"]).arg(&json);
    command.arg("--copy").arg(&copied);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = qemu::die_with_this_thread(&mut command).spawn()?;
    child.stdin.take().context("no standard input")?.write_all(b" and said")?;
    let output = child.wait_with_output()?;
    let [stdout, stderr] = [output.stdout, output.stderr].map(|o| String::from_utf8_lossy(&o).into_owned());
    std::fs::write(log, format!("{stdout}\n{stderr}"))?;
    ensure!(output.status.code() == Some(7), "the status is {}, not 7", output.status);
    ensure!(stdout.contains("hca_id:\trxe0") && stdout.contains("PORT_ACTIVE"), "no rxe0: {stdout}");
    ensure!(stderr.ends_with("copied and said"), "standard error ends with: {stderr}");
    let json: Value = serde_json::from_slice(&std::fs::read(json)?)?;
    ensure!(json["status"] == 7 && json["rdma_device"] == "rxe0" && json["boot_ms"].is_number(), "{json}");
    Ok(())
}

fn bad_command(log: &Path) -> Result<()> {
    let cases: [(&[&str], &str); 6] = [
        (&["--fabric", "/no/such/socket"], "no fabric at"),
        (&["--fabric", "/dev/null"], "not a socket"),
        (&["--copy", "/no/such/file"], "/no/such/file"),
        (&["--package", "no-such-package-of-debian"], "no-such-package-of-debian"),
        (&["--ip", "10.0.0.300"], "10.0.0.300"),
        (&["--shell", "--run", "true"], "--run"),
    ];
    for (args, says) in cases {
        let done = tool::run(peer().args(args), log, LIMIT)?;
        ensure!(!done.status.success(), "{args:?} succeeds");
        one_error(&done.output, says)?;
    }
    let late = tool::run(peer().args(["--timeout", "1", "--run", "sleep 1000"]), log, LIMIT)?;
    ensure!(!late.status.success(), "a command that takes too long succeeds");
    one_error(&late.output, "did not end within")
}

fn interrupted(log: &Path) -> Result<()> {
    let mut command = peer();
    let file = File::create(log)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let mut child = qemu::die_with_this_thread(&mut command).spawn()?;
    let deadline = Instant::now() + LIMIT;
    while !std::fs::read_to_string(log)?.contains("Ctrl-C ends the machine") {
        ensure!(child.try_wait()?.is_none(), "it ended before it was up");
        ensure!(Instant::now() < deadline, "it does not come up");
        std::thread::sleep(Duration::from_millis(20));
    }
    let machines = children(child.id());
    ensure!(machines.len() == 1, "not one machine: {machines:?}");
    let pid = Pid::from_raw(i32::try_from(child.id())?).context("no process id")?;
    kill_process(pid, Signal::INT)?;
    let Some(status) = tool::wait(&mut child, BOUND)? else { bail!("it goes on after Ctrl-C") };
    ensure!(status.success(), "after Ctrl-C it ends with {status}");
    ensure!(children(child.id()).is_empty(), "the machine runs on");
    Ok(())
}

fn shell(log: &Path) -> Result<()> {
    let mut command = peer();
    command.arg("--shell").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(log)?);
    let mut child = qemu::die_with_this_thread(&mut command).spawn()?;
    let script = b"x=4\necho $((x * 10 + 2))\nrdma link\nexit 3\necho not this\n";
    child.stdin.take().context("no standard input")?.write_all(script)?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.code() == Some(3), "the status is {}, not 3", output.status);
    ensure!(said.starts_with("42\n") && said.contains("rxe0/1 state ACTIVE"), "it said: {said}");
    ensure!(!said.contains("not this"), "it goes on after exit: {said}");
    Ok(())
}

/// Runs two peers on the fabric of the first, with Debian's own program between them.
fn two(log: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let json = dir.path().join("json");
    let mut command = peer();
    command.args(["--run", "ibv_rc_pingpong -g 1 -n 100", "--json"]).arg(&json);
    command.stdin(Stdio::null()).stdout(File::create(log)?).stderr(File::create(dir.path().join("err"))?);
    let mut child = qemu::die_with_this_thread(&mut command).spawn()?;
    let deadline = Instant::now() + LIMIT;
    let fabric = loop {
        let read = std::fs::read(&json).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        if let Some(port) = read.as_ref().and_then(|json| json.pointer("/free_ports/0")?.as_str()) {
            break port.to_owned();
        }
        ensure!(Instant::now() < deadline && child.try_wait()?.is_none(), "the first does not come up");
        std::thread::sleep(Duration::from_millis(20));
    };
    let client = "n=0; until ibv_rc_pingpong -g 1 -n 100 10.0.0.1; do n=$((n+1)); [ $n -lt 50 ] || exit 1; sleep 1; done";
    let mut second = peer();
    second.args(["--ip", "10.0.0.2", "--fabric", &fabric, "--run", client]);
    let second = tool::run(&mut second, &dir.path().join("second"), LIMIT)?;
    ensure!(second.status.success(), "the second: {}", second.output);
    let Some(status) = tool::wait(&mut child, BOUND)? else { bail!("the first does not end") };
    ensure!(status.success(), "the first: {status}");
    Ok(())
}

/// Runs a peer on the fabric of a run, by the socket of `run --fabric-socket`: Debian's perftest against the
/// appliance's.
fn joins(log: &Path) -> Result<()> {
    Lab::get()?;
    let dir = tempfile::tempdir()?;
    let [socket, input, output] = ["socket", "input", "table"].map(|name| dir.path().join(name));
    File::create(&input)?;
    let mut command = xtask();
    command.args(["run", "--nodes", "1", "--timeout", "600", "--app", "perftest"]);
    // The address is the one that `linux-peer` uses on the fabric of a run.
    command
        .args(["--arg", "ib_read_lat", "--arg=-s", "--arg", "8", "--arg=--peer=10.77.255.1", "--input"])
        .arg(&input);
    command.arg("--output").arg(&output).arg("--fabric-socket").arg(&socket);
    let file = File::create(log)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let mut run = qemu::die_with_this_thread(&mut command).spawn()?;
    let deadline = Instant::now() + LIMIT;
    while !socket.exists() {
        ensure!(run.try_wait()?.is_none(), "the run ended before there was a socket");
        ensure!(Instant::now() < deadline, "the run makes no socket");
        std::thread::sleep(Duration::from_millis(20));
    }
    // 10.77.0.1 is the first node's address. The job may begin later than this machine.
    let client = "n=0; until ib_read_lat -x 1 -s 8 -n 100 10.77.0.1; do n=$((n+1)); [ $n -lt 50 ] || exit 1; sleep 1; done";
    let mut command = peer();
    command.args(["--package", "perftest", "--run", client, "--fabric"]).arg(&socket);
    let linux = tool::run(&mut command, &dir.path().join("linux"), LIMIT)?;
    ensure!(linux.status.success(), "Linux: {}", linux.output);
    let Some(status) = tool::wait(&mut run, BOUND)? else { bail!("the run does not end with its job") };
    ensure!(status.success(), "the run: {status}");
    ensure!(!std::fs::read(&output)?.is_empty(), "the job has no result");
    ensure!(socket.symlink_metadata().is_err(), "the socket stays after the run");
    Ok(())
}
