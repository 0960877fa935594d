//! Two nodes, each on a thread of its own, with a software RNIC, over a wire and TCP in memory.
#![allow(dead_code, reason = "each test file uses a part")]

use perftest::{Error, Host, Options, Perftest, Report};
use platform::{
    Arena, Connection, Instant, IoAddr, Listener, Memory, Network, NetworkError, NetworkFuture, Platform,
    Task,
};
use softroce::{Config, EthernetPort, SoftRoce};
use std::collections::VecDeque;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use verbs::{Gid, MacAddr};

/// The longest wait of a test for anything.
const LIMIT: Duration = Duration::from_secs(60);
/// The addresses of the two nodes.
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// A node's clock, and the deadline of its present wait. A test that sends nothing advances the clock.
#[derive(Clone, Default)]
struct Idle {
    ahead: Arc<AtomicU64>,
    until: Arc<Mutex<Option<Instant>>>,
}

impl Idle {
    fn now(&self) -> Instant {
        now() + Duration::from_nanos(self.ahead.load(Ordering::SeqCst))
    }

    /// Returns the result of `look`, or pending until `deadline`. Nothing can arrive between the look and the
    /// start of the wait.
    fn wait<T>(&self, deadline: Instant, look: impl FnOnce() -> Option<T>) -> Poll<Result<T, NetworkError>> {
        let mut until = self.until.lock().unwrap();
        let found = look();
        *until = if found.is_some() { None } else { Some(deadline) };
        match found {
            Some(found) => Poll::Ready(Ok(found)),
            None if self.now() >= deadline => Poll::Ready(Err(NetworkError::Deadline)),
            None => Poll::Pending,
        }
    }

    /// Runs `come`, which delivers something that the node may wait for, and wakes the node.
    fn wake(&self, come: impl FnOnce()) {
        let mut until = self.until.lock().unwrap();
        come();
        *until = None;
    }
}

/// One direction of a connection.
type Lane<T> = Arc<Mutex<VecDeque<T>>>;

/// One end of a TCP connection. `None` in a lane marks that the other side has closed its own.
struct Tcp {
    read: Lane<Option<u8>>,
    write: Lane<Option<u8>>,
    /// All bytes that this side has written.
    said: Lane<u8>,
    /// The address of the other side.
    peer: Ipv4Addr,
    /// The idle state of this side's node, then of the other side's.
    idle: [Idle; 2],
}

impl Connection for Tcp {
    fn peer(&self) -> Option<Ipv4Addr> {
        Some(self.peer)
    }

    fn read<'a>(
        &'a self,
        buf: &'a mut [u8],
        deadline: Instant,
    ) -> NetworkFuture<'a, Result<usize, NetworkError>> {
        Box::pin(std::future::poll_fn(move |_| self.idle[0].wait(deadline, || self.take(buf))))
    }

    fn write<'a>(&'a self, data: &'a [u8], _: Instant) -> NetworkFuture<'a, Result<(), NetworkError>> {
        self.said.lock().unwrap().extend(data);
        self.idle[1].wake(|| self.write.lock().unwrap().extend(data.iter().copied().map(Some)));
        Box::pin(std::future::ready(Ok(())))
    }

    fn close<'a>(self: Box<Self>, deadline: Instant) -> NetworkFuture<'a, ()> {
        self.end();
        Box::pin(std::future::poll_fn(move |_| {
            let ended = || self.read.lock().unwrap().contains(&None).then_some(());
            self.idle[0].wait(deadline, ended).map(drop)
        }))
    }
}

impl Tcp {
    /// Returns some bytes that have arrived; 0 if the other side has closed its own.
    fn take(&self, buf: &mut [u8]) -> Option<usize> {
        let mut lane = self.read.lock().unwrap();
        let mut n = 0;
        while n < buf.len() {
            match lane.front() {
                Some(Some(byte)) => buf[n] = *byte,
                Some(None) if n == 0 => return Some(0),
                _ => break,
            }
            lane.pop_front();
            n += 1;
        }
        (n > 0).then_some(n)
    }

    fn end(&self) {
        self.idle[1].wake(|| self.write.lock().unwrap().push_back(None));
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        self.end();
    }
}

