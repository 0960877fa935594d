//! Tests of the fabric from the machines' side, with real sockets and a real thread, without sleeps.

use super::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// A machine at a port.
pub(crate) struct Machine {
    stream: UnixStream,
    mac: u8,
}

impl Machine {
    fn connect(fabric: &Fabric, port: usize) -> Self {
        let stream = UnixStream::connect(fabric.socket(port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { stream, mac: u8::try_from(port).unwrap() + 1 }
    }

    fn frame(&self, to: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame =
            vec![if to == 0xff { 0xff } else { 2 }, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, self.mac, 0x88, 0xb5];
        frame.extend(payload);
        frame
    }

    pub(crate) fn send(&mut self, to: u8, payload: &[u8]) {
        let frame = self.frame(to, payload);
        self.stream.write_all(&u32::try_from(frame.len()).unwrap().to_be_bytes()).unwrap();
        self.stream.write_all(&frame).unwrap();
    }

    /// Returns the sender and the payload of the next frame.
    pub(crate) fn receive(&mut self) -> (u8, Vec<u8>) {
        let mut len = [0; 4];
        self.stream.read_exact(&mut len).unwrap();
        let mut frame = vec![0; u32::from_be_bytes(len) as usize];
        self.stream.read_exact(&mut frame).unwrap();
        (frame[11], frame[14..].to_vec())
    }
}

pub(crate) fn config(ports: usize, dir: &Path) -> FabricConfig {
    FabricConfig { ports, dir: dir.into(), faults: Faults::NONE, seed: 1, pcap: None }
}

/// Starts a fabric whose machines have all sent a frame, so that every address is learned.
pub(crate) fn meeting(config: &FabricConfig) -> (Fabric, Vec<Machine>) {
    let quiet = FabricConfig { faults: Faults::NONE, ..config.clone() };
    let fabric = Fabric::start(&quiet).unwrap();
    let mut machines: Vec<_> = (0..config.ports).map(|n| Machine::connect(&fabric, n)).collect();
    // A connection is in use once a frame to its own address has come through its port: that frame is dropped
    // and counted.
    for (n, machine) in machines.iter_mut().enumerate() {
        let me = machine.mac;
        machine.send(me, b"here");
        while fabric.counters().unwrap().ports[n].dropped_invalid == 0 {
            std::thread::yield_now();
        }
    }
    fabric.set_faults(config.faults).unwrap();
    fabric.counters().unwrap();
    (fabric, machines)
}

#[test]
fn unicast_goes_to_one_and_broadcast_to_all_others() {
    let dir = tempfile::tempdir().unwrap();
    let (fabric, mut m) = meeting(&config(3, dir.path()));
    m[0].send(2, b"for two");
    m[0].send(0xff, b"for all");
    m[0].send(9, b"for whom");
    assert_eq!(m[1].receive(), (1, b"for two".to_vec()));
    for n in [1, 2] {
        assert_eq!(m[n].receive(), (1, b"for all".to_vec()));
        assert_eq!(m[n].receive(), (1, b"for whom".to_vec()));
    }
    let counters = fabric.stop().unwrap();
    assert_eq!(counters.ports.iter().map(|p| p.frames_out).collect::<Vec<_>>(), [0, 3, 2]);
    assert_eq!(counters.ports[0].frames_in, 4);
}

#[test]
fn frames_in_pieces_and_in_bulk_keep_order_and_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (_fabric, mut m) = meeting(&config(3, dir.path()));
    let mut stream = Vec::new();
    let payload = |n: u32| vec![n as u8; (n as usize * 37) % 5000 + 1];
    for n in 0..600 {
        let frame = m[0].frame(if n % 3 == 0 { 3 } else { 2 }, &payload(n));
        stream.extend(u32::try_from(frame.len()).unwrap().to_be_bytes());
        stream.extend(frame);
    }
    let mut sender = m[0].stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        // Pieces of odd length, which cut prefixes and frames anywhere.
        for piece in stream.chunks(4093) {
            sender.write_all(piece).unwrap();
        }
    });
    for n in 0..600 {
        assert_eq!(m[if n % 3 == 0 { 2 } else { 1 }].receive(), (1, payload(n)), "frame {n}");
    }
    writer.join().unwrap();
}

