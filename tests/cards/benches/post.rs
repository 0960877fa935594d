//! Measures the processor time of the driver: posting and polling on a card that costs nothing, because
//! nothing reads its registers and this program writes the completions itself, in advance.
//!
//! `cargo bench -p cards [-- --json FILE]` prints nanoseconds per operation, as the median of many
//! rounds, and requests per doorbell. With `-- --count OPERATION N` it does that many operations, and prints
//! the work requests and doorbells, for use under a tool that counts: `write-64` posts one WRITE at a time,
//! `write-64-by-16` 16 at a time, and `receive-by-16` as many receives without memory, which WRITEs with
//! immediate data consume. All are polled 16 at a time.
#![allow(clippy::unwrap_used, reason = "a benchmark may fail by panic")]

#[path = "../tests/it/common/mod.rs"]
mod common;

use cards::Piece;
use common::pair::{End, to};
use common::{DATA, Machine};
use connectx3::device::Profile;
use mlx4::{Config, Hardware, Mlx4};
use platform::{Arena, Instant, IoAddr, Memory};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use verbs::{
    Completion, CqId, CqOptions, Gid, LinkKind, MacAddr, Payload, QpNum, QpOptions, RecvWr, Rnic, SendOp,
    SendWr, WrId,
};

/// A machine with a card, which can be disconnected from its doorbells.
struct Still {
    machine: Arc<Machine>,
    still: Arc<AtomicBool>,
    doorbells: Arc<AtomicU64>,
}

impl Still {
    #[cold]
    fn ring_before(&self, offset: u64, value: u32) {
        self.machine.plug().ring(offset, value);
    }
}

impl Hardware for Still {
    type Block = Piece;
    fn config(&self, offset: u16) -> u32 {
        self.machine.plug().config(offset)
    }
    fn set_config(&self, offset: u16, value: u32) {
        self.machine.plug().set_config(offset, value);
    }
    fn register(&self, offset: u32) -> u32 {
        self.machine.plug().register(offset)
    }
    fn set_register(&self, offset: u32, value: u32) {
        self.machine.plug().set_register(offset, value);
    }
    fn doorbells_len(&self) -> u64 {
        self.machine.plug().doorbells_len()
    }
    #[inline]
    fn doorbell(&self, _: u64) -> u32 {
        0
    }
    fn ring(&self, offset: u64, value: u32) {
        if self.still.load(Ordering::Relaxed) {
            // The same number of stores as a doorbell.
            self.doorbells.store(self.doorbells.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        } else {
            self.ring_before(offset, value);
        }
    }
    fn ring_wide(&self, offset: u64, value: u64) {
        self.machine.plug().ring_wide(offset, value);
    }
    fn combine_writes(&self, offset: u64) -> bool {
        self.machine.plug().combine_writes(offset)
    }
    fn blue_flame(&self, offset: u64, words: &[u64]) {
        if !self.still.load(Ordering::Relaxed) {
            self.machine.plug().blue_flame(offset, words);
        }
    }
    fn allocate(&self, len: u64) -> Option<Piece> {
        self.machine.plug().allocate(len)
    }
    fn memory(&self) -> &dyn Memory {
        &*self.machine.bus.data
    }
    fn now(&self) -> Instant {
        self.machine.plug().now()
    }
    fn wait(&self, time: Duration) {
        self.machine.plug().wait(time);
    }
    fn fill_random(&self, buf: &mut [u8]) {
        self.machine.plug().fill_random(buf);
    }
}

const DEPTH: u32 = 64;
/// The number of work requests that are polled at once under a tool that counts, and posted at once in a
/// batch.
const BATCH: usize = 16;
/// The last byte of an entry of a completion queue, without the owner's bit: that of a WRITE that was sent,
/// and of a receive that a WRITE with immediate data consumed.
const SENT: u8 = 0x48;
const RECEIVED: u8 = 0x00;
const ROUNDS: usize = 20_000;

fn median(mut times: Vec<u64>, per: u32) -> f64 {
    times.sort_unstable();
    times[times.len() / 2] as f64 / f64::from(per)
}

/// A connected queue pair on a disconnected card.
struct Bench {
    // As LITE calls it.
    rnic: Box<dyn Rnic>,
    machine: Arc<Machine>,
    doorbells: Arc<AtomicU64>,
    cq: CqId,
    qp: QpNum,
    /// The address of the completion queue, and log2 of its length.
    ring: u64,
    log: u32,
    /// The number of requests posted so far.
    posted: u32,
    wr: SendWr<'static>,
}

impl Bench {
    fn new() -> Self {
        let profile = Profile::pro(MacAddr([2, 0, 0, 0, 0, 1]));
        let machine = Machine::new(profile, Arc::new(Arena::new(IoAddr(DATA), 1 << 20)));
        let (still, doorbells) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let hw = Still { machine: machine.clone(), still: still.clone(), doorbells: doorbells.clone() };
        let driver = Mlx4::<_, spin::Mutex<()>>::start(hw, &Config::default()).unwrap();
        driver.set_gid(Gid::from_ipv4([10, 0, 0, 1])).unwrap();
        let cq = driver.create_cq(CqOptions { depth: 4 * DEPTH - 1 }).unwrap();
        let options = QpOptions { send_cq: cq, recv_cq: cq, send_depth: DEPTH, recv_depth: DEPTH };
        let qp = driver.create_qp(options).unwrap();
        let end = End { rnic: &driver, memory: machine.bus.data.clone(), cq, qp };
        driver.connect_qp(qp, &to(&end, qp, LinkKind::RoceV2)).unwrap();
        // The card writes one completion, which shows the place of its entries.
        let op =
            SendOp::Write { data: Payload::Inline(&[7; 64]), remote: end.remote(IoAddr(DATA)), imm: None };
        end.post(0, op);
        common::wire::exchange(&[&machine]);
        end.one();
        let ring = machine.bus.published.load(Ordering::Relaxed) - 24;
        still.store(true, Ordering::Relaxed);
        let wr = SendWr { id: WrId(1), op, signaled: true, solicited: false, fence: false };
        let log = (4 * DEPTH).ilog2();
        Self { rnic: Box::new(driver), machine, doorbells, cq, qp, ring, log, posted: 1, wr }
    }

