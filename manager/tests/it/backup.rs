//! Backups: of a manager that runs, restored into an empty directory, after which the members resume.

use crate::daemon::{BINARY, Daemon, Directory, error_line, join_as};
use manager::client::Connection;
use proto::channel::Role;
use proto::{Hello, PROTOCOL_VERSION, Resume, ToNode, Welcome};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

/// The longest wait for an answer of the manager.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs `ferrolite cluster` with words and two paths behind them.
fn cluster(verb: &str, file: &Path, state: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command.args(["cluster", verb]).arg(file).arg("--state").arg(state).args(more).output().unwrap()
}

fn back_up(daemon: &Daemon, file: &Path) {
    let mut command = Command::new(BINARY);
    command.args(["cluster", "backup"]).arg(file).args(["--manager", &daemon.address, "--key-file"]);
    let ended = command.arg(&daemon.key_file).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

/// Asks to go on with a membership, and returns the answer: `Resumed`, or `Refused`.
fn resume(daemon: &Daemon, welcome: &Welcome) -> ToNode {
    let mut connection = Connection::open(&daemon.address, &daemon.key(), Role::Node).unwrap();
    let wish = Resume {
        version: PROTOCOL_VERSION,
        node: welcome.node,
        incarnation: welcome.incarnation,
        secret: welcome.secret.clone(),
        epoch: welcome.epoch,
    };
    connection.sending.send(&Hello::Resume(wish)).unwrap();
    loop {
        let answer = connection.receiving.receive(Some(LIMIT)).unwrap();
        if matches!(answer, ToNode::Resumed(_) | ToNode::Refused { .. }) {
            return answer;
        }
    }
}

#[track_caller]
fn assert_resumes(daemon: &Daemon, welcome: &Welcome) {
    let answer = resume(daemon, welcome);
    assert!(matches!(answer, ToNode::Resumed(_)), "{answer:?}");
}

#[test]
fn members_resume_with_a_restored_manager() {
    let directory = Directory::new("backup");
    let (state, file) = (directory.join("state"), directory.join("backup"));
    let mut daemon = Daemon::start(&directory, &[]);
    let (_first, welcome) = join_as(&daemon, "a");
    back_up(&daemon, &file);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let key = fs::read(&daemon.key_file).unwrap();
    let (_later, after) = join_as(&daemon, "b");
    let in_use = cluster("restore", &file, &state, &["--force"]);
    assert!(error_line(&in_use).contains("in use by another manager"));
    let in_use = cluster("backup", &directory.join("other"), &state, &[]);
    assert!(error_line(&in_use).contains("in use by another manager"));

    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    fs::remove_dir_all(&state).unwrap();
    let restored = cluster("restore", &file, &state, &[]);
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    let again = cluster("restore", &file, &state, &[]);
    assert!(error_line(&again).contains("has a state: --force replaces it"));
    assert!(cluster("restore", &file, &state, &["--force"]).status.success());

    let daemon = Daemon::start(&directory, &[]);
    assert_eq!(fs::read(&daemon.key_file).unwrap(), key);
    assert_resumes(&daemon, &welcome);
    // The manager does not know the node that joined after the backup, and gives its incarnation to nobody.
    assert!(matches!(resume(&daemon, &after), ToNode::Refused { .. }));
    let (_new, new) = join_as(&daemon, "c");
    assert!(new.incarnation > after.incarnation && new.epoch > after.epoch);
    let known: Vec<String> = daemon.client().nodes().unwrap().into_iter().map(|node| node.name).collect();
    assert_eq!(known, ["a", "c"]);
}

#[test]
fn a_stopped_manager_is_backed_up_from_its_directory() {
    let directory = Directory::new("backup-stopped");
    let (state, file) = (directory.join("state"), directory.join("backup"));
    let missing = cluster("backup", &file, &state, &[]);
    assert!(!missing.status.success() && !file.exists());
    let mut daemon = Daemon::start(&directory, &[]);
    let (_node, welcome) = join_as(&daemon, "a");
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    assert!(cluster("backup", &file, &state, &[]).status.success());
    let elsewhere = Directory::new("backup-elsewhere");
    assert!(cluster("restore", &file, &elsewhere.join("state"), &[]).status.success());
    let daemon = Daemon::start(&elsewhere, &[]);
    assert_resumes(&daemon, &welcome);

    // Another cluster's key is not replaced unless that is said, and a damaged file restores nothing.
    let third = Directory::new("backup-damaged");
    fs::create_dir_all(third.join("state")).unwrap();
    let key_file = third.join("state").join("cluster.key");
    assert!(
        Command::new(BINARY)
            .args(["key", "make", "--key-file"])
            .arg(&key_file)
            .output()
            .unwrap()
            .status
            .success()
    );
    let other_key = cluster("restore", &file, &third.join("state"), &[]);
    assert!(error_line(&other_key).contains("has another cluster key: --force replaces it"));
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let damaged = cluster("restore", &file, &third.join("state"), &["--force"]);
    assert!(error_line(&damaged).contains("this is no whole backup"));
    let text = format!("ferrolite backup 1 {}\n", PROTOCOL_VERSION + 1);
    fs::write(&file, text).unwrap();
    let newer = cluster("restore", &file, &third.join("state"), &["--force"]);
    assert!(error_line(&newer).contains("is of a newer manager"));
}
