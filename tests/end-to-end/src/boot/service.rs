//! The manager's PXE service: machines with real ROMs boot from it, get a key for a token, and
//! join. A machine that it does not know gets no packet, and the wire has no secret that is good
//! for anything.

use super::segment::{self, BRIDGE, DHCP, SERVER, Segment, beside, frames, is_from};
use super::tools::Tools;
use super::{Firmware, GROUP};
use crate::appliance::bare::Bare;
use crate::job::inputs::{Input, compare};
use crate::job::xtask;
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, anyhow, ensure};
use lab::cargo::Profile;
use lab::cluster::Lab;
use lab::{manager, tool};
use qemu::{Qemu, die_with_this_thread};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The longest silence of a machine or a program on a busy host.
const LIMIT: Duration = Duration::from_secs(240);
/// The interval at which files are read.
const LOOK: Duration = Duration::from_millis(100);
/// The address of the manager as bytes.
const SERVICE: [u8; 4] = [192, 0, 2, 1];
/// The setting that distinguishes the second node's image.
const MARK: &str = "id=keep";

/// A machine of the segment: the number of its port, by which the inventory has or lacks it.
#[derive(Clone, Copy)]
struct Guest(usize);

impl Guest {
    fn mac(self) -> String {
        format!("52:54:00:fd:01:{:02x}", self.0)
    }

    fn name(self) -> String {
        format!("n{}", self.0)
    }
}

const FIRST: Guest = Guest(0);
const SECOND: Guest = Guest(1);
const STRANGER: Guest = Guest(2);

pub(super) fn cases(full: bool) -> Vec<Case> {
    let case = |name: &str, firmware: Firmware, check: fn(&Place<'_>) -> Result<()>| {
        let name = format!("{GROUP}pxe-service-{name}");
        let run = move |log: &Path| match (segment::obstacle(), Tools::get()) {
            (None, Ok(tools)) => check(&Place::new(tools, firmware, log)?).map(|()| Outcome::Passed),
            (why, tools) => {
                let why = why.or(tools.err()).unwrap_or_default();
                if full { Err(anyhow!(why)) } else { Ok(Outcome::Skipped(why)) }
            }
        };
        Case::new(name, run).full_if(true)
    };
    vec![
        case(Firmware::SeaBios.name(), Firmware::SeaBios, by_bios),
        case(Firmware::Ovmf.name(), Firmware::Ovmf, by_uefi),
        case("pxelinux", Firmware::SeaBios, by_pxelinux),
    ]
}

/// A process that is killed when dropped.
struct Daemon(Child);

