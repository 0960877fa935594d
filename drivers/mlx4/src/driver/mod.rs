//! The driver: a card that is up, with the locks of its parts.

mod events;
mod frames;
mod health;
mod restart;
mod rnic;

use crate::bringup::{self, Started};
use crate::card::{Card, CardPort, Function, Identity};
use crate::config::{Config, FramePort, Layer};
use crate::control::{Control, ControlState};
use crate::datapath::ring::SLOTS;
use crate::datapath::wqe::PostLimits;
use crate::error::Error;
use crate::hardware::{Block, Hardware};
use crate::icm::layout::MAX_CQS;
use crate::objects::cq::Cq;
use crate::objects::eq::Eq;
use crate::objects::frames::Frames;
use crate::objects::packets::Packets;
use crate::objects::port::{Link, Port, PortInfo};
use crate::objects::qp::{PostCounts, Qp};
use crate::recovery::Recovery;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use health::HealthState;
use lock_api::{Mutex, RawMutex};
use platform::Instant;
use verbs::{CqId, Gid};

/// A card that is up. `R` is the lock of what both tasks and interrupts wait for: in the kernel, one that
/// masks interrupts. Interrupts wait for no queue pair and no completion queue, and take the event queue only
/// if it is free, so the data path has locks that mask nothing.
pub struct Mlx4<H: Hardware, R> {
    hw: H,
    config: Config,
    /// The state of the first bring-up. Properties that a reset can change are in [`Control`].
    card: Arc<Card>,
    /// The limits of the lists of a connection's work requests.
    limits: PostLimits,
    /// The key that peers name.
    remote_key: AtomicU32,
    control: spin::Mutex<ControlState<H::Block>>,
    slots: Box<[QpLock<H::Block>; SLOTS]>,
    cqs: Box<[CqSlot<H::Block>]>,
    eq: spin::Mutex<Eq<H::Block>>,
    /// The counts of destroyed queue pairs.
    destroyed_posts: spin::Mutex<PostCounts>,
    /// The agent for subnet management, on an InfiniBand port.
    agent: Mutex<R, Option<Packets<H::Block>>>,
    /// The queues for plain frames of each port, by the index in [`FramePort::ALL`].
    frames: [Mutex<R, Option<Frames<H::Block>>>; FramePort::ALL.len()],
    link: Mutex<R, Link>,
    /// True if the link's state must be queried again.
    stale: AtomicBool,
    health: HealthState,
    recovery: spin::Mutex<Recovery>,
    counts: EventCounts,
}

/// Counts of events since the start.
#[derive(Default)]
struct EventCounts {
    resets: AtomicU64,
    qp_errors: AtomicU64,
    cq_errors: AtomicU64,
}

type QpLock<B> = spin::Mutex<Option<Box<Qp<B>>>>;

/// The number of no completion queue.
const NO_NUMBER: u32 = u32::MAX;

/// A slot for a completion queue.
struct CqSlot<B> {
    /// The card's number of the completion queue that is in this slot, or [`NO_NUMBER`].
    number: AtomicU32,
    /// The number of events since the queue was last armed. An interrupt counts them, without the lock.
    events: AtomicU32,
    queue: spin::Mutex<Option<Box<Cq<B>>>>,
}

impl<B: Block> CqSlot<B> {
    const fn empty() -> Self {
        Self { number: AtomicU32::new(NO_NUMBER), events: AtomicU32::new(0), queue: spin::Mutex::new(None) }
    }

    fn put(&self, cq: Box<Cq<B>>) {
        let number = cq.number();
        *self.queue.lock() = Some(cq);
        self.name(number);
    }

    /// Counts events of the completion queue of that number from now on.
    fn name(&self, number: u32) {
        self.events.store(0, Ordering::Relaxed);
        self.number.store(number, Ordering::Release);
    }
}

impl<H: Hardware, R: RawMutex> Mlx4<H, R> {
    /// Resets a card and brings it up. On return its port is open, but its link may need more time.
    ///
    /// # Errors
    /// If another driver owns the card, or the card lacks a capability, refuses a command, or does not
    /// respond.
    pub fn start(hw: H, config: &Config) -> Result<Self, Error> {
        let (Started { control, card, eq, agent, frames, link }, saved) = bringup::start(&hw, config)?;
        let locks = || core::iter::repeat_with(|| spin::Mutex::new(None));
        let slots: Box<[_]> = locks().take(SLOTS).collect();
        let slots = slots.try_into().map_err(|_| Error::NoMemory("queue pairs"))?;
        let driver = Self {
            control: spin::Mutex::new(control),
            slots,
            cqs: core::iter::repeat_with(CqSlot::empty).take(MAX_CQS).collect(),
            eq: spin::Mutex::new(eq),
            destroyed_posts: spin::Mutex::default(),
            agent: Mutex::new(agent),
            frames: frames.map(Mutex::new),
            link: Mutex::new(link),
            stale: AtomicBool::new(false),
            health: HealthState::new(hw.now()),
            recovery: spin::Mutex::new(Recovery::new(saved)),
            counts: EventCounts::default(),
            limits: PostLimits {
                key: AtomicU32::new(card.keys.local),
                max_message: 1 << card.capabilities.log_message,
            },
            remote_key: AtomicU32::new(card.keys.remote),
            config: config.clone(),
            card,
            hw,
        };
        driver.refresh()?;
        Ok(driver)
    }

    /// Returns the identity of the card.
    pub fn identity(&self) -> Identity {
        self.card.identity()
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
        self.with_control(|control| {
            let (mut commands, _) = control.commands();
            let query = |number| {
                let PortInfo { up, layer, mac, .. } = Port::query(&mut commands, number, None)?;
                Ok(CardPort { number, layer, mac, link: up })
            };
            numbers.map(query).collect()
        })
    }

    /// Returns the time at which the reset of the first bring-up ended, so that the driver's own time can be
    /// told from the reset's. `None` for a virtual function, which is not reset.
    pub fn reset_ended(&self) -> Option<Instant> {
        self.card.reset
    }

    /// Returns the amount of memory lent to the card for its tables, in bytes.
    pub fn table_bytes(&self) -> u64 {
        self.control.lock().tables.bytes()
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
        self.with_control(|control| control.set_gid(gid))?;
        self.link.lock().gid = gid;
        Ok(())
    }

    /// Calls `act` with everything outside of the data path. A card that has failed receives no commands, and
    /// a card that does not complete a command has failed.
    fn with_control<T>(&self, act: impl FnOnce(&mut Control<'_, H>) -> T) -> T {
        let mut state = self.control.lock();
        if self.has_failed() {
            state.commands.fail();
        }
        let result = act(&mut Control::new(&self.hw, &mut state));
        if state.commands.has_failed() {
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
        let link = self.with_control(|control| control.query_link(known))?;
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

    fn cq(&self, id: CqId) -> Option<&CqSlot<H::Block>> {
        self.cqs.get(usize::from(id.0))
    }
}

impl<H: Hardware, R> Drop for Mlx4<H, R> {
    /// Stops the card before its memory is freed.
    fn drop(&mut self) {
        let state = self.control.get_mut();
        if self.health.has_failed() {
            state.commands.fail();
        }
        Control::new(&self.hw, state).stop();
    }
}
