//! BAR 2: pages of doorbells (UAR).

use super::Card;
use super::host::Host;
use super::observe::{Doorbell, Observation};
use super::profile::limits;

/// The length of the doorbell pages, in bytes. If the card has BlueFlame pages, the same length of them
/// follows.
const UAR_LEN: u64 = 1 << (20 + limits::LOG_UAR_MIB);
/// The length of half a BlueFlame register, in bytes. A work request may begin at either half.
const HALF_BLUE_FLAME: u64 = 1 << (limits::LOG_BLUE_FLAME - 1);
/// The length of a page, in bytes.
const PAGE: u64 = 4096;
/// The number of pages that contain doorbells of event queues.
const EQ_PAGES: u64 = 256;
/// The offset of the first event queue doorbell in a page, which has four of them, 8 bytes apart.
const EQ_DOORBELL: u64 = 0x800;

/// The offset of the send doorbell in a page.
const SEND: u64 = 0x14;
/// The offset of the doorbell that arms a completion queue.
const CQ_ARM: u64 = 0x20;

impl Card {
    /// Returns the length of BAR 2, in bytes.
    #[must_use]
    pub const fn bar2_len(&self) -> u64 {
        if self.profile.blue_flame { 2 * UAR_LEN } else { UAR_LEN }
    }

    /// Handles a write to BAR 2.
    pub fn write_bar2(&mut self, offset: u64, data: &[u8], host: &dyn Host) {
        if self.is_broken() || self.write_channel(offset, data, host) {
            return;
        }
        if offset >= UAR_LEN {
            self.blue_flame(offset % HALF_BLUE_FLAME, data, host);
            return;
        }
        let (page, within) = (offset / PAGE, offset % PAGE);
        let Some(first) = data.first_chunk::<4>().map(|word| u32::from_be_bytes(*word)) else { return };
        match within {
            EQ_DOORBELL..0x820 if page < EQ_PAGES => {
                let eqn = page as u32 * 4 + (within - EQ_DOORBELL) as u32 / 8;
                let (consumer, arm) = (first & 0xff_ffff, first >> 31 != 0);
                host.observe(&Observation::Doorbell(Doorbell::Event { eqn, consumer, arm }));
                self.eqs.doorbell(eqn, consumer, arm, host);
            }
            SEND => {
                host.observe(&Observation::Doorbell(Doorbell::Send { qpn: first >> 8 }));
                self.ring_send(first >> 8, host);
            }
            CQ_ARM if data.len() == 8 => {
                let Some(second) = data.last_chunk::<4>().map(|word| u32::from_be_bytes(*word)) else {
                    return;
                };
                let solicited = first >> 24 & 7 == 1;
                let (cqn, consumer, sequence) = (first & 0xff_ffff, second & 0xff_ffff, first >> 28 & 3);
                let arm = Doorbell::Arm { cqn, solicited, consumer, sequence };
                host.observe(&Observation::Doorbell(arm));
                self.cqs.arm(cqn, consumer, solicited, &mut self.eqs, host);
            }
            _ => host.observe(&Observation::Doorbell(Doorbell::Unknown { offset, word: first })),
        }
    }

    /// Handles a write to a BlueFlame register: a work request that is also in the send queue, and whose
    /// second word contains the queue pair number. The card waits for the write of that word.
    fn blue_flame(&mut self, at: u64, data: &[u8], host: &dyn Host) {
        const NUMBER: u64 = 4;
        let Some(skip) = NUMBER.checked_sub(at).map(|skip| skip as usize) else { return };
        let word = data.get(skip..).and_then(|rest| rest.first_chunk::<4>());
        if let Some(word) = word {
            let qpn = u32::from_be_bytes(*word) >> 8;
            host.observe(&Observation::Doorbell(Doorbell::BlueFlame { qpn }));
            self.ring_send(qpn, host);
        }
    }
}
