//! A client that violates the protocol gets an error or loses its connection; the card stays.

use connectx3::device::{Card, Profile};
use connectx3::pci::PciCard;
use connectx3::server::{Network, Server, Slot};
use connectx3::trace::{Observer, Watch};
use connectx3::vfio::{Connection, Ended};
use fastrand::Rng;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::cell::Cell;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use verbs::MacAddr;

const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const DMA_UNMAP: u16 = 3;
const GET_REGION_INFO: u16 = 5;
const GET_IRQ_INFO: u16 = 7;
const SET_IRQS: u16 = 8;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
const RESET: u16 = 13;
const WRITE_MULTI: u16 = 15;

const BAR0: u32 = 0;
const BAR2: u32 = 2;
const CONFIG: u32 = 7;

struct Client {
    socket: UnixStream,
    connection: Connection,
    card: PciCard,
}

/// The answer to a message.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Ok(Vec<u8>),
    Error(u32),
    /// No answer: the message is incomplete, or wants no reply.
    None,
    Closed,
}

impl Client {
    fn new() -> Self {
        let (socket, server) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let card = PciCard::new(Card::new(Profile::pro(MacAddr([2, 0, 0, 0, 0, 1]))));
        Self {
            socket,
            connection: Connection::new(server, Arc::new(Observer::new("card".into(), Watch::default())))
                .unwrap(),
            card,
        }
    }