impl Daemon {
    fn start(mut command: Command, log: &Path) -> Result<Self> {
        let file = File::create(log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        Ok(Self(die_with_this_thread(&mut command).spawn().context("cannot start the manager")?))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A segment with a manager and its PXE service.
struct Place<'a> {
    tools: &'a Tools,
    firmware: Firmware,
    log: &'a Path,
    qemu: Qemu,
    program: PathBuf,
    _daemons: [Daemon; 2],
    segment: Segment,
    dir: TempDir,
}

/// Waits until a file contains `text`.
fn wait_for(file: &Path, text: &str) -> Result<()> {
    let until = Instant::now() + LIMIT;
    while !fs::read_to_string(file).unwrap_or_default().contains(text) {
        ensure!(Instant::now() < until, "{} does not say `{text}`", file.display());
        std::thread::sleep(LOOK);
    }
    Ok(())
}

impl<'a> Place<'a> {
    fn new(tools: &'a Tools, firmware: Firmware, log: &'a Path) -> Result<Self> {
        let dir = TempDir::with_prefix("ferrolite-")?;
        let work = dir.path();
        let segment = Segment::start(tools, work)?;
        let program = manager::build(Profile::Dev)?;
        let key = work.join("key");
        let made = tool::run_ok(
            Command::new(&program).args(["key", "--public", "--key-file"]).arg(&key),
            log,
            LIMIT,
        )?;
        let setting = made.lines().find(|line| line.starts_with("manager_key=")).context("no public key")?;
        for (image, more) in [("image", ""), ("marked", MARK)] {
            let config = work.join(format!("{image}.conf"));
            fs::write(&config, format!("{setting}\n{more}\n"))?;
            let mut command = xtask();
            command.args(["image", "--format", "pxe", "--config"]).arg(config);
            tool::run_ok(command.arg("--out").arg(work.join(image)), log, LIMIT)?;
        }
        fs::write(work.join("cluster.toml"), inventory())?;
        let started = |words: &[&str], name: &str, says: &str| -> Result<Daemon> {
            let mut command = segment.command(&program);
            command.args(words).arg("--key-file").arg(&key);
            let log = beside(log, name);
            let daemon = Daemon::start(command, &log)?;
            wait_for(&log, says)?;
            Ok(daemon)
        };
        let (state, cluster) = (work.join("state"), work.join("cluster.toml"));
        let (state, cluster) = (state.to_string_lossy(), cluster.to_string_lossy());
        let listen = format!("{SERVER}:18500");
        let daemons = [
            started(&["daemon", "--listen", &listen, "--state", &state], "manager.log", "listening on ")?,
            started(
                &["pxe", "--cluster", &cluster, "--interface", BRIDGE, "--address", SERVER],
                "service.log",
                "boots nodes by PXE",
            )?,
        ];
        let qemu = segment.qemu(&Lab::get()?.qemu);
        Ok(Self { tools, firmware, log, qemu, program, _daemons: daemons, segment, dir })
    }

    fn file(&self, guest: Guest, kind: &str) -> PathBuf {
        beside(self.log, &format!("{}.{kind}", guest.name()))
    }

    /// Starts a machine. With `kernel`, QEMU loads what these options name; otherwise the firmware boots from
    /// the network.
    fn boot(&self, guest: Guest, kernel: Option<&[&str]>, name: &str) -> Result<Bare> {
        let (mac, capture) = (guest.mac(), self.file(guest, "pcap"));
        let rom = match self.firmware {
            Firmware::SeaBios => self.tools.path("usr/lib/ipxe/qemu/pxe-virtio.rom")?.display().to_string(),
            // The firmware's own driver, and its own PXE.
            _ => String::new(),
        };
        let first = if kernel.is_none() { ",bootindex=0" } else { "" };
        let options = format!(
            "-machine q35,vmport=off,usb=off -accel tcg -cpu max -smp 1 -m 256M -no-reboot \
             -device virtio-rng-pci,romfile= \
             -netdev tap,id=net,ifname={},script=no,downscript=no,vnet_hdr=off \
             -object filter-dump,id=dump,netdev=net,file={} \
             -device virtio-net-pci,netdev=net,mac={mac},disable-legacy=on,romfile={rom}{first}",
            segment::port(guest.0),
            capture.display()
        );
        let mut rest: Vec<String> = match kernel {
            Some(options) => options.iter().copied().map(str::to_owned).collect(),
            None => Vec::new(),
        };
        if kernel.is_none() && self.firmware == Firmware::Ovmf {
            for (unit, file, more) in [(0, "OVMF_CODE_4M.fd", "readonly"), (1, "OVMF_VARS_4M.fd", "snapshot")]
            {
                let path = self.tools.path(&format!("usr/share/OVMF/{file}"))?;
                rest.push("-drive".into());
                rest.push(format!("if=pflash,unit={unit},format=raw,{more}=on,file={}", path.display()));
            }
        }
        let rest: Vec<_> = rest.iter().map(String::as_str).collect();
        Bare::start(&self.qemu, &options, &rest, &self.file(guest, name))
    }

    /// Boots a machine of the inventory, which must join and count words as coreutils do.
    fn joins(&self, guest: Guest, says: &[&str]) -> Result<()> {
        self.works(guest, self.boot(guest, None, "console.log")?, says)
    }

    /// Waits until a machine of the inventory has joined, and lets it count words.
    fn works(&self, guest: Guest, mut machine: Bare, says: &[&str]) -> Result<()> {
        machine.says("joined as ")?;
        let input = Input::SmallText.prepared(self.log)?;
        let output = self.dir.path().join(guest.name());
        let mut submit = self.segment.command(&self.program);
        submit.args(["submit", "--app", "wordcount", "--on", &guest.name(), "--manager", "192.0.2.1:18500"]);
        submit.arg("--key-file").arg(self.dir.path().join("key"));
        submit.arg("--input").arg(&input.input).arg("--output").arg(&output);
        tool::run_ok(&mut submit, self.log, LIMIT)?;
        compare(&input.expected, &output, self.log)?;
        for text in says {
            ensure!(machine.said().contains(text), "{} does not say `{text}`", guest.name());
        }
        Ok(())
    }

    /// Boots a machine that is not in the inventory: it gets an offer of the DHCP server, and no packet of
    /// the service.
    fn ignores(&self, guest: Guest) -> Result<()> {
        let _machine = self.boot(guest, None, "console.log")?;
        let (capture, until) = (self.file(guest, "pcap"), Instant::now() + LIMIT);
        let is_kind = |frame: &[u8], kind: u8| frame.windows(3).any(|option| option == [53, 1, kind]);
        // The DHCP server answers, and the machine asks again: an answer of the service would be there.
        let (mut asked, mut offered) = (0, 0);
        while asked < 2 || offered == 0 {
            let frames = frames(&capture).unwrap_or_default();
            asked = frames.iter().filter(|frame| is_kind(frame, 1)).count();
            offered = frames.iter().filter(|frame| is_from(frame, DHCP) && is_kind(frame, 2)).count();
            ensure!(
                Instant::now() < until,
                "the unknown machine asked {asked} times and got {offered} offers"
            );
            std::thread::sleep(LOOK);
        }
        wait_for(&beside(self.log, "service.log"), "is not in the inventory, and gets no answer")?;
        let count = frames(&capture)?.iter().filter(|frame| is_from(frame, SERVICE)).count();
        ensure!(count == 0, "the unknown machine got {count} packets of the service");
        Ok(())
    }

    /// Looks for the key in a capture, and tries its token once more.
    fn leaks_nothing(&self, guest: Guest) -> Result<()> {
        let frames = frames(&self.file(guest, "pcap"))?;
        ensure!(
            frames.iter().any(|frame| is_from(frame, SERVICE)),
            "the capture lacks the service's packets"
        );
        let key = self.dir.path().join("key");
        let of_node = self.dir.path().join("key-of-a-node");
        let mut make = Command::new(&self.program);
        make.args(["key", "--role", "node", "--key-file"]).arg(&key).arg("--output").arg(&of_node);
        tool::run_ok(&mut make, self.log, LIMIT)?;
        for file in [key, of_node] {
            let text = fs::read_to_string(file)?;
            let digits = text.trim().trim_start_matches("node:");
            for part in parts(digits)? {
                let found = frames.iter().any(|frame| frame.windows(part.len()).any(|bytes| bytes == part));
                ensure!(!found, "the capture has a part of a key");
            }
        }
        let words = words(&frames).context("the capture has no command line with a token")?;
        fs::rename(self.file(guest, "pcap"), self.file(guest, "first.pcap"))?;
        let image = self.dir.path().join("image/pxe/ferrolite.efi");
        let options = ["-kernel", &image.to_string_lossy(), "-append", &words];
        let mut thief = self.boot(guest, Some(&options), "again.log")?;
        thief.says("the token is refused: it was used before")?;
        wait_for(&beside(self.log, "service.log"), "is refused: it was used before")
    }
}

/// Returns the inventory: two nodes with images of their own.
fn inventory() -> String {
    let node = |guest: Guest, more: &str| {
        format!(
            "[[node]]\nname = \"{}\"\nmac = \"{}\"\narguments = \"nic=softroce\"\n{more}\n",
            guest.name(),
            guest.mac()
        )
    };
    format!(
        "manager = \"{SERVER}:18500\"\nimage = \"image/pxe\"\n{}{}",
        node(FIRST, ""),
        node(SECOND, "image = \"marked/pxe\"")
    )
}

/// Returns the halves of a key, as text and as bytes: one of them is whole where the key is cut by packets.
fn parts(digits: &str) -> Result<Vec<Vec<u8>>> {
    let half = digits.len() / 2;
    let mut parts = Vec::new();
    for text in [digits.get(..half), digits.get(half..)] {
        let text = text.context("no key")?;
        let bytes: Result<Vec<_>, _> = (0..text.len() / 2)
            .map(|at| u8::from_str_radix(text.get(2 * at..2 * at + 2).unwrap_or_default(), 16))
            .collect();
        parts.extend([text.as_bytes().to_vec(), bytes?]);
    }
    ensure!(parts.iter().all(|part| part.len() >= 16), "no key");
    Ok(parts)
}

/// Returns the command line of a script for iPXE in a capture.
fn words(frames: &[Vec<u8>]) -> Option<String> {
    let texts = frames.iter().map(|frame| String::from_utf8_lossy(frame));
    texts.filter(|text| text.contains("token=")).find_map(|text| {
        let line = text.lines().find(|line| line.starts_with("kernel ") && line.contains("token="))?;
        line.splitn(3, ' ').nth(2).map(str::to_owned)
    })
}

fn by_bios(place: &Place<'_>) -> Result<()> {
    place.ignores(STRANGER)?;
    place.joins(FIRST, &["started by iPXE (0x46), 16-bit entry", "cluster key by enrolment"])?;
    place.leaks_nothing(FIRST)?;
    place.joins(SECOND, &[MARK, "cluster key by enrolment"])
}

fn by_uefi(place: &Place<'_>) -> Result<()> {
    place.ignores(STRANGER)?;
    place.joins(FIRST, &["started by EDK II", "iPXE", "cluster key by enrolment"])?;
    place.leaks_nothing(FIRST)
}

/// The ROM of the network card is not iPXE for the service, because iPXE asks with another user class. The
/// service sends pxelinux.
fn by_pxelinux(place: &Place<'_>) -> Result<()> {
    let script = place.dir.path().join("script.ipxe");
    fs::write(&script, "#!ipxe\nset user-class none\nautoboot\n")?;
    let ipxe = place.tools.path("boot/ipxe.lkrn")?;
    let options = ["-kernel", &ipxe.to_string_lossy(), "-initrd", &script.to_string_lossy()];
    let machine = place.boot(FIRST, Some(&options), "console.log")?;
    place.works(FIRST, machine, &["started by Syslinux (0x30), 16-bit entry", "cluster key by enrolment"])
}
