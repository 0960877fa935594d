//! The calls of the driver.

use crate::input::Input;
use crate::liar::Liar;
use cards::{DATA, Machine};
use connectx3::device::Profile;
use mlx4::{Config, FramePort, Health, Mlx4};
use platform::{Arena, IoAddr};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use verbs::{
    AddressVector, Completion, CqId, CqOptions, Gid, MacAddr, PathMtu, Payload, Psn, QKey, QpConnect, QpNum,
    QpOptions, RecvWr, RemoteAddr, Rnic, SendOp, SendWr, Sge, UdOptions, UdQp, UdSendWr, WrId,
};

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The number of drivers that accepted the device and started.
    pub up: u64,
    /// The number of drivers that refused the device.
    pub refused: u64,
    /// The number of values that the device reported falsely.
    pub lies: u64,
    /// Calls of a driver that was up.
    pub calls: u64,
    /// Calls that the driver refused.
    pub errors: u64,
    /// Work requests that have completed.
    pub completions: u64,
    /// Resets after which the card was up again.
    pub recovered: u64,
}

type Driver = Mlx4<Liar, spin::Mutex<()>>;

const PROFILES: [&str; 6] = ["pro", "cx3", "vf", "large-entries", "blueflame", "ib"];
/// The length of the data that work requests name, in bytes.
const LEN: u64 = 1 << 16;
const KEY: QKey = QKey(0x1234);

/// The objects of a driver.
struct Session {
    driver: Driver,
    liar: Liar,
    cqs: Vec<CqId>,
    qps: Vec<QpNum>,
    datagrams: Vec<UdQp>,
    /// The queue pair of each work request that has not completed.
    in_flight: HashMap<u64, QpNum>,
    next_id: u64,
    report: Report,
}

/// Starts a driver on a card that the bytes control, and makes the calls that they select.
pub fn device(bytes: &[u8]) -> Report {
    let mut input = Input::new(bytes);
    let name = PROFILES[input.below(PROFILES.len())];
    let frames = input.byte() % 2 == 1 && name != "ib";
    let profile = Profile::named(name, MacAddr([2, 0, 0, 0, 0, 1])).expect("a profile of that name");
    let machine = Machine::new(profile, Arc::new(Arena::new(IoAddr(DATA), 4 * LEN)));
    let liar = Liar::new(machine, input);
    let config = Config { frames, ..Config::default() };
    let started = liar.timed("the start", || Mlx4::start(liar.clone(), &config));
    let mut report = Report::default();
    match started {
        Ok(driver) => {
            let liar = liar.clone();
            let mut session = Session {
                driver,
                liar,
                cqs: Vec::new(),
                qps: Vec::new(),
                datagrams: Vec::new(),
                in_flight: HashMap::new(),
                next_id: 0,
                report,
            };
            session.run();
            report = session.report;
            report.up = 1;
            let Session { driver, liar, .. } = session;
            liar.timed("the end", || drop(driver));
        }
        Err(_) => report.refused = 1,
    }
    report.lies = liar.state().lies;
    report
}

impl Session {
    fn byte(&self) -> u8 {
        self.liar.state().input.byte()
    }

    fn pick<T: Copy>(&self, of: &[T]) -> Option<T> {
        of.get(usize::from(self.byte()) % of.len().max(1)).copied()
    }

    fn run(&mut self) {
        // Objects about which the card can lie.
        self.make_cq();
        self.make_qp();
        self.connect();
        loop {
            let Some(action) = self.liar.state().input.next() else { break };
            self.report.calls += 1;
            let worked = self.act(action % 20);
            self.report.errors += u64::from(!worked);
        }
        for cq in self.cqs.clone() {
            while self.poll(cq) > 0 {}
        }
    }

    fn act(&mut self, action: u8) -> bool {
        match action {
            0 => self.make_cq(),
            1 => self.make_qp(),
            2 => self.make_datagrams(),
            3 => self.connect(),
            4..=7 => self.send(),
            8 => self.receive(),
            9 => self.send_datagram(),
            10 | 11 => {
                for cq in self.cqs.clone() {
                    self.poll(cq);
                }
                true
            }
            12 => self.progress(),
            13 => self.exchange(),
            14 => self.destroy(),
            15 => {
                let mut state = self.liar.state();
                self.liar.forge(&mut state);
                true
            }
            16 => {
                let mut state = self.liar.state();
                self.liar.scribble(&mut state);
                true
            }
            17 => self.recover(),
            18 => self.frames(),
            _ => self.ask(),
        }
    }

    fn make_cq(&mut self) -> bool {
        let depth = u32::from(self.byte()) + 1;
        let made = self.liar.timed("create_cq", || self.driver.create_cq(CqOptions { depth }));
        made.map(|cq| self.cqs.push(cq)).is_ok()
    }

