//! The port in use: its address, its limits, and the path from it to a peer.

use super::raw::Context;
use crate::codes::mtu_of;
use crate::select::Source;
use rdma_mummy_sys as ibv;
use std::io;
use std::mem;
use verbs::{LinkKind, MacAddr, PathMtu, PortAddress, PortState, QpConnect};

/// A port. Everything except its state, which the RNIC keeps, is as it was when the device was opened.
#[derive(Debug)]
pub(super) struct Port {
    /// The port's number, from 1.
    pub number: u8,
    /// True for native InfiniBand.
    pub infiniband: bool,
    /// The GID in use, and its indices in the table.
    pub source: Source,
    /// The Ethernet address; zero on InfiniBand.
    pub mac: MacAddr,
    /// The local identifier; zero on Ethernet.
    pub lid: u16,
    /// The largest path MTU.
    pub max_mtu: PathMtu,
    /// The maximum length of a message, in bytes.
    pub max_message: u32,
    /// The maximum number of READs and atomics in flight on one queue pair.
    pub max_rd_atomic: u8,
}

impl Port {
    /// Returns the address by which peers reach the port.
    pub(super) fn address(&self) -> PortAddress {
        PortAddress { mac: self.mac, gid: self.source.gid, lid: self.lid }
    }

    /// Returns the frame formats of the port, best first.
    pub(super) fn links(&self) -> &'static [LinkKind] {
        if self.infiniband { &[LinkKind::InfiniBand] } else { self.source.links() }
    }

    /// Returns the path to a peer; `None` if the port does not support the frame format, or an argument is
    /// out of range.
    pub(super) fn path(&self, connect: &QpConnect) -> Option<ibv::ibv_ah_attr> {
        let to = &connect.address;
        if to.service_level > 15 || !self.links().contains(&to.link) {
            return None;
        }
        // SAFETY: numbers, and a union of bytes.
        let mut path: ibv::ibv_ah_attr = unsafe { mem::zeroed() };
        path.port_num = self.number;
        path.sl = to.service_level;
        if to.link == LinkKind::InfiniBand {
            path.dlid = to.peer.lid;
            return Some(path);
        }
        path.is_global = 1;
        path.grh.dgid = ibv::ibv_gid { raw: to.peer.gid.0 };
        path.grh.sgid_index = self.source.index(to.link)?;
        path.grh.hop_limit = to.hop_limit;
        path.grh.traffic_class = to.traffic_class;
        Some(path)
    }
}

/// Returns the path MTU that a port allows.
pub(super) fn mtu(attributes: &ibv::ibv_port_attr) -> PathMtu {
    mtu_of(attributes.active_mtu).unwrap_or(PathMtu::B256)
}

/// Returns the state of a port from its attributes.
pub(super) fn state(attributes: &ibv::ibv_port_attr) -> PortState {
    use ibv::ibv_port_state as states;
    match attributes.state {
        states::IBV_PORT_ACTIVE | states::IBV_PORT_ACTIVE_DEFER => PortState::Active,
        states::IBV_PORT_INIT | states::IBV_PORT_ARMED => PortState::Initializing,
        _ => PortState::Down,
    }
}

/// Queries the state of a port of the device.
pub(super) fn query_state(context: &Context, port: u8) -> io::Result<PortState> {
    context.port(port).map(|attributes| state(&attributes))
}
