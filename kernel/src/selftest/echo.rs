//! `selftest=echo`: frames of two machines on one fabric, without a transport. Their times and rates are the
//! floor below those of the software RNIC (`cargo xtask bench softroce`). It prints figures and judges none.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use platform::Instant;
use softroce::EthernetPort;
use verbs::MacAddr;

use super::Outcome;
use crate::net::port::RocePort;
use crate::{net, time};

/// The Ethertype of RoCE v1: these frames take the RNIC's path.
const ETHERTYPE: [u8; 2] = [0x89, 0x15];
/// The length of the Ethernet header, and that of the kind, the answer's length and the number behind it.
const HEADER: usize = 14;
const HEAD: usize = HEADER + 7;

/// The lengths of RoCE v2 frames, in bytes: a WRITE of 8 and of 64 bytes, the middle of a long WRITE at MTU
/// 4096, and an acknowledgement.
const WRITE_8: usize = 82;
const WRITE_64: usize = 138;
const MIDDLE: usize = 4154;
const ACKNOWLEDGEMENT: usize = 62;

/// Frames in flight at most, and frames to each answer, as in the transport.
const WINDOW: u32 = 64;
const ANSWERED: u32 = 16;
/// The frames received in one call, as by the executor's poller.
const BUDGET: usize = 64;
/// Round trips that are not counted, because QEMU translates the code meanwhile, and those that are.
const UNCOUNTED: u32 = 200;
const ROUND_TRIPS: u32 = 2000;
/// The frames of a stream, and the number of streams; the fastest counts.
const STREAM: u32 = 4096;
const STREAMS: u32 = 5;
/// The time after which a silent peer is given up.
const SILENCE: Duration = Duration::from_secs(10);

/// The purpose of a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A part of a stream, which gets no answer.
    Data = 1,
    /// A frame that is answered.
    Question,
    Answer,
    /// The last frame.
    End,
}

/// A received frame.
struct Received {
    from: MacAddr,
    kind: u8,
    /// The length of the answer, in bytes.
    answer: usize,
    number: u32,
}

impl Received {
    fn parse(frame: &[u8]) -> Option<Self> {
        let [head @ .., kind, a, b, c, d, e, f] = frame.first_chunk::<HEAD>()?;
        Some(Self {
            from: MacAddr(*head.get(6..12)?.first_chunk()?),
            kind: *kind,
            answer: u16::from_be_bytes([*a, *b]).into(),
            number: u32::from_be_bytes([*c, *d, *e, *f]),
        })
    }
}

/// A port and the time of its last frame.
struct Wire {
    port: RocePort,
    heard: Instant,
}

impl Wire {
    /// Queues a frame of `len` bytes. Returns false if there is no room.
    fn send(&mut self, to: MacAddr, kind: Kind, len: usize, answer: usize, number: u32) -> bool {
        let from = self.port.mac();
        self.port.transmit(len, &mut |out| {
            out[..6].copy_from_slice(&to.0);
            out[6..12].copy_from_slice(&from.0);
            out[12..HEADER].copy_from_slice(&ETHERTYPE);
            out[HEADER] = kind as u8;
            out[HEADER + 1..HEADER + 3].copy_from_slice(&(answer as u16).to_be_bytes());
            out[HEADER + 3..HEAD].copy_from_slice(&number.to_be_bytes());
            len
        })
    }

    /// Calls `each` with the frames that have arrived.
    ///
    /// # Errors
    /// A line for the user: nothing has arrived for long.
    fn receive(&mut self, mut each: impl FnMut(Received)) -> Result<(), String> {
        let taken = self.port.receive(BUDGET, &mut |frame| {
            if let Some(received) = Received::parse(frame) {
                each(received);
            }
        });
        let now = time::now();
        if taken > 0 {
            self.heard = now;
        } else if now > self.heard + SILENCE {
            return Err(format!("no frame for {} s", SILENCE.as_secs()));
        } else {
            // Sends what the device has not noticed yet.
            self.port.flush();
        }
        Ok(())
    }

