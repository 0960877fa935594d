//! Two nodes, each on a thread of its own, with a software RNIC, over a wire and a TCP in memory.
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
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use verbs::{Gid, MacAddr};

/// One direction of something.
type Lane<T> = Arc<Mutex<VecDeque<T>>>;

/// A TCP connection's end. `None` in a lane: the other side has ended its own.
struct Tcp {
    read: Lane<Option<u8>>,
    write: Lane<Option<u8>>,
    /// All that this side has written.
    said: Lane<u8>,
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
        self.said.lock().unwrap().extend(data);
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
    /// What server and client have written so far.
    said: [Lane<u8>; 2],
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
            self.waiting.lock().unwrap().push_back(Tcp {
                read: Arc::clone(&a),
                write: Arc::clone(&b),
                said: Arc::clone(&self.said[0]),
            });
            Ok(Box::new(Tcp { read: b, write: a, said: Arc::clone(&self.said[1]) }) as Box<dyn Connection>)
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
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::yield_now(),
        }
    }
}

pub struct Node {
    /// perftest there.
    pub perftest: Perftest,
    memory: Arc<Arena>,
    network: Net,
}

impl Node {
    /// Bytes of memory that are free.
    pub fn free(&self) -> u64 {
        self.memory.stats().free
    }

    /// What server and client have written since this was last asked.
    pub fn said(&self) -> [Vec<u8>; 2] {
        self.network.said.each_ref().map(|said| said.lock().unwrap().drain(..).collect())
    }
}

/// Server and client.
pub fn pair(lose: u64) -> [Node; 2] {
    let (a, b) = (Lane::default(), Lane::default());
    let network = Net::default();
    let node = |host: u8, receive: &Lane<Vec<u8>>, transmit: &Lane<Vec<u8>>| {
        let memory = Arc::new(Arena::new(IoAddr(u64::from(host) << 32), 40 << 20));
        let port = Port { host, receive: Arc::clone(receive), transmit: Arc::clone(transmit), lose, sent: 0 };
        let config = Config::new(Gid::from_ipv4([10, 0, 0, host]), [host; 16]);
        let rnic = Arc::new(SoftRoce::<_, spin::Mutex<()>>::new(port, memory.clone(), config));
        let platform = Arc::new(Machine(memory.clone(), host));
        let host = Host { platform, rnic, network: Arc::new(network.clone()) };
        Node { perftest: Perftest::new(host), memory, network: network.clone() }
    };
    [node(1, &a, &b), node(2, &b, &a)]
}

/// Runs one test on both.
pub fn both(nodes: &[Node; 2], command: &str) -> [Result<Report, Error>; 2] {
    let server = Options::parse(command.split(' ')).unwrap();
    let client = Options { server: Some(Ipv4Addr::new(10, 0, 0, 1)), ..server.clone() };
    let [first, second] = nodes;
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| block_on(first.perftest.run(&server)));
        let result = block_on(second.perftest.run(&client));
        [serving.join().unwrap(), result]
    })
}
