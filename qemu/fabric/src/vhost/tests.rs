//! Tests with machines that share their memory, played by the frontend of the `vhost` crate. Their rings hold
//! both what a driver writes and what no driver writes.

use crate::tests::{config, meeting};
use crate::{Fabric, FabricConfig};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use vhost::vhost_user::Frontend;
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// The size of the machines' memory in bytes, and its address in the hypervisor as told to the fabric.
const MEMORY: usize = 1 << 20;
const USER: u64 = 0x7f00_0000_0000;
/// The number of descriptors in each ring.
const SIZE: u16 = 16;
// Offsets of a ring's parts in its 4 KiB, and of its buffers.
const AVAIL: u64 = 0x400;
const USED: u64 = 0x800;
const BUFFER: u64 = 0x1000;
const HEADER: usize = 12;
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const VERSION_1: u64 = 1 << 32;
const EVENT_IDX: u64 = 1 << 29;
const MERGEABLE: u64 = 1 << 15;
const LIMIT: Duration = Duration::from_secs(20);

fn base(side: usize) -> u64 {
    0x10000 * (1 + side as u64)
}

/// Waits for a condition that the fabric's threads bring about.
fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} does not come");
        std::thread::yield_now();
    }
}

fn memory_file(sealed: bool) -> File {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, MEMORY as u64).unwrap();
    if sealed {
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    }
    fd.into()
}

/// A machine with running rings.
struct Guest {
    memory: GuestMemoryMmap,
    frontend: Frontend,
    kick: [EventFd; 2],
    call: [EventFd; 2],
    mac: u8,
    given: [u16; 2],
    seen: [u16; 2],
}

impl Guest {
    /// Connects a machine that provides `buffers` receive buffers of `len` bytes.
    fn start(fabric: &Fabric, port: usize, features: u64, buffers: u16, len: u32) -> Self {
        let file = memory_file(true);
        let region = (GuestAddress(0), MEMORY, Some(FileOffset::new(file.try_clone().unwrap(), 0)));
        let memory = GuestMemoryMmap::from_ranges_with_files([region]).unwrap();
        let event = || EventFd::new(EFD_NONBLOCK).unwrap();
        let frontend = Frontend::connect(&fabric.vhost_sockets[port], 2).unwrap();
        let mac = u8::try_from(port).unwrap() + 1;
        let mut guest = Self {
            memory,
            frontend,
            kick: [event(), event()],
            call: [event(), event()],
            mac,
            given: [0; 2],
            seen: [0; 2],
        };
        for n in 0..buffers {
            guest.describe(RECEIVE, n, base(RECEIVE) + BUFFER * (1 + u64::from(n)), len, WRITE, 0);
            guest.give(RECEIVE, n);
        }
        guest.set_up(features, &file);
        guest
    }

