//! Users: the shared key, revocation, the audit log, and the change of the cluster key.

use crate::daemon::{BINARY, Daemon, Directory, error_line, join_as};
use manager::client::{Client, ClientError, Connection};
use manager::key::Credential;
use proto::channel::{ChannelError, Role, UserKey};
use proto::{Refusal, UserRole};
use redb::{Database, ReadableTable, TableDefinition};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Runs a command with a key.
pub(crate) fn run(daemon: &Daemon, key: &Path, words: &str) -> Output {
    let mut command = Command::new(BINARY);
    command.args(words.split(' '));
    if !words.starts_with("commands") {
        command.args(["--manager", &daemon.address, "--key-file"]).arg(key);
    }
    command.output().unwrap()
}

pub(crate) fn status(output: &Output) -> i32 {
    output.status.code().unwrap()
}

/// Adds a user with the key of an administrator, and returns the file with the user's key.
pub(crate) fn add(daemon: &Daemon, directory: &Directory, by: &Path, name: &str, role: &str) -> PathBuf {
    let file = directory.join(&format!("{name}.key"));
    let added = run(daemon, by, &format!("user add {name} --role {role} --output {}", file.display()));
    assert!(added.status.success(), "{added:?}");
    file
}

#[test]
fn the_shared_key_is_an_administrator_until_there_are_users() {
    let directory = Directory::new("shared");
    let state = directory.join("state/cluster.key");
    {
        let daemon = Daemon::start(&directory, &[]);
        let who = run(&daemon, &state, "user whoami");
        assert_eq!(String::from_utf8(who.stdout).unwrap(), "the cluster's key for clients, admin\n");
        let out = directory.join("first");
        let first = run(&daemon, &state, &format!("user add bob --role user --output {}", out.display()));
        assert!(error_line(&first).ends_with("the first user must be an admin, who adds the others"));
        assert!(!out.exists(), "a key that nobody knows is not left");
        let root = add(&daemon, &directory, &state, "root", "admin");
        let refused = run(&daemon, &state, "node ls");
        assert_eq!(status(&refused), 4);
        assert!(error_line(&refused).ends_with("this cluster has users: connect with the key of a user"));
        add(&daemon, &directory, &root, "bob", "user");
        for words in ["user rm root", "user role root viewer"] {
            assert!(error_line(&run(&daemon, &root, words)).contains("root is the only admin"), "{words}");
        }
        // A node's key goes on working.
        let _node = join_as(&daemon, "a");
        assert!(String::from_utf8(run(&daemon, &root, "node ls").stdout).unwrap().contains('a'));
    }
    // Users survive a restart. The way back in when the keys of administrators are lost:
    let daemon = Daemon::start(&directory, &[]);
    assert_eq!(status(&run(&daemon, &state, "user ls")), 4);
    drop(daemon);
    let daemon = Daemon::start(&directory, &["--recover"]);
    assert!(run(&daemon, &state, "user ls").status.success());
}

#[test]
fn a_removed_user_is_out_within_a_second() {
    let directory = Directory::new("revoked");
    let daemon = Daemon::start(&directory, &[]);
    let root = add(&daemon, &directory, &daemon.key_file, "root", "admin");
    let eve = Credential::load(&add(&daemon, &directory, &root, "eve", "viewer")).unwrap();
    let mut client = Client::connect(&daemon.address, &eve).unwrap();
    assert_eq!(client.who_am_i().unwrap(), ("eve".into(), UserRole::Viewer));
    let waiting = std::thread::spawn(move || {
        let error = client.wait_nodes(5, Duration::from_secs(60)).unwrap_err();
        (error, Instant::now())
    });
    // The role of a user changes for an open connection as well.
    let mut other = Client::connect(&daemon.address, &eve).unwrap();
    assert!(run(&daemon, &root, "user role eve admin").status.success());
    assert_eq!(other.users().unwrap().len(), 2);
    let removed =
        Client::connect(&daemon.address, Credential::load(&root).unwrap()).unwrap().remove_user("eve");
    let at = Instant::now();
    removed.unwrap();
    let (error, ended) = waiting.join().unwrap();
    assert!(matches!(error, ClientError::Refused { kind: Refusal::Denied, .. }), "{error}");
    assert_eq!(error.to_string(), "the user eve has been removed");
    assert!(ended.saturating_duration_since(at) <= Duration::from_secs(1));
    let again = Client::connect(&daemon.address, &eve).unwrap_err();
    assert_eq!(again.to_string(), "the manager knows no user with this key");
}

#[test]
fn a_user_pins_the_manager() {
    let directory = Directory::new("pinned");
    let daemon = Daemon::start(&directory, &[]);
    add(&daemon, &directory, &daemon.key_file, "root", "admin");
    let text = std::fs::read_to_string(directory.join("root.key")).unwrap();
    let mut parts: Vec<&str> = text.trim().split(':').collect();
    let other = "05".repeat(32);
    parts[3] = &other;
    let wrong = UserKey::from_text(parts.join(":").as_bytes()).unwrap();
    let error = Connection::open_as(&daemon.address, &wrong).unwrap_err();
    assert!(matches!(error, ClientError::Channel(ChannelError::WrongManager)), "{error}");
}

