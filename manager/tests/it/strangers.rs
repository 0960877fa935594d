//! Peers without a key, and a log that is not read: no member loses its lease by them, and the daemon does
//! not wait for them.

use crate::daemon::{Daemon, Directory, join_as};
use crate::herd::{Herd, assert_none_lost, percentile_99};
use manager::client::{ClientError, Connection};
use proto::channel::Role;
use proto::{ToManager, ToNode};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use std::collections::VecDeque;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The default lease of a daemon, and the interval of heartbeats with it.
const LEASE: Duration = Duration::from_secs(5);
const BEAT: Duration = Duration::from_millis(1600);

/// The number of connections that a stranger keeps open at once.
const KEPT: usize = 300;

/// Raises the limit of open files of this process to the maximum: strangers need many.
pub(crate) fn raise_own_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

/// Returns the first bytes that a peer with the key sends on a connection, as an observer of the network
/// records them.
fn record_first_message(daemon: &Daemon) -> Vec<u8> {
    let on_the_way = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = on_the_way.local_addr().unwrap().to_string();
    let to = daemon.address.clone();
    let recorder = std::thread::spawn(move || {
        let (mut near, _) = on_the_way.accept().unwrap();
        let mut far = TcpStream::connect(to).unwrap();
        let (mut back, mut out) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        let answers = std::thread::spawn(move || std::io::copy(&mut back, &mut out));
        let mut first = vec![0; 256];
        let count = near.read(&mut first).unwrap();
        first.truncate(count);
        far.write_all(&first).unwrap();
        let _ = std::io::copy(&mut near, &mut far);
        let _ = far.shutdown(std::net::Shutdown::Both);
        let _ = answers.join();
        first
    });
    drop(Connection::open(&address, &daemon.key(), Role::Node).unwrap());
    recorder.join().unwrap()
}

/// Connects from another address than members and clients use.
fn connect_as_stranger(address: &str) -> std::io::Result<TcpStream> {
    let to: SocketAddr = address.parse().unwrap();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into())?;
    socket.connect(&to.into())?;
    Ok(socket.into())
}