    fn make_qp(&mut self) -> bool {
        let (Some(send_cq), Some(recv_cq)) = (self.pick(&self.cqs), self.pick(&self.cqs)) else {
            return false;
        };
        let (send_depth, recv_depth) = (u32::from(self.byte() % 32) + 1, u32::from(self.byte() % 32) + 1);
        let options = QpOptions { send_cq, recv_cq, send_depth, recv_depth };
        let made = self.liar.timed("create_qp", || self.driver.create_qp(options));
        made.map(|qp| {
            self.liar.state().numbers.push((qp.get(), 0));
            self.qps.push(qp);
        })
        .is_ok()
    }

    fn make_datagrams(&mut self) -> bool {
        let Some(cq) = self.pick(&self.cqs) else { return false };
        let options = UdOptions { send_cq: cq, recv_cq: cq, send_depth: 8, recv_depth: 8, qkey: KEY };
        let made = self.liar.timed("create_ud_qp", || self.driver.create_ud_qp(options));
        made.map(|qp| {
            self.liar.state().numbers.push((qp.number().get(), 0));
            self.datagrams.push(qp);
        })
        .is_ok()
    }

    fn address(&self) -> AddressVector {
        let attributes = self.driver.attributes();
        let link = attributes.links.first().copied().unwrap_or(verbs::LinkKind::RoceV1);
        AddressVector { link, peer: attributes.port, traffic_class: 0, hop_limit: 64, service_level: 0 }
    }

    /// Connects a queue pair to itself.
    fn connect(&mut self) -> bool {
        // A port without an address is not connected.
        let gid = Gid::from_ipv4([10, 9, 0, 1]);
        let told = self.liar.timed("set_gid", || self.driver.set_gid(gid));
        let Some(qp) = self.pick(&self.qps) else { return false };
        let connect = QpConnect {
            address: self.address(),
            remote_qp: qp,
            send_psn: Psn::new(0),
            recv_psn: Psn::new(0),
            mtu: PathMtu::B256,
            max_rd_atomic: 1,
            ack_timeout: Duration::from_millis(10),
            retries: 7,
            rnr_retries: 7,
            min_rnr_delay: Duration::from_millis(1),
        };
        let connected = self.liar.timed("connect_qp", || self.driver.connect_qp(qp, &connect));
        told.is_ok() && connected.is_ok()
    }

    fn ids(&mut self, count: usize) -> Vec<WrId> {
        self.next_id += count as u64;
        (self.next_id - count as u64..self.next_id).map(WrId).collect()
    }

    /// Records the requests that were posted. The result contains their number on an error.
    fn posted(&mut self, qp: QpNum, ids: &[WrId], result: Result<(), (usize, verbs::VerbsError)>) -> bool {
        let count = result.map_or_else(|(count, _)| count, |()| ids.len());
        self.in_flight.extend(ids.iter().take(count).map(|id| (id.0, qp)));
        result.is_ok()
    }

    fn send(&mut self) -> bool {
        let Some(qp) = self.pick(&self.qps) else { return false };
        let bytes = [7; 200];
        let ids = self.ids(usize::from(self.byte() % 4) + 1);
        let remote = RemoteAddr { addr: IoAddr(DATA), key: self.driver.memory_key().rkey };
        let list = [Sge { addr: IoAddr(DATA + LEN), len: u32::from(self.byte()) }];
        let inline = Payload::Inline(&bytes[..usize::from(self.byte()) % bytes.len()]);
        let gather = Payload::Gather(&list);
        let wrs: Vec<SendWr<'_>> = ids
            .iter()
            .map(|&id| {
                let op = match self.byte() % 7 {
                    0 => SendOp::Write { data: inline, remote, imm: None },
                    1 => SendOp::Write { data: gather, remote, imm: Some(1) },
                    2 => SendOp::Read { into: &list, remote },
                    3 => SendOp::Send { data: inline, imm: None },
                    4 => SendOp::FetchAdd { result: IoAddr(DATA + LEN), remote, add: 1 },
                    5 => SendOp::CompareSwap { result: IoAddr(DATA + LEN), remote, compare: 0, swap: 1 },
                    _ => SendOp::SendInvalidate { data: gather, key: remote.key },
                };
                SendWr {
                    id,
                    op,
                    signaled: !self.liar.state().input.one_in(4),
                    solicited: false,
                    fence: false,
                }
            })
            .collect();
        let result = self.liar.timed("post_send", || self.driver.post_send(qp, &wrs));
        let count = result.map_or_else(|(count, _)| count, |()| ids.len());
        if let Some((_, sent)) = self.liar.state().numbers.iter_mut().find(|(n, _)| *n == qp.get()) {
            *sent = sent.wrapping_add(count as u16);
        }
        self.posted(qp, &ids, result)
    }

