//! ConnectX-3 and ConnectX-3 Pro as an RNIC: Mellanox's card behind the [`verbs::Rnic`] trait.
//!
//! [`Mlx4::start`] brings a card up, from its reset to an open port, through the services of [`Hardware`].
//! The driver checks everything that the card reports, and every wait for the card has a deadline: a card
//! that reports impossible values or dies causes an [`Error`].
//!
//! | module | subject |
//! |---|---|
//! | `hardware` | registers, doorbells, shared memory and time, as the machine provides them |
//! | `layout` | big-endian mailboxes and their fields |
//! | `command` | commands to the card: by its registers (HCR), or over the channel to a master (vHCR) |
//! | `start` | bring-up of a card, as a physical function and as a virtual one |
//! | `reset`, `firmware`, `capabilities`, `hca` | the steps of the bring-up, in this order |
//! | `slave`, `vf_resources` | a virtual function's capabilities, and its resources from the master |
//! | `tables` | numbers of objects and page entries of queues, from `icm` or from `vf_resources` |
//! | `icm` | memory for the card's tables: their layout, their pages, page entries of queues |
//! | `memory_region` | the key over all memory, and the second key over the ranges that peers may reach |
//! | `port` | the port: its layer, link and addresses |
//! | `mad`, `agent`, `packets` | management datagrams, the agent that answers them, its queue pair |
//! | `eq` | event queues |
//! | `cq`, `cqe` | completion queues and their entries |
//! | `qp` | queue pairs: numbers, contexts, rings, posting |
//! | `wqe` | work requests in the card's format |
//! | `doorbell` | the doorbells and their values |
//! | `recovery` | reset and restart of a card that has failed |
//! | `frames`, `steering` | plain Ethernet frames, and the addresses whose frames are received |
//! | `control` | everything outside of the data path, behind one lock |
//! | `rnic` | the trait |
//!
//! **The data path** has two locks: a poster holds that of its queue pair, because the card consumes a ring
//! in order; a poller holds that of its completion queue. Posters and pollers share only atomics (the rings
//! of `qp`), and nothing on the data path allocates. Memory shared with the card is words that either side
//! may change at any time (`[AtomicU64]`), so nothing here is unsafe.
//!
//! Facts come from public drivers, which are named at the place of use: Linux `mlx4`, rdma-core, iPXE
//! `hermon` (its header of the Programmer's Reference Manual is called PRM here), illumos `hermon`.
//! docs/design/mlx4-unproven.md lists the uses of a card that only this driver makes, which have
//! been seen on the emulated card alone.
//!
//! # Neighbours
//! `softroce` and `ibverbs` are the other implementations of [`verbs::Rnic`]; `connectx3` is the emulated card
//! that tests this driver, and `kernel/src/mlx4` its machine on an appliance.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod agent;
mod capabilities;
mod command;
mod config;
mod control;
mod cq;
mod cqe;
mod doorbell;
mod eq;
mod error;
mod firmware;
mod frames;
mod hardware;
mod hca;
mod icm;
mod layout;
mod mad;
mod memory_region;
mod packets;
mod port;
mod qp;
mod recovery;
mod reset;
mod rnic;
mod slave;
mod start;
mod steering;
mod tables;
mod vf_resources;
mod wqe;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use control::{Card, Control, HealthSource};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use cq::Cq;
use eq::{Eq, Event};
use frames::Frames;
use lock_api::{Mutex, RawMutex};
use packets::Packets;
use platform::Instant;
use port::{Link, Port, PortInfo};
use qp::queue::SLOTS;
use qp::{PostCounts, Qp};
use recovery::Recovery;
use start::Started;
use verbs::{CqId, Gid, MacAddr, PortState};

pub use capabilities::BoardId;
pub use command::{Opcode, Status};
pub use config::{Config, Layer, Ranges, Remote};
pub use control::Function;
pub use error::Error;
pub use firmware::Version;
pub use hardware::{Block, Hardware};
pub use recovery::Health;

/// The maximum number of completion queues. The firmware's reserved ones reduce it.
const CQS: usize = 1 << icm::layout::LOG_CQS;
/// Time between two polls of the card's error buffer. Linux polls every 5 s (`mlx4/catas.c`); here the card
/// must be up again before a node's lease ends.
const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

