//! Syncs of files to the disk: their order, their failure, and a disk that takes long for one. A library that
//! is loaded before libc (`disk_shim.c`) reports them and delays them.

use crate::daemon::{Daemon, Directory, echo_node};
use crate::herd::{Herd, assert_none_lost};
use crate::support;
use manager::client::Connection;
use proto::Hello;
use proto::channel::Role;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A disk whose syncs are reported and can be delayed.
struct Disk {
    library: PathBuf,
    log: PathBuf,
    sync: PathBuf,
}

impl Disk {
    /// Compiles the library into a directory.
    fn new(directory: &Directory) -> Self {
        let library = directory.join("disk_shim.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/disk_shim.c");
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]);
        assert!(cc.arg(source).arg("-o").arg(&library).status().unwrap().success());
        Self { library, log: directory.join("disk.log"), sync: directory.join("disk.sync") }
    }

    /// Returns the environment of a process that uses the disk.
    fn environment(&self) -> [(&'static str, &Path); 3] {
        [
            ("LD_PRELOAD", &self.library),
            ("FERROLITE_DISK_LOG", &self.log),
            ("FERROLITE_DISK_SYNC", &self.sync),
        ]
    }

    /// Makes each later sync wait, if `sync` is a number of milliseconds, or fail.
    fn set(&self, sync: &str) {
        // The process never sees half of the new content.
        let next = self.sync.with_extension("next");
        fs::write(&next, sync).unwrap();
        fs::rename(next, &self.sync).unwrap();
    }

    fn log(&self) -> Vec<String> {
        fs::read_to_string(&self.log).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// Waits until the log has a line that begins with `what`, after the first `from` lines. Returns the
    /// number of the line.
    fn wait(&self, from: usize, what: &str) -> usize {
        let end = Instant::now() + Duration::from_secs(120);
        loop {
            let log = self.log();
            if let Some(line) = (from..log.len()).find(|&line| log[line].starts_with(what)) {
                return line;
            }
            assert!(Instant::now() < end, "the disk has no `{what}`: {log:#?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Submits a job by a client that writes to the given disk. Returns the output's path and the ended client.
fn submit(directory: &Directory, daemon: &Daemon, disk: &Disk) -> (PathBuf, std::process::Output) {
    echo_node(daemon, "a");
    let (input, output) = (directory.file("in", b"new\n"), directory.join("out"));
    let mut command = daemon.command("submit");
    command.args(["--app", "lines", "--input"]).arg(input).arg("--output").arg(&output);
    let ended = command.envs(disk.environment()).output().unwrap();
    (output, ended)
}

#[test]
fn an_output_is_on_the_disk_before_it_gets_its_name() {
    let directory = Directory::new("output-sync");
    let (daemon, disk) = (Daemon::start(&directory, &[]), Disk::new(&directory));
    let (output, ended) = submit(&directory, &daemon, &disk);
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(fs::read(&output).unwrap(), b"new\n");
    let log = disk.log();
    let (out, directory) = (output.display(), directory.0.display());
    let temporary = log[0].strip_prefix("begins ").unwrap();
    assert!(
        temporary.starts_with(&format!("{directory}/.out.")) && temporary.ends_with(".partial"),
        "{log:?}"
    );
    let expected = [
        format!("begins {temporary}"),
        format!("synced {temporary}"),
        format!("rename {temporary} -> {out}"),
        format!("begins {directory}"),
        format!("synced {directory}"),
    ];
    assert_eq!(log, expected);
}

#[test]
fn an_output_that_the_disk_refuses_does_not_replace_the_one_before() {
    let directory = Directory::new("output-refused");
    let (daemon, disk) = (Daemon::start(&directory, &[]), Disk::new(&directory));
    directory.file("out", b"old\n");
    disk.set("fail");
    let (output, ended) = submit(&directory, &daemon, &disk);
    assert!(!ended.status.success());
    let error = String::from_utf8(ended.stderr).unwrap().trim().to_owned();
    assert!(error.ends_with("Input/output error (os error 5)"), "{error}");
    assert_eq!(fs::read(&output).unwrap(), b"old\n");
    assert!(disk.log().iter().all(|line| !line.starts_with("rename")), "{:?}", disk.log());
    assert!(directory.names().iter().all(|name| !name.ends_with(".partial")), "{:?}", directory.names());
}

/// The real store's disk takes ten seconds for a sync, which is two leases.
#[test]
fn a_sync_of_ten_seconds_costs_no_member_its_lease() {
    const LEASE: Duration = Duration::from_secs(5);
    let directory = Directory::new("slow-sync");
    let disk = Disk::new(&directory);
    let settings = disk.environment().map(|(name, value)| format!("export {name}='{}'", value.display()));
    let lease = LEASE.as_millis().to_string();
    let mut daemon = Daemon::start_after(&settings.join("; "), &directory, &["--lease-ms", &lease]);
    let log = daemon.collect_log();
    let herd = Herd::start(&daemon, 100, LEASE / 3);
    disk.wait(0, "synced");
    disk.set("10000");
    // A new name must be saved. Records of the others may be on their way to the disk too.
    let before = disk.log().len();
    let mut late = Connection::open(&daemon.address, &daemon.key(), Role::Node).unwrap();
    late.sending.send(&Hello::Node(support::join("late"))).unwrap();
    let begun = disk.wait(before, "begins");
    let mut lists = 0;
    while !disk.log()[begun..].iter().any(|line| line.starts_with("synced")) {
        assert!(daemon.client().nodes().unwrap().len() >= 100);
        lists += 1;
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(lists > 0, "the daemon answered nothing during the sync");
    disk.set("0");
    println!("{lists} lists of all nodes during a sync");
    assert!(daemon.client().nodes().unwrap().len() >= 100);
    assert_none_lost(&herd.stop(), LEASE);
    let gone: Vec<String> = log.all().into_iter().filter(|line| line.contains("lease expired")).collect();
    assert!(gone.is_empty(), "{gone:?}");
}
