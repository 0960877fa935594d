//! A DHCP and DNS server on a port of a fabric, for appliances that get settings and names from their
//! network. It refuses connections, or does not answer them.

use anyhow::{Context, Result};
use std::io::{ErrorKind, Read, Write};
use std::net::Ipv6Addr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// The addresses of the server, of its first client, and of QEMU's user-mode network, which is the router.
const SERVER: [u8; 4] = [10, 0, 2, 77];
const CLIENTS: [u8; 4] = [10, 0, 2, 50];
const ROUTER: [u8; 4] = [10, 0, 2, 2];
/// An address of its network that no machine has.
const NOBODY: [u8; 4] = [10, 0, 2, 99];
/// The IPv6 address of QEMU's user-mode network.
const ROUTER_IPV6: Ipv6Addr = Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 2);
/// The kinds of DNS records: IPv4 addresses, and IPv6 addresses.
const A: u8 = 1;
const AAAA: u8 = 28;
/// The server's Ethernet address.
const MAC: [u8; 6] = [0x52, 0x54, 0, 0xfc, 0, 1];
const BROADCAST: [u8; 4] = [255; 4];
/// The IP protocols.
const TCP: u8 = 6;
const UDP: u8 = 17;
/// The flags of a TCP segment.
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
/// The UDP ports.
const DHCP: u16 = 67;
const DHCP_CLIENT: u16 = 68;
const DNS: u16 = 53;
/// The option of DHCP with settings of an appliance.
const SETTINGS: u8 = 224;

/// The contents of the server's answers.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// The settings of an appliance. Without them, the server answers no client.
    pub settings: Option<String>,
    /// The name that the router's address has.
    pub name: String,
    /// The addresses of the name.
    pub addresses: Addresses,
    /// The number of TCP connections that the server refuses. It does not answer later ones.
    pub refusals: usize,
}

/// The addresses that the name has.
#[derive(Clone, Copy, Debug, Default)]
pub enum Addresses {
    /// The router's IPv4 address.
    #[default]
    Ipv4,
    /// The router's IPv6 address.
    Ipv6,
    /// An IPv4 address that no machine has, and the router's IPv6 address.
    Both,
}