#[test]
fn a_port_that_does_not_read_loses_frames_and_stops_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let (fabric, mut m) = meeting(&config(3, dir.path()));
    let payload = vec![7; 60_000];
    for _ in 0..200 {
        m[0].send(2, &payload);
    }
    m[0].send(3, b"after");
    assert_eq!(m[2].receive(), (1, b"after".to_vec()));
    let port = fabric.counters().unwrap().ports[1];
    assert_eq!(port.frames_out + port.dropped_full, 200);
    assert!(port.dropped_full > 100, "{port:?}");
    for _ in 0..port.frames_out {
        assert_eq!(m[1].receive(), (1, payload.clone()));
    }
}

#[test]
fn a_machine_that_speaks_something_else_is_cut_off_and_may_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let (fabric, mut m) = meeting(&config(2, dir.path()));
    m[0].stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(matches!(m[0].stream.read(&mut [0]), Ok(0) | Err(_)));
    m[0] = Machine::connect(&fabric, 0);
    m[0].send(2, b"again");
    assert_eq!(m[1].receive(), (1, b"again".to_vec()));
    assert_eq!(fabric.counters().unwrap().ports[0].protocol_errors, 1);
}

#[test]
fn a_pulled_cable_carries_nothing_until_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let (fabric, mut m) = meeting(&config(2, dir.path()));
    fabric.set_link(1, false).unwrap();
    m[0].send(2, b"lost");
    while fabric.counters().unwrap().ports[1].dropped_down == 0 {
        std::thread::yield_now();
    }
    fabric.set_link(1, true).unwrap();
    fabric.counters().unwrap();
    m[0].send(2, b"arrives");
    assert_eq!(m[1].receive(), (1, b"arrives".to_vec()));
}

#[test]
fn the_seed_decides_which_frames_are_lost() {
    let run = |seed| {
        let dir = tempfile::tempdir().unwrap();
        let faults = Faults::parse("loss=0.3,dup=0.1").unwrap();
        let (fabric, mut m) = meeting(&FabricConfig { faults, seed, ..config(2, dir.path()) });
        for n in 0..200u8 {
            m[0].send(2, &[n]);
        }
        while fabric.counters().unwrap().faults.pushed < 200 {
            std::thread::yield_now();
        }
        fabric.set_faults(Faults::NONE).unwrap();
        fabric.counters().unwrap();
        m[0].send(2, b"end");
        let mut seen = Vec::new();
        loop {
            let (_, payload) = m[1].receive();
            if payload == b"end" {
                break seen;
            }
            seen.push(payload[0]);
        }
    };
    let first = run(5);
    assert_eq!(first, run(5));
    assert_ne!(first, run(6));
    assert!(first.len() > 100 && first.len() < 200, "{}", first.len());
}

#[test]
fn the_capture_has_every_frame_as_it_was_sent() {
    let dir = tempfile::tempdir().unwrap();
    let pcap = dir.path().join("all.pcap");
    let faults = Faults::parse("loss=1").unwrap();
    let (fabric, mut m) =
        meeting(&FabricConfig { faults, pcap: Some(pcap.clone()), ..config(2, dir.path()) });
    m[0].send(2, b"captured");
    while fabric.counters().unwrap().faults.lost == 0 {
        std::thread::yield_now();
    }
    fabric.stop().unwrap();
    let bytes = std::fs::read(pcap).unwrap();
    let mut records = Vec::new();
    let mut rest = &bytes[24..];
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        records.push(rest[16..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    // The two greetings of the meeting, then the frame.
    assert_eq!(records.len(), 3);
    assert_eq!(records[2], m[0].frame(2, b"captured"));
}