    fn set_up(&mut self, features: u64, file: &File) {
        self.frontend.set_owner().unwrap();
        assert_eq!(self.frontend.get_features().unwrap() & features, features);
        self.frontend.set_features(features).unwrap();
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY as u64,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        };
        self.frontend.set_mem_table(&[region]).unwrap();
        for side in [RECEIVE, TRANSMIT] {
            let at = USER + base(side);
            let config = VringConfigData {
                queue_max_size: SIZE,
                queue_size: SIZE,
                flags: 0,
                desc_table_addr: at,
                used_ring_addr: at + USED,
                avail_ring_addr: at + AVAIL,
                log_addr: None,
            };
            self.frontend.set_vring_num(side, SIZE).unwrap();
            self.frontend.set_vring_base(side, 0).unwrap();
            self.frontend.set_vring_addr(side, &config).unwrap();
            self.frontend.set_vring_call(side, &self.call[side]).unwrap();
            self.frontend.set_vring_kick(side, &self.kick[side]).unwrap();
        }
        // The only message with an answer: it shows that the earlier ones have been executed.
        self.frontend.get_features().unwrap();
    }

    fn describe(&self, side: usize, id: u16, addr: u64, len: u32, flags: u16, next: u16) {
        let mut descriptor = [0; 16];
        descriptor[..8].copy_from_slice(&addr.to_le_bytes());
        descriptor[8..12].copy_from_slice(&len.to_le_bytes());
        descriptor[12..14].copy_from_slice(&flags.to_le_bytes());
        descriptor[14..].copy_from_slice(&next.to_le_bytes());
        self.memory.write_slice(&descriptor, GuestAddress(base(side) + 16 * u64::from(id))).unwrap();
    }

    fn set_u16(&self, at: u64, value: u16) {
        self.memory.store(value, GuestAddress(at), std::sync::atomic::Ordering::SeqCst).unwrap();
    }

    fn u16(&self, at: u64) -> u16 {
        self.memory.load(GuestAddress(at), std::sync::atomic::Ordering::SeqCst).unwrap()
    }

    fn give(&mut self, side: usize, id: u16) {
        self.set_u16(base(side) + AVAIL + 4 + 2 * u64::from(self.given[side] % SIZE), id);
        self.given[side] = self.given[side].wrapping_add(1);
        self.set_u16(base(side) + AVAIL + 2, self.given[side]);
    }

    fn kick(&self, side: usize) {
        self.kick[side].write(1).unwrap();
    }

    fn frame(&self, to: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, self.mac, 0x88, 0xb5];
        frame.extend(payload);
        frame
    }

    /// Sends a frame whose header and contents are in separate descriptors.
    fn send(&mut self, to: u8, payload: &[u8]) {
        self.offer(to, payload);
        self.kick(TRANSMIT);
        self.await_sent();
    }

    /// Sends a frame like [`send`](Self::send), with a kick only if the device has asked for one. Both have
    /// agreed on event indices.
    fn send_as_wanted(&mut self, to: u8, payload: &[u8]) {
        let index = self.given[TRANSMIT];
        self.offer(to, payload);
        let wanted = self.u16(base(TRANSMIT) + USED + 4 + 8 * u64::from(SIZE));
        if wanted == index {
            self.kick(TRANSMIT);
        }
        self.await_sent();
    }

    /// Puts a frame into the transmit ring.
    fn offer(&mut self, to: u8, payload: &[u8]) {
        let frame = self.frame(to, payload);
        let at = base(TRANSMIT) + BUFFER;
        self.memory.write_slice(&[0; HEADER], GuestAddress(at)).unwrap();
        self.memory.write_slice(&frame, GuestAddress(at + 64)).unwrap();
        self.describe(TRANSMIT, 0, at, HEADER as u32, NEXT, 1);
        self.describe(TRANSMIT, 1, at + 64, frame.len() as u32, 0, 0);
        self.give(TRANSMIT, 0);
    }

    fn await_sent(&self) {
        let used = base(TRANSMIT) + USED + 2;
        until("the used transmit buffer", || self.u16(used) == self.given[TRANSMIT]);
    }

    fn has_received(&self) -> u16 {
        self.u16(base(RECEIVE) + USED + 2).wrapping_sub(self.seen[RECEIVE])
    }

    /// Takes the next receive buffers that a frame filled. Returns the number of them in its header, and its
    /// sender and payload.
    fn receive(&mut self) -> (u16, (u8, Vec<u8>)) {
        until("a frame", || self.has_received() > 0);
        let mut bytes = Vec::new();
        let mut count = 1;
        let mut n = 0;
        while n < count {
            assert!(self.has_received() > 0, "buffers of a frame come together");
            let at = base(RECEIVE) + USED + 4 + 8 * u64::from(self.seen[RECEIVE] % SIZE);
            let mut element = [0; 8];
            self.memory.read_slice(&mut element, GuestAddress(at)).unwrap();
            let [id, len] = [0, 4].map(|o| u32::from_le_bytes(element[o..o + 4].try_into().unwrap()));
            let mut part = vec![0; len as usize];
            self.memory
                .read_slice(&mut part, GuestAddress(base(RECEIVE) + BUFFER * (1 + u64::from(id))))
                .unwrap();
            bytes.extend(part);
            if n == 0 {
                count = u16::from_le_bytes([bytes[10], bytes[11]]);
            }
            self.seen[RECEIVE] = self.seen[RECEIVE].wrapping_add(1);
            n += 1;
        }
        (count, (bytes[HEADER + 11], bytes[HEADER + 14..].to_vec()))
    }
}