    fn send(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Answer {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
        match self.connection.serve(&mut self.card) {
            Ok(()) => {}
            Err(Ended::Protocol(_) | Ended::Closed) => return Answer::Closed,
            Err(e) => panic!("{e}"),
        }
        let mut reply = vec![0; 4096];
        let Ok(n) = self.socket.read(&mut reply) else { return Answer::None };
        let word = |at: usize| u32::from_le_bytes(reply[at..at + 4].try_into().unwrap());
        if word(8) >> 5 & 1 != 0 { Answer::Error(word(12)) } else { Answer::Ok(reply[16..n].to_vec()) }
    }

    fn ask(&mut self, command: u16, body: &[u8], fds: &[BorrowedFd<'_>]) -> Answer {
        self.send(&message(command, body), fds)
    }
}

fn message(command: u16, body: &[u8]) -> Vec<u8> {
    let mut out = vec![7, 0];
    out.extend(command.to_le_bytes());
    out.extend((16 + body.len() as u32).to_le_bytes());
    out.extend([0; 8]);
    out.extend(body);
    out
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn access(offset: u64, region: u32, count: u32, data: &[u8]) -> Vec<u8> {
    [&offset.to_le_bytes()[..], &words(&[region, count]), data].concat()
}

fn map(offset: u64, addr: u64, len: u64) -> Vec<u8> {
    let mut body = words(&[32, 3]);
    for value in [offset, addr, len] {
        body.extend(value.to_le_bytes());
    }
    body
}

fn memory(len: u64) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, len).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    fd
}

const INVALID: Answer = Answer::Error(22);

#[test]
fn sizes_that_cannot_be_close_the_connection() {
    for size in [0u32, 1, 15, (1 << 20) + 4097, u32::MAX] {
        let mut bytes = message(VERSION, &[0; 4]);
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        assert_eq!(Client::new().send(&bytes, &[]), Answer::Closed, "{size}");
    }
}

#[test]
fn bodies_that_are_too_short_and_commands_that_there_are_not_are_errors() {
    let mut client = Client::new();
    let whole = [
        (VERSION, vec![0; 4]),
        (DMA_MAP, map(0, 0, 4096)),
        (DMA_UNMAP, map(0, 0, 0)[..24].to_vec()),
        (GET_REGION_INFO, words(&[32, 0, 0])),
        (GET_IRQ_INFO, words(&[16, 0, 0])),
        (SET_IRQS, words(&[20, 0x21, 2, 0, 1])),
        (REGION_READ, access(0x80680, BAR0, 4, &[])),
        (REGION_WRITE, access(0x80680, BAR0, 4, &[0; 4])),
        (WRITE_MULTI, [&1u64.to_le_bytes()[..], &access(0x80680, BAR0, 4, &[0; 8])].concat()),
    ];
    for (command, body) in whole {
        for len in 0..body.len() {
            assert_eq!(client.ask(command, &body[..len], &[]), INVALID, "command {command}, {len} bytes");
        }
        assert!(matches!(client.ask(command, &body, &[]), Answer::Ok(_)), "command {command}");
    }
    for command in [0, 6, 11, 12, 14, 16, 0xffff] {
        assert_eq!(client.ask(command, &[0; 64], &[]), Answer::Error(95), "command {command}");
    }
    assert_eq!(client.ask(WRITE_MULTI, &u64::MAX.to_le_bytes(), &[]), INVALID);
}

#[test]
fn accesses_beyond_regions_are_errors() {
    let mut client = Client::new();
    let (bar0, bar2) = (1u64 << 20, 1u64 << 23);
    for (offset, region, count) in [
        (bar0, BAR0, 4),
        (bar0 - 3, BAR0, 4),
        (bar2 - 7, BAR2, 8),
        (u64::MAX, BAR0, 1),
        (u64::MAX - 3, BAR2, 8),
        (0, BAR0, u32::MAX),
        (0, BAR0, (1 << 20) + 1),
        (4095, CONFIG, 2),
        (0, 1, 1),
        (0, 6, 4),
        (0, 8, 4),
        (0, u32::MAX, 4),
    ] {
        let what = format!("{offset:#x} of region {region}, {count} bytes");
        assert_eq!(client.ask(REGION_READ, &access(offset, region, count, &[]), &[]), INVALID, "{what}");
        if count <= 8 {
            let body = access(offset, region, count, &vec![0xff; count as usize]);
            assert_eq!(client.ask(REGION_WRITE, &body, &[]), INVALID, "{what}");
        }
    }
    // Within a region but of an unusual size: nothing happens.
    for (offset, region, count) in
        [(1, BAR0, 4), (0x80680, BAR0, 3), (0x14, BAR2, 1), (0, BAR0, 0), (4095, CONFIG, 1)]
    {
        let body = access(offset, region, count, &vec![0xff; count as usize]);
        assert!(matches!(client.ask(REGION_WRITE, &body, &[]), Answer::Ok(_)));
        assert!(matches!(client.ask(REGION_READ, &access(offset, region, count, &[]), &[]), Answer::Ok(_)));
    }
}

#[test]
fn memory_that_is_none_is_refused() {
    let mut client = Client::new();
    let good = memory(0x2000);
    let null = std::fs::File::open("/dev/null").unwrap();
    let (read, _write) = std::io::pipe().unwrap();
    let cases: [(&str, Vec<u8>, BorrowedFd<'_>); 8] = [
        ("no bytes", map(0, 0, 0), good.as_fd()),
        ("more than the file has", map(0x1000, 0, 0x1001), good.as_fd()),
        ("an offset round the end", map(u64::MAX, 0, 0x1000), good.as_fd()),
        ("an offset within a page", map(1, 0, 0x1000), good.as_fd()),
        ("addresses round the end", map(0, u64::MAX - 0xfff, 0x1001), good.as_fd()),
        ("a length without end", map(0, 0, u64::MAX), good.as_fd()),
        ("a device", map(0, 0, 0x1000), null.as_fd()),
        ("a pipe", map(0, 0, 0x1000), read.as_fd()),
    ];
    for (name, body, fd) in cases {
        assert_eq!(client.ask(DMA_MAP, &body, &[fd]), INVALID, "{name}");
    }
    assert!(matches!(client.ask(DMA_MAP, &map(0, 0x1000, 0x2000), &[good.as_fd()]), Answer::Ok(_)));
    assert_eq!(client.ask(DMA_MAP, &map(0, 0x2000, 0x1000), &[good.as_fd()]), INVALID, "over another");
    // Unexpected descriptors are closed.
    assert!(matches!(client.ask(RESET, &[], &[good.as_fd(), good.as_fd()]), Answer::Ok(_)));
}

#[test]
fn interrupts_that_there_are_not_are_refused() {
    let mut client = Client::new();
    for (index, start, count) in [(2, 0, 129), (2, 128, 1), (2, u32::MAX, 2), (2, 1, u32::MAX)] {
        assert_eq!(client.ask(SET_IRQS, &words(&[20, 0x24, index, start, count]), &[]), INVALID);
    }
    for index in [1, 3, 4, 99, u32::MAX] {
        assert!(matches!(client.ask(SET_IRQS, &words(&[20, 0x24, index, 0, 1]), &[]), Answer::Ok(_)));
    }
    assert_eq!(client.ask(GET_IRQ_INFO, &words(&[16, 0, 5]), &[]), INVALID);
    assert_eq!(client.ask(GET_REGION_INFO, &words(&[32, 0, 9]), &[]), INVALID);
}

#[test]
fn an_interrupt_into_a_full_pipe_does_not_wait() {
    let mut client = Client::new();
    let (_read, write) = std::io::pipe().unwrap();
    let body = words(&[20, 0x24, 2, 0, 1]);
    assert!(matches!(client.ask(SET_IRQS, &body, &[write.as_fd()]), Answer::Ok(_)));
    for _ in 0..100_000 {
        connectx3::device::Host::message(client.connection.client(), 0);
    }
}

#[test]
fn a_client_that_takes_no_replies_is_left_waiting_and_loses_none() {
    const READS: u16 = 60_000;
    const REPLY: usize = 16 + 16 + 4;
    let mut client = Client::new();
    let ask = |id: u16| {
        let mut bytes = message(REGION_READ, &access(0, CONFIG, 4, &[]));
        bytes[..2].copy_from_slice(&id.to_le_bytes());
        bytes
    };
    // Requests are accepted until too many replies are pending, and then stay in the socket. No call blocks.
    let mut requests = (0..READS).flat_map(ask).collect::<Vec<_>>();
    for _ in 0..READS {
        if let Ok(n) = client.socket.write(&requests) {
            requests.drain(..n);
        }
        client.connection.serve(&mut client.card).unwrap();
    }
    assert!(client.connection.wants_room() && !requests.is_empty());
    // The client now reads its replies.
    let (mut replies, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
    for _ in 0..READS {
        if let Ok(n) = client.socket.write(&requests) {
            requests.drain(..n);
        }
        client.connection.serve(&mut client.card).unwrap();
        if let Ok(n) = client.socket.read(&mut chunk) {
            replies.extend_from_slice(&chunk[..n]);
        }
    }
    let ids = replies.chunks(REPLY).map(|reply| u16::from_le_bytes([reply[0], reply[1]]));
    assert!(ids.eq(0..READS) && !client.connection.wants_room());
}

#[test]
fn descriptors_do_not_pile_up() {
    let mut client = Client::new();
    let fd = memory(0x1000);
    // The front of a long message, byte by byte, each with descriptors.
    let front = &message(REGION_WRITE, &vec![0; 1 << 16])[..64];
    let closed = front.iter().position(|&byte| client.send(&[byte], &[fd.as_fd(); 8]) == Answer::Closed);
    assert!(closed.is_some_and(|n| n < 16), "{closed:?}");
}

#[test]
fn any_messages() {
    let fds = [memory(0x10_0000), memory(0x1000)];
    let mut answers = [0u32; 4];
    for seed in 1..=40 {
        let (mut client, mut random) = (Client::new(), Rng::with_seed(seed));
        for _ in 0..200 {
            let command = random.u16(..17);
            let mut body: Vec<u8> =
                (0..random.u64(..40)).map(|_| if random.u64(..3) == 0 { random.u8(..) } else { 0 }).collect();
            if random.bool() && matches!(command, REGION_READ | REGION_WRITE) {
                let region = [BAR0, BAR2, CONFIG][random.usize(..3)];
                let (offset, len) = (random.u64(..1 << 20) & !3, random.u64(..9));
                body = access(offset, region, len as u32, &vec![random.u8(..); len as usize]);
            }
            let mut bytes = message(command, &body);
            if random.u64(..50) == 0 {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
            let some: Vec<_> = fds.iter().take(random.usize(..3)).map(AsFd::as_fd).collect();
            let answer = client.send(&bytes, &some);
            let kind = match answer {
                Answer::Ok(_) => 0,
                Answer::Error(_) => 1,
                Answer::None => 2,
                Answer::Closed => 3,
            };
            answers[kind] += 1;
            if answer == Answer::Closed {
                client = Client { card: client.card, ..Client::new() };
            }
        }
        let again = Client { card: client.card, ..Client::new() }.ask(VERSION, &[0; 4], &[]);
        assert!(matches!(again, Answer::Ok(_)), "seed {seed}");
    }
    assert!(answers.iter().all(|&n| n > 5), "{answers:?}");
}

/// Handles the events on the server's sockets, in a number of batches.
fn handle(server: &mut Server, batches: u32) {
    let asked = Cell::new(0);
    server.run(|| asked.replace(asked.get() + 1) == batches).unwrap();
}

#[test]
fn a_client_that_comes_while_the_last_messages_of_the_former_one_are_unread_is_admitted() {
    let dir = tempfile::tempdir().unwrap();
    let slot = Slot { client: dir.path().join("card"), plugs: Vec::new() };
    let path = slot.client.clone();
    let card = Card::new(Profile::pro(MacAddr([2, 0, 0, 0, 0, 1])));
    let mut server = Server::new(vec![(slot, card)], Network::default(), Watch::default()).unwrap();
    let mut first = UnixStream::connect(&path).unwrap();
    handle(&mut server, 1);
    let mut second = UnixStream::connect(&path).unwrap();
    handle(&mut server, 1);
    // The second client waits for the first one to leave, until its timeout.
    second.set_nonblocking(true).unwrap();
    while second.read(&mut [0; 1]).is_err() {
        handle(&mut server, 1);
    }
    first.write_all(&message(VERSION, &[0; 4])).unwrap();
    drop(first);
    let mut third = UnixStream::connect(&path).unwrap();
    handle(&mut server, 2);
    third.write_all(&message(VERSION, &[0; 4])).unwrap();
    handle(&mut server, 1);
    third.set_nonblocking(true).unwrap();
    assert!(third.read(&mut [0; 64]).unwrap() > 16, "the third client gets an answer");
}

/// A socket may stay open for a moment after its process has ended, as with QEMU's io_uring.
#[test]
fn a_client_that_comes_before_the_former_ones_socket_is_closed_is_admitted_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let slot = Slot { client: dir.path().join("card"), plugs: Vec::new() };
    let path = slot.client.clone();
    let card = Card::new(Profile::pro(MacAddr([2, 0, 0, 0, 0, 1])));
    let mut server = Server::new(vec![(slot, card)], Network::default(), Watch::default()).unwrap();
    let first = UnixStream::connect(&path).unwrap();
    handle(&mut server, 1);
    let mut second = UnixStream::connect(&path).unwrap();
    handle(&mut server, 1);
    second.write_all(&message(VERSION, &[0; 4])).unwrap();
    second.set_nonblocking(true).unwrap();
    assert!(second.read(&mut [0; 64]).is_err(), "the second client waits");
    drop(first);
    handle(&mut server, 2);
    assert!(second.read(&mut [0; 64]).unwrap() > 16, "the second client gets an answer");
}
