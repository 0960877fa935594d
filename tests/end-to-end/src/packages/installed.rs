//! The packages on a system with systemd, in a virtual machine: installed by apt, restarted, upgraded and
//! purged.

use super::system::System;
use super::{LIMIT, NAMES, made};
use crate::job::xtask;
use anyhow::{Context, Result, ensure};
use lab::{setup, tool};
use qemu::linux::{Guest, GuestConfig, Image, in_system};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The longest time of a command in the guest, on a busy host.
const WITHIN: Duration = Duration::from_secs(300);
/// The units, and the capabilities of their processes: those to bind ports below 1024 and to use raw sockets
/// (capability.h: 10 and 13), for the PXE service.
const UNITS: [(&str, u64); 3] =
    [("ferrolite-manager", 0), ("ferrolite-node", 0), ("ferrolite-pxe", 1 << 10 | 1 << 13)];
/// The largest exposure that `systemd-analyze security` may find, in tenths.
const EXPOSURE: u32 = 25;
/// The cluster key of the manager's unit.
const KEY: &str = "/var/lib/ferrolite/cluster.key";
/// The settings of the manager's unit.
const SETTINGS: &str = "/etc/ferrolite/manager.toml";
/// The directory of the PXE service's image.
const IMAGES: &str = "/srv/pxe";
/// The client's options, as root uses them.
const CLIENT: &str = "--key-file /var/lib/ferrolite/cluster.key";

/// Installs the packages, forms a cluster of a manager and a node, restarts the manager, upgrades all, and
/// purges all.
pub(super) fn check(system: &System, log: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let former = made(&dir.path().join("former"), &["--revision", "1"], log)?;
    let later = made(&dir.path().join("later"), &["--revision", "2"], log)?;
    let mut machine = Machine::boot(system, log)?;
    for (place, packages) in [("former", &former), ("later", &later)] {
        for (name, package) in NAMES.iter().zip(packages) {
            let to = format!("/proc/1/root/root/{place}/{name}.deb");
            machine.0.copy_in(package, &to, WITHIN)?;
        }
    }
    machine.run("touch /root/before && sleep 1.1")?;
    machine.install("former", &NAMES)?;
    machine.manager_runs()?;
    machine.node_joins()?;
    machine.pxe_boots(&dir.path().join("pxe"), log)?;
    machine.is_confined()?;
    machine.counts_words()?;

    let before = machine.nodes()?;
    machine.run("systemctl restart ferrolite-manager")?;
    machine.same_members(&before, "a restart of the manager")?;
    machine.run("systemctl kill --signal=KILL ferrolite-manager && sleep 2")?;
    machine.same_members(&before, "a death of the manager")?;
    machine.reloads()?;
    let key = machine.run(&format!("sha256sum {KEY}"))?;
    machine.install("later", &["ferrolite"])?;
    machine.same_members(&before, "an upgrade of the manager")?;
    ensure!(machine.run(&format!("sha256sum {KEY}"))? == key, "the upgrade changes the cluster key");
    machine.install("later", &NAMES)?;
    machine.run(&format!("ferrolite node ls {CLIENT} --wait 1 --timeout 60"))?;
    machine.counts_words()?;
    machine.purged()
}

/// The machine.
struct Machine(Guest);

impl Machine {
    /// Boots the system with a SoftRoCE device, and waits until systemd has started it.
    fn boot(system: &System, log: &Path) -> Result<Self> {
        let image = Image::build(&lab::paths::target().join("linux-guest"))?;
        let config = GuestConfig {
            name: "packages".into(),
            cpus: 2,
            memory_mib: 1024 + 2 * image.size_mib(),
            management: true,
            system: Some(system.disk.clone()),
            console: Some(log.with_extension("console.log")),
            boot_within: WITHIN,
            ..GuestConfig::default()
        };
        let mut guest = Guest::boot(&setup::qemu()?, &image, &config)?;
        let device = "for module in $(cat /modules/rdma); do
                [ -d /sys/module/$module ] || insmod /modules/$module.ko || exit 1
            done
            rdma link add rxe0 type rxe netdev mgmt0
            until [ -d /proc/1/root/run/systemd/system ]; do usleep 100000; done";
        guest.check(device, WITHIN)?;
        let mut machine = Self(guest);
        // A minimal system may be degraded by units that it has no devices for.
        machine.run("systemctl is-system-running --wait || true")?;
        Ok(machine)
    }