/// A card that is up. `R` is the lock of its queues: in the kernel, one that masks interrupts.
pub struct Mlx4<H: Hardware, R> {
    hw: H,
    config: Config,
    /// The state of the first bring-up. Properties that a reset can change are in [`Control`].
    card: Arc<Card>,
    /// The keys that local work requests name, and that peers name.
    key: AtomicU32,
    remote_key: AtomicU32,
    /// The maximum length of a message of a connection, in bytes.
    max_message: u64,
    control: spin::Mutex<Control<H::Block>>,
    slots: Box<[QpLock<R, H::Block>; SLOTS]>,
    cqs: Box<[CqSlot<R, H::Block>]>,
    eq: Mutex<R, Eq<H::Block>>,
    /// The counts of destroyed queue pairs.
    destroyed_posts: spin::Mutex<PostCounts>,
    /// The agent for subnet management, on an InfiniBand port.
    agent: Mutex<R, Option<Packets<H::Block>>>,
    frames: Mutex<R, Option<Frames<H::Block>>>,
    link: Mutex<R, Link>,
    /// True if the link's state must be queried again.
    stale: AtomicBool,
    failed: AtomicBool,
    /// True if the card, since it failed, cannot reach memory.
    cut_off: AtomicBool,
    next_health: AtomicU64,
    recovery: spin::Mutex<Recovery>,
    resets: AtomicU64,
    qp_errors: AtomicU64,
    cq_errors: AtomicU64,
}

type QpLock<R, B> = Mutex<R, Option<Box<Qp<B>>>>;

/// A slot for a completion queue.
struct CqSlot<R, B> {
    /// The card's number of the queue that was last in this slot.
    number: AtomicU32,
    queue: Mutex<R, Option<Box<Cq<B>>>>,
}

impl<R: RawMutex, B: Block> CqSlot<R, B> {
    fn empty() -> Self {
        Self { number: AtomicU32::new(u32::MAX), queue: Mutex::new(None) }
    }

    fn put(&self, cq: Cq<B>) {
        self.number.store(cq.number(), Ordering::Relaxed);
        *self.queue.lock() = Some(cq.into());
    }
}

/// The identity of a card, for an inventory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The function of the card that this driver drives.
    pub function: Function,
    /// The version of the firmware.
    pub firmware: Version,
    /// The model.
    pub board: BoardId,
    /// The number of the port in use, from 1.
    pub port: u8,
    /// The Ethernet address of that port.
    pub mac: MacAddr,
}

/// A port of a card, for an inventory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CardPort {
    /// The port's number, from 1.
    pub number: u8,
    /// The port's layer: the present one, or the preferred one if the port supports both.
    pub layer: Layer,
    /// The port's Ethernet address; zero on InfiniBand.
    pub mac: MacAddr,
    /// True if the port has a link.
    pub link: bool,
}

impl<H: Hardware, R: RawMutex> Mlx4<H, R> {
    /// Resets a card and brings it up. On return its port is open, but its link may need more time.
    ///
    /// # Errors
    /// If another driver owns the card, or the card lacks a capability, refuses a command, or does not
    /// respond.
    pub fn start(hw: H, config: &Config) -> Result<Self, Error> {
        let (Started { control, card, eq, agent, frames, link }, saved) = start::start(&hw, config)?;
        let locks = || core::iter::repeat_with(|| Mutex::new(None));
        let slots: Box<[_]> = locks().take(SLOTS).collect();
        let slots = slots.try_into().map_err(|_| Error::NoMemory("queue pairs"))?;
        let next_health = (hw.now() + HEALTH_INTERVAL).as_nanos();
        let driver = Self {
            control: spin::Mutex::new(control),
            slots,
            cqs: core::iter::repeat_with(CqSlot::empty).take(CQS).collect(),
            eq: Mutex::new(eq),
            destroyed_posts: spin::Mutex::default(),
            agent: Mutex::new(agent),
            frames: Mutex::new(frames),
            link: Mutex::new(link),
            stale: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            cut_off: AtomicBool::new(false),
            next_health: AtomicU64::new(next_health),
            recovery: spin::Mutex::new(Recovery::new(saved)),
            resets: AtomicU64::new(0),
            key: AtomicU32::new(card.keys.local),
            remote_key: AtomicU32::new(card.keys.remote),
            max_message: 1 << card.capabilities.log_message,
            config: config.clone(),
            qp_errors: AtomicU64::new(0),
            cq_errors: AtomicU64::new(0),
            card,
            hw,
        };
        driver.refresh()?;
        Ok(driver)
    }

