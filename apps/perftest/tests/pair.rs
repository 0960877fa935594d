//! Client against server: each on a thread of its own, with a software RNIC, over a wire and a TCP in memory.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use perftest::{Error, Host, Options, Perftest, Report, Row};
use platform::{
    Arena, Connection, Instant, IoAddr, Listener, Memory, Network, NetworkError, NetworkFuture, Platform,
    Task,
};
use softroce::{Config, EthernetPort, SoftRoce};
use std::collections::VecDeque;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use verbs::{Gid, MacAddr};

/// One direction of something.
type Lane<T> = Arc<Mutex<VecDeque<T>>>;

/// A TCP connection's end. `None` in a lane: the other side has ended its own.
struct Tcp {
    read: Lane<Option<u8>>,
    write: Lane<Option<u8>>,
}

impl Connection for Tcp {
    fn read<'a>(
        &'a self,
        buf: &'a mut [u8],
        deadline: Instant,
    ) -> NetworkFuture<'a, Result<usize, NetworkError>> {
        Box::pin(std::future::poll_fn(move |_| {
            let mut lane = self.read.lock().unwrap();
            let mut n = 0;
            while n < buf.len() {
                match lane.front() {
                    Some(Some(byte)) => buf[n] = *byte,
                    Some(None) if n == 0 => return Poll::Ready(Ok(0)),
                    _ => break,
                }
                lane.pop_front();
                n += 1;
            }
            match n {
                0 if now() >= deadline => Poll::Ready(Err(NetworkError::Deadline)),
                0 => Poll::Pending,
                n => Poll::Ready(Ok(n)),
            }
        }))
    }

    fn write<'a>(&'a self, data: &'a [u8], _: Instant) -> NetworkFuture<'a, Result<(), NetworkError>> {
        self.write.lock().unwrap().extend(data.iter().copied().map(Some));
        Box::pin(std::future::ready(Ok(())))
    }

    fn close<'a>(self: Box<Self>, deadline: Instant) -> NetworkFuture<'a, ()> {
        self.write.lock().unwrap().push_back(None);
        Box::pin(std::future::poll_fn(move |_| {
            let ended = self.read.lock().unwrap().contains(&None);
            if ended || now() >= deadline { Poll::Ready(()) } else { Poll::Pending }
        }))
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        self.write.lock().unwrap().push_back(None);
    }
}

/// What both sides share: connections that wait to be accepted.
#[derive(Clone, Default)]
struct Net {
    waiting: Lane<Tcp>,
    listening: Arc<Mutex<bool>>,
}

impl Network for Net {
    fn connect(
        &self,
        _: SocketAddrV4,
        _: Instant,
    ) -> NetworkFuture<'_, Result<Box<dyn Connection>, NetworkError>> {
        Box::pin(async {
            if !*self.listening.lock().unwrap() {
                return Err(NetworkError::Refused);
            }
            let (a, b) = (Lane::default(), Lane::default());
            self.waiting.lock().unwrap().push_back(Tcp { read: Arc::clone(&a), write: Arc::clone(&b) });
            Ok(Box::new(Tcp { read: b, write: a }) as Box<dyn Connection>)
        })
    }

    fn listen(&self, _: u16) -> Result<Box<dyn Listener>, NetworkError> {
        *self.listening.lock().unwrap() = true;
        Ok(Box::new(self.clone()))
    }

    fn resolve(&self, ip: IpAddr, _: Instant) -> NetworkFuture<'_, Option<[u8; 6]>> {
        let IpAddr::V4(ip) = ip else { panic!("{ip}") };
        Box::pin(std::future::ready(Some(mac(ip.octets()[3]).0)))
    }
}

impl Listener for Net {
    fn accept(&self, deadline: Instant) -> NetworkFuture<'_, Result<Box<dyn Connection>, NetworkError>> {
        Box::pin(std::future::poll_fn(move |_| match self.waiting.lock().unwrap().pop_front() {
            Some(tcp) => Poll::Ready(Ok(Box::new(tcp) as Box<dyn Connection>)),
            None if now() >= deadline => Poll::Ready(Err(NetworkError::Deadline)),
            None => Poll::Pending,
        }))
    }
}

fn mac(host: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, host])
}

struct Port {
    host: u8,
    receive: Lane<Vec<u8>>,
    transmit: Lane<Vec<u8>>,
    /// Every so many frames one is lost.
    lose: u64,
    sent: u64,
}