fn fabric(ports: usize) -> (tempfile::TempDir, Fabric) {
    let dir = tempfile::tempdir().unwrap();
    let fabric = Fabric::start(&config(ports, dir.path())).unwrap();
    (dir, fabric)
}

#[test]
fn machines_with_rings_and_with_sockets_talk_to_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let (fabric, mut streams) = meeting(&FabricConfig { ports: 3, ..config(3, dir.path()) });
    // Two of the three connect again, with rings.
    let mut b = Guest::start(&fabric, 1, VERSION_1, 8, 4096);
    let mut c = Guest::start(&fabric, 2, VERSION_1 | EVENT_IDX, 8, 4096);
    let a = &mut streams[0];
    b.send(3, b"b to c");
    assert_eq!(c.receive(), (1, (2, b"b to c".to_vec())));
    // The port of `c` was not known yet.
    assert_eq!(a.receive(), (2, b"b to c".to_vec()));
    c.send(1, b"c to a");
    assert_eq!(a.receive(), (3, b"c to a".to_vec()));
    a.send(2, b"a to b");
    assert_eq!(b.receive(), (1, (1, b"a to b".to_vec())));
    a.send(0xff, b"all");
    assert_eq!(b.receive().1, (1, b"all".to_vec()));
    assert_eq!(c.receive().1, (1, b"all".to_vec()));
}

#[test]
fn interrupts_come_when_wanted() {
    let (_dir, fabric) = fabric(2);
    let mut a = Guest::start(&fabric, 0, VERSION_1 | EVENT_IDX, 4, 4096);
    let mut b = Guest::start(&fabric, 1, VERSION_1 | EVENT_IDX, 8, 4096);
    // A ring is called once when it starts.
    until("the call at the start", || b.call[RECEIVE].read().is_ok());
    // The guest asks for the event at the second frame.
    b.set_u16(base(RECEIVE) + AVAIL + 4 + 2 * u64::from(SIZE), 1);
    a.send(2, b"one");
    b.receive();
    a.send(2, b"two");
    b.receive();
    until("the call", || b.call[RECEIVE].read().is_ok());
    a.send(2, b"three");
    b.receive();
    a.send(9, b"nobody, and so the fabric has dealt with the frame before");
    assert!(b.call[RECEIVE].read().is_err());
    assert_eq!(fabric.counters().unwrap().ports[1].writes, 1);
}

#[test]
fn no_kick_is_lost_that_the_fabric_has_not_asked_for() {
    let (_dir, fabric) = fabric(2);
    let features = VERSION_1 | EVENT_IDX;
    let mut guests = [0, 1].map(|port| Guest::start(&fabric, port, features, 8, 2048));
    // The fabric learns the addresses.
    guests[0].send_as_wanted(2, b"hello");
    assert_eq!(guests[1].receive().1.1, b"hello");
    guests[1].give(RECEIVE, 0);
    for n in 0..2000u32 {
        let [from, to] = [n % 2, 1 - n % 2].map(|side| side as usize);
        // Some answers come later than the fabric looks for them.
        if n % 50 == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
        guests[from].send_as_wanted(to as u8 + 1, &n.to_le_bytes());
        assert_eq!(guests[to].receive().1.1, n.to_le_bytes(), "frame {n}");
        // The buffers are used in the order in which they were given.
        let id = guests[to].given[RECEIVE] % 8;
        guests[to].give(RECEIVE, id);
    }
}

#[test]
fn a_long_frame_fills_several_buffers_or_is_dropped() {
    let (_dir, fabric) = fabric(3);
    let mut a = Guest::start(&fabric, 0, VERSION_1, 4, 4096);
    let mut merging = Guest::start(&fabric, 1, VERSION_1 | MERGEABLE, 8, 1000);
    let _simple = Guest::start(&fabric, 2, VERSION_1, 8, 1000);
    let payload: Vec<u8> = (0..3500u32).map(|n| n as u8).collect();
    a.send(2, &payload);
    assert_eq!(merging.receive(), (4, (1, payload.clone())));
    a.send(3, &payload);
    until("the drop", || fabric.counters().unwrap().ports[2].dropped_long > 0);
}

