//! TFTP (RFC 1350) with the options `blksize` (RFC 2348) and `tsize` (RFC 2349), for reading only.
//!
//! The server is our own: it asks for each file who reads it, and is silent to strangers, which the
//! servers on crates.io do not offer.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};

/// The kinds of packets.
const READ: u16 = 1;
const DATA: u16 = 3;
const ACK: u16 = 4;
const ERROR: u16 = 5;
const OPTIONS: u16 = 6;
/// The error that there is no such file.
const NOT_FOUND: u16 = 1;

/// The length of a block if the client asks for none, and the longest one, in bytes: a packet on Ethernet.
const BLOCK: usize = 512;
const LONGEST_BLOCK: usize = 1468;
/// The time for an acknowledgement, and the number of attempts.
const WAIT: Duration = Duration::from_secs(1);
const ATTEMPTS: u32 = 6;
/// The length of a packet's head, in bytes.
const HEAD: usize = 4;

/// A client's wish to read a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) name: String,
    block: Option<usize>,
    wants_size: bool,
}

impl Wish {
    /// Reads a packet. Returns `None` unless it asks for a file as it is (`octet`).
    pub(super) fn parse(packet: &[u8]) -> Option<Self> {
        let text = packet.strip_prefix(&READ.to_be_bytes())?.strip_suffix(b"\0")?;
        let mut words = text.split(|byte| *byte == 0).map(std::str::from_utf8);
        let name = words.next()?.ok()?.to_owned();
        if !words.next()?.ok()?.eq_ignore_ascii_case("octet") {
            return None;
        }
        let mut wish = Self { name, block: None, wants_size: false };
        while let (Some(Ok(option)), Some(Ok(value))) = (words.next(), words.next()) {
            match option.to_ascii_lowercase().as_str() {
                "blksize" => wish.block = value.parse().ok().filter(|len| (8..=65464).contains(len)),
                "tsize" => wish.wants_size = true,
                _ => {}
            }
        }
        Some(wish)
    }
}

/// The packet that there is no such file.
pub(super) fn not_found() -> Vec<u8> {
    [&ERROR.to_be_bytes()[..], &NOT_FOUND.to_be_bytes(), b"no such file\0"].concat()
}

/// The packets of one transfer.
#[derive(Debug)]
struct Transfer {
    content: Arc<[u8]>,
    block: usize,
    /// The packet that accepts options, which is acknowledged as block 0.
    options: Option<Vec<u8>>,
}

impl Transfer {
    fn new(wish: &Wish, content: Arc<[u8]>) -> Self {
        let block = wish.block.map(|len| len.min(LONGEST_BLOCK));
        let size = wish.wants_size.then_some(content.len());
        let mut options = OPTIONS.to_be_bytes().to_vec();
        for (name, value) in [("blksize", block), ("tsize", size)] {
            if let Some(value) = value {
                options.extend(format!("{name}\0{value}\0").bytes());
            }
        }
        let options = (options.len() > 2).then_some(options);
        Self { content, block: block.unwrap_or(BLOCK), options }
    }

    /// Returns the number of the first packet.
    fn first(&self) -> usize {
        if self.options.is_some() { 0 } else { 1 }
    }

    /// Returns a packet; `None` after the last one.
    fn packet(&self, number: usize) -> Option<Vec<u8>> {
        let Some(index) = number.checked_sub(1) else { return self.options.clone() };
        let rest = self.content.get(index * self.block..)?;
        let data = rest.get(..self.block).unwrap_or(rest);
        // Numbers of long files start again at 0.
        Some([&DATA.to_be_bytes()[..], &(number as u16).to_be_bytes(), data].concat())
    }
}

/// The meaning of a client's packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Acknowledged,
    /// The client wants no more.
    Ended,
    /// The packet is a repetition, or means nothing.
    Nothing,
}

fn said(packet: &[u8], number: usize) -> Said {
    let word =
        |at: usize| packet.get(at..).and_then(|rest| rest.first_chunk().copied()).map(u16::from_be_bytes);
    match word(0) {
        Some(ACK) if word(2) == Some(number as u16) => Said::Acknowledged,
        Some(ERROR) => Said::Ended,
        _ => Said::Nothing,
    }
}