/// Opens connections in a loop, sends `speech` on each and keeps the last of them open. Returns the number of
/// connections.
fn pester(address: &str, speech: &[u8], stop: &AtomicBool) -> usize {
    let mut kept = VecDeque::new();
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        // A stranger must expect refusals and closed connections.
        if let Ok(mut stream) = connect_as_stranger(address) {
            let _ = stream.write_all(speech);
            kept.push_back(stream);
            count += 1;
        }
        if kept.len() > KEPT {
            kept.pop_front();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    count
}

/// Sets a flag when dropped, also by a panic.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Lets four strangers pester a daemon with room for 256 files for some time, while 100 members send
/// heartbeats.
fn besiege(test: &str, time: Duration) -> Duration {
    raise_own_limit();
    let directory = Directory::new(test);
    let lease = format!("{}", LEASE.as_millis());
    let mut daemon = Daemon::start_after("ulimit -n 256", &directory, &["--lease-ms", &lease]);
    let recorded = record_first_message(&daemon);
    let log = daemon.collect_log();
    log.wait("limit of 256 open files");
    let herd = Herd::start(&daemon, 100, BEAT);
    let mut garbled = recorded.clone();
    *garbled.last_mut().unwrap() ^= 1;
    let half = &recorded[..recorded.len() / 2];
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop_them = OnDrop(&stop);
        let strangers = [&recorded[..], &garbled, half, &[]]
            .map(|speech| scope.spawn(|| pester(&daemon.address, speech, &stop)));
        // A client is served in the middle of it.
        let end = Instant::now() + time;
        let mut served = 0;
        while Instant::now() < end {
            if daemon.client().nodes().unwrap().len() == 100 {
                served += 1;
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        drop(stop_them);
        let counts = strangers.map(|stranger| stranger.join().unwrap());
        println!("{counts:?} connections replayed, garbled, half open, silent; {served} lists of all nodes");
    });
    assert_eq!(daemon.client().nodes().unwrap().len(), 100);
    let seen = herd.stop();
    let log = log.all();
    let gone: Vec<&String> = log.iter().filter(|line| line.contains("lease expired")).collect();
    assert!(gone.is_empty(), "{gone:?}");
    assert_none_lost(&seen, LEASE);
    let worst = percentile_99(&seen);
    println!("99 of 100 acknowledgements within {worst:?}; the log has {} lines", log.len());
    assert!(
        log.len() < 200 + 15 * (time.as_secs() as usize + 10),
        "strangers fill the log: {} lines",
        log.len()
    );
    worst
}

#[test]
fn no_member_is_lost_to_strangers() {
    besiege("siege", Duration::from_secs(6));
}

/// Pesters the daemon for a minute. Members are acknowledged in time: within half a second, or on a busy host
/// within a small multiple of the time without strangers.
#[test]
#[ignore = "takes a minute: cargo xtask test --full"]
fn no_member_is_lost_to_strangers_for_a_minute() {
    let quiet = {
        let directory = Directory::new("no-siege");
        let mut daemon = Daemon::start(&directory, &["--lease-ms", &LEASE.as_millis().to_string()]);
        let _log = daemon.collect_log();
        let herd = Herd::start(&daemon, 100, BEAT);
        std::thread::sleep(Duration::from_secs(10));
        percentile_99(&herd.stop())
    };
    let worst = besiege("long-siege", Duration::from_secs(60));
    println!("without strangers {quiet:?}");
    assert!(worst < Duration::from_millis(500).max(4 * quiet), "{worst:?}, without strangers {quiet:?}");
}

#[test]
fn a_recorded_first_message_gets_no_answer() {
    let directory = Directory::new("replay");
    let daemon = Daemon::start(&directory, &[]);
    let recorded = record_first_message(&daemon);
    let mut stream = TcpStream::connect(&daemon.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(&recorded).unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).unwrap();
    // The challenge and the refusal of another key contain nothing that only a holder of the key could send.
    assert_eq!(said.len(), 34 + 2);
    assert_eq!(said[34..], [0, 0]);
}

#[test]
fn silent_connections_make_nobody_wait() {
    raise_own_limit();
    let directory = Directory::new("silent");
    let mut daemon = Daemon::start(&directory, &[]);
    let _log = daemon.collect_log();
    let silent: Vec<TcpStream> = (0..1000).map(|_| TcpStream::connect(&daemon.address).unwrap()).collect();
    // Both would wait behind hundreds of others, for longer than they have time.
    assert!(daemon.client().nodes().unwrap().is_empty());
    let (_node, _) = join_as(&daemon, "a");
    drop(silent);
}

#[test]
fn the_key_alone_gives_no_more_than_a_place_in_the_lobby() {
    let directory = Directory::new("lobby");
    let mut daemon = Daemon::start_after("ulimit -n 256", &directory, &[]);
    let _log = daemon.collect_log();
    // They do the handshake and send nothing more. A quarter of the descriptors is for such connections.
    let open = || Connection::open(&daemon.address, &daemon.key(), Role::Node).unwrap();
    let mut silent: Vec<Connection> = (0..150).map(|_| open()).collect();
    let files = fs::read_dir(format!("/proc/{}/fd", daemon.child.id())).unwrap().count();
    assert!(files < 100, "{files} files are open");
    let ended = silent[0].receiving.receive::<ToNode>(Some(Duration::from_secs(60))).unwrap_err();
    assert!(matches!(ended, ClientError::Lost(_)), "the first has gone for another: {ended}");
    assert!(daemon.client().nodes().unwrap().is_empty());
}

#[test]
fn the_daemon_takes_all_the_files_it_may_open() {
    let directory = Directory::new("limit");
    let daemon = Daemon::start_after("ulimit -S -n 64; ulimit -H -n 4000", &directory, &[]);
    let limits = fs::read_to_string(format!("/proc/{}/limits", daemon.child.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(line.split_whitespace().skip(3).take(2).collect::<Vec<_>>(), ["4000", "4000"]);
}

#[test]
fn without_descriptors_members_go_on_and_strangers_are_told() {
    let directory = Directory::new("descriptors");
    let mut daemon = Daemon::start(&directory, &[]);
    let (mut node, _) = join_as(&daemon, "a");
    let pid = Pid::from_child(&daemon.child);
    let used = fs::read_dir(format!("/proc/{}/fd", daemon.child.id())).unwrap().count() as u64;
    let none_left = Rlimit { current: Some(used), maximum: getrlimit(Resource::Nofile).maximum };
    let before = prlimit(Some(pid), Resource::Nofile, none_left).unwrap();
    // No connection is left without a reply: each is accepted, if only to be closed.
    for _ in 0..3 {
        let mut stream = TcpStream::connect(&daemon.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut said = Vec::new();
        let _ = stream.write_all(&[0; 100]);
        if let Err(error) = stream.read_to_end(&mut said) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        }
    }
    daemon.wait_log("cannot accept a connection: Too many open files");
    acknowledged(&mut node, 1);
    prlimit(Some(pid), Resource::Nofile, before).unwrap();
    assert_eq!(daemon.client().nodes().unwrap().len(), 1);
}

#[test]
fn a_log_that_nobody_reads_stops_nothing() {
    let directory = Directory::new("unread");
    let daemon = Daemon::start(&directory, &[]);
    let (mut node, _) = join_as(&daemon, "a");
    // The log gets more lines than a pipe holds: from strangers, and from peers who have the key, whose lines
    // are not counted.
    for number in 0..2000 {
        let mut stream = TcpStream::connect(&daemon.address).unwrap();
        let _ = stream.write_all(&[255; 60]);
        if number % 2 == 0 {
            let mut connection = Connection::open(&daemon.address, &daemon.key(), Role::Node).unwrap();
            let _ = connection.sending.send(&vec![255u8; 9]);
        }
    }
    acknowledged(&mut node, 1);
    assert_eq!(daemon.client().nodes().unwrap().len(), 1);
}

/// Sends a heartbeat and waits for its acknowledgement.
pub(crate) fn acknowledged(node: &mut Connection, beat: u64) {
    node.sending.send(&ToManager::Heartbeat { seq: beat }).unwrap();
    loop {
        match node.receiving.receive(Some(Duration::from_secs(60))).unwrap() {
            ToNode::HeartbeatAck { seq, .. } if seq == beat => return,
            _ => {}
        }
    }
}
