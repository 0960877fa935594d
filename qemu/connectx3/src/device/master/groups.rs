//! The multicast and promiscuous memberships of the slave's queue pairs: QP_ATTACH, PROMISC. The master keeps
//! the groups and writes the card's steering table from them.

use super::Slave;
use super::startup::{LOG_MCG_ENTRY, LOG_MCG_HASH, LOG_MCGS, MCG_BASE, MCG_LEN};
use super::tracker::{INVALID, NO_SUCH, Result};
use crate::device::adapter::Adapter;
use crate::device::command::Output;
use crate::device::hcr::{Command, Status};
use crate::device::host::Host;
use crate::device::layout::mcg;
use crate::device::mailbox::Mailbox;
use crate::device::steering::{self, McgTable, Steer};
use std::collections::BTreeMap;

/// The maximum number of queue pairs of an entry.
const MEMBERS: usize = 4 * ((1 << LOG_MCG_ENTRY) / 16 - 2);
/// The protocol of an Ethernet entry.
const ETHERNET: u8 = 1;
/// Flag of a queue pair in an entry: it does not receive its own frames.
const BLOCK_LOOPBACK: u32 = 1 << 30;
const QPN: u32 = 0xff_ffff;

/// The key of a group: protocol and destination.
type Key = (u8, [u8; 16]);

/// All multicast groups of a slave.
#[derive(Debug, Default)]
pub(super) struct Groups {
    members: BTreeMap<Key, Vec<u32>>,
    /// Queue pairs that receive all multicast frames, by port.
    promiscuous: BTreeMap<usize, Vec<u32>>,
}

/// Returns the port, counted from 0, and the steering type of an Ethernet entry.
fn of_ethernet((protocol, gid): &Key) -> Option<(usize, Steer)> {
    let steer = if gid[7] & 2 != 0 { Steer::Unicast } else { Steer::Multicast };
    (*protocol == ETHERNET).then_some((usize::from(gid[5]).checked_sub(1)?, steer))
}

impl Groups {
    /// Returns the queue pairs of an entry: its members, and the promiscuous ones.
    fn list(&self, key: &Key, members: &[u32]) -> Vec<u32> {
        let mut list = members.to_vec();
        if let Some((port, Steer::Multicast)) = of_ethernet(key) {
            for &qpn in self.promiscuous.get(&port).into_iter().flatten() {
                if !list.iter().any(|member| member & QPN == qpn) {
                    list.push(qpn);
                }
            }
        }
        list.truncate(MEMBERS);
        list
    }

    /// Writes all groups into the card's table, as chains that begin at the hash of their destination.
    fn write(&self, adapter: &mut Adapter, host: &dyn Host) -> Result {
        let hca = adapter.tables.hca.as_ref().ok_or(Status::BadSystemState)?;
        let table = McgTable { icm: &adapter.tables.icm, hca };
        let mut entries: BTreeMap<u32, Mailbox> = BTreeMap::new();
        let mut spare = 1u32 << LOG_MCG_HASH;
        for (key, members) in &self.members {
            let mut index = table.hash(&key.1);
            let mut last = None;
            while let Some(entry) = entries.get(&index) {
                last = Some(index);
                match entry.field(mcg::NEXT) >> 6 {
                    0 => {
                        index = spare;
                        spare += 1;
                    }
                    next => index = next,
                }
            }
            if index >= 1 << LOG_MCGS {
                return Err(Status::ExceedsLimit);
            }
            if let Some(last) = last.and_then(|last| entries.get_mut(&last)) {
                last.set(mcg::NEXT, index << 6);
            }
            entries.insert(index, entry(key, &self.list(key, members)));
        }
        if let Some(memory) = adapter.tables.icm.card() {
            memory.clear(MCG_BASE, MCG_LEN);
            hca.found.clear();
        }
        for (index, entry) in &entries {
            steering::write(hca, &mut adapter.tables.icm, *index, entry, host)?;
        }
        for (port, kinds) in adapter.traffic.default_steering.iter_mut().enumerate() {
            if let Some(list) = kinds.get_mut(Steer::Multicast as usize) {
                *list = self.promiscuous.get(&port).cloned().unwrap_or_default();
            }
        }
        Ok(())
    }
}

