//! The InfiniBand switch, with a small subnet manager on its first cable and plain ends on the others.

use connectx3::subnet::Switch;
use connectx3_testdriver::smp::{
    GET, LINEAR_TABLE, MULTICAST_TABLE, NODE_INFO, PORT_INFO, SET, SWITCH_INFO, by_lid, datagram, directed,
    open, symbol, symbol_of,
};
use platform::Instant;
use roce::wire::{Lrh, Symbol};

const NOW: Instant = Instant::ZERO;
/// LIDs of the manager, of the switch, and of an end.
const MANAGER: u16 = 1;
const SWITCH: u16 = 2;
const END: u16 = 3;
const TRAP_REPRESS: u8 = 7;

struct Subnet {
    switch: Switch,
}

impl Subnet {
    /// Creates a switch with four ports, of which the first two have partners.
    fn new() -> Self {
        let mut subnet = Self { switch: Switch::new(4, 0x0002_c903_0000_0001) };
        for port in 0..2 {
            let out = subnet.give(port, &symbol(Symbol::Polling));
            assert_eq!(out.len(), 1);
            assert_eq!((out[0].0, symbol_of(&out[0].1)), (port, Some(Symbol::Trained)));
        }
        subnet
    }

    fn give(&mut self, port: usize, frame: &[u8]) -> Vec<(usize, Vec<u8>)> {
        let mut out = Vec::new();
        self.switch.receive(port, frame, NOW, &mut out);
        out
    }

    /// Lets the time pass until the switch's timer. Returns the time and the datagrams sent to the manager.
    fn wait(&mut self) -> Option<(u64, Vec<Vec<u8>>)> {
        let at = self.switch.deadline()?;
        let mut out = Vec::new();
        self.switch.on_timer(at, &mut out);
        assert!(out.iter().all(|(port, _)| *port == 0), "to the manager's cable");
        Some((at.as_nanos() / 1_000_000, out.iter().map(|(_, frame)| open(frame).1).collect()))
    }

    /// Responds to a notice in the name of the manager.
    fn repress(&mut self, notice: &[u8]) {
        let mut response = notice.to_vec();
        response[3] = TRAP_REPRESS;
        let route = Lrh { lane: 15, service_level: 0, ..route(SWITCH) };
        assert!(self.give(0, &datagram(route, 0, &response)).is_empty());
    }

    /// Sends the switch a request over the manager's cable. Returns the answer's status and data.
    fn ask(&mut self, method: u8, attribute: u16, modifier: u32, data: &[u8]) -> (u16, [u8; 64]) {
        let out = self.give(0, &directed(&[1], method, attribute, modifier, data));
        let [(0, frame)] = &out[..] else { panic!("one answer: {out:?}") };
        let (lrh, mad) = open(frame);
        assert_eq!((lrh.lane, lrh.dlid, mad[3], mad[6], mad[15]), (15, 0xffff, 0x81, 1, 7));
        assert_eq!(mad[4] & 0x80, 0x80, "on its way back");
        (u16::from_be_bytes([mad[4] & 0x7f, mad[5]]), mad[64..128].try_into().unwrap())
    }

    fn set(&mut self, attribute: u16, modifier: u32, data: &[u8]) {
        assert_eq!(self.ask(SET, attribute, modifier, data).0, 0);
    }

    /// Brings the first ports up, and sets the switch's LIDs and tables.
    fn configure(&mut self) {
        let (_, mut own) = self.ask(GET, PORT_INFO, 0, &[]);
        own[16..20].copy_from_slice(&[0, SWITCH as u8, 0, MANAGER as u8]);
        (own[32], own[33]) = (0, 0);
        self.set(PORT_INFO, 0, &own);
        for port in [1, 2] {
            for state in [3, 4] {
                let (_, mut info) = self.ask(GET, PORT_INFO, port, &[]);
                (info[32], info[33]) = (state, 0);
                self.set(PORT_INFO, port, &info);
            }
        }
        let mut info = [0; 64];
        info[7] = END as u8;
        self.set(SWITCH_INFO, 0, &info);
        let mut ports = [255; 64];
        (ports[usize::from(MANAGER)], ports[usize::from(SWITCH)], ports[usize::from(END)]) = (1, 0, 2);
        self.set(LINEAR_TABLE, 0, &ports);
    }
}

