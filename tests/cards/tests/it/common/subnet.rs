//! A small subnet manager: it queries the ports of cards by directed routes over their cables, and the
//! drivers respond.

use super::wire::{Station, exchange};
use super::{Driver, Machine};
use connectx3_testdriver::smp::{GET, PORT_INFO, SET, directed, open};
use std::sync::Arc;
use std::time::Duration;
use verbs::{PortState, Rnic};

const ARMED: u8 = 3;
const ACTIVE: u8 = 4;
/// The LID of the manager.
const MANAGER: u16 = 0x77;

/// Queries a port, and returns status and data of the response.
pub(crate) fn ask(
    machine: &Arc<Machine>,
    driver: &Driver,
    [method, route]: [u8; 2],
    attribute: u16,
    data: &[u8],
) -> (u16, [u8; 64]) {
    machine.receive(&directed(&[route], method, attribute, 1, data));
    driver.progress(machine.bus.clock(), 64);
    let frames = machine.sent();
    let [frame] = &frames[..] else { panic!("one answer: {frames:02x?}") };
    let (lrh, mad) = open(frame);
    assert_eq!(
        (lrh.lane, lrh.dlid, lrh.slid),
        (15, 0xffff, 0xffff),
        "by the lane of management, and hop by hop"
    );
    assert_eq!((mad[1], mad[3], mad[6], mad[7], mad[15]), (0x81, 0x81, 1, 1, 7));
    assert_eq!((mad[4] & 0x80, mad[193]), (0x80, 1), "on its way back, by the port that it came to");
    (u16::from_be_bytes([mad[4] & 0x7f, mad[5]]), mad[64..128].try_into().unwrap())
}

/// Brings up the links of ports.
pub(crate) fn train(machines: &[Arc<Machine>]) {
    for machine in machines {
        machine.advance(Duration::from_secs(1));
    }
    let stations: Vec<_> = machines.iter().map(|machine| machine as &dyn Station).collect();
    exchange(&stations);
}

/// Sets the LID and the path MTU code of a port, and makes it active.
pub(crate) fn configure(machine: &Arc<Machine>, driver: &Driver, lid: u16, mtu: u8) {
    // A state of 0 leaves the port's state unchanged.
    let is_active = driver.attributes().port_state == PortState::Active;
    for state in if is_active { [0, 0] } else { [ARMED, ACTIVE] } {
        let (status, mut info) = ask(machine, driver, [GET, 1], PORT_INFO, &[]);
        assert_eq!(status, 0);
        info[16..18].copy_from_slice(&lid.to_be_bytes());
        info[18..20].copy_from_slice(&MANAGER.to_be_bytes());
        (info[32], info[33], info[36]) = (state, 0, mtu << 4 | info[36] & 0xf);
        assert_eq!(ask(machine, driver, [SET, 1], PORT_INFO, &info).0, 0);
    }
    driver.progress(machine.bus.clock(), 64);
}
