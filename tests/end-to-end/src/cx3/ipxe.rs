//! Tests iPXE on the emulated card as an Ethernet port: it gets a lease by DHCP and a kernel by HTTP from a
//! Linux machine on another card, and boots it.

use super::{Step, session};
use crate::runner::Case;
use anyhow::{Context, Result, anyhow, ensure};
use lab::cx3::lab::SOON;
use lab::cx3::{Lab, Plan, Tools};
use lab::paths;
use qemu::cx3::CardConfig;
use qemu::die_with_this_thread;
use qemu::linux::Netboot;
use qemu::vm::Nic;
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The longest silence of the machine.
const SILENT: Duration = Duration::from_secs(120);
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// The beginning of the loaded kernel's first line.
const FIRST_LINE: &str = "Linux version ";
/// The text that iPXE prints when it gives up.
const FAILED: &str = "iPXE has failed";

/// The servers' command. The card of that machine has the address 10.9.0.1.
const SERVE: &str = "printf '%s\\n' 'start 10.9.0.100' 'end 10.9.0.120' 'interface mlx0' 'lease_file /tmp/leases' \
    'option subnet 255.255.255.0' >/tmp/udhcpd.conf && touch /tmp/leases && udhcpd /tmp/udhcpd.conf && httpd -p 80 -h /srv";
/// The script that iPXE runs.
const SCRIPT: &str = "#!ipxe\nifstat\nifopen net0 || goto failed\niflinkwait --timeout 20000 net0 || goto failed\nifstat\n\
    dhcp net0 || goto failed\nroute\nkernel http://10.9.0.1/vmlinuz console=ttyS0 panic=-1 || goto failed\nboot\n\
    :failed\necho iPXE has failed\nsleep 3600\n";

pub(super) fn cases() -> Vec<Case> {
    let session_of = |name: &str, profile: &str| {
        let plan = Plan {
            cards: vec![CardConfig::profile("pro")],
            appliance: Some(CardConfig::profile(profile)),
            mtu: 1500,
            ..Plan::default()
        };
        session(name, plan, || {
            vec![Step::new("a server", serve), Step::new("a kernel over the network", boot)]
        })
    };
    vec![session_of("iPXE", "pro").full_if(true), session_of("iPXE ConnectX-3", "cx3").full_if(true)]
}

fn files() -> Result<Netboot> {
    Netboot::get(&paths::target().join("netboot"))
}

/// Starts DHCP and HTTP in the Linux machine, with the kernel.
fn serve(lab: &mut Lab) -> Result<()> {
    lab.guest(0)?.copy_in(&files()?.kernel, "/srv/vmlinuz", SOON)?;
    lab.check(0, SERVE).map(drop)
}

/// A QEMU process that is killed when dropped.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        // The process may have ended already; then nothing is left to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Checks that iPXE lists the port, has its link up, gets a lease, and boots the kernel, which prints its
/// first line.
fn boot(lab: &mut Lab) -> Result<()> {
    let dir = TempDir::with_prefix("ferrolite-")?;
    let (script, console) = (dir.path().join("script"), dir.path().join("console"));
    fs::write(&script, SCRIPT)?;
    let nics = lab.appliance()?;
    let Some(Nic::Card { socket }) = nics.first() else { return Err(anyhow!("there is no card")) };
    let tools = Tools::get()?.map_err(anyhow::Error::msg)?;
    let mut machine = start(&tools, socket, &script, &console)?;
    let said = follow(&mut machine, &console)?;
    let expected = ["net0: 00:02:c9", "(Ethernet) [closed]", "(Ethernet) [open]", "[Link:up", "10.9.0.1"];
    for text in expected.into_iter().chain([FIRST_LINE]) {
        ensure!(said.contains(text), "`{text}` is missing in what the machine says: {said}");
    }
    // The server writes its leases on a signal.
    let leased =
        "until dumpleases -f /tmp/leases | grep -i 00:02:c9; do killall -USR1 udhcpd; usleep 100000; done";
    lab.check(0, leased)?;
    Ok(())
}

/// Starts a PC whose BIOS has its console on the serial line.
fn start(tools: &Tools, socket: &Path, script: &Path, console: &Path) -> Result<Machine> {
    let text = |path: &Path| path.to_str().map(str::to_owned).context("a path that is not text");
    let card = format!(
        "{{\"driver\":\"vfio-user-pci\",\"bus\":\"root-port\",\"socket\":{{\"type\":\"unix\",\"path\":\"{}\"}}}}",
        text(socket)?
    );
    let (ipxe, script) = (text(&files()?.ipxe)?, text(script)?);
    let serial = format!("file:{}", text(console)?);
    let mut command = tools.qemu.command();
    command.args(["-machine", "q35,memory-backend=memory,graphics=off", "-accel", "tcg", "-cpu", "max"]);
    command.args(["-object", "memory-backend-memfd,id=memory,size=512M,share=on", "-m", "512M"]);
    command.args(["-device", "pcie-root-port,id=root-port,bus=pcie.0,addr=0x12,chassis=1", "-device", &card]);
    command.args(["-kernel", &ipxe, "-initrd", &script, "-serial", &serial]);
    command.args(["-display", "none", "-monitor", "none", "-nodefaults", "-no-user-config", "-no-reboot"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(Machine(die_with_this_thread(&mut command).spawn().context("cannot start QEMU")?))
}

/// Returns the console's output until the kernel's first line. Fails if iPXE gives up, or the machine ends or
/// is silent for long.
fn follow(machine: &mut Machine, console: &Path) -> Result<String> {
    let mut said = String::new();
    let mut heard = Instant::now();
    loop {
        let now = String::from_utf8_lossy(&fs::read(console).unwrap_or_default()).into_owned();
        if now.len() > said.len() {
            (said, heard) = (now, Instant::now());
        }
        if said.contains(FIRST_LINE) {
            return Ok(said);
        }
        ensure!(!said.contains(FAILED), "iPXE has failed: {said}");
        ensure!(machine.0.try_wait()?.is_none(), "the machine has ended; it said: {said}");
        ensure!(heard.elapsed() < SILENT, "the machine is silent; it said: {said}");
        std::thread::sleep(CHECK_EVERY);
    }
}