#[test]
fn frames_wait_for_buffers() {
    let (_dir, fabric) = fabric(2);
    let mut a = Guest::start(&fabric, 0, VERSION_1 | EVENT_IDX, 4, 4096);
    let mut b = Guest::start(&fabric, 1, VERSION_1 | EVENT_IDX, 2, 4096);
    for n in 0..5u8 {
        a.send(2, &[n]);
    }
    for n in 0..5u8 {
        assert_eq!(b.receive(), (1, (1, vec![n])));
        b.give(RECEIVE, u16::from(n) % 2);
        b.kick(RECEIVE);
    }
}

#[test]
fn what_no_driver_writes_costs_the_ring_and_nothing_else() {
    type Misdeed = fn(&mut Guest);
    let deeds: [(&str, Misdeed); 5] = [
        ("an index that leaps", |g| g.set_u16(base(TRANSMIT) + AVAIL + 2, 1000)),
        ("a descriptor that is not there", |g| g.give(TRANSMIT, SIZE)),
        ("memory that is not there", |g| {
            g.describe(TRANSMIT, 0, 1 << 40, 100, 0, 0);
            g.give(TRANSMIT, 0);
        }),
        ("memory that ends", |g| {
            g.describe(TRANSMIT, 0, MEMORY as u64 - 50, 100, 0, 0);
            g.give(TRANSMIT, 0);
        }),
        ("addresses that wrap", |g| {
            g.describe(TRANSMIT, 0, u64::MAX - 5, 100, 0, 0);
            g.give(TRANSMIT, 0);
        }),
    ];
    let (_dir, fabric) = fabric(3);
    let mut a = Guest::start(&fabric, 0, VERSION_1, 8, 4096);
    let mut b = Guest::start(&fabric, 1, VERSION_1, 16, 4096);
    for (n, (what, misdeed)) in deeds.into_iter().enumerate() {
        let mut bad = Guest::start(&fabric, 2, VERSION_1, 4, 4096);
        misdeed(&mut bad);
        bad.kick(TRANSMIT);
        let errors = n as u64 + 1;
        until(what, || fabric.counters().unwrap().ports[2].protocol_errors == errors);
        a.send(2, what.as_bytes());
        assert_eq!(b.receive().1, (1, what.as_bytes().to_vec()));
    }
}

#[test]
fn chains_that_hold_no_frame_are_given_back() {
    type Misdeed = fn(&mut Guest);
    let deeds: [(&str, Misdeed); 5] = [
        ("a loop", |g| g.describe(TRANSMIT, 0, base(TRANSMIT) + BUFFER, 0, NEXT, 0)),
        ("a loop of long parts", |g| g.describe(TRANSMIT, 0, base(TRANSMIT) + BUFFER, 40_000, NEXT, 0)),
        ("a length of 4 GB", |g| g.describe(TRANSMIT, 0, base(TRANSMIT), u32::MAX, 0, 0)),
        ("a buffer to be written", |g| g.describe(TRANSMIT, 0, base(TRANSMIT) + BUFFER, 100, WRITE, 0)),
        ("an indirect table in itself", |g| {
            let at = base(TRANSMIT);
            g.describe(TRANSMIT, 0, at, 16, INDIRECT, 0);
        }),
    ];
    let (_dir, fabric) = fabric(2);
    let mut bad = Guest::start(&fabric, 0, VERSION_1, 4, 4096);
    let mut b = Guest::start(&fabric, 1, VERSION_1, 16, 4096);
    for (n, (what, misdeed)) in deeds.into_iter().enumerate() {
        misdeed(&mut bad);
        bad.give(TRANSMIT, 0);
        bad.kick(TRANSMIT);
        let invalid = n as u64 + 1;
        until(what, || fabric.counters().unwrap().ports[0].dropped_invalid == invalid);
        bad.send(2, what.as_bytes());
        assert_eq!(b.receive().1, (1, what.as_bytes().to_vec()));
    }
    assert_eq!(fabric.counters().unwrap().ports[0].protocol_errors, 0);
}