    /// Posts a round of requests, in batches of the length of `batch`.
    fn post(&mut self, batch: &[SendWr<'_>]) {
        for _ in 0..DEPTH as usize / batch.len() {
            self.rnic.post_send(self.qp, batch).unwrap();
        }
    }

    /// Posts a round of receives without memory.
    fn post_receives(&self) {
        for _ in 0..DEPTH as usize / BATCH {
            self.rnic.post_recv(self.qp, &[RecvWr { id: WrId(1), scatter: &[] }; BATCH]).unwrap();
        }
    }

    /// Completes a round of requests of a kind: writes the entries that the card would write.
    fn complete(&mut self, kind: u8) {
        for index in self.posted..self.posted + DEPTH {
            let mut bytes = [0; 32];
            bytes[..4].copy_from_slice(&self.qp.get().to_be_bytes());
            bytes[0x18..0x1a].copy_from_slice(&(index as u16).to_be_bytes());
            bytes[0x1f] = kind | ((index >> self.log & 1) as u8) << 7;
            let entry = self.ring + 32 * u64::from(index & ((1 << self.log) - 1));
            self.machine.bus.shared.write(IoAddr(entry), &bytes).unwrap();
        }
        self.posted += DEPTH;
    }

    /// Polls a whole round, `out.len()` completions at a time.
    fn poll(&self, out: &mut [Completion]) {
        let mut taken = 0;
        while taken < DEPTH as usize {
            let n = self.rnic.poll_cq(self.cq, out);
            assert!(n > 0);
            taken += n;
        }
    }
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    match (args.next().as_deref(), args.next(), args.next()) {
        (None, ..) => measure(None),
        (Some("--json"), Some(file), None) => measure(Some(&file)),
        (Some("--count"), Some(operation), Some(n)) => count(&operation, n.parse().unwrap()),
        _ => panic!("usage: [--json FILE | --count OPERATION N]"),
    }
}

/// Does an operation at least `requests` times, in whole rounds, for use under a tool that counts
/// instructions.
fn count(operation: &str, requests: u32) {
    let mut bench = Bench::new();
    let (batch, kind) = match operation {
        "write-64" => (1, SENT),
        "write-64-by-16" => (BATCH, SENT),
        "receive-by-16" => (BATCH, RECEIVED),
        _ => panic!("no operation `{operation}`: there are write-64, write-64-by-16, receive-by-16"),
    };
    let batched = vec![bench.wr; batch];
    let (posted, rung) = (bench.posted, bench.doorbells.load(Ordering::Relaxed));
    for _ in 0..requests.div_ceil(DEPTH) {
        if kind == SENT {
            bench.post(&batched);
        } else {
            bench.post_receives();
        }
        bench.complete(kind);
        bench.poll(&mut [Completion::BLANK; BATCH]);
    }
    let (posted, rung) = (bench.posted - posted, bench.doorbells.load(Ordering::Relaxed) - rung);
    println!("wire: {posted} work requests, {rung} doorbells");
}

fn measure(json: Option<&str>) {
    let mut bench = Bench::new();
    let mut out = [Completion::BLANK; DEPTH as usize];
    let mut figures = Vec::new();
    println!("{:<34} {:>10} {:>10} {:>20}", "64 B inline WRITE", "post ns", "poll ns", "requests/doorbell");
    for batch in [1, 4, 16, DEPTH] {
        let batched = vec![bench.wr; batch as usize];
        let (mut posts, mut polls) = (Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS));
        let rung = bench.doorbells.load(Ordering::Relaxed);
        for _ in 0..ROUNDS {
            let begun = std::time::Instant::now();
            bench.post(&batched);
            posts.push(begun.elapsed().as_nanos() as u64);
            bench.complete(SENT);
            let begun = std::time::Instant::now();
            bench.poll(&mut out[..batch as usize]);
            polls.push(begun.elapsed().as_nanos() as u64);
        }
        let rung = bench.doorbells.load(Ordering::Relaxed) - rung;
        let (post, poll) = (median(posts, DEPTH), median(polls, DEPTH));
        let each = f64::from(DEPTH) * ROUNDS as f64 / rung as f64;
        println!("{:<34} {post:>10.1} {poll:>10.1} {each:>20.1}", format!("batches of {batch}"));
        figures.push(serde_json::json!({
            "batch": batch, "post_ns": post, "poll_ns": poll, "requests_per_doorbell": each,
        }));
    }
    if let Some(file) = json {
        std::fs::write(file, serde_json::to_vec(&figures).unwrap()).unwrap();
    }
}