impl EthernetPort for Port {
    fn mac(&self) -> MacAddr {
        mac(self.host)
    }

    fn mtu(&self) -> usize {
        4200
    }

    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        let frames: Vec<_> = {
            let mut lane = self.receive.lock().unwrap();
            let n = budget.min(lane.len());
            lane.drain(..n).collect()
        };
        frames.iter().for_each(|frame| each(frame));
        frames.len()
    }

    fn transmit(&mut self, max_len: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        let mut frame = vec![0; max_len];
        let len = fill(&mut frame);
        frame.truncate(len);
        self.sent += 1;
        if self.lose == 0 || !self.sent.is_multiple_of(self.lose) {
            self.transmit.lock().unwrap().push_back(frame);
        }
        true
    }

    fn flush(&mut self) {}

    fn arm(&mut self) -> bool {
        !self.receive.lock().unwrap().is_empty()
    }
}

struct Machine(Arc<Arena>, u8);

fn now() -> Instant {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    Instant::from_nanos(START.elapsed().as_nanos() as u64)
}

impl Platform for Machine {
    fn now(&self) -> Instant {
        now()
    }
    fn fill_random(&self, buf: &mut [u8]) {
        buf.iter_mut().enumerate().for_each(|(i, b)| *b = self.1.wrapping_mul(37) ^ i as u8);
    }
    fn cpus(&self) -> usize {
        1
    }
    fn spawn(&self, name: &'static str, _: Task) {
        panic!("a test starts no task, not even {name}");
    }
    fn memory(&self) -> &dyn Memory {
        &*self.0
    }
}

/// Runs `future` on this thread. Nobody wakes anybody: what waits is asked again.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::yield_now(),
        }
    }
}

struct Node {
    perftest: Perftest,
    memory: Arc<Arena>,
}

impl Node {
    fn free(&self) -> u64 {
        self.memory.stats().free
    }
}

/// Server and client.
fn pair(lose: u64) -> [Node; 2] {
    let (a, b) = (Lane::default(), Lane::default());
    let network = Net::default();
    let node = |host: u8, receive: &Lane<Vec<u8>>, transmit: &Lane<Vec<u8>>| {
        let memory = Arc::new(Arena::new(IoAddr(u64::from(host) << 32), 40 << 20));
        let port = Port { host, receive: Arc::clone(receive), transmit: Arc::clone(transmit), lose, sent: 0 };
        let config = Config::new(Gid::from_ipv4([10, 0, 0, host]), [host; 16]);
        let rnic = Arc::new(SoftRoce::<_, spin::Mutex<()>>::new(port, memory.clone(), config));
        let platform = Arc::new(Machine(memory.clone(), host));
        let host = Host { platform, rnic, network: Arc::new(network.clone()) };
        Node { perftest: Perftest::new(host), memory }
    };
    [node(1, &a, &b), node(2, &b, &a)]
}

/// Runs one test on both.
fn both(nodes: &[Node; 2], command: &str) -> [Result<Report, Error>; 2] {
    let server = Options::parse(command.split(' ')).unwrap();
    let client = Options { server: Some(Ipv4Addr::new(10, 0, 0, 1)), ..server.clone() };
    let [first, second] = nodes;
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| block_on(first.perftest.run(&server)));
        let result = block_on(second.perftest.run(&client));
        [serving.join().unwrap(), result]
    })
}

/// Runs one test, which must succeed; content that went over must be there.
fn passes(nodes: &[Node; 2], command: &str) -> [Report; 2] {
    let free = nodes.each_ref().map(Node::free);
    let [server, client] = both(nodes, command).map(|result| match result {
        Ok(report) => report,
        Err(error) => panic!("{command}: {error}"),
    });
    assert_eq!(nodes.each_ref().map(Node::free), free, "{command}: memory is not given back");
    let (s, c) = (server.content, client.content);
    if command.contains("atomic") {
        assert!(c.left.is_some() && c.left == s.far, "{command}: {c:?} {s:?}");
    } else {
        assert!(c.near.is_some() && c.near == s.far, "{command}: {c:?} {s:?}");
        let both_ways =
            command.contains(" -b") || ["ib_write_lat", "ib_send_lat"].iter().any(|p| command.contains(p));
        assert_eq!((s.near.is_some(), c.far.is_some()), (both_ways, both_ways), "{command}");
        assert_eq!(s.near, c.far, "{command}");
    }
    [server, client]
}

