//! The sockets of the service.

use super::dhcp::{Kind, Question};
use super::enrol::{self, Secrets};
use super::files::Boots;
use super::inventory::{Inventory, InventoryError, Node};
use super::{ENROL_PORT, HTTP_PORT, http, neighbours, tftp};
use crate::log::LogFormat;
use crate::log::{Log, Writer};
use proto::channel::{ClusterKey, Role, WrongRole};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::HashSet;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use verbs::MacAddr;

/// The UDP ports: DHCP's of servers and of clients, PXE's and TFTP's.
const DHCP: u16 = 67;
const DHCP_CLIENT: u16 = 68;
const PXE: u16 = 4011;
const TFTP: u16 = 69;
/// The greatest number of transfers and connections at a time. Further ones are not answered.
const MOST: usize = 512;
/// The number of unknown Ethernet addresses that are logged, once each.
const STRANGERS: usize = 64;
/// The pause after a connection that could not be accepted, or a datagram that could not be received.
const BACK_OFF: Duration = Duration::from_millis(50);
/// The time for the last lines of the log.
const LAST_LINES: Duration = Duration::from_secs(1);
/// The longest datagram that is read, in bytes.
const LONGEST: usize = 2048;

/// The configuration of the service.
#[derive(Debug)]
pub struct Options {
    /// The inventory, `cluster.toml`.
    pub cluster: PathBuf,
    /// The interface on which machines boot.
    pub interface: String,
    /// This host's address there.
    pub address: Ipv4Addr,
    /// The cluster key.
    pub key: ClusterKey,
}

/// The reason for which the service cannot run. It is one line for people.
#[derive(Debug, thiserror::Error)]
pub enum PxeError {
    /// The inventory cannot be used.
    #[error(transparent)]
    Inventory(#[from] InventoryError),
    /// A node's image cannot be used.
    #[error("{0}")]
    Image(String),
    /// A port cannot be opened.
    #[error("cannot listen on port {port} of {interface}: {source}")]
    Listen {
        /// The port.
        port: u16,
        /// The interface.
        interface: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The thread of the log cannot be started.
    #[error("cannot start the thread of the log: {0}")]
    Thread(#[source] io::Error),
    /// The key is not the whole key of the cluster.
    #[error(transparent)]
    Key(#[from] WrongRole),
}

/// A service whose ports are open.
pub struct Service {
    dhcp: UdpSocket,
    pxe: UdpSocket,
    tftp: UdpSocket,
    http: TcpListener,
    enrol: TcpListener,
    shared: Arc<Shared>,
    writer: Writer,
}

struct Shared {
    boots: Boots,
    secrets: Secrets,
    log: Log,
    interface: String,
    address: Ipv4Addr,
    /// Unknown Ethernet addresses that were logged.
    strangers: Mutex<HashSet<[u8; 6]>>,
    permits: Arc<Semaphore>,
}

/// Opens a UDP port. `device` limits it to an interface, also for broadcasts.
fn udp(address: Ipv4Addr, port: u16, device: Option<&str>) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    if let Some(device) = device {
        // The network's DHCP server may run on this host, too.
        socket.set_reuse_address(true)?;
        socket.set_broadcast(true)?;
        socket.bind_device(Some(device.as_bytes()))?;
    }
    socket.bind(&SocketAddrV4::new(address, port).into())?;
    UdpSocket::from_std(socket.into())
}

impl Service {
    /// Reads the inventory and all images, and opens the ports.
    pub async fn bind(options: Options) -> Result<Self, PxeError> {
        let Options { cluster, interface, address, key } = options;
        let secrets = Secrets { registrar: key.registrar()?, node: key.only(Role::Node)? };
        let inventory = Inventory::read(&cluster)?;
        let boots = Boots::new(inventory, address, &secrets.registrar.public()).map_err(PxeError::Image)?;
        let listen = |port: u16| {
            let interface = interface.clone();
            move |source| PxeError::Listen { port, interface, source }
        };
        let dhcp = udp(Ipv4Addr::UNSPECIFIED, DHCP, Some(&interface)).map_err(listen(DHCP))?;
        let pxe = udp(address, PXE, None).map_err(listen(PXE))?;
        let tftp = udp(address, TFTP, None).map_err(listen(TFTP))?;
        let http = TcpListener::bind((address, HTTP_PORT)).await.map_err(listen(HTTP_PORT))?;
        let enrol = TcpListener::bind((address, ENROL_PORT)).await.map_err(listen(ENROL_PORT))?;
        let writer = Log::start(io::stderr(), LogFormat::Text).map_err(PxeError::Thread)?;
        let (strangers, permits) = (Mutex::default(), Arc::new(Semaphore::new(MOST)));
        let log = writer.log();
        let shared = Arc::new(Shared { boots, secrets, log, interface, address, strangers, permits });
        Ok(Self { dhcp, pxe, tftp, http, enrol, shared, writer })
    }

    /// Serves until `stop` is done.
    pub async fn serve(self, stop: impl Future<Output = ()>) {
        let Self { dhcp, pxe, tftp, http, enrol, shared, writer } = self;
        tokio::select! {
            () = stop => {}
            () = shared.answer_dhcp(&dhcp, Kind::Discover) => {}
            () = shared.answer_dhcp(&pxe, Kind::Request) => {}
            () = shared.answer_tftp(&tftp) => {}
            () = accept(&http, &shared, Shared::answer_http) => {}
            () = accept(&enrol, &shared, Shared::enrol) => {}
        }
        writer.finish(LAST_LINES);
    }
}

/// Accepts connections, and serves each by a task of its own.
async fn accept<F: Future<Output = ()> + Send + 'static>(
    listener: &TcpListener,
    shared: &Arc<Shared>,
    serve: fn(Arc<Shared>, TcpStream, SocketAddr) -> F,
) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if let Ok(permit) = shared.permits.clone().try_acquire_owned() {
                    let served = serve(shared.clone(), stream, peer);
                    tokio::spawn(async move {
                        served.await;
                        drop(permit);
                    });
                }
            }
            Err(error) => {
                shared.log.line(&format!("cannot accept a connection: {error}"));
                tokio::time::sleep(BACK_OFF).await;
            }
        }
    }
}

