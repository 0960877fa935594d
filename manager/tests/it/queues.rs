//! Queues of messages to be sent: acknowledgements do not wait for a job's input, and no peer makes the
//! daemon store all that it sends.

use crate::daemon::{Daemon, Directory, join_as, join_through};
use crate::strangers::acknowledged;
use crate::support;
use manager::client::{ClientError, Connection, Inputs, Job, Output};
use proto::channel::Role;
use proto::{
    BootReport, FromClient, Hello, Join, NodeId, NodeState, PROTOCOL_VERSION, ToClient, ToManager, ToNode,
};
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The number of bytes that a slow link buffers.
const ON_THE_LINK: usize = 16 << 10;

/// Makes a link to the daemon that passes `rate` bytes per second to the node and buffers few. Returns the
/// address of its near end.
fn slow_link(daemon: &Daemon, rate: u64) -> String {
    let near = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = near.local_addr().unwrap().to_string();
    let far: SocketAddr = daemon.address.parse().unwrap();
    std::thread::spawn(move || {
        let (node, _) = near.accept().unwrap();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(ON_THE_LINK).unwrap();
        socket.connect(&far.into()).unwrap();
        let manager: TcpStream = socket.into();
        let (mut from, mut to) = (node.try_clone().unwrap(), manager.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Write);
        });
        throttle(manager, node, rate);
    });
    address
}

fn throttle(mut from: TcpStream, mut to: TcpStream, rate: u64) {
    /// The delay that a link may make up for, because this process is not always woken in time.
    const LATE: Duration = Duration::from_millis(300);
    let mut buffer = [0; 2048];
    let mut due = Instant::now();
    while let Ok(count) = from.read(&mut buffer)
        && count > 0
        && to.write_all(&buffer[..count]).is_ok()
    {
        let now = Instant::now();
        // Unused time of an idle link is no credit for later.
        due = due.max(now.checked_sub(LATE).unwrap_or(now));
        due += Duration::from_micros(count as u64 * 1_000_000 / rate);
        std::thread::sleep(due.saturating_duration_since(now));
    }
}

/// Runs a job on two nodes over links of `rate` bytes per second, with `share` bytes of input for each, and
/// checks that each node has heard the manager within the lease.
fn input_over_slow_links(test: &str, rate: u64, share: usize, lease: Duration) {
    const NODES: usize = 2;
    let directory = Directory::new(test);
    let lease_ms = lease.as_millis().to_string();
    let mut daemon = Daemon::start(&directory, &["--lease-ms", &lease_ms]);
    let log = daemon.collect_log();
    let nodes: Vec<Connection> = (0..NODES)
        .map(|index| join_through(&slow_link(&daemon, rate), &daemon, &format!("slow{index}")).0)
        .collect();
    let client = daemon.client();
    let input = directory.file("in", &vec![b'\n'; NODES * share]);
    let input = Inputs::open(&[input]).unwrap();
    let mut output = Output::create(&directory.join("out")).unwrap();
    let job = Job { app: "lines".into(), args: vec![], nodes: 0, on: vec![], limit: None, ..Job::default() };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let nodes: Vec<_> =
            nodes.into_iter().map(|node| scope.spawn(|| take_input(node, share, &over))).collect();
        let done = client.submit(&job, input, &mut output, &|_| {});
        over.store(true, Ordering::Relaxed);
        for node in nodes {
            let unheard = node.join().unwrap();
            println!("a node was not heard for {unheard:?} at most");
            assert!(unheard < lease, "its lease was over: {unheard:?}");
        }
        done.unwrap_or_else(|error| panic!("{error}; the daemon: {:#?}", log.all()));
    });
}

#[test]
fn input_over_a_slow_link_keeps_no_heartbeat_waiting() {
    // The input is half a minute's worth on such a link.
    input_over_slow_links("slow", 100_000, 3_000_000, Duration::from_secs(15));
}

/// The link is so slow that the manager's kernel mostly waits for room for one more packet. Bytes pass all
/// the time, so the node is not silent.
#[test]
fn a_node_over_a_very_slow_link_is_not_taken_for_a_silent_one() {
    // The input is three quarters of a minute's worth.
    input_over_slow_links("very-slow", 20_000, 900_000, Duration::from_secs(60));
}

/// The credit of a node beyond the input that has come: the maximum, so that the manager has the most to
/// queue.
const WINDOW: u64 = ToManager::MAX_CREDIT;