#[test]
fn every_program_carries_its_bytes() {
    let nodes = pair(0);
    for verb in ["write", "read", "send", "atomic"] {
        for figure in ["lat", "bw"] {
            let sizes: &[u32] =
                if verb == "atomic" { &[8] } else { &[1, 7, 8, 64, 1000, 4096, 5001, 70_000] };
            for size in sizes {
                let [_, client] = passes(&nodes, &format!("ib_{verb}_{figure} -s {size} -n 130"));
                match client.rows.last() {
                    Some(Row::Latency { size: measured, figures }) => {
                        assert_eq!((*measured, figures.iterations), (*size, 130));
                        assert!(figures.min_us > 0.0 && figures.min_us <= figures.typical_us);
                    }
                    Some(Row::Bandwidth(found)) => {
                        assert_eq!((found.size, found.iterations), (u64::from(*size), 130));
                        assert!(found.average > 0.0 && found.rate > 0.0);
                    }
                    None => panic!("no row"),
                }
            }
        }
    }
}

#[test]
fn options_of_the_bandwidth_tests() {
    let nodes = pair(0);
    for verb in ["write", "read", "send", "atomic"] {
        passes(&nodes, &format!("ib_{verb}_bw -n 300 -b"));
        passes(&nodes, &format!("ib_{verb}_bw -n 300 -q 4"));
        passes(&nodes, &format!("ib_{verb}_bw -n 300 -q 3 -b -m 1024"));
        passes(&nodes, &format!("ib_{verb}_bw -n 37 -t 5 -Q 3 -m 256"));
    }
    passes(&nodes, "ib_write_bw -s 100 -I 128 -n 500");
    passes(&nodes, "ib_send_lat -s 100 -I 128 -n 500");
    passes(&nodes, "ib_send_bw -r 3 -s 3000 -n 100");
    passes(&nodes, "ib_read_bw -o 1 -n 50");
    passes(&nodes, "ib_atomic_bw -A CMP_AND_SWAP -n 200");
    passes(&nodes, "ib_atomic_lat -A FETCH_AND_ADD -n 200");
}

#[test]
fn all_sizes_in_one_go() {
    let nodes = pair(0);
    for program in ["ib_write_lat", "ib_read_bw", "ib_send_bw -b", "ib_send_lat", "ib_write_bw -b"] {
        let [_, client] = passes(&nodes, &format!("{program} -a -n 5"));
        assert_eq!(client.rows.len(), 23, "{program}");
    }
    passes(&nodes, "ib_atomic_bw -a -n 5");
}

#[test]
fn a_lossy_wire_changes_nothing_but_the_time() {
    let nodes = pair(50);
    for program in ["ib_write_lat", "ib_read_lat", "ib_send_lat", "ib_write_bw", "ib_read_bw", "ib_send_bw"] {
        passes(&nodes, &format!("{program} -s 20000 -n 20"));
    }
    passes(&nodes, "ib_atomic_lat -n 200");
    passes(&nodes, "ib_atomic_bw -n 200 -b");
}

#[test]
fn sides_that_do_not_match_end_with_an_error() {
    let [server, client] = pair(0);
    // More than it holds, on one side only: the other hears that the connection ends.
    let inline = Options::parse("ib_write_bw -I 900 -s 800".split(' ')).unwrap();
    let plain = Options { server: Some(Ipv4Addr::new(10, 0, 0, 1)), inline: 0, ..inline.clone() };
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| block_on(server.perftest.run(&inline)));
        let result = block_on(client.perftest.run(&plain));
        assert!(matches!(serving.join().unwrap(), Err(Error::Limit(_))));
        assert!(matches!(result, Err(Error::Exchange { error: NetworkError::Closed, .. })), "{result:?}");
    });
    let options = Options::parse(["ib_write_bw", "-q", "1000"]).unwrap();
    let client_options = Options { server: Some(Ipv4Addr::new(10, 0, 0, 1)), ..options.clone() };
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| block_on(server.perftest.run(&options)));
        assert!(matches!(block_on(client.perftest.run(&client_options)), Err(Error::Limit(_))));
        assert!(matches!(serving.join().unwrap(), Err(Error::Limit(_))));
    });
}