#[test]
fn receive_buffers_outside_of_memory_cost_the_ring() {
    let (_dir, fabric) = fabric(2);
    let mut a = Guest::start(&fabric, 0, VERSION_1, 4, 4096);
    let mut bad = Guest::start(&fabric, 1, VERSION_1, 0, 0);
    bad.describe(RECEIVE, 0, MEMORY as u64 - 20, 4096, WRITE, 0);
    bad.give(RECEIVE, 0);
    a.send(2, b"nowhere to go");
    until("the end of the ring", || fabric.counters().unwrap().ports[1].protocol_errors == 1);
    a.send(2, b"and to nobody");
    assert_eq!(fabric.counters().unwrap().ports[1].frames_out, 1);
}

#[test]
fn a_machine_may_go_at_any_time_and_come_back() {
    let (_dir, fabric) = fabric(2);
    let mut a = Guest::start(&fabric, 0, VERSION_1, 16, 4096);
    for _ in 0..3 {
        let mut b = Guest::start(&fabric, 1, VERSION_1, 1, 4096);
        b.send(1, b"here");
        assert_eq!(a.receive().1, (2, b"here".to_vec()));
        // More frames than there are buffers: some are queued when the machine disconnects.
        for _ in 0..3 {
            a.send(2, b"lost");
        }
        drop(b);
    }
    let mut socket = UnixStream::connect(&fabric.vhost_sockets[1]).unwrap();
    // Half a message and then nothing delays only its own connection.
    socket.write_all(&[1, 0, 0]).unwrap();
    a.send(9, b"goes on");
    drop(socket);
    let mut b = Guest::start(&fabric, 1, VERSION_1, 4, 4096);
    b.send(1, b"back");
    assert_eq!(a.receive().1, (2, b"back".to_vec()));
}

#[test]
fn a_ring_is_stopped_and_goes_on_where_it_was() {
    let (_dir, fabric) = fabric(2);
    let mut a = Guest::start(&fabric, 0, VERSION_1, 4, 4096);
    let mut b = Guest::start(&fabric, 1, VERSION_1, 8, 4096);
    b.send(1, b"one");
    a.send(2, b"two");
    assert_eq!(b.receive().1, (1, b"two".to_vec()));
    assert_eq!(b.frontend.get_vring_base(RECEIVE).unwrap(), 1);
    a.send(2, b"while it is stopped");
    until("the drop", || fabric.counters().unwrap().ports[1].dropped_down == 1);
    b.frontend.set_vring_kick(RECEIVE, &b.kick[RECEIVE]).unwrap();
    b.frontend.get_features().unwrap();
    fabric.counters().unwrap();
    a.send(2, b"three");
    assert_eq!(b.receive().1, (1, b"three".to_vec()));
}

#[test]
fn memory_that_could_shrink_is_refused() {
    let (_dir, fabric) = fabric(1);
    let file = memory_file(false);
    let frontend = Frontend::connect(&fabric.vhost_sockets[0], 2).unwrap();
    let region = VhostUserMemoryRegionInfo {
        guest_phys_addr: 0,
        memory_size: MEMORY as u64,
        userspace_addr: USER,
        mmap_offset: 0,
        mmap_handle: file.as_raw_fd(),
    };
    frontend.set_mem_table(&[region]).unwrap();
    assert!(frontend.get_features().is_err(), "the connection is closed");
}

#[test]
fn a_ring_that_is_enabled_early_is_answered() {
    let (_dir, fabric) = fabric(1);
    let mut socket = UnixStream::connect(&fabric.vhost_sockets[0]).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    // SET_VRING_ENABLE of version 1 that asks for an answer, with 8 bytes: ring 0 is enabled.
    let words: [u32; 5] = [18, 1 | 8, 8, 0, 1];
    socket.write_all(&words.map(u32::to_ne_bytes).concat()).unwrap();
    let mut answer = [0; 20];
    socket.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..], [18u32, 5, 8, 0, 0].map(u32::to_ne_bytes).concat()[..]);
}