fn entry((protocol, gid): &Key, members: &[u32]) -> Mailbox {
    let mut entry = Mailbox::default();
    entry.set(mcg::PROTOCOL, u32::from(*protocol));
    entry.set(mcg::MEMBERS, members.len() as u32);
    entry.put(0x10, gid);
    for (i, member) in members.iter().enumerate() {
        entry.put_u32(0x20 + 4 * i, *member);
    }
    entry
}

impl Slave {
    /// QP_ATTACH: adds a queue pair to a destination, or removes it.
    pub(super) fn attach(
        &mut self,
        adapter: &mut Adapter,
        command: &Command,
        mailbox: &Mailbox,
        host: &dyn Host,
    ) -> Result<Output> {
        let (qpn, join) = (command.in_mod & QPN, command.op_mod != 0);
        let (protocol, block) = ((command.in_mod >> 28 & 7) as u8, command.in_mod >> 31 != 0);
        let key = (protocol, *mailbox.bytes().first_chunk().ok_or(INVALID)?);
        let qp = self.tracker.qps.get_mut(qpn)?;
        if protocol == ETHERNET && of_ethernet(&key).is_none_or(|(port, _)| port >= adapter.ports.all.len()) {
            return Err(INVALID);
        }
        let members = self.groups.members.entry(key).or_default();
        let place = members.iter().position(|member| member & QPN == qpn);
        match (join, place) {
            (true, Some(_)) => return Err(NO_SUCH),
            (true, None) if members.len() == MEMBERS => return Err(Status::ExceedsLimit),
            (true, None) => {
                members.push(qpn | if block { BLOCK_LOOPBACK } else { 0 });
                qp.groups += 1;
            }
            (false, Some(place)) => {
                members.remove(place);
                qp.groups = qp.groups.saturating_sub(1);
            }
            (false, None) => {}
        }
        if members.is_empty() {
            self.groups.members.remove(&key);
        }
        if !join && place.is_none() {
            return Err(INVALID);
        }
        self.groups.write(adapter, host).map(|()| Output::None)
    }