/// Takes part in a job and sends heartbeats until the job is over. Returns the longest time without an
/// acknowledgement.
fn take_input(mut node: Connection, share: usize, over: &AtomicBool) -> Duration {
    let every = Duration::from_millis(1600);
    let (mut beats, mut heard, mut unheard) = (Vec::new(), Instant::now(), Duration::ZERO);
    let (mut next, mut taken, mut charge) = (Instant::now(), 0, 0);
    while !over.load(Ordering::Relaxed) {
        let now = Instant::now();
        if now >= next {
            node.sending.send(&ToManager::Heartbeat { seq: beats.len() as u64 }).unwrap();
            beats.push(now);
            next = now + every;
        }
        let left = next.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match node.receiving.receive(Some(left)) {
            Ok(ToNode::HeartbeatAck { seq, .. }) => {
                unheard = unheard.max(heard.elapsed());
                heard = beats[seq as usize];
            }
            Ok(ToNode::JobStart(start)) => {
                node.sending.send(&ToManager::JobAccepted { job: start.job }).unwrap();
                node.sending.send(&ToManager::JobInputCredit { job: start.job, bytes: WINDOW }).unwrap();
            }
            Ok(ToNode::JobInput { job, bytes, .. }) => {
                taken += bytes.len();
                charge += ToNode::input_charge(bytes.len());
                let credit = ToManager::JobInputCredit { job, bytes: charge + WINDOW };
                node.sending.send(&credit).unwrap();
            }
            Ok(ToNode::JobInputEnd { job }) => {
                assert!(taken >= share / 2, "{taken} bytes of input");
                let report = proto::JobReport::default();
                node.sending.send(&ToManager::JobDone { job, report }).unwrap();
            }
            Ok(ToNode::JobCancel { reason, .. }) => panic!("{reason}"),
            Ok(_) | Err(ClientError::Silent(_)) => {}
            Err(error) => panic!("{error}, after {taken} bytes of input"),
        }
    }
    unheard.max(heard.elapsed())
}

#[test]
fn answers_that_a_client_does_not_read_take_little_memory() {
    const QUESTIONS: usize = 4000;
    let directory = Directory::new("unasked");
    let mut daemon = Daemon::start(&directory, &[]);
    let _log = daemon.collect_log();
    // Each answer is long.
    let stages: Vec<(String, u32)> =
        (0..20).map(|n| (format!("a stage of the boot, number {n}"), n)).collect();
    let nodes: Vec<Connection> = (0..60).map(|index| wordy(&daemon, index, &stages)).collect();
    let answer =
        proto::encode(&ToClient::Nodes { nodes: daemon.client().nodes().unwrap(), more: false }).len();
    let before = daemon.memory();
    let mut client = Connection::open(&daemon.address, &daemon.key(), Role::Client).unwrap();
    client.sending.send(&Hello::Client { version: PROTOCOL_VERSION }).unwrap();
    client.sending.limit(Duration::from_secs(2)).unwrap();
    // The daemon either receives all of it, or stops receiving.
    let asked = (0..QUESTIONS)
        .take_while(|_| client.sending.send(&FromClient::Nodes { after: NodeId(0) }).is_ok())
        .count();
    // This client is answered after the questions that have arrived before.
    assert_eq!(daemon.client().nodes().unwrap().len(), nodes.len());
    let grown = daemon.memory().saturating_sub(before);
    println!("{asked} questions, answers of {answer} bytes: {} KB more in use", grown >> 10);
    assert!(QUESTIONS * answer > 100 << 20, "the answers are too short to tell");
    assert!(grown < 32 << 20, "{} MB more in use", grown >> 20);
    // A client that reads after all receives its answers.
    for _ in 0..asked.min(100) {
        while !matches!(
            client.receiving.receive(Some(Duration::from_secs(60))).unwrap(),
            ToClient::Nodes { .. }
        ) {}
    }
}

/// Joins a node whose description is long.
fn wordy(daemon: &Daemon, index: usize, stages: &[(String, u32)]) -> Connection {
    let mut connection = Connection::open(&daemon.address, &daemon.key(), Role::Node).unwrap();
    let boot = BootReport { stages: stages.to_vec() };
    let wish = Join { boot, ..support::join(&format!("wordy{index}")) };
    connection.sending.send(&Hello::Node(wish)).unwrap();
    match connection.receiving.receive(Some(Duration::from_secs(60))).unwrap() {
        ToNode::Welcome(_) => connection,
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_floods_another_node_pays_for_it() {
    let directory = Directory::new("flood");
    let mut daemon = Daemon::start(&directory, &[]);
    let (mut victim, welcome) = join_as(&daemon, "victim");
    let (mut flooder, _) = join_as(&daemon, "flooder");
    let log = daemon.collect_log();
    let (to, incarnation) = (welcome.node, welcome.incarnation);
    let message = proto::encode(&ToManager::Relay { to, incarnation, body: vec![7; 4096] });
    // The victim reads nothing meanwhile. The daemon drops what arrives while it closes the flooder's
    // connection, for 2 s at most.
    let end = Instant::now() + Duration::from_secs(60);
    while flooder.sending.send_encoded(&message).is_ok() {
        assert!(Instant::now() < end, "the daemon takes all of it");
    }
    let gone = log.wait("is silent");
    assert!(
        gone.contains("(flooder) is silent: it sends another node more messages than that node receives"),
        "{gone}"
    );
    acknowledged(&mut victim, 1);
    let state = |name: &str| {
        daemon.client().nodes().unwrap().into_iter().find(|node| node.name == name).map(|node| node.state)
    };
    assert_eq!(state("victim"), Some(NodeState::Ready));
    assert_ne!(state("flooder"), Some(NodeState::Ready));
}
