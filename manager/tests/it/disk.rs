//! A disk that is full or slow: members continue, and no work begins that could not be recorded.

use crate::daemon::{Daemon, Directory, join_as, try_join};
use crate::strangers::acknowledged;
use crate::support::{self, Harness};
use manager::LogFormat;
use manager::client::{Client, Connection, Inputs, Job, Output};
use manager::core::{Config, Entries, Event, Record, Saved};
use manager::daemon::{Keep, Options, SaveError};
use proto::channel::{ClusterKey, Role};
use proto::{FromClient, Hello, Join, NodeId, ToClient, ToNode};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Limits the length of the files that a process writes.
fn limit_files(daemon: &Daemon, bytes: Option<u64>) {
    let limit = Rlimit { current: bytes, maximum: None };
    prlimit(Some(Pid::from_child(&daemon.child)), Resource::Fsize, limit).unwrap();
}

#[test]
fn a_full_disk_refuses_what_is_new_and_ends_nothing() {
    let directory = Directory::new("full");
    // A write beyond the limit fails. Without the trap the signal would end the process.
    let mut daemon = Daemon::start_after("trap '' XFSZ", &directory, &[]);
    let log = daemon.collect_log();
    let (mut a, _) = join_as(&daemon, "a");
    limit_files(&daemon, Some(0));
    // The membership must be saved, which fails. The node gets no answer before it is.
    let mut b = Connection::open(&daemon.address, &daemon.key(), Role::Node).unwrap();
    b.sending.send(&Hello::Node(support::join("b"))).unwrap();
    log.wait("cannot save the state, and refuses new nodes and jobs until it can: cannot use the state in");
    let (_, answer) = try_join(&daemon.address, &daemon, "c");
    assert!(
        matches!(&answer, ToNode::Refused { reason } if reason.starts_with("the manager cannot save its state: ")),
        "{answer:?}"
    );
    let job = Job { app: "lines".into(), args: vec![], nodes: 0, on: vec![], limit: None, ..Job::default() };
    let mut output = Output::create(&directory.join("out")).unwrap();
    let refused = daemon.client().submit(&job, Inputs::open(&[]).unwrap(), &mut output, &|_| {});
    let refused = refused.unwrap_err().to_string();
    assert!(refused.starts_with("the manager cannot save its state: "), "{refused}");
    acknowledged(&mut a, 1);
    let names: Vec<String> = daemon.client().nodes().unwrap().into_iter().map(|node| node.name).collect();
    assert!(names.contains(&"a".into()) && !names.contains(&"c".into()), "{names:?}");

    limit_files(&daemon, None);
    log.wait("the state is saved again");
    assert!(matches!(b.receiving.receive(Some(Duration::from_secs(10))).unwrap(), ToNode::Welcome(_)));
    let (_c, c) = join_as(&daemon, "c");
    acknowledged(&mut a, 2);
    drop(daemon);
    // The records that waited for the disk have been saved: no other name gets the id.
    let daemon = Daemon::start(&directory, &[]);
    let (_d, d) = join_as(&daemon, "d");
    assert!(d.incarnation > c.incarnation && d.node.0 > 3, "{d:?}");
    assert_eq!(join_as(&daemon, "a").1.node.0, 1);
}

/// A store like a disk whose writes hang from some time on.
struct Hanging {
    hangs: Arc<AtomicBool>,
    go: Receiver<()>,
}

impl Keep for Hanging {
    fn keep(&mut self, _: &[Record]) -> Result<(), SaveError> {
        if self.hangs.load(Ordering::SeqCst) {
            self.go.recv().map_err(|_| "the disk is gone")?;
        }
        Ok(())
    }

    fn entries(&mut self) -> Result<Entries, SaveError> {
        Err("this disk is never read".into())
    }
}

fn ask_to_join(address: &str, key: &ClusterKey, name: &str) -> Connection {
    let mut connection = Connection::open(address, key, Role::Node).unwrap();
    let wish = Join { keep_id: true, ..support::join(name) };
    connection.sending.send(&Hello::Node(wish)).unwrap();
    connection
}