    /// Returns the identity of the card.
    pub fn identity(&self) -> Identity {
        let Card { function, firmware, board, port, info, .. } = &*self.card;
        Identity { function: *function, firmware: *firmware, board: *board, port: port.number, mac: info.mac }
    }

    /// Returns the card's ports in order. For a virtual function, returns only the port in use.
    ///
    /// # Errors
    /// If the card does not report them.
    pub fn ports(&self) -> Result<Vec<CardPort>, Error> {
        let numbers = match self.card.function {
            Function::Physical => 1..=self.card.capabilities.ports,
            Function::Virtual => self.card.port.number..=self.card.port.number,
        };
        let query = |control: &mut Control<H::Block>, number| {
            let PortInfo { up, layer, mac, .. } = Port::query(&self.hw, &mut control.commands, number, None)?;
            Ok(CardPort { number, layer, mac, link: up })
        };
        self.with_control(|control| numbers.map(|number| query(control, number)).collect())
    }

    /// Returns the time at which the reset of the first bring-up ended, so that the driver's own time can be
    /// told from the reset's. `None` for a virtual function, which is not reset.
    pub fn reset_ended(&self) -> Option<Instant> {
        self.card.reset
    }

    /// Returns the amount of memory lent to the card for its tables, in bytes.
    pub fn table_bytes(&self) -> u64 {
        self.control.lock().table_bytes()
    }

    /// Sets the GID of an Ethernet port, once the manager has assigned one. Must be called before queue pairs
    /// are connected. An InfiniBand port keeps the GID of its subnet.
    ///
    /// # Errors
    /// If the card refuses it.
    pub fn set_gid(&self, gid: Gid) -> Result<(), Error> {
        if self.card.port.layer == Layer::InfiniBand {
            return Ok(());
        }
        self.with_control(|control| control.set_gid(&self.hw, &self.card, gid))?;
        self.link.lock().gid = gid;
        Ok(())
    }

    /// Calls `act` with everything outside of the data path. A card that has failed receives no commands, and
    /// a card that does not complete a command has failed.
    fn with_control<T>(&self, act: impl FnOnce(&mut Control<H::Block>) -> T) -> T {
        let mut control = self.control.lock();
        if self.has_failed() {
            control.fail();
        }
        let result = act(&mut control);
        if control.has_failed() {
            self.fail("it does not complete commands");
        }
        result
    }

    /// Queries the state of the link. Later changes arrive as events, except on an InfiniBand link that waits
    /// for its subnet manager.
    ///
    /// # Errors
    /// If the card does not report it.
    pub fn refresh(&self) -> Result<(), Error> {
        let known = *self.link.lock();
        let link = self.with_control(|control| control.query_link(&self.hw, &self.card, known))?;
        self.update_link(link);
        Ok(())
    }

    fn update_link(&self, link: Link) {
        let before = core::mem::replace(&mut *self.link.lock(), link);
        if (before.state, before.lid) != (link.state, link.lid) {
            let Link { state, lid, .. } = link;
            log::info!("mlx4: port {} is {state:?}, LID {lid}", self.card.port.number);
        }
    }

    /// Serves an InfiniBand port: answers the subnet manager, and queries the link after a change. Uses
    /// `try_lock`, because it may be called while a lock is held; the holder of the locks does the work.
    fn serve_subnet(&self, budget: usize) -> bool {
        let Some(mut agent) = self.agent.try_lock() else { return false };
        let Some(mut control) = self.control.try_lock() else { return false };
        if self.has_failed() {
            return false;
        }
        let mut any = false;
        if let Some(packets) = &mut *agent {
            let port = self.card.port.number;
            any = agent::serve(&self.hw, &mut control.commands, packets, port, budget);
        }
        if self.stale.swap(false, Ordering::Relaxed) {
            any = true;
            let known = *self.link.lock();
            match control.query_link(&self.hw, &self.card, known) {
                Ok(link) => self.update_link(link),
                Err(error) => log::warn!("mlx4: the state of the port is not known: {error}"),
            }
        }
        if control.has_failed() {
            self.fail("it does not complete commands");
        }
        any
    }

