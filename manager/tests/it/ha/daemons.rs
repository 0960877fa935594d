//! Two daemons with one state in a model of etcd, and nodes and clients that speak to them over TCP.

use super::model::{Fate, Shared, Wire};
use crate::support;
use manager::LogFormat;
use manager::client::{Client, ClientError, Connection};
use manager::core::Config;
use manager::daemon::Options;
use manager::daemon::ha::{Candidate, Group, Kv};
use proto::channel::{ClusterKey, Role};
use proto::*;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The longest wait for anything.
const LIMIT: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(20);

fn key() -> ClusterKey {
    ClusterKey::from_hex(&b"5a".repeat(32)).unwrap()
}

/// A manager in a thread of its own.
struct Manager {
    address: String,
    wire: Wire,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Manager {
    fn start(model: &Shared) -> Self {
        let wire = Wire::to(model);
        let store = wire.another();
        let group = Group { store, prefix: "/daemons".into(), ttl: 2, advertise: None };
        let options = Options {
            listen: "127.0.0.1:0".parse().unwrap(),
            key: key(),
            state: "/nonexistent".into(),
            config: Config { lease: LEASE, ..Config::default() },
            http: None,
            former: None,
            format: LogFormat::Text,
        };
        let (stop, stopped) = oneshot::channel();
        let (told, address) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap()
                .block_on(async {
                    let candidate = Candidate::bind(options, group).await.unwrap();
                    told.send(candidate.local_addr().unwrap().to_string()).unwrap();
                    candidate.serve(async { drop(stopped.await) }).await.unwrap();
                });
        });
        let address = address.recv_timeout(LIMIT).unwrap();
        Self { address, wire, stop: Some(stop), thread: Some(thread) }
    }

    fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    /// Returns the answer of this manager to a client: `Ok` if it leads.
    fn answer(&self) -> Result<(), String> {
        let mut connection =
            Connection::open(&self.address, &key(), Role::Client).map_err(|e| e.to_string())?;
        connection.sending.send(&Hello::Client { version: PROTOCOL_VERSION }).map_err(|e| e.to_string())?;
        match connection.receiving.receive(Some(LIMIT)).map_err(|e| e.to_string())? {
            ToClient::Hello => Ok(()),
            ToClient::Failed { reason } => Err(reason),
            other => panic!("{other:?}"),
        }
    }

    fn wait_until_it_leads(&self) {
        until(|| self.answer().is_ok(), || format!("{:?}", self.answer()));
    }

    /// Sends the first message of a node, and returns the answer.
    fn greet(&self, hello: &Hello) -> Result<(Connection, ToNode), ClientError> {
        let mut connection = Connection::open(&self.address, &key(), Role::Node)?;
        connection.sending.send(hello)?;
        let answer = connection.receiving.receive(Some(LIMIT))?;
        Ok((connection, answer))
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.wire.fate(Fate::Answered);
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn until(mut holds: impl FnMut() -> bool, what: impl Fn() -> String) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "{}", what());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Two managers: the one that leads, and a standby.
fn pair(model: &Shared) -> (Manager, Manager) {
    let first = Manager::start(model);
    first.wait_until_it_leads();
    (first, Manager::start(model))
}

fn resume(welcome: &Welcome, epoch: u64) -> Hello {
    let Welcome { node, incarnation, .. } = *welcome;
    Hello::Resume(Resume {
        version: PROTOCOL_VERSION,
        node,
        incarnation,
        secret: welcome.secret.clone(),
        epoch,
    })
}

/// Receives until the manager has answered a [`Resume`].
fn resumed(manager: &Manager, hello: &Hello) -> Option<(Connection, Resumed)> {
    let (mut connection, mut answer) = manager.greet(hello).ok()?;
    loop {
        match answer {
            ToNode::Resumed(resumed) => return Some((connection, resumed)),
            ToNode::Refused { reason } => panic!("{reason}"),
            _ => answer = connection.receiving.receive(Some(LIMIT)).ok()?,
        }
    }
}

fn welcome(manager: &Manager, name: &str) -> (Connection, Welcome) {
    match manager.greet(&Hello::Node(support::join(name))).unwrap() {
        (connection, ToNode::Welcome(welcome)) => (connection, welcome),
        (_, other) => panic!("{other:?}"),
    }
}