    /// PROMISC: starts or stops the delivery of all multicast frames of a port to a queue pair. A request for
    /// all unicast frames has no effect and is no error.
    pub(super) fn promiscuous(
        &mut self,
        adapter: &mut Adapter,
        command: &Command,
        host: &dyn Host,
    ) -> Result<Output> {
        let (qpn, add) = (command.in_param as u32 & QPN, command.op_mod != 0);
        let port = usize::try_from(command.in_param >> 62).ok().and_then(|number| number.checked_sub(1));
        let port = port.filter(|&port| port < adapter.ports.all.len()).ok_or(INVALID)?;
        if command.in_mod == Steer::Unicast as u32 {
            return Ok(Output::None);
        }
        let list = self.groups.promiscuous.entry(port).or_default();
        list.retain(|&held| held != qpn);
        if add {
            list.push(qpn);
        }
        self.groups.write(adapter, host).map(|()| Output::None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::master::startup;
    use crate::device::{DmaError, Profile};
    use platform::Instant;
    use verbs::MacAddr;

    /// A machine without memory, which groups do not need.
    struct Nothing;

    impl Host for Nothing {
        fn read(&self, addr: u64, buf: &mut [u8]) -> core::result::Result<(), DmaError> {
            Err(DmaError { addr, len: buf.len() })
        }
        fn write(&self, addr: u64, data: &[u8]) -> core::result::Result<(), DmaError> {
            Err(DmaError { addr, len: data.len() })
        }
        fn publish(&self, addr: u64, word: [u8; 8]) -> core::result::Result<(), DmaError> {
            self.write(addr, &word)
        }
        fn fetch_add(&self, addr: u64, _: u64) -> core::result::Result<u64, DmaError> {
            Err(DmaError { addr, len: 8 })
        }
        fn compare_swap(&self, addr: u64, _: u64, _: u64) -> core::result::Result<u64, DmaError> {
            Err(DmaError { addr, len: 8 })
        }
        fn now(&self) -> Instant {
            Instant::ZERO
        }
        fn msix_enabled(&self) -> bool {
            false
        }
        fn message(&self, _: u16) {}
        fn set_intx(&self, _: bool) {}
    }

    fn ethernet(steer: Steer, mac: [u8; 6]) -> Mailbox {
        let mut key = Mailbox::default();
        key.put_u8(5, 1);
        key.put_u8(7, (steer as u8) << 1);
        key.put(10, &mac);
        key
    }

    fn join(qpn: u32, op_mod: u8) -> Command {
        Command { in_mod: qpn | u32::from(ETHERNET) << 28, op_mod, ..Command::default() }
    }

    #[test]
    fn many_groups_are_found_by_the_card_and_left_again() {
        let mut adapter = Adapter::new(Profile::named("vf", MacAddr([2, 0, 0, 0, 0, 1])).unwrap());
        startup::start(&mut adapter);
        let mut slave = Slave::new(1);
        let first = slave.tracker.reserve_qps(2, 1).unwrap();
        let mac = |n: u16| [1, 0, 0x5e, 0, (n >> 8) as u8, n as u8];
        // The hash cannot place this number without collisions.
        const GROUPS: u16 = 400;
        for n in 0..GROUPS {
            let key = ethernet(Steer::Multicast, mac(n));
            slave.attach(&mut adapter, &join(first, 1), &key, &Nothing).unwrap();
        }
        let members = |adapter: &Adapter, n: u16| {
            let table = McgTable { icm: &adapter.tables.icm, hca: adapter.tables.hca.as_ref().unwrap() };
            table.members(0, Steer::Multicast, mac(n), &Nothing).to_vec()
        };
        assert!((0..GROUPS).all(|n| members(&adapter, n) == [first]));
        assert_eq!(members(&adapter, GROUPS), []);

        let key = ethernet(Steer::Multicast, mac(7));
        assert_eq!(slave.attach(&mut adapter, &join(first, 1), &key, &Nothing).err(), Some(NO_SUCH), "twice");
        slave.attach(&mut adapter, &join(first + 1, 1), &key, &Nothing).unwrap();
        assert_eq!(members(&adapter, 7), [first, first + 1]);
        let all = Command { in_param: 1 << 62 | u64::from(first + 1), op_mod: 1, ..Command::default() };
        slave.promiscuous(&mut adapter, &all, &Nothing).unwrap();
        assert_eq!(
            (members(&adapter, 7), members(&adapter, 8)),
            (vec![first, first + 1], vec![first, first + 1])
        );
        assert_eq!(adapter.traffic.default_members(0, Steer::Multicast), [first + 1]);
        slave.promiscuous(&mut adapter, &Command { op_mod: 0, ..all }, &Nothing).unwrap();
        assert_eq!(members(&adapter, 8), [first]);

        for n in (0..GROUPS).filter(|n| n % 3 != 0) {
            let key = ethernet(Steer::Multicast, mac(n));
            slave.attach(&mut adapter, &join(first, 0), &key, &Nothing).unwrap();
        }
        assert!((0..GROUPS).filter(|n| *n != 7).all(|n| members(&adapter, n).is_empty() == (n % 3 != 0)));
        assert_eq!(
            slave.attach(&mut adapter, &join(first, 0), &key, &Nothing).err(),
            Some(INVALID),
            "not there"
        );
        assert_eq!(slave.attach(&mut adapter, &join(0x9999, 1), &key, &Nothing).err(), Some(NO_SUCH));
        let other_port = {
            let mut key = key.clone();
            key.put_u8(5, 2);
            key
        };
        assert_eq!(slave.attach(&mut adapter, &join(first, 1), &other_port, &Nothing).err(), Some(INVALID));
    }
}