fn route(dlid: u16) -> Lrh {
    Lrh { lane: 0, service_level: 3, dlid, slid: MANAGER }
}

#[test]
fn a_manager_finds_what_the_switch_is() {
    let mut subnet = Subnet::new();
    let (status, node) = subnet.ask(GET, NODE_INFO, 0, &[]);
    assert_eq!((status, node[2], node[3], node[36]), (0, 2, 4, 1), "a switch of four ports, asked at port 1");
    let state = |subnet: &mut Subnet, port| subnet.ask(GET, PORT_INFO, port, &[]).1[32] & 0xf;
    assert_eq!([0, 1, 2, 3].map(|port| state(&mut subnet, port)), [4, 2, 2, 1]);
    assert_eq!(subnet.ask(GET, PORT_INFO, 2, &[]).1[28], 1, "asked at port 1");
    assert_eq!(subnet.ask(GET, PORT_INFO, 5, &[]).0, 0x1c, "no such port");
    assert_eq!(subnet.ask(GET, 0x1a, 0, &[]).0, 0x0c, "no such attribute");
    assert_eq!(subnet.ask(GET, SWITCH_INFO, 0, &[]).1[11] & 4, 4, "ports have changed");
}

#[test]
fn packets_go_by_the_tables_once_ports_are_active() {
    let mut subnet = Subnet::new();
    let data = datagram(route(END), 0x48, b"some data");
    assert!(subnet.give(0, &data).is_empty(), "not configured");
    subnet.configure();
    let out = subnet.give(0, &data);
    let [(1, frame)] = &out[..] else { panic!("{out:?}") };
    let (lrh, payload) = open(frame);
    assert_eq!((lrh.lane, lrh.service_level, lrh.dlid), (3, 3, END), "on the lane of its service level");
    assert_eq!(payload, b"some data");
    assert!(subnet.give(0, &datagram(route(9), 0x48, b"lost")).is_empty(), "beyond the top");
    let mut broken = data;
    broken[30] ^= 1;
    assert!(subnet.give(0, &broken).is_empty(), "the variant CRC is wrong");

    // A group of the first two ports. The packet does not return to the port from which it came.
    let mut block = [0; 64];
    block[2..4].copy_from_slice(&0b110_u16.to_be_bytes());
    subnet.set(MULTICAST_TABLE, 0, &block);
    let group = datagram(route(0xc001), 0x48, b"all");
    assert_eq!(subnet.give(0, &group).iter().map(|(port, _)| *port).collect::<Vec<_>>(), [1]);
    assert_eq!(subnet.give(1, &group).iter().map(|(port, _)| *port).collect::<Vec<_>>(), [0]);
    assert!(subnet.give(0, &datagram(route(0xc002), 0x48, b"none")).is_empty());
}

#[test]
fn directed_requests_go_on_to_the_next_node_and_back() {
    let mut subnet = Subnet::new();
    let out = subnet.give(0, &directed(&[1, 2], GET, NODE_INFO, 0, &[]));
    let [(1, frame)] = &out[..] else { panic!("{out:?}") };
    let (lrh, mut mad) = open(frame);
    assert_eq!((lrh.lane, mad[6], mad[192 + 1]), (15, 2, 1));
    // The node there answers.
    (mad[3], mad[4]) = (0x81, 0x80);
    let out = subnet.give(1, &datagram(lrh, 0, &mad));
    let [(0, frame)] = &out[..] else { panic!("{out:?}") };
    assert_eq!(open(frame).1[6], 1);
    let out = subnet.give(0, &directed(&[1, 3], GET, NODE_INFO, 0, &[]));
    assert!(out.is_empty(), "no partner is on that cable");
}

