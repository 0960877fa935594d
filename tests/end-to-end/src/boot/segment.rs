//! A network segment in a network namespace of its own: a bridge, a DHCP server of another host,
//! and ports for machines. Programs run inside by `nsenter`.

use super::tools::Tools;
use anyhow::{Context, Result, ensure};
use qemu::Qemu;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The address of the host of the manager.
pub(super) const SERVER: &str = "192.0.2.1";
/// The address of the DHCP server.
pub(super) const DHCP: [u8; 4] = [192, 0, 2, 2];
/// The bridge.
pub(super) const BRIDGE: &str = "br0";
/// The number of ports for machines.
const PORTS: usize = 4;

/// The segment, which ends when this is dropped or when this program ends.
pub(super) struct Segment {
    /// The shell that holds the namespace until its input ends.
    holder: Child,
}

/// Returns true if this user may make network namespaces without a user namespace.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the command that runs a program in new namespaces.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(if is_root() { &["-n"][..] } else { &["-U", "-r", "-n"] });
    command
}

/// Returns the reason for which there can be no segment on this host, if there is one.
pub(super) fn obstacle() -> Option<String> {
    if !Path::new("/dev/net/tun").exists() {
        return Some("this host has no /dev/net/tun".into());
    }
    match unshare().arg("true").output() {
        Ok(done) if done.status.success() => None,
        Ok(done) => Some(format!("no namespaces: {}", String::from_utf8_lossy(&done.stderr).trim())),
        Err(error) => Some(format!("no program unshare: {error}")),
    }
}

impl Segment {
    pub(super) fn start(tools: &Tools, dir: &Path) -> Result<Self> {
        let lease = dir.join("leases");
        fs::write(&lease, "")?;
        let config = format!(
            "start 192.0.2.10\nend 192.0.2.50\ninterface dhcp1\nlease_file {}\npidfile {}\noption subnet 255.255.255.0\n",
            lease.display(),
            dir.join("pid").display()
        );
        fs::write(dir.join("udhcpd.conf"), config)?;
        fs::write(dir.join("segment.sh"), SCRIPT)?;
        let mut command = unshare();
        let ip = tools.command("ip")?;
        command.envs(ip.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("IP", ip.get_program()).env("BUSYBOX", tools.path("bin/busybox")?).env("DIR", dir);
        command.arg("sh").arg(dir.join("segment.sh"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(fs::File::create(dir.join("segment.log"))?);
        let mut holder = command.spawn().context("cannot make a network segment")?;
        let output = holder.stdout.take().context("no standard output")?;
        let said = BufReader::new(output).lines().next().transpose()?;
        let segment = Self { holder };
        let log = fs::read_to_string(dir.join("segment.log"))?;
        ensure!(said.as_deref() == Some("ready"), "cannot make a network segment: {}", log.trim());
        Ok(segment)
    }

    /// Returns the words of the command that runs a program on the host of the manager.
    fn enter(&self) -> Vec<String> {
        let mut words = vec!["nsenter".to_owned(), "-t".into(), self.holder.id().to_string(), "-n".into()];
        if !is_root() {
            words.extend(["-U".into(), "--preserve-credentials".into()]);
        }
        words.push("--".into());
        words
    }

    /// Returns the command that runs a program on the host of the manager.
    pub(super) fn command(&self, program: &Path) -> Command {
        let words = self.enter();
        let mut command = Command::new("nsenter");
        command.args(words.iter().skip(1)).arg(program);
        command
    }

    /// Returns a QEMU whose machines can be attached to the ports.
    pub(super) fn qemu(&self, qemu: &Qemu) -> Qemu {
        qemu.within(&self.enter())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // The shell ends its DHCP server.
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// Returns the frames of a capture.
pub(super) fn frames(capture: &Path) -> Result<Vec<Vec<u8>>> {
    /// The lengths of the headers of the file and of a frame, in bytes.
    const FILE: usize = 24;
    const FRAME: usize = 16;
    let bytes = fs::read(capture).with_context(|| format!("cannot read {}", capture.display()))?;
    let mut rest = bytes.get(FILE..).unwrap_or_default();
    let mut frames = Vec::new();
    while let Some((head, after)) = rest.split_at_checked(FRAME) {
        let len = head.get(8..).and_then(|len| len.first_chunk()).copied().map_or(0, u32::from_le_bytes);
        // QEMU may be writing the last frame.
        let Some((frame, after)) = after.split_at_checked(usize::try_from(len)?) else { break };
        frames.push(frame.to_vec());
        rest = after;
    }
    Ok(frames)
}

/// Returns true if a frame has this IPv4 address as its source, in IP or in ARP.
pub(super) fn is_from(frame: &[u8], address: [u8; 4]) -> bool {
    let (kind, sender) = (frame.get(12..14), |at: usize| frame.get(at..at + 4) == Some(&address[..]));
    kind == Some(&[8, 0]) && sender(26) || kind == Some(&[8, 6]) && sender(28)
}

/// Returns the name of a port.
pub(super) fn port(index: usize) -> String {
    debug_assert!(index < PORTS);
    format!("tap{index}")
}

/// Returns the path of a file next to the log.
pub(super) fn beside(log: &Path, name: &str) -> PathBuf {
    log.with_extension(name)
}

/// Makes the segment, and holds it until standard input ends. The DHCP server is another host: it has a
/// namespace of its own.
const SCRIPT: &str = r#"set -e
$IP link set lo up
$IP link add br0 type bridge
$IP addr add 192.0.2.1/24 dev br0
$IP link set br0 up
for port in tap0 tap1 tap2 tap3; do
    $IP tuntap add $port mode tap
    $IP link set $port master br0 up
done
$IP link add dhcp0 type veth peer name dhcp1
$IP link set dhcp0 master br0 up
unshare -n sh -c '
    until $IP link show dhcp1 > /dev/null 2>&1; do sleep 0.1; done
    $IP addr add 192.0.2.2/24 dev dhcp1
    $IP link set dhcp1 up
    exec $BUSYBOX udhcpd -f $DIR/udhcpd.conf' < /dev/null > $DIR/udhcpd.log 2>&1 &
server=$!
here=$(readlink /proc/self/ns/net)
while [ "$(readlink /proc/$server/ns/net)" = "$here" ]; do sleep 0.1; done
$IP link set dhcp1 netns $server
echo ready
cat > /dev/null
kill $server
"#;