impl Shared {
    /// Receives a datagram. An error of an earlier answer is not one of the socket.
    async fn receive(&self, socket: &UdpSocket, buffer: &mut [u8]) -> (usize, SocketAddr) {
        loop {
            match socket.recv_from(buffer).await {
                Ok(received) => return received,
                Err(error) => {
                    self.log.line(&format!("cannot receive: {error}"));
                    tokio::time::sleep(BACK_OFF).await;
                }
            }
        }
    }

    /// Answers messages of one kind. The others on the port are for the network's DHCP server.
    async fn answer_dhcp(&self, socket: &UdpSocket, kind: Kind) {
        let mut buffer = [0; LONGEST];
        loop {
            let (len, from) = self.receive(socket, &mut buffer).await;
            let Some(question) = Question::parse(&buffer[..len]).filter(|question| question.kind == kind)
            else {
                continue;
            };
            let Some(node) = self.known(question.mac) else { continue };
            let program = match self.boots.program(node, &question) {
                Ok(program) => program,
                Err(why) => {
                    self.log.line(&why);
                    continue;
                }
            };
            let Some(answer) = question.answer(self.address, &program) else { continue };
            // A client that discovers has no address yet.
            let to = match kind {
                Kind::Discover => SocketAddr::from((Ipv4Addr::BROADCAST, DHCP_CLIENT)),
                Kind::Request => from,
            };
            match socket.send_to(&answer, to).await {
                Ok(_) => self.log.line(&format!("{} ({}): boot program {program}", node.name, node.mac)),
                Err(error) => self.log.line(&format!("{} ({}): cannot answer: {error}", node.name, node.mac)),
            }
        }
    }

    /// Returns the node with this Ethernet address. Logs an unknown one, once.
    fn known(&self, mac: MacAddr) -> Option<&Node> {
        let node = self.boots.node(mac);
        if node.is_none() {
            let mut strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
            if strangers.len() < STRANGERS && strangers.insert(mac.0) {
                self.log.line(&format!("{mac} is not in the inventory, and gets no answer"));
            }
        }
        node
    }

    /// Returns the node that asks from this address.
    fn node_at(&self, peer: SocketAddr) -> Option<&Node> {
        let IpAddr::V4(host) = peer.ip() else { return None };
        self.known(neighbours::address_of(host, &self.interface)?)
    }

    /// Returns a file for a node.
    fn file(&self, node: &Node, name: &str) -> Option<Arc<[u8]>> {
        let random = crate::key::random().ok()?;
        let (content, has_token) = self.boots.file(node, name, random, Instant::now())?;
        let token = if has_token { ", with a token" } else { "" };
        self.log.line(&format!("{} ({}): {}{token}", node.name, node.mac, name.escape_debug()));
        Some(content)
    }

    async fn answer_tftp(&self, socket: &UdpSocket) {
        let mut buffer = [0; LONGEST];
        loop {
            let (len, client) = self.receive(socket, &mut buffer).await;
            let Some(wish) = tftp::Wish::parse(&buffer[..len]) else { continue };
            let Some(node) = self.node_at(client) else { continue };
            let Some(content) = self.file(node, &wish.name) else {
                let _ = socket.send_to(&tftp::not_found(), client).await;
                continue;
            };
            let Ok(permit) = self.permits.clone().try_acquire_owned() else { continue };
            let Ok(own) = udp(self.address, 0, None) else { continue };
            let (name, log) = (node.name.clone(), self.log.clone());
            tokio::spawn(async move {
                if let Err(error) = tftp::send(&own, client, &wish, content).await {
                    log.line(&format!("{name}: {}: {error}", wish.name.escape_debug()));
                }
                drop(permit);
            });
        }
    }

    async fn answer_http(self: Arc<Self>, mut stream: TcpStream, peer: SocketAddr) {
        let Some(node) = self.node_at(peer) else { return };
        let Ok(Some(get)) = http::receive(&mut stream).await else { return };
        let content = self.file(node, &get.name);
        if let Err(error) = http::answer(&mut stream, &get, content).await {
            self.log.line(&format!("{}: {}: {error}", node.name, get.name.escape_debug()));
        }
    }

    async fn enrol(self: Arc<Self>, stream: TcpStream, peer: SocketAddr) {
        if self.node_at(peer).is_none() {
            return;
        }
        match enrol::serve(stream, &self.secrets, &self.boots).await {
            Ok(line) => self.log.line(&line),
            Err(why) => self.log.line(&format!("{peer}: {why}")),
        }
    }
}
