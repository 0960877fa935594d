//! The doorbells: their offsets in BAR 2, and the values written there (Linux
//! `include/linux/mlx4/doorbell.h`, illumos `hermon_hw_uar_s`).

use crate::bringup::capabilities::Capabilities;
use crate::hardware::Hardware;
use crate::icm::pages::PAGE;
use core::sync::atomic::{Ordering, fence};

/// The number of pages for doorbells of event queues, which Linux uses for nothing else.
const EQ_PAGES: u64 = 128;
const SEND: u64 = 0x14;
const CQ_ARM: u64 = 0x20;
const EQ: u64 = 0x800;
/// The number of event queues with a doorbell on one page, 8 bytes apart.
const EQS_OF_PAGE: u64 = 4;
const EQ_ARM: u32 = 1 << 31;
const INDEX: u32 = 0xff_ffff;

/// A page of doorbells for queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Page(u64);

impl Page {
    /// Returns the page for a queue number. Several numbers may share a page.
    pub(crate) fn of(number: usize, card: &Capabilities) -> Self {
        Self(EQ_PAGES + number as u64 % Self::count(card))
    }

    /// Returns true if the page's BlueFlame register belongs to that number. All numbers that share a page
    /// may ring its doorbells at any time, but only one may write its register.
    pub(crate) fn has_register(number: usize, card: &Capabilities) -> bool {
        (number as u64) < Self::count(card)
    }

    /// Returns the number of pages for queues.
    fn count(card: &Capabilities) -> u64 {
        (card.uar_len / PAGE).saturating_sub(EQ_PAGES).max(1)
    }

    /// Returns the index of the UAR page, as contexts name it.
    pub(crate) const fn index(self) -> u32 {
        self.0 as u32
    }

    /// Tells the card that a queue pair has work to send.
    pub(crate) fn ring_send(self, hw: &impl Hardware, qpn: u32) {
        fence(Ordering::Release);
        hw.ring(self.0 * PAGE + SEND, qpn << 8);
    }

    /// Rings the doorbell of a queue pair and writes the work request, to the half of the register at offset
    /// `half`.
    pub(crate) fn blue_flame(self, hw: &impl Hardware, uar_len: u64, half: u64, request: &[u64]) {
        fence(Ordering::Release);
        hw.blue_flame(uar_len + self.0 * PAGE + half, request);
    }

    /// Requests an event of a completion queue.
    pub(crate) fn arm(self, hw: &impl Hardware, cqn: u32, arm: Arm) {
        fence(Ordering::Release);
        hw.ring_wide(
            self.0 * PAGE + CQ_ARM,
            u64::from(arm.head() | cqn) << 32 | u64::from(arm.consumer & INDEX),
        );
    }
}

/// The value that arms a completion queue. It is written to the doorbell record first and then to the
/// doorbell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arm {
    /// The number of events of the completion queue so far.
    pub(crate) sequence: u32,
    pub(crate) consumer: u32,
}

impl Arm {
    const fn head(self) -> u32 {
        const ANY: u32 = 2 << 24;
        (self.sequence & 3) << 28 | ANY
    }

    /// Returns the word for the doorbell record.
    pub(crate) const fn record(self) -> u32 {
        self.head() | self.consumer & INDEX
    }
}

/// Updates an event queue's consumer index. With `arm`, the next event raises an interrupt.
pub(crate) fn ring_events(hw: &impl Hardware, eqn: u32, consumer: u32, arm: bool) {
    let (page, index) = (u64::from(eqn) / EQS_OF_PAGE, u64::from(eqn) % EQS_OF_PAGE);
    fence(Ordering::Release);
    hw.ring(page * PAGE + EQ + 8 * index, consumer & INDEX | if arm { EQ_ARM } else { 0 });
}