    /// Handles up to `budget` events. Returns true if there were any.
    fn take_events(&self, budget: usize) -> bool {
        // If the lock is taken, its holder handles the events.
        let Some(mut eq) = self.eq.try_lock() else { return false };
        let mut any = false;
        for _ in 0..budget {
            let Some(event) = eq.next(&self.hw) else { break };
            any = true;
            self.on_event(event);
        }
        eq.update_consumer_index(&self.hw, false);
        any
    }

    fn on_event(&self, event: Event) {
        match event {
            Event::Completion { cqn } => {
                // The numbers of a virtual function's queues follow no pattern, and few queues are armed, so
                // a search is right.
                let named = |place: &&CqSlot<R, H::Block>| place.number.load(Ordering::Relaxed) == cqn;
                if let Some(place) = self.cqs.iter().find(named)
                    && let Some(cq) = place.queue.lock().as_deref_mut().filter(|cq| cq.number() == cqn)
                {
                    cq.on_event();
                } else if let Some(packets) = self.agent.lock().as_mut().filter(|p| p.cq.number() == cqn) {
                    packets.cq.on_event();
                } else if let Some(frames) =
                    self.frames.lock().as_mut().filter(|frames| frames.packets.cq.number() == cqn)
                {
                    frames.packets.cq.on_event();
                }
            }
            Event::CqError { cqn } => {
                log::error!("mlx4: completion queue {cqn:#x} has failed");
                self.cq_errors.fetch_add(1, Ordering::Relaxed);
            }
            Event::QpError { qpn } => {
                log::warn!("mlx4: queue pair {qpn:#x} has failed");
                self.qp_errors.fetch_add(1, Ordering::Relaxed);
            }
            Event::PortChange { port, up } if port == self.card.port.number => {
                let state = if up { PortState::Active } else { PortState::Down };
                match self.card.port.layer {
                    Layer::Ethernet => {
                        let link = Link { state, ..*self.link.lock() };
                        self.update_link(link);
                    }
                    Layer::InfiniBand => self.stale.store(true, Ordering::Relaxed),
                }
            }
            Event::PortManagement { port } if port == self.card.port.number => {
                self.stale.store(true, Ordering::Relaxed);
            }
            Event::Fatal => self.fail("it says so"),
            Event::PortChange { .. } | Event::PortManagement { .. } | Event::Other(_) => {}
        }
    }

    fn cq(&self, id: CqId) -> Option<&CqSlot<R, H::Block>> {
        self.cqs.get(usize::from(id.0))
    }

    /// Checks the card's health once per [`HEALTH_INTERVAL`].
    fn watch_health(&self, now: Instant) {
        if now.as_nanos() < self.next_health.load(Ordering::Relaxed) {
            return;
        }
        self.next_health.store((now + HEALTH_INTERVAL).as_nanos(), Ordering::Relaxed);
        match self.card.health {
            HealthSource::Unseen => {}
            HealthSource::Register(register) => match self.hw.register(register) {
                0 => {}
                error => self.fail(&alloc::format!("its error buffer begins with {error:#010x}")),
            },
            HealthSource::Channel => {
                if let Some(error) = command::channel_error(&self.hw) {
                    self.fail(&alloc::format!("{error}"));
                }
            }
        }
    }

    /// Marks the card as failed. Until it is reset, the driver does not use it and it cannot reach memory.
    fn fail(&self, why: &str) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            log::error!("mlx4: the card has failed: {why}");
            self.link.lock().state = PortState::Down;
            self.cut_off();
        }
    }

    /// Disables the card's access to memory. Returns true if the card then has none.
    fn cut_off(&self) -> bool {
        let done = reset::cut_off(&self.hw);
        if !done {
            log::error!("mlx4: the card cannot be kept from reaching memory");
        }
        self.cut_off.store(done, Ordering::Release);
        done
    }

    /// Returns true if a card that has failed can no longer reach memory.
    fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Acquire)
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

impl<H: Hardware, R> Drop for Mlx4<H, R> {
    /// Stops the card before its memory is freed.
    fn drop(&mut self) {
        let failed = *self.failed.get_mut();
        let control = self.control.get_mut();
        if failed {
            control.fail();
        }
        control.stop(&self.hw, &self.card);
    }
}
