//! A node that cannot join shows the cause on a screen of pixels, and joins once the cause is gone.

use super::bare::Bare;
use super::machine::{MODELS, options};
use super::screen;
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, bail};
use fabric::{Fabric, FabricConfig};
use lab::cargo::Profile;
use lab::cluster::Lab;
use lab::manager::{self, Manager};
use lab::tool;
use qemu::Uplink;
use serde_json::json;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The longest wait on a busy host.
const LIMIT: Duration = Duration::from_secs(240);
/// The interval at which the screen is read.
const LOOK: Duration = Duration::from_millis(300);
/// The address of the machine where no DHCP server is needed.
const STATIC: &str = "ip=10.0.2.60/24 gw=10.0.2.2";
/// The text of the console once the node is a member.
const JOINED: &str = "joined as ";
/// A cluster key that no manager has by chance.
const OTHER_KEY: u8 = 0x5a;

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, check: fn(&Path) -> Result<()>| {
        Case::new(format!("machine::screen-{name}"), move |log| check(log).map(|()| Outcome::Passed))
    };
    vec![
        case("absent-manager", absent_manager),
        case("refused-key", refused_key),
        case("no-lease", no_lease),
        case("no-link", no_link),
        case("unknown-key", |log| {
            Node::start("manger=10.0.2.2 ", log)?.shows("does not start: command line: unknown key `manger`")
        }),
    ]
}

/// A machine with a screen of pixels, on a network whose other port leads to the host.
struct Node {
    bare: Bare,
    fabric: Fabric,
    dir: TempDir,
    log: PathBuf,
    /// The port of the manager that the node looks for.
    port: u16,
    key: PathBuf,
}

impl Node {
    /// Starts a machine whose network leads nowhere yet.
    fn start(words: &str, log: &Path) -> Result<Self> {
        let dir = TempDir::with_prefix("ferrolite-")?;
        let fabric = Fabric::start(&FabricConfig::plain(2, dir.path()))?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let key = dir.path().join("key");
        std::fs::write(&key, format!("{OTHER_KEY:02x}").repeat(32))?;
        let (_, machine) = MODELS[1];
        let network = format!(
            "-netdev stream,id=n0,server=off,addr.type=unix,addr.path={} \
             -device virtio-net-pci,netdev=n0,id=card,disable-legacy=on,romfile=,mac=52:54:00:fe:00:00",
            fabric.socket(0).display()
        );
        let options = options(
            machine,
            &format!("-smp 1 -m 128M -vga none -device ramfb -device virtio-rng-pci {network}"),
        )?;
        let words = format!("{words} manager=10.0.2.2:{port} node=n0 nic=softroce console=com1,ramfb");
        let file = format!("name=opt/ferrolite/key,file={}", key.display());
        let rest = ["-no-reboot", "-append", &words, "-fw_cfg", &file];
        let bare = Bare::start(&Lab::get()?.qemu, &options, &rest, log)?;
        Ok(Self { bare, fabric, dir, log: log.to_owned(), port, key })
    }

    /// Connects the network to the host.
    fn uplink(&self) -> Result<Uplink> {
        Uplink::start(&Lab::get()?.qemu, self.fabric.socket(1))
    }

    /// Plugs the cable of the machine in, or pulls it.
    fn set_link(&mut self, up: bool) -> Result<()> {
        self.bare.execute("set_link", &json!({ "name": "card", "up": up })).map(drop)
    }

    /// Starts a manager where the node looks for it. Its key is its own, or the node's.
    fn manager(&self, has_key: bool) -> Result<Manager> {
        let dir = self.dir.path().join(if has_key { "right" } else { "wrong" });
        std::fs::create_dir(&dir)?;
        if has_key {
            // The copy has the permissions of the manager's own files.
            let key = dir.join("cluster.key");
            std::fs::copy(&self.key, &key)?;
            std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        }
        Manager::start(&manager::build(Profile::Dev)?, self.port, &dir)
    }

    /// Waits until a text is on the screen, in the font of the kernel. A long line continues in the next row.
    fn shows(&mut self, text: &str) -> Result<()> {
        let begun = Instant::now();
        let picture = self.log.with_extension("ppm");
        loop {
            // A picture that is taken while a line is drawn cannot be read.
            let rows = screen::rows(&mut self.bare, &picture);
            match rows {
                Ok(rows) if rows.concat().contains(text) => return Ok(()),
                rows if begun.elapsed() > LIMIT => {
                    bail!("`{text}` is not on the screen, but {:#?}", rows?)
                }
                _ => std::thread::sleep(LOOK),
            }
        }
    }

    /// Starts the manager that the node wants, and waits until the node is a member and shows it.
    fn joins(mut self) -> Result<()> {
        let manager = self.manager(true)?;
        let mut nodes = manager.client("nodes");
        let limit = LIMIT.as_secs().to_string();
        tool::run_ok(nodes.args(["--wait", "1", "--timeout", &limit]), &self.log, LIMIT)
            .context("the node does not join")?;
        self.shows(JOINED)
    }
}

/// Nothing listens on the manager's port.
fn absent_manager(log: &Path) -> Result<()> {
    let mut node = Node::start("", log)?;
    let _uplink = node.uplink()?;
    let says = format!("cannot join: no manager at 10.0.2.2:{}: connection refused", node.port);
    node.shows(&says)?;
    node.joins()
}

/// The manager has another key.
fn refused_key(log: &Path) -> Result<()> {
    let mut node = Node::start("", log)?;
    let _uplink = node.uplink()?;
    let manager = node.manager(false)?;
    let says = format!("cannot join: wrong cluster key: the manager at 10.0.2.2:{}", node.port);
    node.shows(&says)?;
    drop(manager);
    node.joins()
}

/// The network has no DHCP server.
fn no_lease(log: &Path) -> Result<()> {
    let mut node = Node::start("", log)?;
    node.shows("cannot join: no DHCP server answers on port 52:54:00:fe:00:00")?;
    let _uplink = node.uplink()?;
    node.joins()
}

/// The cable is not plugged in.
fn no_link(log: &Path) -> Result<()> {
    let mut node = Node::start(STATIC, log)?;
    node.set_link(false)?;
    let _uplink = node.uplink()?;
    let says = format!("cannot join: no manager at 10.0.2.2:{}: no answer in time", node.port);
    node.shows(&says)?;
    node.set_link(true)?;
    node.joins()
}
