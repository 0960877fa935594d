//! BAR 2: pages of doorbells (UAR).

use super::Card;
use super::host::Host;
use super::observe::{Doorbell, Observation};
use super::profile::limits;

/// Bytes of the doorbell pages. BlueFlame pages, if the card has them, are as many behind them.
const UAR_LEN: u64 = 1 << (20 + limits::LOG_UAR_MIB);
/// Bytes of half a BlueFlame register: where a work request may begin.
const HALF_BLUE_FLAME: u64 = 1 << (limits::LOG_BLUE_FLAME - 1);
/// Bytes of a page.
const PAGE: u64 = 4096;
/// Pages whose doorbells are of event queues.
const EQ_PAGES: u64 = 256;
/// First doorbell of event queues in a page; four of them, 8 bytes apart.
const EQ_DOORBELL: u64 = 0x800;

/// A queue pair has something to send.
const SEND: u64 = 0x14;
/// Asks for an event of a completion queue.
const CQ_ARM: u64 = 0x20;

impl Card {
    /// Bytes of BAR 2.
    #[must_use]
    pub const fn bar2_len(&self) -> u64 {
        if self.profile.blue_flame { 2 * UAR_LEN } else { UAR_LEN }
    }

    /// A write to BAR 2.
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

    /// A write to a BlueFlame register: a work request, that lies in the send queue too and whose second word there as
    /// here holds the queue pair's number. That word is what the card waits for.
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
