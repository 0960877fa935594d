//! Doorbells: where in BAR 2 each is, and what is written there (Linux `include/linux/mlx4/doorbell.h`, illumos
//! `hermon_hw_uar_s`).

use crate::capabilities::Capabilities;
use crate::hardware::Hardware;
use crate::icm::pages::PAGE;
use core::sync::atomic::{Ordering, fence};

/// Pages for doorbells of event queues, which Linux uses for nothing else.
const EQ_PAGES: u64 = 128;
const SEND: u64 = 0x14;
const CQ_ARM: u64 = 0x20;
const EQ: u64 = 0x800;
/// Event queues with doorbells on one page, 8 bytes apart.
const EQS_OF_PAGE: u64 = 4;
const EQ_ARM: u32 = 1 << 31;
const INDEX: u32 = 0xff_ffff;

/// A page of doorbells for queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Page(u64);

impl Page {
    /// One for the queues of some number; others may have it too.
    pub(crate) fn of(number: usize, card: &Capabilities) -> Self {
        Self(EQ_PAGES + number as u64 % Self::count(card))
    }

    /// Whether the BlueFlame register that belongs to the page is that number's. A doorbell may be rung by all who have the
    /// page, at any time; a register is written by one.
    pub(crate) fn has_register(number: usize, card: &Capabilities) -> bool {
        (number as u64) < Self::count(card)
    }

    /// Pages for queues.
    fn count(card: &Capabilities) -> u64 {
        (card.uar_len / PAGE).saturating_sub(EQ_PAGES).max(1)
    }

    /// As contexts name it.
    pub(crate) const fn index(self) -> u32 {
        self.0 as u32
    }

    /// A queue pair has something to send.
    pub(crate) fn ring_send(self, hw: &impl Hardware, qpn: u32) {
        fence(Ordering::Release);
        hw.ring(self.0 * PAGE + SEND, qpn << 8);
    }

    /// The same, with the work request: `half` says which half of the register.
    pub(crate) fn blue_flame(self, hw: &impl Hardware, uar_len: u64, half: u64, request: &[u64]) {
        fence(Ordering::Release);
        hw.blue_flame(uar_len + self.0 * PAGE + half, request);
    }

    /// Asks for an event of a completion queue.
    pub(crate) fn arm(self, hw: &impl Hardware, cqn: u32, arm: Arm) {
        fence(Ordering::Release);
        hw.ring_wide(
            self.0 * PAGE + CQ_ARM,
            u64::from(arm.head() | cqn) << 32 | u64::from(arm.consumer & INDEX),
        );
    }
}

/// What is said when a completion queue is armed, to its record first and then to its doorbell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arm {
    /// Counts the queue's events.
    pub(crate) sequence: u32,
    pub(crate) consumer: u32,
}

impl Arm {
    const fn head(self) -> u32 {
        const ANY: u32 = 2 << 24;
        (self.sequence & 3) << 28 | ANY
    }

    /// The word of the record.
    pub(crate) const fn record(self) -> u32 {
        self.head() | self.consumer & INDEX
    }
}

/// Entries of an event queue up to `consumer` have been taken; `arm`: the next is to make an interrupt.
pub(crate) fn ring_events(hw: &impl Hardware, eqn: u32, consumer: u32, arm: bool) {
    let (page, place) = (u64::from(eqn) / EQS_OF_PAGE, u64::from(eqn) % EQS_OF_PAGE);
    fence(Ordering::Release);
    hw.ring(page * PAGE + EQ + 8 * place, consumer & INDEX | if arm { EQ_ARM } else { 0 });
}