    /// Runs a command in the system, which must succeed, and returns its output.
    fn run(&mut self, command: &str) -> Result<String> {
        self.0.check(&in_system(command), WITHIN)
    }

    fn install(&mut self, which: &str, names: &[&str]) -> Result<()> {
        let files: Vec<String> = names.iter().map(|name| format!("/root/{which}/{name}.deb")).collect();
        self.run(&format!(
            "DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends {} 2>&1",
            files.join(" ")
        ))
        .map(drop)
    }

    fn manager_runs(&mut self) -> Result<()> {
        self.run(
            "unit=ferrolite-manager
            systemctl is-active $unit && systemctl is-enabled $unit || {
                systemctl --no-pager --lines=0 status $unit
                systemctl --no-pager list-jobs
                journalctl --no-pager --boot --lines=50
                exit 1
            }",
        )?;
        let owner = self.run(&format!("stat -c '%U %a' /var/lib/ferrolite {KEY}"))?;
        ensure!(owner == "ferrolite 700\nferrolite 600\n", "the state belongs to {owner}");
        // The unit of the node waits for its key, and does not fail without it.
        self.run("! systemctl is-failed ferrolite-node && ! systemctl is-active ferrolite-node").map(drop)
    }

    /// Starts the node's unit, which says that it is ready when the node has joined.
    fn node_joins(&mut self) -> Result<()> {
        self.run(&format!(
            "mkdir -p /etc/ferrolite
            ferrolite key make --role node --key-file {KEY} --output /etc/ferrolite/node.key
            echo 'OPTIONS=\"--manager 127.0.0.1:18500 --name n1 --keep-id --memory 64M\"' >/etc/default/ferrolite-node
            systemctl start ferrolite-node || {{ journalctl -u ferrolite-node >&2; exit 1; }}"
        ))?;
        let nodes = self.nodes()?;
        ensure!(nodes.as_array().is_some_and(|nodes| nodes.len() == 1), "the node has not joined: {nodes}");
        Ok(())
    }

    /// Starts the PXE service with an image that is made in `dir`. The service binds the ports of DHCP and
    /// TFTP, and reads the table of ARP.
    fn pxe_boots(&mut self, dir: &Path, log: &Path) -> Result<()> {
        let key = self.run(&format!("ferrolite key make --public --key-file {KEY}"))?;
        fs::create_dir(dir)?;
        let settings = dir.join("node.conf");
        fs::write(&settings, key)?;
        let mut image = xtask();
        image.args(["image", "--format", "efi", "--config"]).arg(settings).arg("--out").arg(dir);
        tool::run_ok(&mut image, log, LIMIT)?;
        let to = format!("/proc/1/root{IMAGES}/ferrolite.efi");
        self.0.copy_in(&dir.join("ferrolite.efi"), &to, WITHIN)?;
        self.run(&format!("chmod -R a+rX {IMAGES}"))?;
        self.run(&format!(
            "printf '%s\\n' 'manager = \"10.0.2.15:18500\"' 'image = \"{IMAGES}\"' \\
                '[[node]]' 'name = \"n2\"' 'mac = \"52:54:00:00:00:02\"' >/etc/ferrolite/cluster.toml
            echo 'OPTIONS=\"--interface mgmt0 --address 10.0.2.15\"' >/etc/default/ferrolite-pxe
            systemctl start ferrolite-pxe || {{ journalctl -u ferrolite-pxe >&2; exit 1; }}"
        ))?;
        let sockets = self.run("ss -Hlun")?;
        for port in [":67 ", ":69 "] {
            ensure!(sockets.contains(port), "nothing listens on port {port}: {sockets}");
        }
        // As the unit sees it.
        self.run(
            "nsenter --mount --target $(systemctl show -p MainPID --value ferrolite-pxe) \\
                grep -q '^IP address' /proc/self/net/arp",
        )
        .map(drop)
    }

