//! ConnectX-3 and ConnectX-3 Pro as an RNIC: the card of Mellanox behind the [`verbs::Rnic`] trait.
//!
//! [`Mlx4::start`] takes a card through all that [`Hardware`] gives of it, from reset to a port that is open. Everything
//! that the card says is checked, and every wait for it has a deadline: a card that lies or dies yields an [`Error`].
//!
//! | module | subject |
//! |---|---|
//! | `hardware` | what the driver asks of the machine: registers, doorbells, shared memory, time |
//! | `layout` | big-endian mailboxes and their fields |
//! | `command` | giving commands to the card: by its registers (HCR), or over the channel to a master (vHCR) |
//! | `start` | bringing a card up, a physical function and a virtual one |
//! | `reset`, `firmware`, `capabilities`, `hca` | what that takes, in this order |
//! | `slave`, `grants` | what a virtual function may do, and what its master gives it |
//! | `tables` | numbers of objects and page entries of queues, from `icm` or from `grants` |
//! | `icm` | memory for the card's tables: their places, their pages, page entries of queues |
//! | `region` | the one key over all memory, and the second over what peers may reach |
//! | `port` | the port: its layer, link, addresses |
//! | `mad`, `agent`, `packets` | management datagrams, who answers a subnet manager, and the queue pair for that |
//! | `eq` | events |
//! | `cq`, `cqe` | completion queues and their entries |
//! | `qp` | queue pairs: numbers, contexts, rings, posting |
//! | `wqe` | work requests as the card reads them |
//! | `doorbell` | what is rung where |
//! | `mend` | resetting a card that has failed, and bringing it up again |
//! | `frames`, `steering` | plain Ethernet frames, and which addresses they come in by |
//! | `control` | all that is not on the path of data, behind one lock |
//! | `rnic` | the trait |
//!
//! **The path of data** has two locks: a poster's, of its queue pair, because the card takes a ring in order; and a
//! poller's, of its completion queue. Between the two are only atomics ([`qp`](self)'s rings), and nothing on it allocates. Memory
//! that the card shares is words that either side may change at any time (`[AtomicU64]`), so nothing here is unsafe.
//!
//! Facts are from public drivers, named where they are used: Linux `mlx4`, rdma-core, iPXE `hermon` (its header of the
//! Programmer's Reference Manual is the PRM meant here), illumos `hermon`. What only this driver does with a card, and so has
//! been seen on the emulated one alone, is listed in docs/hardware.md.
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
mod grants;
mod hardware;
mod hca;
mod icm;
mod layout;
mod mad;
mod mend;
mod packets;
mod port;
mod qp;
mod region;
mod reset;
mod rnic;
mod slave;
mod start;
mod steering;
mod tables;
mod wqe;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use control::{Card, Control, Health};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use cq::Cq;
use eq::{Eq, Event};
use frames::Frames;
use lock_api::{Mutex, RawMutex};
use mend::Mending;
use packets::Packets;
use platform::Instant;
use port::{Link, Port, PortInfo};
use qp::queue::SLOTS;
use qp::{Posts, Slot};
use start::Up;
use verbs::{CqId, Gid, MacAddr, PortState};

pub use capabilities::BoardId;
pub use command::{Opcode, Status};
pub use config::{Config, Layer, Ranges, Remote};
pub use control::Function;
pub use error::Error;
pub use firmware::Version;
pub use hardware::{Block, Hardware};
pub use mend::Condition;

/// Completion queues that can exist: those of the card's table that are not the firmware's, at most.
const CQS: usize = 1 << icm::layout::LOG_CQS;
/// How often the card's error buffer is looked at. Linux does so every 5 s (`mlx4/catas.c`); here the card is to be up again
/// before a node's lease ends.
const HEALTH_EVERY: Duration = Duration::from_secs(1);

