//! The keys of roles: a client's key submits and lists, a node's key joins, and neither is accepted for the
//! other's purpose.

use crate::daemon::{BINARY, Daemon, Directory, error_line, join_as};
use crate::support;
use manager::client::{ClientError, Connection};
use manager::key;
use proto::channel::{Role, WrongRole};
use proto::{Hello, PROTOCOL_VERSION, ToClient, ToNode};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

/// Makes the key file of a role with the command line.
fn key_of(role: &str, daemon: &Daemon, directory: &Directory) -> PathBuf {
    let file = directory.join(&format!("{role}.key"));
    let mut command = Command::new(BINARY);
    command.args(["key", "--key-file"]).arg(&daemon.key_file).args(["--role", role, "--output"]).arg(&file);
    let done = command.output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let again = error_line(&command.output().unwrap());
    assert!(again.contains("File exists"), "no file is written over: {again}");
    file
}

#[test]
fn a_client_key_lists_and_does_not_join() {
    let directory = Directory::new("client-key");
    let daemon = Daemon::start(&directory, &[]);
    let (_node, _) = join_as(&daemon, "a");
    let file = key_of("client", &daemon, &directory);
    let run = |name: &str, key: &Path| {
        Command::new(BINARY)
            .args([name, "--manager", &daemon.address, "--key-file"])
            .arg(key)
            .output()
            .unwrap()
    };
    let listed = run("nodes", &file);
    assert!(listed.status.success() && String::from_utf8_lossy(&listed.stdout).contains('a'), "{listed:?}");
    let key = key::load(&file).unwrap();
    let refused = Connection::open(&daemon.address, &key, Role::Node).unwrap_err();
    let wrong = WrongRole::Other { has: Role::Client, wanted: Role::Node };
    assert!(matches!(refused, ClientError::Key(error) if error == wrong), "{refused}");

    // A peer that has only this key and claims to be a node.
    let mut connection = Connection::open(&daemon.address, &key, Role::Client).unwrap();
    connection.sending.send(&Hello::Node(support::join("b"))).unwrap();
    let reason = "the key of a client does not let a node join";
    match connection.receiving.receive::<ToNode>(TIMEOUT).unwrap() {
        ToNode::Refused { reason: given } => assert_eq!(given, reason),
        other => panic!("{other:?}"),
    }
    assert!(connection.receiving.receive::<ToNode>(TIMEOUT).is_err(), "the connection ends");
    assert_eq!(daemon.client().nodes().unwrap().len(), 1);
}

#[test]
fn a_node_key_joins_and_does_not_list() {
    let directory = Directory::new("node-key");
    let daemon = Daemon::start(&directory, &[]);
    let file = key_of("node", &daemon, &directory);
    let key = key::load(&file).unwrap();
    let mut node = Connection::open(&daemon.address, &key, Role::Node).unwrap();
    node.sending.send(&Hello::Node(support::join("a"))).unwrap();
    assert!(matches!(node.receiving.receive(TIMEOUT).unwrap(), ToNode::Welcome(_)));

    let mut command = Command::new(BINARY);
    let refused =
        command.args(["nodes", "--manager", &daemon.address, "--key-file"]).arg(&file).output().unwrap();
    let refused = error_line(&refused);
    assert!(refused.ends_with("a client needs the key of a client or the whole cluster key"), "{refused}");
    let mut client = Connection::open(&daemon.address, &key, Role::Node).unwrap();
    client.sending.send(&Hello::Client { version: PROTOCOL_VERSION }).unwrap();
    match client.receiving.receive::<ToClient>(TIMEOUT).unwrap() {
        ToClient::Failed { reason } => assert_eq!(reason, "the key of a node is not that of a client"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_manager_needs_the_whole_key() {
    let directory = Directory::new("whole-key");
    let daemon = Daemon::start(&directory, &[]);
    let file = key_of("client", &daemon, &directory);
    let mut command = Command::new(BINARY);
    command.args(["daemon", "--listen", "127.0.0.1:0", "--state"]).arg(directory.join("other"));
    let refused = error_line(&command.arg("--key-file").arg(&file).output().unwrap());
    assert!(refused.ends_with("a manager needs the whole cluster key"), "{refused}");
}