/// State that both sides share: connections that wait to be accepted.
#[derive(Clone, Default)]
struct Net {
    waiting: Lane<Tcp>,
    listening: Arc<Mutex<bool>>,
    /// The bytes that server and client have written so far.
    said: [Lane<u8>; 2],
    /// The waits of server and client.
    idle: [Idle; 2],
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
            let [server, client] = self.idle.clone();
            let accepted = Tcp {
                read: Arc::clone(&a),
                write: Arc::clone(&b),
                said: Arc::clone(&self.said[0]),
                peer: CLIENT,
                idle: [server.clone(), client.clone()],
            };
            server.wake(|| self.waiting.lock().unwrap().push_back(accepted));
            let said = Arc::clone(&self.said[1]);
            let idle = [client, server];
            Ok(Box::new(Tcp { read: b, write: a, said, peer: SERVER, idle }) as Box<dyn Connection>)
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
        let next = || Some(Box::new(self.waiting.lock().unwrap().pop_front()?) as Box<dyn Connection>);
        Box::pin(std::future::poll_fn(move |_| self.idle[0].wait(deadline, next)))
    }
}

fn mac(host: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, host])
}

struct Port {
    host: u8,
    receive: Lane<Vec<u8>>,
    transmit: Lane<Vec<u8>>,
    /// The network loses one frame in `lose`; 0 loses none.
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

struct Machine(Arc<Arena>, u8, Idle);

fn now() -> Instant {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    Instant::from_nanos(START.elapsed().as_nanos() as u64)
}

impl Platform for Machine {
    fn now(&self) -> Instant {
        self.2.now()
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

/// Runs `future` on this thread by polling: nothing wakes it.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::yield_now(),
        }
    }
}

pub(crate) struct Node {
    /// perftest on this node.
    pub perftest: Perftest,
    memory: Arc<Arena>,
    network: Net,
    idle: Idle,
}

impl Node {
    /// Returns the number of free bytes of memory.
    pub(crate) fn free(&self) -> u64 {
        self.memory.stats().free
    }

    /// Returns the node's TCP.
    pub(crate) fn network(&self) -> &impl Network {
        &self.network
    }

    /// Advances the node's clock to the end of each of its waits, until `finished`. Returns the total
    /// advance.
    pub(crate) fn until_it_gives_up(&self, finished: impl Fn() -> bool) -> Duration {
        let (limit, mut waited) = (now() + LIMIT, Duration::ZERO);
        while !finished() {
            assert!(now() < limit, "it does not give up");
            if let Some(until) = self.idle.until.lock().unwrap().take() {
                let more = until - self.idle.now();
                self.idle.ahead.fetch_add(more.as_nanos() as u64, Ordering::SeqCst);
                waited += more;
            }
            std::thread::yield_now();
        }
        waited
    }

    /// Returns the bytes that server and client have written since the last call.
    pub(crate) fn said(&self) -> [Vec<u8>; 2] {
        self.network.said.each_ref().map(|said| said.lock().unwrap().drain(..).collect())
    }
}

/// Returns server and client. One in `lose` frames is lost.
pub(crate) fn pair(lose: u64) -> [Node; 2] {
    let (a, b) = (Lane::default(), Lane::default());
    let network = Net::default();
    let node = |host: u8, receive: &Lane<Vec<u8>>, transmit: &Lane<Vec<u8>>| {
        let memory = Arc::new(Arena::new(IoAddr(u64::from(host) << 32), 40 << 20));
        let port = Port { host, receive: Arc::clone(receive), transmit: Arc::clone(transmit), lose, sent: 0 };
        let config = Config::new(Gid::from_ipv4([10, 0, 0, host]), [host; 16]);
        let rnic = Arc::new(SoftRoce::<_, spin::Mutex<()>>::new(port, memory.clone(), config));
        let idle = network.idle[usize::from(host - 1)].clone();
        let platform = Arc::new(Machine(memory.clone(), host, idle.clone()));
        let host = Host { platform, rnic, network: Arc::new(network.clone()) };
        Node { perftest: Perftest::new(host), memory, network: network.clone(), idle }
    };
    [node(1, &a, &b), node(2, &b, &a)]
}

/// Runs one test on both nodes.
pub(crate) fn both(nodes: &[Node; 2], command: &str) -> [Result<Report, Error>; 2] {
    let server = Options::parse(command.split(' ')).unwrap();
    let client = Options { server: Some(Ipv4Addr::new(10, 0, 0, 1)), ..server.clone() };
    let [first, second] = nodes;
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| block_on(first.perftest.run(&server)));
        let result = block_on(second.perftest.run(&client));
        [serving.join().unwrap(), result]
    })
}
