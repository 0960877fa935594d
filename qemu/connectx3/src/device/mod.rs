//! The device: registers, commands, tables in the guest's memory, queues and events. Its inputs are register
//! accesses and frames; it reaches the rest of the machine only through [`Host`]. It needs no QEMU and has no
//! clock of its own.
//!
//! Layouts and behaviour follow the expectations of drivers (Linux `mlx4`, iPXE `hermon`, illumos `hermon`)
//! and observations on cards. Where a comment names one source, the others agree or are silent.

mod breakdown;
mod clock;
mod command;
pub mod cost;
mod cq;
mod eq;
mod ethernet;
mod failures;
mod flow;
mod hcr;
mod host;
mod icm;
mod infiniband;
mod link;
mod mailbox;
mod master;
mod memory;
mod moderation;
mod observe;
mod port;
mod profile;
mod qp;
mod queue_memory;
mod registers;
mod special;
mod srq;
mod statistics;
mod steering;
mod traffic;
mod uar;
mod vlan;

pub use breakdown::Breakdown;
pub use hcr::{Command, Status};
pub use host::{DmaError, Host};
pub use mailbox::Mailbox;
pub use observe::{Doorbell, Observation, Register};
pub use profile::{EqScheme, Function, LinkType, LinkTypes, PortProfile, Profile};
pub use registers::BAR0_LEN;

use breakdown::Fate;
use command::{Firmware, Hca};
use cost::Costs;
use cq::Cqs;
use eq::Eqs;
use ethernet::headers::{Headers, Length};
use failures::Failed;
use flow::Rules;
use hcr::Hcr;
use icm::Icm;
use master::Master;
use memory::Regions;
use platform::Instant;
use port::Port;
use qp::Qps;
use srq::Srqs;
use statistics::InterfaceCounters;
use std::collections::BTreeSet;
use std::sync::Arc;
use steering::Steer;
use traffic::Inside;

/// UDP port of RoCE v2.
const ROCE_UDP_PORT: u16 = 4791;

/// A card.
pub struct Card {
    profile: Profile,
    /// True while a driver holds the ownership semaphore.
    owned: bool,
    hcr: Hcr,
    firmware: Firmware,
    icm: Icm,
    /// The state set up by INIT_HCA; `None` before it and after CLOSE_HCA.
    hca: Option<Hca>,
    eqs: Eqs,
    cqs: Cqs,
    srqs: Srqs,
    qps: Qps,
    regions: Regions,
    ports: Vec<Port>,
    roce_udp_port: u16,
    special_qp_base: u32,
    /// Default queue pairs, which receive frames that match no steering entry: by port, then by multicast and
    /// unicast.
    default_steering: Vec<[Vec<u32>; 2]>,
    /// Frames to be sent, with their ports.
    outbox: Vec<(usize, Vec<u8>)>,
    counters: Counters,
    interface_counters: InterfaceCounters,
    /// The rules of device-managed steering.
    flows: Rules,
    transport_counters: roce::transport::Counters,
    /// Frames that are looped back inside the card.
    inside: Vec<Inside>,
    /// The master behind a virtual function; `None` on a physical function.
    master: Option<Box<Master>>,
    /// Queue pairs that may have something to send.
    pending: BTreeSet<u32>,
    /// Queue pairs in the error state.
    failed: Failed,
    /// A lower bound of all queue pairs' deadlines.
    next_deadline: Instant,
    /// The end of the running reset.
    reset_until: Instant,
    /// The account of the cost of work, if costs are counted.
    costs: Option<Arc<Costs>>,
    /// The planned failure of the card, if there is one.
    fate: Option<Fate>,
}

/// Counts of received frames that were dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that matched no steering entry.
    pub rx_unsteered: u64,
    /// Frames for which no receive buffer was posted.
    pub rx_no_buffer: u64,
}

