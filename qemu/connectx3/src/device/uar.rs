//! BAR 2: pages of doorbells (UAR).

use super::observe::Doorbell;
use super::profile::limits;

/// The length of the doorbell pages, in bytes. If the card has BlueFlame pages, the same length of them
/// follows.
pub(super) const UAR_LEN: u64 = 1 << (20 + limits::LOG_UAR_MIB);
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

/// Returns the doorbell of a write to the pages, or `None` if the write is too short to be one.
pub(super) fn doorbell(offset: u64, data: &[u8]) -> Option<Doorbell> {
    if offset >= UAR_LEN {
        return blue_flame(offset % HALF_BLUE_FLAME, data);
    }
    let (page, within) = (offset / PAGE, offset % PAGE);
    let first = data.first_chunk::<4>().map(|word| u32::from_be_bytes(*word))?;
    Some(match within {
        EQ_DOORBELL..0x820 if page < EQ_PAGES => {
            let eqn = page as u32 * 4 + (within - EQ_DOORBELL) as u32 / 8;
            Doorbell::Event { eqn, consumer: first & 0xff_ffff, arm: first >> 31 != 0 }
        }
        SEND => Doorbell::Send { qpn: first >> 8 },
        CQ_ARM if data.len() == 8 => {
            let second = data.last_chunk::<4>().map(|word| u32::from_be_bytes(*word))?;
            Doorbell::Arm {
                cqn: first & 0xff_ffff,
                solicited: first >> 24 & 7 == 1,
                consumer: second & 0xff_ffff,
                sequence: first >> 28 & 3,
            }
        }
        _ => Doorbell::Unknown { offset, word: first },
    })
}

/// Returns the doorbell of a write to a BlueFlame register: a work request that is also in the send queue,
/// and whose second word contains the queue pair number. The card waits for the write of that word.
fn blue_flame(at: u64, data: &[u8]) -> Option<Doorbell> {
    const NUMBER: u64 = 4;
    let skip = NUMBER.checked_sub(at)? as usize;
    let word = data.get(skip..)?.first_chunk::<4>()?;
    Some(Doorbell::BlueFlame { qpn: u32::from_be_bytes(*word) >> 8 })
}