#[test]
fn the_audit_log_names_each_change_and_shows_a_changed_byte() {
    const ENTRIES: TableDefinition<&str, &[u8]> = TableDefinition::new("entries");
    let directory = Directory::new("audit");
    let mut daemon = Daemon::start(&directory, &[]);
    let root = add(&daemon, &directory, &daemon.key_file, "root", "admin");
    let bob = add(&daemon, &directory, &root, "bob", "viewer");
    assert_eq!(status(&run(&daemon, &bob, "cluster shutdown")), 4);
    assert_eq!(status(&run(&daemon, &root, "job cancel 9")), 5);
    let listed = String::from_utf8(run(&daemon, &root, "cluster audit ls -o json").stdout).unwrap();
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let entry = |at: usize, key: &str| listed["audit"][at][key].as_str().unwrap().to_owned();
    assert!(entry(0, "who").starts_with("the cluster's key at 127.0.0.1:"));
    assert!(entry(1, "who").starts_with("root at 127.0.0.1:"));
    assert_eq!(entry(1, "what"), "user add bob viewer");
    assert_eq!(entry(1, "result"), "done");
    assert!(entry(2, "who").starts_with("bob at 127.0.0.1:"));
    assert_eq!(entry(2, "result"), "refused: bob has the role viewer, and this needs operator");
    assert_eq!(entry(3, "result"), "refused: there is no job 9");
    let verified = String::from_utf8(run(&daemon, &root, "cluster audit verify").stdout).unwrap();
    let last = verified.trim().strip_prefix("4 entries, last ").unwrap().to_owned();
    let stop = |daemon: &mut Daemon| {
        daemon.signal("-TERM");
        daemon.child.wait().unwrap();
    };
    stop(&mut daemon);
    let store = directory.join("state/manager.redb");
    let edit = |number: u64, edit: &dyn Fn(&mut Vec<u8>)| {
        let database = Database::open(&store).unwrap();
        let write = database.begin_write().unwrap();
        {
            let mut table = write.open_table(ENTRIES).unwrap();
            let key = format!("audit/{number:020}");
            let mut bytes = table.get(&*key).unwrap().unwrap().value().to_vec();
            edit(&mut bytes);
            table.insert(&*key, &*bytes).unwrap();
        }
        write.commit().unwrap();
    };
    let flip = |bytes: &mut Vec<u8>| {
        // A byte of the name in front of it.
        let at = bytes.windows(7).position(|word| word == b" viewer").unwrap();
        bytes[at - 1] ^= 1;
    };
    edit(2, &flip);
    let mut daemon = Daemon::start(&directory, &[]);
    let found = run(&daemon, &root, "cluster audit verify");
    assert_eq!(status(&found), 1);
    assert!(error_line(&found).ends_with("entry 2 of the audit log was changed"));
    stop(&mut daemon);
    edit(2, &flip);
    let daemon = Daemon::start(&directory, &[]);
    let expect = |last: &str| status(&run(&daemon, &root, &format!("cluster audit verify --expect {last}")));
    assert_eq!(expect(&last), 0);
    assert_eq!(expect(&last.replace(':', ":0")), 1);
}

#[test]
fn a_former_cluster_key_is_accepted_until_it_is_retired() {
    let directory = Directory::new("rotated");
    let key = directory.join("state/cluster.key");
    let old = directory.join("old.key");
    let local = |verb: &str| {
        let done = Command::new(BINARY).args(["key", verb, "--key-file"]).arg(&key).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    let daemon = Daemon::start(&directory, &[]);
    let root = add(&daemon, &directory, &daemon.key_file, "root", "admin");
    std::fs::copy(&key, &old).unwrap();
    let node_key = daemon.key();
    drop(daemon);
    local("rotate");
    let daemon = Daemon::start(&directory, &[]);
    assert!(manager::key::load(&key).unwrap() != node_key);
    // The old key of the user pins the old manager's key, which is derived from the same old cluster key.
    assert!(run(&daemon, &root, "user whoami").status.success());
    assert!(Connection::open(&daemon.address, &node_key, Role::Node).is_ok());
    assert!(Connection::open(&daemon.address, &daemon.key(), Role::Node).is_ok());
    drop(daemon);
    local("retire");
    let daemon = Daemon::start(&directory, &[]);
    let refused = Connection::open(&daemon.address, &node_key, Role::Node).unwrap_err();
    assert!(matches!(refused, ClientError::Channel(ChannelError::WrongKey)), "{refused}");
    assert_eq!(status(&run(&daemon, &root, "user whoami")), 4);
}