#[test]
fn the_manager_is_told_of_changes_and_asks_by_lid() {
    let mut subnet = Subnet::new();
    subnet.configure();
    let out = subnet.give(2, &symbol(Symbol::Polling));
    let [(2, reply), (0, notice)] = &out[..] else { panic!("{out:?}") };
    assert_eq!(symbol_of(reply), Some(Symbol::Trained));
    let (lrh, mad) = open(notice);
    assert_eq!((lrh.slid, lrh.dlid, lrh.lane), (SWITCH, MANAGER, 15));
    assert_eq!((mad[3], u16::from_be_bytes([mad[68], mad[69]])), (5, 128));
    let out = subnet.give(0, &by_lid(MANAGER, SWITCH, GET, PORT_INFO, 3, &[]));
    let [(0, frame)] = &out[..] else { panic!("{out:?}") };
    let (lrh, mad) = open(frame);
    assert_eq!((lrh.slid, lrh.dlid, mad[64 + 32] & 0xf), (SWITCH, MANAGER, 2));
    let out = subnet.give(1, &symbol(Symbol::Silence));
    assert_eq!(out.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [0], "a notice");
    assert_eq!(subnet.ask(GET, PORT_INFO, 2, &[]).1[32] & 0xf, 1);
}

#[test]
fn a_notice_is_repeated_until_the_manager_responds() {
    let mut subnet = Subnet::new();
    subnet.configure();
    let out = subnet.give(2, &symbol(Symbol::Polling));
    let [_, (0, first)] = &out[..] else { panic!("{out:?}") };
    let first = open(first).1;
    let mut times = Vec::new();
    for _ in 0..8 {
        let (at, sent) = subnet.wait().unwrap();
        assert_eq!(sent, [&first[..]], "the same notice");
        times.push(at);
    }
    assert_eq!(times, [250, 750, 1_750, 3_750, 7_750, 15_750, 23_750, 31_750]);
    let out = subnet.give(2, &symbol(Symbol::Silence));
    let [(0, second)] = &out[..] else { panic!("{out:?}") };
    let second = open(second).1;
    subnet.repress(&first);
    assert_eq!(subnet.wait().unwrap().1, [&second[..]], "only the notice of the last change ends it");
    subnet.repress(&second);
    assert_eq!(subnet.wait(), None);
}

#[test]
fn a_change_in_the_managers_first_sweep_is_not_lost() {
    const CHANGED: u8 = 1 << 2;
    let mut subnet = Subnet::new();
    assert_eq!(subnet.ask(GET, PORT_INFO, 3, &[]).1[32] & 0xf, 1, "the manager sees that the port is down");
    subnet.give(2, &symbol(Symbol::Polling));
    // Having seen all ports, it clears the bit for changes, and only then makes itself known to the switch.
    let mut info = [0; 64];
    info[11] = CHANGED;
    subnet.set(SWITCH_INFO, 0, &info);
    assert_eq!(subnet.wait().unwrap().1.len(), 0, "no manager is known");
    subnet.configure();
    assert_eq!(subnet.ask(GET, SWITCH_INFO, 0, &[]).1[11] & CHANGED, 0, "the bit says nothing");
    let (at, sent) = subnet.wait().unwrap();
    assert_eq!((at, sent.len()), (500, 1), "the notice does");
    subnet.repress(&sent[0]);
    assert_eq!(subnet.wait(), None);
}

#[test]
fn counters_of_a_port_are_read_and_cleared() {
    let mut subnet = Subnet::new();
    subnet.configure();
    for _ in 0..3 {
        subnet.give(0, &datagram(route(END), 0x48, &[0; 20]));
    }
    let mut ask = |method: u8, select: u16| {
        let mut mad = [0; 256];
        mad[..4].copy_from_slice(&[1, 4, 1, method]);
        mad[17] = 0x12;
        mad[65] = 2;
        mad[66..68].copy_from_slice(&select.to_be_bytes());
        let out = subnet.give(0, &datagram(Lrh { service_level: 0, ..route(SWITCH) }, 1, &mad));
        let [(0, frame)] = &out[..] else { panic!("{out:?}") };
        let (_, mad) = open(frame);
        let word = |at: usize| u32::from_be_bytes(mad[64 + at..68 + at].try_into().unwrap());
        (word(24), word(32))
    };
    // Local route, base, datagram header, 20 bytes and the invariant CRC: 13 words.
    assert_eq!(ask(GET, 0), (39, 3));
    assert_eq!(ask(SET, 0xffff), (0, 0));
}
