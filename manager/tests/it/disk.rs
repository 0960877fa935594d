//! A disk that is full or slow: members continue, and no work begins that could not be recorded.

use crate::daemon::{Daemon, Directory, join_as, try_join};
use crate::strangers::acknowledged;
use crate::support::{self, Harness};
use manager::client::{Client, ClientError, Connection, Inputs, Job, Output};
use manager::core::{Config, Event, Record, Saved};
use manager::daemon::{Keep, Options, SaveError};
use proto::channel::{ClusterKey, Role};
use proto::{FromClient, Hello, Join, NodeId, ToClient, ToNode};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::sync::mpsc::{Receiver, Sender, channel};
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
    // The name must be saved, which fails. The node joins only if the name of the other node was saved
    // before.
    let (_b, _) = try_join(&daemon.address, &daemon, "b");
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
    let (_c, c) = join_as(&daemon, "c");
    acknowledged(&mut a, 2);
    drop(daemon);
    // The records that waited for the disk have been saved: no other name gets the id.
    let daemon = Daemon::start(&directory, &[]);
    let (_d, d) = join_as(&daemon, "d");
    assert!(d.incarnation > c.incarnation && d.node.0 > 1, "{d:?}");
    assert_eq!(join_as(&daemon, "a").1.node.0, 1);
}

/// A store that saves nothing before it is told to, like a disk whose writes hang.
struct Hanging {
    /// Receives a message when a save has begun.
    begun: Sender<()>,
    go: Receiver<()>,
}

impl Keep for Hanging {
    fn keep(&mut self, _: &[Record]) -> Result<(), SaveError> {
        let _ = self.begun.send(());
        self.go.recv().map_err(|_| "the disk is gone".into())
    }
}

fn join(address: &str, key: &ClusterKey, name: &str) -> Connection {
    let mut connection = Connection::open(address, key, Role::Node).unwrap();
    let wish = Join { keep_id: true, ..support::join(name) };
    connection.sending.send(&Hello::Node(wish)).unwrap();
    match connection.receiving.receive(Some(Duration::from_secs(60))).unwrap() {
        ToNode::Welcome(_) => connection,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_disk_that_hangs_stops_nobody() {
    let ((begun, has_begun), (go, wait)) = (channel(), channel());
    let key = ClusterKey::from_bytes([5; 32]);
    let options = Options {
        listen: "127.0.0.1:0".parse().unwrap(),
        key: key.clone(),
        state: "/nonexistent".into(),
        config: Config { lease: Duration::from_secs(600), ..Config::default() },
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let store = Hanging { begun, go: wait };
    let daemon = manager::daemon::Daemon::bind_with(options, store, Saved::default());
    let daemon = runtime.block_on(daemon).unwrap();
    let address = daemon.local_addr().unwrap().to_string();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = runtime.spawn(daemon.serve(async { drop(stopped.await) }));

    let mut a = join(&address, &key, "a");
    has_begun.recv_timeout(Duration::from_secs(60)).unwrap();
    // From now on the first save hangs.
    acknowledged(&mut a, 1);
    let mut b = join(&address, &key, "b");
    acknowledged(&mut b, 1);
    let mut client = Client::connect(&address, &key).unwrap();
    assert_eq!(client.nodes().unwrap().len(), 2);
    // A job begins too, because its number was reserved before.
    let input = Inputs::open(&[]).unwrap();
    let job = Job { app: "lines".into(), args: vec![], nodes: 1, on: vec![], limit: None, ..Job::default() };
    let directory = Directory::new("hanging");
    let mut output = Output::create(&directory.join("out")).unwrap();
    std::thread::scope(|scope| {
        let submission = scope.spawn(|| client.submit(&job, input, &mut output, &|_| {}));
        while !matches!(a.receiving.receive(Some(Duration::from_secs(60))).unwrap(), ToNode::JobStart(_)) {}
        drop(a);
        let failed = submission.join().unwrap().unwrap_err();
        assert!(matches!(failed, ClientError::Failed(_)), "{failed}");
    });
    drop(go);
    stop.send(()).unwrap();
    let ended = runtime.block_on(serving).unwrap().unwrap_err();
    assert_eq!(ended.to_string(), "the last changes are not saved: the disk is gone");
}

#[test]
fn numbers_that_are_not_reserved_on_the_disk_are_not_given() {
    let mut h = Harness::new();
    h.saves = false;
    let mut last = None;
    for _ in 0..Saved::RESERVED {
        let (conn, welcome) = h.join("a");
        last = Some(welcome.incarnation);
        h.drop(conn);
    }
    assert_eq!(last.unwrap().0, Saved::RESERVED);
    let (_, refusal) = h.try_join(support::join("a"));
    assert!(
        matches!(&refusal, ToNode::Refused { reason } if reason.contains("waits for its disk")),
        "{refusal:?}"
    );
    // One save was requested. When it is done, there are numbers again.
    let [record] = &h.saved[..] else { panic!("{:?}", h.saved) };
    let record = record.clone();
    h.event(Event::Saved { record: &record });
    assert_eq!(h.join("a").1.incarnation.0, Saved::RESERVED + 1);
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