/// A card that is up. `R` is the lock of its queues: in the kernel one that masks interrupts.
pub struct Mlx4<H: Hardware, R> {
    hw: H,
    config: Config,
    /// As it was first brought up. What may be another after a reset is in [`Control`].
    card: Arc<Card>,
    /// What work of this side names, and what peers do.
    key: AtomicU32,
    remote_key: AtomicU32,
    /// Bytes of a message of a connection.
    max_message: u64,
    control: spin::Mutex<Control<H::Block>>,
    slots: Box<[SlotLock<R, H::Block>; SLOTS]>,
    cqs: Box<[CqPlace<R, H::Block>]>,
    eq: Mutex<R, Eq<H::Block>>,
    /// What queue pairs that are gone have posted.
    former_posts: spin::Mutex<Posts>,
    /// On an InfiniBand port, what its subnet manager speaks to.
    agent: Mutex<R, Option<Packets<H::Block>>>,
    frames: Mutex<R, Option<Frames<H::Block>>>,
    link: Mutex<R, Link>,
    /// The link is to be looked at again.
    stale: AtomicBool,
    failed: AtomicBool,
    /// Since it failed, it reaches no memory.
    cut_off: AtomicBool,
    next_health: AtomicU64,
    mending: spin::Mutex<Mending>,
    resets: AtomicU64,
    qp_errors: AtomicU64,
    cq_errors: AtomicU64,
}

type SlotLock<R, B> = Mutex<R, Option<Box<Slot<B>>>>;

/// A place for a completion queue.
struct CqPlace<R, B> {
    /// The number on the card of the queue that was there last.
    number: AtomicU32,
    queue: Mutex<R, Option<Box<Cq<B>>>>,
}

impl<R: RawMutex, B: Block> CqPlace<R, B> {
    fn empty() -> Self {
        Self { number: AtomicU32::new(u32::MAX), queue: Mutex::new(None) }
    }

    fn put(&self, cq: Cq<B>) {
        self.number.store(cq.number(), Ordering::Relaxed);
        *self.queue.lock() = Some(cq.into());
    }
}

/// What a card is, for an inventory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Which function of it is driven.
    pub function: Function,
    /// Its firmware.
    pub firmware: Version,
    /// Its model.
    pub board: BoardId,
    /// The port that is driven, from 1.
    pub port: u8,
    /// The port's address.
    pub mac: MacAddr,
}

/// A port of a card, for an inventory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CardPort {
    /// Its number, from 1.
    pub number: u8,
    /// What its frames are made for, or can be.
    pub layer: Layer,
    /// Its address. Zero on InfiniBand.
    pub mac: MacAddr,
    /// Whether it has a link.
    pub link: bool,
}

impl<H: Hardware, R: RawMutex> Mlx4<H, R> {
    /// Resets a card and brings it up: its port is open afterwards, its link may take a while.
    ///
    /// # Errors
    /// If another driver has the card, it lacks something, it refuses something, or it does not answer.
    pub fn start(hw: H, config: &Config) -> Result<Self, Error> {
        let (Up { control, card, eq, agent, frames, link }, saved) = start::start(&hw, config)?;
        let locks = || core::iter::repeat_with(|| Mutex::new(None));
        let slots: Box<[_]> = locks().take(SLOTS).collect();
        let slots = slots.try_into().map_err(|_| Error::NoMemory("queue pairs"))?;
        let next_health = (hw.now() + HEALTH_EVERY).as_nanos();
        let driver = Self {
            control: spin::Mutex::new(control),
            slots,
            cqs: core::iter::repeat_with(CqPlace::empty).take(CQS).collect(),
            eq: Mutex::new(eq),
            former_posts: spin::Mutex::default(),
            agent: Mutex::new(agent),
            frames: Mutex::new(frames),
            link: Mutex::new(link),
            stale: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            cut_off: AtomicBool::new(false),
            next_health: AtomicU64::new(next_health),
            mending: spin::Mutex::new(Mending::new(saved)),
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

    /// What the card is.
    pub fn identity(&self) -> Identity {
        let Card { function, firmware, board, port, info, .. } = &*self.card;
        Identity { function: *function, firmware: *firmware, board: *board, port: port.number, mac: info.mac }
    }

    /// The ports of the card, in their order; of a virtual function, the one that is driven.
    ///
    /// # Errors
    /// If the card does not say.
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

    /// When the reset had ended from which the card was brought up: what came after is the driver's own time. A virtual function
    /// is not reset.
    pub fn reset_ended(&self) -> Option<Instant> {
        self.card.reset
    }

    /// Bytes of memory that the card has for its tables.
    pub fn table_bytes(&self) -> u64 {
        self.control.lock().table_bytes()
    }

    /// Gives an Ethernet port its GID, once the manager has assigned one; to be called before queue pairs are connected. An
    /// InfiniBand port has its own of its subnet, and keeps it.
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

    /// Runs `act` on what is not on the path of data. A card that has failed is given no commands, and one that does not end
    /// a command has failed.
    fn with_control<T>(&self, act: impl FnOnce(&mut Control<H::Block>) -> T) -> T {
        let mut control = self.control.lock();
        if self.has_failed() {
            control.fail();
        }
        let result = act(&mut control);
        if control.has_failed() {
            self.fail("it does not answer to commands");
        }
        result
    }

    /// Asks the card for the state of its link, which its events tell from then on. (A link of InfiniBand that waits for its
    /// subnet manager makes none.)
    ///
    /// # Errors
    /// If the card does not say.
    pub fn refresh(&self) -> Result<(), Error> {
        let known = *self.link.lock();
        let link = self.with_control(|control| control.look(&self.hw, &self.card, known))?;
        self.saw(link);
        Ok(())
    }

    fn saw(&self, link: Link) {
        let before = core::mem::replace(&mut *self.link.lock(), link);
        if (before.state, before.lid) != (link.state, link.lid) {
            let Link { state, lid, .. } = link;
            log::info!("mlx4: port {} is {state:?}, LID {lid}", self.card.port.number);
        }
    }

    /// What an InfiniBand port has to do: its subnet manager is answered, and what that has changed is looked at. Whoever has
    /// the locks does it; it may be called while they are held.
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
            match control.look(&self.hw, &self.card, known) {
                Ok(link) => self.saw(link),
                Err(error) => log::warn!("mlx4: the state of the port is not known: {error}"),
            }
        }
        if control.has_failed() {
            self.fail("it does not answer to commands");
        }
        any
    }