    /// Answers questions until the last frame: of those received together only the last, as an
    /// acknowledgement answers for all packets before it.
    fn serve(&mut self) -> Result<u32, String> {
        let (mut answers, mut ended) = (0, false);
        while !ended {
            let mut question = None;
            self.receive(|received| {
                ended |= received.kind == Kind::End as u8;
                if received.kind == Kind::Question as u8 {
                    question = Some(received);
                }
            })?;
            if let Some(Received { from, answer, number, .. }) = question {
                self.send(from, Kind::Answer, answer, 0, number);
                self.port.flush();
                answers += 1;
            }
        }
        Ok(answers)
    }

    /// Returns the number of the last answer that has arrived, if any.
    fn answer(&mut self) -> Result<Option<u32>, String> {
        let mut last = None;
        self.receive(|received| {
            if received.kind == Kind::Answer as u8 {
                last = Some(received.number);
            }
        })?;
        Ok(last)
    }

    /// Returns the median time of a frame of `len` bytes and an answer of the same length.
    fn round_trip(&mut self, peer: MacAddr, len: usize) -> Result<Duration, String> {
        let mut times = Vec::with_capacity(ROUND_TRIPS as usize);
        for number in 0..UNCOUNTED + ROUND_TRIPS {
            let begun = time::now();
            if !self.send(peer, Kind::Question, len, len, number) {
                return Err("the transmit ring is full".into());
            }
            self.port.flush();
            while self.answer()? != Some(number) {}
            if number >= UNCOUNTED {
                times.push(time::now().saturating_since(begun));
            }
        }
        times.sort_unstable();
        times.get(times.len() / 2).copied().ok_or_else(|| "no round trip".into())
    }

    /// Returns the time of a stream of frames of `len` bytes, for each of them.
    fn stream(&mut self, peer: MacAddr, len: usize) -> Result<Duration, String> {
        let begun = time::now();
        let (mut sent, mut answered) = (0, 0);
        while answered < STREAM {
            let before = sent;
            while sent < STREAM && sent - answered < WINDOW {
                let next = sent + 1;
                let kind = if next.is_multiple_of(ANSWERED) { Kind::Question } else { Kind::Data };
                if !self.send(peer, kind, len, ACKNOWLEDGEMENT, next) {
                    break;
                }
                sent = next;
            }
            if sent > before {
                self.port.flush();
            }
            answered = self.answer()?.unwrap_or(answered);
        }
        Ok(time::now().saturating_since(begun) / STREAM)
    }

    /// Measures all figures, and prints a line for each.
    fn ask(&mut self, peer: MacAddr) -> Result<(), String> {
        let round_trip = self.round_trip(peer, WRITE_8)?;
        crate::println!(
            "echo: {:<32} {:>8} ns",
            format!("round trip of {WRITE_8} bytes"),
            round_trip.as_nanos()
        );
        for len in [WRITE_64, MIDDLE] {
            let mut best = Duration::MAX;
            for _ in 0..STREAMS {
                best = best.min(self.stream(peer, len)?);
            }
            crate::println!("echo: {:<32} {:>8} ns", format!("frame of {len} bytes"), best.as_nanos());
        }
        self.send(peer, Kind::End, HEAD, 0, 0);
        self.port.flush();
        Ok(())
    }
}

/// Runs between two machines whose fabric addresses end in 0 and 1. The first asks; both end with success.
pub(super) async fn run() -> Outcome {
    let port = net::init(false)?.fabric.ok_or("no fabric port")?;
    let me = port.mac().0[5];
    let ip = |machine: u8| IpAddr::V4(Ipv4Addr::new(10, 99, 0, 1 + machine));
    port.add_address(ip(me));
    let mut wire = Wire { port: port.attach_rnic(), heard: time::now() };
    if me & 1 != 0 {
        let answers = wire.serve()?;
        return Ok(format!("{answers} answers"));
    }
    let peer = port.resolve(ip(me ^ 1), time::now() + SILENCE).await.ok_or("the peer does not answer ARP")?;
    wire.heard = time::now();
    wire.ask(peer)?;
    // The last frame must leave before the machine ends.
    crate::exec::sleep(Duration::from_millis(100)).await;
    Ok(String::new())
}
