//! QEMU's user-mode network on a port of a fabric: machines on the fabric get an address by DHCP and reach
//! the host at 10.0.2.2. It serves machines that have no other network device.

use crate::{Qemu, die_with_this_thread};
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::Path;
use std::process::{Child, Stdio};

/// A QEMU without a machine, which joins the two networks. It is killed when this value is dropped, and when
/// the thread that started it ends.
#[derive(Debug)]
pub struct Uplink {
    child: Child,
}

impl Uplink {
    /// Starts QEMU and connects it to the socket of a fabric's port. The network is of IPv4 alone.
    pub fn start(qemu: &Qemu, socket: &Path) -> Result<Self> {
        Self::with_families(qemu, socket, "ipv6=off")
    }

    /// Starts QEMU as [`start`](Self::start) does, for a network of IPv6 alone: a router advertises the
    /// prefix fec0::/64, and fec0::2 is the host's ::1.
    pub fn ipv6(qemu: &Qemu, socket: &Path) -> Result<Self> {
        Self::with_families(qemu, socket, "ipv4=off,ipv6=on")
    }

    fn with_families(qemu: &Qemu, socket: &Path, families: &str) -> Result<Self> {
        let user = format!("user,id=user,{families}");
        let mut command = qemu.command();
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-machine", "none"]);
        command.args(["-netdev", &user, "-netdev", "hubport,id=hub0,hubid=0,netdev=user"]);
        let mut stream = OsString::from("stream,id=fabric,server=off,addr.type=unix,addr.path=");
        stream.push(comma_twice(socket)?);
        command.arg("-netdev").arg(stream).args(["-netdev", "hubport,id=hub1,hubid=0,netdev=fabric"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = die_with_this_thread(&mut command).spawn().context("cannot start qemu-system-x86_64")?;
        Ok(Self { child })
    }

    /// Fails if QEMU has ended, which it does not do by itself.
    pub fn check(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let mut said = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            std::io::Read::read_to_string(stderr, &mut said)?;
        }
        bail!("the QEMU for the user-mode network ended with {status}: {}", said.trim());
    }
}

impl Drop for Uplink {
    fn drop(&mut self) {
        // The process has no state to save.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Quotes a path for an option of QEMU, in which commas are doubled.
fn comma_twice(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not text", path.display()))?;
    Ok(text.replace(',', ",,"))
}