    /// Fails unless the services run as other users than root, with the capabilities that they need, and
    /// systemd finds little that they can do.
    fn is_confined(&mut self) -> Result<()> {
        for (unit, capabilities) in UNITS {
            let status =
                self.run(&format!("cat /proc/$(systemctl show -p MainPID --value {unit})/status"))?;
            let field = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
            let uid = field("Uid:").context("no user")?;
            ensure!(!uid.split_whitespace().any(|id| id == "0"), "{unit} runs as root");
            for set in ["CapEff:", "CapAmb:", "CapBnd:"] {
                let has = u64::from_str_radix(field(set).context("no capabilities")?, 16)?;
                ensure!(has == capabilities, "{unit}: {set} {has:#x}, not {capabilities:#x}");
            }
            let analysed = self.run(&format!(
                "systemd-analyze security --no-pager --threshold={EXPOSURE} {unit}.service || echo EXPOSED"
            ))?;
            let verdict = analysed.lines().find(|line| line.contains("Overall exposure")).unwrap_or_default();
            ensure!(!analysed.contains("EXPOSED"), "{verdict}");
            println!("{unit}: {verdict}");
        }
        Ok(())
    }

    fn counts_words(&mut self) -> Result<()> {
        let counted = self.run(&format!(
            "cd /root && rm -f out && echo b a b >in && ferrolite job submit {CLIENT} --app wordcount --input in \
             --output out >&2 && cat out"
        ))?;
        ensure!(counted == "b\t2\na\t1\n", "the words are {counted}");
        Ok(())
    }

    /// Fails unless a reload applies the file of settings without a restart, and refuses a wrong one whole.
    fn reloads(&mut self) -> Result<()> {
        let pid = "systemctl show -p MainPID --value ferrolite-manager";
        let before = self.run(pid)?;
        for (line, answer) in
            [("recover = true", "read its settings again"), ("recover = 1", "manager.toml:")]
        {
            self.run(&format!(
                "cp {SETTINGS} /root/settings && echo '{line}' >>{SETTINGS} && systemctl reload ferrolite-manager
                for i in $(seq 100); do
                    journalctl -u ferrolite-manager --no-pager -n 5 | grep -q '{answer}' && break; sleep 0.1
                done
                cp /root/settings {SETTINGS}
                journalctl -u ferrolite-manager --no-pager -n 5 | grep '{answer}'"
            ))?;
        }
        ensure!(self.run(pid)? == before, "a reload restarts the manager");
        self.run("systemctl reload ferrolite-manager").map(drop)
    }

    /// Returns the members: name, id, incarnation, boot id and state.
    fn nodes(&mut self) -> Result<Value> {
        let list =
            self.run(&format!("ferrolite node ls {CLIENT} --json /root/nodes >&2 && cat /root/nodes"))?;
        let mut nodes = serde_json::from_str::<Value>(&list)?["nodes"].take();
        for node in nodes.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            node.retain(|key, _| ["node", "name", "incarnation", "boot_id", "state"].contains(&key.as_str()));
        }
        Ok(nodes)
    }

    /// Fails unless the members are the same, once all have resumed.
    fn same_members(&mut self, before: &Value, after: &str) -> Result<()> {
        let mut last = Value::Null;
        for _ in 0..60 {
            // The first commands may come before the manager listens.
            match self.nodes() {
                Ok(nodes) if nodes == *before => return Ok(()),
                Ok(nodes) => last = nodes,
                Err(error) => last = format!("{error:#}").into(),
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        anyhow::bail!("after {after} the members are {last}, and were {before}")
    }

    /// Purges the packages, which must leave no file, user or unit.
    fn purged(&mut self) -> Result<()> {
        self.run(&format!("rm -r /etc/ferrolite/node.key /etc/ferrolite/cluster.toml {IMAGES}"))?;
        self.run(&format!("DEBIAN_FRONTEND=noninteractive apt-get -q purge -y {} 2>&1", NAMES.join(" ")))?;
        let left = self.run(
            "find / -xdev ( -name '*ferrolite*' -o -name '*lite-node*' -o -name cx3 ) -not -path '/root/*' \
             -not -path '/var/cache/*' -not -path '/var/lib/apt/*'; getent passwd ferrolite; \
             systemctl list-unit-files --no-legend 'ferrolite*'; true"
                .replace("( ", "\\( ")
                .replace(" )", " \\)")
                .as_str(),
        )?;
        ensure!(left.is_empty(), "a purge leaves:\n{left}");
        Ok(())
    }
}