    fn receive(&mut self) -> bool {
        let all: Vec<QpNum> =
            self.qps.iter().copied().chain(self.datagrams.iter().map(|qp| qp.number())).collect();
        let Some(qp) = self.pick(&all) else { return false };
        let ids = self.ids(usize::from(self.byte() % 4) + 1);
        let scatter = [Sge { addr: IoAddr(DATA + 2 * LEN), len: 300 }];
        let wrs: Vec<RecvWr<'_>> = ids.iter().map(|&id| RecvWr { id, scatter: &scatter }).collect();
        let result = self.liar.timed("post_recv", || self.driver.post_recv(qp, &wrs));
        self.posted(qp, &ids, result)
    }

    fn send_datagram(&mut self) -> bool {
        let Some(qp) = self.pick(&self.datagrams) else { return false };
        let ids = self.ids(1);
        let wr = UdSendWr {
            id: ids[0],
            to: self.address(),
            remote_qp: qp.number(),
            qkey: KEY,
            data: Payload::Inline(b"hello"),
            imm: None,
            signaled: true,
            solicited: false,
        };
        let result = self.liar.timed("post_send_ud", || self.driver.post_send_ud(qp, &[wr]));
        self.posted(qp.number(), &ids, result)
    }

    /// Polls completions. Each must be of a request in flight on its queue pair.
    fn poll(&mut self, cq: CqId) -> usize {
        let mut out = [Completion::BLANK; 8];
        let taken = self.liar.timed("poll_cq", || self.driver.poll_cq(cq, &mut out));
        for completion in &out[..taken] {
            let of = self.in_flight.remove(&completion.id.0);
            assert_eq!(of, Some(completion.qp), "{completion:?}");
        }
        self.report.completions += taken as u64;
        taken
    }

    fn progress(&self) -> bool {
        let now = self.liar.machine.bus.clock();
        self.liar.timed("progress", || {
            self.driver.progress(now, 64);
            let _ = self.driver.next_deadline();
            self.driver.arm()
        });
        true
    }

    /// Makes the card do its due work, and delivers the frames that it sends to the same card.
    fn exchange(&self) -> bool {
        const MAX_FRAMES: usize = 64;
        let machine = &self.liar.machine;
        for _ in 0..4 {
            let mut card = machine.card.lock().expect("no thread has panicked");
            card.progress(&machine.bus);
            for (_, frame) in card.take_outbox().into_iter().take(MAX_FRAMES) {
                card.receive(0, &frame, &machine.bus);
            }
        }
        true
    }

    fn destroy(&mut self) -> bool {
        let which = usize::from(self.byte());
        let number = match which % 3 {
            0 if !self.qps.is_empty() => self.qps.swap_remove(which / 3 % self.qps.len()),
            1 if !self.datagrams.is_empty() => {
                self.datagrams.swap_remove(which / 3 % self.datagrams.len()).number()
            }
            _ => {
                let Some(cq) = self.pick(&self.cqs) else { return false };
                // Its completions end with it.
                let ended = self.liar.timed("destroy_cq", || self.driver.destroy_cq(cq)).is_ok();
                self.cqs.retain(|other| !ended || *other != cq);
                return ended;
            }
        };
        self.liar.timed("destroy_qp", || self.driver.destroy_qp(number)).is_ok()
    }

    fn recover(&mut self) -> bool {
        let before = self.resets();
        for _ in 0..8 {
            let now = self.liar.machine.bus.clock();
            let Health::Recovering { next } = self.liar.timed("recover", || self.driver.recover(now)) else {
                break;
            };
            self.liar.machine.advance(next - now);
        }
        self.report.recovered += self.resets() - before;
        true
    }

    fn resets(&self) -> u64 {
        let mut resets = 0;
        self.liar.timed("counters", || {
            self.driver
                .counters(&mut |(name, count)| resets += if name == "card_resets" { count } else { 0 });
        });
        resets
    }

    fn frames(&self) -> bool {
        self.liar.timed("frames", || {
            self.driver.receive_frames(FramePort::Rdma, 16, &mut |frame| assert!(frame.len() < 16 << 10));
            self.driver.transmit_frame(FramePort::Rdma, 64, &mut |place| {
                place.fill(0xff);
                place.len()
            })
        })
    }

    /// Makes occasional calls: refresh, and changes of groups.
    fn ask(&self) -> bool {
        let group = MacAddr([1, 0, 0x5e, 0, 0, self.byte()]);
        let refreshed = self.liar.timed("refresh", || self.driver.refresh());
        let joined = self.liar.timed("join_group", || self.driver.join_group(FramePort::Rdma, group));
        let _ = (self.driver.identity(), self.driver.attributes(), self.driver.table_bytes());
        refreshed.is_ok() && joined.is_ok()
    }
}