/// Sends a file to a client. Returns true if the client has acknowledged all of it.
pub(super) async fn send(
    socket: &UdpSocket,
    client: SocketAddr,
    wish: &Wish,
    content: Arc<[u8]>,
) -> io::Result<bool> {
    socket.connect(client).await?;
    let transfer = Transfer::new(wish, content);
    let mut number = transfer.first();
    while let Some(packet) = transfer.packet(number) {
        if !deliver(socket, &packet, number).await? {
            return Ok(false);
        }
        number += 1;
    }
    Ok(true)
}

/// Sends a packet until it is acknowledged. Returns false if the client wants no more, or is silent.
async fn deliver(socket: &UdpSocket, packet: &[u8], number: usize) -> io::Result<bool> {
    let mut answer = [0; HEAD];
    for _ in 0..ATTEMPTS {
        socket.send(packet).await?;
        let until = Instant::now() + WAIT;
        // The rest of a longer answer is cut off.
        while let Ok(received) = timeout_at(until, socket.recv(&mut answer)).await {
            match said(answer.get(..received?).unwrap_or_default(), number) {
                Said::Acknowledged => return Ok(true),
                Said::Ended => return Ok(false),
                Said::Nothing => {}
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Parses a wish in which a bar stands for the byte 0.
    fn wish(text: &str) -> Option<Wish> {
        Wish::parse(&[&[0, 1], text.replace('|', "\0").as_bytes()].concat())
    }

    #[test]
    fn wishes() {
        let plain = Wish { name: "a/b".into(), block: None, wants_size: false };
        assert_eq!(wish("a/b|octet|"), Some(plain.clone()));
        assert_eq!(wish("a/b|OCTET|tsize|0|BLKSIZE|1432|windowsize|4|").unwrap().block, Some(1432));
        assert!(wish("a/b|octet|tsize|0|").unwrap().wants_size);
        assert_eq!(wish("a/b|octet|blksize|7|"), Some(plain));
        assert_eq!((wish("a/b|netascii|"), wish("a/b|octet"), wish("")), (None, None, None));
        assert_eq!(Wish::parse(b"\0\x02a\0octet\0"), None, "a write");
    }

    #[test]
    fn options_come_first() {
        let transfer = Transfer::new(&wish("a|octet|tsize|0|blksize|9000|").unwrap(), Arc::from([1; 10]));
        assert_eq!(transfer.first(), 0);
        assert_eq!(
            transfer.packet(0).unwrap(),
            [&[0, 6][..], "blksize|1468|tsize|10|".replace('|', "\0").as_bytes()].concat()
        );
        let plain = Transfer::new(&wish("a|octet|").unwrap(), Arc::from([1; 10]));
        assert_eq!((plain.first(), plain.packet(1).unwrap().len()), (1, 14));
    }

    #[test]
    fn answers() {
        assert_eq!(said(&[0, 4, 0, 7], 7), Said::Acknowledged);
        assert_eq!(said(&[0, 4, 0, 0], 65536), Said::Acknowledged, "numbers start again");
        assert_eq!(said(&[0, 4, 0, 6], 7), Said::Nothing, "a repetition");
        assert_eq!(said(&[0, 5, 0, 8], 7), Said::Ended);
        assert_eq!(said(&[0], 7), Said::Nothing);
    }

    proptest! {
        /// The blocks of a file are the file, and a short block, perhaps without bytes, ends it.
        #[test]
        fn blocks_are_the_file(len in 0usize..5000, block in 8usize..2000) {
            let content: Arc<[u8]> = (0..len).map(|n| n as u8).collect();
            let wish = Wish { name: String::new(), block: Some(block), wants_size: false };
            let transfer = Transfer::new(&wish, content.clone());
            let blocks: Vec<_> = (1..).map_while(|number| transfer.packet(number)).collect();
            let data: Vec<u8> = blocks.iter().flat_map(|packet| packet[HEAD..].to_vec()).collect();
            prop_assert_eq!(&data[..], &content[..]);
            let block = block.min(LONGEST_BLOCK);
            let (last, others) = blocks.split_last().unwrap();
            prop_assert!(last.len() < HEAD + block);
            prop_assert!(others.iter().all(|packet| packet.len() == HEAD + block));
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Wish::parse(&bytes);
            let _ = said(&bytes, 1);
        }
    }
}