/// A running server. It ends when it is dropped.
pub struct NetworkServices {
    answers: Arc<Mutex<Answers>>,
    stream: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl NetworkServices {
    /// Starts the server on the socket of a fabric's port.
    pub fn start(socket: &Path, answers: Answers) -> Result<Self> {
        let stream = UnixStream::connect(socket).context("no port of the fabric for the server")?;
        let answers = Arc::new(Mutex::new(answers));
        let (mut port, shared) = (stream.try_clone()?, answers.clone());
        let thread = std::thread::spawn(move || {
            while let Ok(Some(frame)) = receive(&mut port) {
                let answer = shared.lock().ok().and_then(|mut answers| answers.to(&frame));
                if answer.is_some_and(|answer| send(&mut port, &answer).is_err()) {
                    break;
                }
            }
        });
        Ok(Self { answers, stream, thread: Some(thread) })
    }

    /// Replaces the contents of the answers.
    pub fn set(&self, answers: Answers) {
        *self.answers.lock().unwrap_or_else(|e| e.into_inner()) = answers;
    }
}

impl Drop for NetworkServices {
    fn drop(&mut self) {
        // The thread ends at the end of the stream, also if the fabric has closed it before.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Receives a frame behind its length, as QEMU's stream devices send it. Returns `None` at the end.
fn receive(port: &mut UnixStream) -> Result<Option<Vec<u8>>> {
    let mut len = [0; 4];
    match port.read_exact(&mut len) {
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let mut frame = vec![0; usize::try_from(u32::from_be_bytes(len))?];
    port.read_exact(&mut frame)?;
    Ok(Some(frame))
}

fn send(port: &mut UnixStream, frame: &[u8]) -> Result<()> {
    port.write_all(&u32::try_from(frame.len())?.to_be_bytes())?;
    Ok(port.write_all(frame)?)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the Internet checksum (RFC 1071) of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| pair.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum + (sum >> 16)) as u16)
}

/// Returns a frame to an Ethernet and an IPv4 address with a packet of an IP protocol.
fn packet(to: &[u8], address: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x45, 0];
    ip.extend((20 + payload.len() as u16).to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    ip.extend(SERVER);
    ip.extend(address);
    let sum = checksum(&ip).to_be_bytes();
    ip.splice(10..12, sum);
    [to, &MAC, &[8, 0], &ip, payload].concat()
}

/// Returns a frame with a UDP datagram, which has no checksum.
fn datagram(to: &[u8], (address, port): ([u8; 4], u16), from: u16, data: &[u8]) -> Vec<u8> {
    let words = [from, port, 8 + data.len() as u16, 0];
    let udp: Vec<u8> = words.into_iter().flat_map(u16::to_be_bytes).chain(data.iter().copied()).collect();
    packet(to, address, UDP, &udp)
}

/// Returns a frame that refuses the TCP connection that this segment from an address opens (RFC 9293,
/// section 3.5.2). Returns `None` if it opens none.
fn refusal(to: &[u8], address: [u8; 4], segment: &[u8]) -> Option<Vec<u8>> {
    let ports = [segment.get(2..4)?, segment.get(..2)?].concat();
    let sequence = u32::from_be_bytes(*segment.get(4..8)?.first_chunk()?);
    if *segment.get(13)? != SYN {
        return None;
    }
    let acknowledged = sequence.wrapping_add(1).to_be_bytes();
    let mut tcp = [&ports[..], &[0; 4], &acknowledged, &[5 << 4, RST | ACK], &[0; 6]].concat();
    let pseudo_header = [&SERVER[..], &address, &[0, TCP, 0, tcp.len() as u8]].concat();
    let sum = checksum(&[pseudo_header, tcp.clone()].concat()).to_be_bytes();
    tcp.splice(16..18, sum);
    Some(packet(to, address, TCP, &tcp))
}

impl Answers {
    /// Returns the answer to a frame, if there is one.
    fn to(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let (sender, packet) = (frame.get(6..12)?, frame.get(14..)?);
        match u16_at(frame, 12)? {
            0x0806 if packet.get(24..28)? == SERVER && u16_at(packet, 6)? == 1 => {
                let asker = packet.get(8..18)?;
                let head = [0, 1, 8, 0, 6, 4, 0, 2];
                Some([sender, &MAC, &[8, 6], &head, &MAC, &SERVER, asker].concat())
            }
            0x0800 => {
                let payload = packet.get(usize::from(packet.first()? & 15) * 4..)?;
                let (protocol, asker) = (*packet.get(9)?, *packet.get(12..16)?.first_chunk()?);
                let is_own = packet.get(16..20)? == SERVER;
                match (protocol, u16_at(payload, 2)?) {
                    (UDP, DHCP) => {
                        let answer = self.lease(payload.get(8..)?)?;
                        Some(datagram(sender, (BROADCAST, DHCP_CLIENT), DHCP, &answer))
                    }
                    (UDP, DNS) if is_own => {
                        let answer = self.address(payload.get(8..)?)?;
                        Some(datagram(sender, (asker, u16_at(payload, 0)?), DNS, &answer))
                    }
                    (TCP, _) if is_own && self.refusals > 0 => {
                        let refusal = refusal(sender, asker, payload)?;
                        self.refusals -= 1;
                        Some(refusal)
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Returns the answer to a message of a DHCP client (RFC 2131).
    fn lease(&self, message: &[u8]) -> Option<Vec<u8>> {
        let settings = self.settings.as_ref()?;
        let mut options = message.get(240..)?;
        let (mut kind, mut wants_settings) = (0, false);
        while let [option, len, rest @ ..] = options {
            let data = rest.get(..usize::from(*len))?;
            match option {
                53 => kind = *data.first()?,
                55 => wants_settings = data.contains(&SETTINGS),
                _ => {}
            }
            options = rest.get(data.len()..)?;
        }
        // A discovery gets an offer, a request an acknowledgement.
        let kind = match kind {
            1 => 2,
            3 => 5,
            _ => return None,
        };
        // The last byte of a machine's Ethernet address is its number.
        let mut client = CLIENTS;
        *client.last_mut()? += message.get(33)? % 20;
        let mut answer = [&[2, 1, 6, 0], message.get(4..8)?, &[0; 8], &client, &SERVER, &[0; 4]].concat();
        answer.extend(message.get(28..44)?);
        answer.resize(236, 0);
        answer.extend([99, 130, 83, 99]);
        let mut option = |kind: u8, data: &[u8]| {
            answer.extend([kind, data.len() as u8]);
            answer.extend(data);
        };
        option(53, &[kind]);
        option(54, &SERVER);
        option(51, &3600_u32.to_be_bytes());
        option(1, &[255, 255, 255, 0]);
        option(3, &ROUTER);
        option(6, &SERVER);
        if wants_settings {
            option(SETTINGS, settings.as_bytes());
        }
        answer.push(255);
        Some(answer)
    }

    /// Returns the answer to a question of DNS (RFC 1035): the router's address, or that there is no such
    /// name.
    fn address(&self, question: &[u8]) -> Option<Vec<u8>> {
        let asked = question.get(12..)?;
        let name: Vec<u8> = self
            .name
            .split('.')
            .flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat())
            .chain([0])
            .collect();
        let is_known = asked.starts_with(&name);
        // The kind that is asked for is behind the name.
        let kind = *asked.get(name.len()..)?.get(1)?;
        let address = match (kind, self.addresses) {
            (A, Addresses::Ipv4) => Some(ROUTER.to_vec()),
            (A, Addresses::Both) => Some(NOBODY.to_vec()),
            (AAAA, Addresses::Ipv6 | Addresses::Both) => Some(ROUTER_IPV6.octets().to_vec()),
            _ => None,
        };
        let address = address.filter(|_| is_known);
        let count = u8::from(address.is_some());
        let code = if is_known { 0 } else { 3 };
        let head = [0x81, 0x80 | code, 0, 1, 0, count, 0, 0, 0, 0];
        let mut answer = [question.get(..2)?, &head, asked].concat();
        if let Some(address) = address {
            answer.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60, 0, address.len() as u8]);
            answer.extend(address);
        }
        Some(answer)
    }
}