#[test]
fn a_disk_that_hangs_stops_no_member() {
    let (go, wait) = channel();
    let hangs = Arc::new(AtomicBool::new(false));
    let key = ClusterKey::from_bytes([5; 32]);
    let options = Options {
        listen: "127.0.0.1:0".parse().unwrap(),
        key: key.clone(),
        state: "/nonexistent".into(),
        config: Config { lease: Duration::from_secs(600), ..Config::default() },
        http: None,
        former: None,
        format: LogFormat::Text,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let store = Hanging { hangs: hangs.clone(), go: wait };
    let daemon = manager::daemon::Daemon::bind_with(options, store, Saved::default());
    let daemon = runtime.block_on(daemon).unwrap();
    let address = daemon.local_addr().unwrap().to_string();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = runtime.spawn(daemon.serve(async { drop(stopped.await) }));

    let mut a = ask_to_join(&address, &key, "a");
    let answer = a.receiving.receive(Some(Duration::from_secs(60))).unwrap();
    assert!(matches!(answer, ToNode::Welcome(_)), "{answer:?}");
    hangs.store(true, Ordering::SeqCst);
    // The new node gets no answer, and nobody hears of it. The member's lease goes on.
    let _b = ask_to_join(&address, &key, "b");
    acknowledged(&mut a, 1);
    acknowledged(&mut a, 2);
    let mut client = Client::connect(&address, &key).unwrap();
    assert!(!client.nodes().unwrap().is_empty());
    // A job is told to no node before its record is saved.
    let submitted = std::thread::spawn(move || {
        let input = Inputs::open(&[]).unwrap();
        let job = Job { app: "lines".into(), nodes: 1, ..Job::default() };
        client.submit(&job, input, &mut Output::none(), &|_| {})
    });
    acknowledged(&mut a, 3);
    drop(go);
    stop.send(()).unwrap();
    let ended = runtime.block_on(serving).unwrap().unwrap_err();
    assert_eq!(ended.to_string(), "the last changes are not saved: the disk is gone");
    assert!(submitted.join().unwrap().is_err());
}

#[test]
fn numbers_that_are_not_reserved_on_the_disk_are_not_given() {
    let mut h = Harness::new();
    h.saves = false;
    let ask = |h: &mut Harness, number: u64| {
        let conn = h.open();
        let mut wish = support::join(&format!("n{number}"));
        wish.rnic.mac.0[4..].copy_from_slice(&u16::try_from(number).unwrap().to_be_bytes());
        wish.rnic.mac.0[1..4].fill(9);
        h.say(conn, &Hello::Node(wish));
        h.node_heard(conn)
    };
    for number in 0..Saved::RESERVED {
        assert_eq!(ask(&mut h, number), [], "no answer before the record is saved");
    }
    let refusal = ask(&mut h, Saved::RESERVED);
    assert!(
        matches!(&refusal[..], [ToNode::Refused { reason }] if reason.contains("waits for its disk")),
        "{refusal:?}"
    );
    // When all is saved, all are answered, and there are numbers again.
    for record in std::mem::take(&mut h.saved) {
        h.event(Event::Saved { record: &record });
    }
    h.saves = true;
    assert!(matches!(&ask(&mut h, Saved::RESERVED)[..], [ToNode::Welcome(_)]));
}

#[test]
fn while_nothing_can_be_saved_nothing_new_begins() {
    let mut h = Harness::new();
    let (a, _) = h.join("a");
    for _ in 0..3 {
        h.event(Event::SaveFailed { reason: "no space\nleft" });
    }
    let (_, refusal) = h.try_join(support::join("b"));
    let expected = "the manager cannot save its state: no space left";
    assert_eq!(refusal, ToNode::Refused { reason: expected.into() });
    let client = h.client();
    h.say(client, &support::submit(1, &[10]));
    assert_eq!(h.failure(client), expected);
    h.say(a, &proto::ToManager::Heartbeat { seq: 1 });
    assert!(h.node_heard(a).iter().any(|m| matches!(m, ToNode::HeartbeatAck { seq: 1, .. })));
    assert_eq!(h.log.iter().filter(|line| line.contains("cannot save the state")).count(), 1);
    h.event(Event::Saved { record: &Record::NextJob(2000) });
    h.join("b");
    let client = h.client();
    h.say(client, &FromClient::Nodes { after: NodeId(0) });
    assert!(matches!(&h.client_heard(client)[..], [ToClient::Nodes { nodes, .. }] if nodes.len() == 2));
}