    /// Takes up to `budget` events. Gives whether there were any.
    fn take_events(&self, budget: usize) -> bool {
        // Whoever has the lock takes them.
        let Some(mut eq) = self.eq.try_lock() else { return false };
        let mut any = false;
        for _ in 0..budget {
            let Some(event) = eq.next(&self.hw) else { break };
            any = true;
            self.on_event(event);
        }
        eq.tell(&self.hw, false);
        any
    }

    fn on_event(&self, event: Event) {
        match event {
            Event::Completion { cqn } => {
                // Numbers of virtual functions are of any kind. There are few queues that are armed.
                let named = |place: &&CqPlace<R, H::Block>| place.number.load(Ordering::Relaxed) == cqn;
                if let Some(place) = self.cqs.iter().find(named)
                    && let Some(cq) = place.queue.lock().as_deref_mut().filter(|cq| cq.number() == cqn)
                {
                    cq.had_event();
                } else if let Some(packets) = self.agent.lock().as_mut().filter(|p| p.cq.number() == cqn) {
                    packets.cq.had_event();
                } else if let Some(frames) =
                    self.frames.lock().as_mut().filter(|frames| frames.packets.cq.number() == cqn)
                {
                    frames.packets.cq.had_event();
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
                        self.saw(link);
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

    fn cq(&self, id: CqId) -> Option<&CqPlace<R, H::Block>> {
        self.cqs.get(usize::from(id.0))
    }

    /// Looks whether the card is well, now and then.
    fn watch_health(&self, now: Instant) {
        if now.as_nanos() < self.next_health.load(Ordering::Relaxed) {
            return;
        }
        self.next_health.store((now + HEALTH_EVERY).as_nanos(), Ordering::Relaxed);
        match self.card.health {
            Health::Unseen => {}
            Health::Register(register) => match self.hw.register(register) {
                0 => {}
                error => self.fail(&alloc::format!("its error buffer begins with {error:#010x}")),
            },
            Health::Channel => {
                if let Some(error) = command::trouble(&self.hw) {
                    self.fail(&alloc::format!("{error}"));
                }
            }
        }
    }

    /// The card is no longer of use, and reaches no memory until it has been reset.
    fn fail(&self, why: &str) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            log::error!("mlx4: the card has failed: {why}");
            self.link.lock().state = PortState::Down;
            self.cut_off();
        }
    }

    /// Takes the card's access to memory away. Gives whether it has none.
    fn cut_off(&self) -> bool {
        let done = reset::cut_off(&self.hw);
        if !done {
            log::error!("mlx4: the card goes on to reach memory");
        }
        self.cut_off.store(done, Ordering::Release);
        done
    }

    /// Whether a card that has failed reaches no memory any more.
    fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Acquire)
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

impl<H: Hardware, R> Drop for Mlx4<H, R> {
    /// Has the card stop before its memory goes.
    fn drop(&mut self) {
        let failed = *self.failed.get_mut();
        let control = self.control.get_mut();
        if failed {
            control.fail();
        }
        control.stop(&self.hw, &self.card);
    }
}