#[test]
fn a_standby_says_who_leads_and_fences_nobody() {
    let model = Shared::in_real_time();
    let (leader, standby) = pair(&model);
    let says = format!("this manager is a standby; the leader is {}", leader.address);
    until(|| standby.answer() == Err(says.clone()), || format!("{:?}", standby.answer()));
    // A client goes to the leader, also if the standby is all that it knows.
    for list in [standby.address.clone(), format!("{},{}", standby.address, leader.address)] {
        assert_eq!(Client::connect(&list, &key()).unwrap().nodes().unwrap(), []);
    }
    let (_node, first) = welcome(&leader, "a");
    let refused = standby.greet(&Hello::Node(support::join("b"))).unwrap().1;
    assert_eq!(refused, ToNode::Refused { reason: says });
    let lost = standby.greet(&resume(&first, first.epoch)).unwrap_err();
    assert!(matches!(lost, ClientError::Lost(_)), "{lost}");
}

#[test]
fn another_manager_takes_over_from_one_that_is_cut_off_from_the_store() {
    let model = Shared::in_real_time();
    let (former, next) = pair(&model);
    let (mut node, first) = welcome(&former, "a");
    former.wire.fate(Fate::Lost);
    let since = Instant::now();
    next.wait_until_it_leads();
    println!("takes over after {} ms", since.elapsed().as_millis());
    // The former leader lets go of its node, which goes on with the same incarnation.
    let ended = loop {
        match node.receiving.receive::<ToNode>(Some(LIMIT)) {
            Ok(_) => {}
            Err(ended) => break ended,
        }
    };
    assert!(matches!(ended, ClientError::Silent(_) | ClientError::Lost(_)), "{ended}");
    let (_node, second) = resumed(&next, &resume(&first, first.epoch)).unwrap();
    assert!(second.epoch > first.epoch, "{} after {}", second.epoch, first.epoch);
    let mut client = Client::connect(&format!("{},{}", former.address, next.address), &key()).unwrap();
    assert_eq!(client.nodes().unwrap()[0].incarnation, first.incarnation);
    // Back at the store, the former leader is a standby.
    drop(client);
    former.wire.fate(Fate::Answered);
    let says = format!("this manager is a standby; the leader is {}", next.address);
    until(|| former.answer() == Err(says.clone()), || format!("{:?}", former.answer()));
    assert!(resumed(&former, &resume(&first, second.epoch)).is_none());
}

#[test]
fn a_leader_that_hears_nothing_of_the_store_pauses_and_goes_on_in_its_term() {
    let model = Shared::in_real_time();
    let (leader, standby) = pair(&model);
    let (mut node, first) = welcome(&leader, "a");
    let before = model.lock().keys["/daemons/leader"].created;
    // The lease lasts, but no manager knows.
    leader.wire.fate(Fate::AnswerLost);
    standby.wire.fate(Fate::AnswerLost);
    let says = "it cannot renew its leadership, and changes nothing: the answer of etcd is lost";
    let pauses = || leader.answer().is_err_and(|reason| reason.ends_with(says));
    until(pauses, || format!("{:?}", leader.answer()));
    let error = Client::connect(&format!("{},{}", leader.address, standby.address), &key()).unwrap_err();
    assert!(error.to_string().contains(says), "{error}");
    // It lets go of its node, which looks for another leader.
    while node.receiving.receive::<ToNode>(Some(LIMIT)).is_ok() {}
    leader.wire.fate(Fate::Answered);
    leader.wait_until_it_leads();
    standby.wire.fate(Fate::Answered);
    assert_eq!(model.lock().keys["/daemons/leader"].created, before);
    let (_node, again) = resumed(&leader, &resume(&first, first.epoch)).unwrap();
    assert!(again.epoch > first.epoch);
}

#[test]
fn a_leader_that_is_told_to_stop_hands_over_at_once() {
    let model = Shared::in_real_time();
    let (mut former, next) = pair(&model);
    let (_node, first) = welcome(&former, "a");
    former.stop();
    assert!(
        !model
            .lock()
            .keys
            .get("/daemons/leader")
            .is_some_and(|pair| { pair.value.starts_with(format!("{} ", former.address).as_bytes()) })
    );
    next.wait_until_it_leads();
    let (_node, second) = resumed(&next, &resume(&first, first.epoch)).unwrap();
    assert!(second.epoch > first.epoch);
}