impl Card {
    /// Creates a card in its state after power-on.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        let virtual_function = profile.function == Function::Virtual;
        let mut card = Self {
            owned: false,
            hcr: Hcr::default(),
            firmware: Firmware::default(),
            icm: Icm::default(),
            hca: None,
            eqs: Eqs::default(),
            cqs: Cqs::default(),
            srqs: Srqs::default(),
            qps: Qps::default(),
            regions: Regions::default(),
            ports: Port::all(&profile),
            roce_udp_port: ROCE_UDP_PORT,
            special_qp_base: 0,
            default_steering: vec![Default::default(); profile.ports.len()],
            outbox: Vec::new(),
            counters: Counters::default(),
            interface_counters: InterfaceCounters::default(),
            flows: Rules::default(),
            transport_counters: Default::default(),
            inside: Vec::new(),
            master: None,
            pending: BTreeSet::new(),
            failed: Failed::default(),
            next_deadline: Instant::MAX,
            reset_until: Instant::from_nanos(0),
            costs: None,
            fate: None,
            profile,
        };
        if virtual_function {
            card.master = Some(Box::new(Master::start(&mut card)));
        }
        card
    }

    /// Returns the card's profile.
    #[must_use]
    pub const fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Starts to count the cost of work, including table lookups, also on a card that is already running.
    pub fn set_costs(&mut self, costs: Arc<Costs>) {
        self.regions.set_costs(costs.clone());
        self.costs = Some(costs);
    }

    /// Resets the card. The profile, the account of costs and the planned failure survive.
    pub fn reset(&mut self, host: &dyn Host) {
        host.set_intx(false);
        let (outbox, fate) = (self.silence(), self.fate_after_reset());
        let (costs, cables) =
            (self.costs.take(), self.ports.iter().map(|port| port.cable).collect::<Vec<_>>());
        *self = Self { outbox, costs, fate, ..Self::new(self.profile.clone()) };
        for (index, cable) in cables.into_iter().enumerate() {
            self.set_cable(index, cable, host);
        }
    }

    /// Handles a frame that has arrived at a port. `frame` has no check sequence.
    pub fn receive(&mut self, port: usize, frame: &[u8], host: &dyn Host) {
        if self.is_broken() {
            return;
        }
        let Some(at) = self.ports.get_mut(port).filter(|port| port.open && port.link) else { return };
        if at.is_infiniband() {
            self.receive_cable(port, frame, host);
            return;
        }
        let headers = Headers::parse(frame, Length::AsStated);
        if at.receive(frame, &headers) && !self.receive_roce(port, None, frame, host) {
            self.receive_ethernet(port, None, frame, &headers, host);
        }
    }

    /// Queues a frame of a queue pair for transmission.
    fn emit(&mut self, port: usize, counter: u8, frame: Vec<u8>) {
        let Some(at) = self.ports.get_mut(port) else { return };
        if at.send(&frame) {
            self.interface_counters.sent(counter, frame.len());
            self.outbox.push((port, frame));
            self.wear();
        }
    }

    /// Removes and returns the frames to be sent, each with its port.
    pub fn take_outbox(&mut self) -> Vec<(usize, Vec<u8>)> {
        std::mem::take(&mut self.outbox)
    }

    /// Returns the queue pairs that receive frames which match no steering entry.
    fn default_members(&self, port: usize, steer: Steer) -> &[u32] {
        self.default_steering.get(port).map_or(&[], |kinds| &kinds[steer as usize])
    }

    /// Reads from BAR 2. Doorbells read as zero; a virtual function's communication channel has contents.
    pub fn read_bar2(&mut self, offset: u64, buf: &mut [u8]) {
        buf.fill(0);
        self.each_word(offset, buf.len(), |card, at, range| {
            let word = card.read_channel(at).unwrap_or(0).to_be_bytes();
            if let Some(to) = buf.get_mut(range) {
                to.copy_from_slice(&word);
            }
        });
    }

    /// Reads from BAR 0.
    pub fn read_bar0(&mut self, offset: u64, buf: &mut [u8], host: &dyn Host) {
        self.each_word(offset, buf.len(), |card, at, range| {
            let word = card.read_register(at, host).to_be_bytes();
            if let (Some(to), Some(from)) = (buf.get_mut(range), word.get(..4)) {
                to.copy_from_slice(from);
            }
        });
    }

    /// Writes to BAR 0.
    pub fn write_bar0(&mut self, offset: u64, data: &[u8], host: &dyn Host) {
        self.each_word(offset, data.len(), |card, at, range| {
            if let Some(word) = data.get(range).and_then(|word| word.first_chunk::<4>()) {
                card.write_register(at, u32::from_be_bytes(*word), host);
            }
        });
    }

    /// Calls `each` for every aligned 32-bit word of an access. Registers have no other width.
    fn each_word(
        &mut self,
        offset: u64,
        len: usize,
        mut each: impl FnMut(&mut Self, u64, std::ops::Range<usize>),
    ) {
        if offset.is_multiple_of(4) && len.is_multiple_of(4) {
            for at in (0..len).step_by(4) {
                each(self, offset + at as u64, at..at + 4);
            }
        }
    }
}
