//! Last words: a dying node tells the manager the reason of its end.

use core::time::Duration;

use super::{LINK, Line, Outgoing, Seal};
use crate::time;

/// The longest time for last words.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Ends a membership, if there is one, with last words. Returns true if there was one.
pub(crate) fn end_membership(reason: &str) -> bool {
    say(reason);
    let Some(link) = LINK.lock().take() else { return false };
    // The task that connects again must not resume a membership that has ended.
    link.outgoing.lock().enter(Line::Over);
    link.hang_up();
    true
}

/// Sends the last words of a dying node: tells the manager `reason`, within 200 ms if possible.
pub(super) fn say(reason: &str) {
    let until = time::now() + LAST_WORDS;
    let Some(slot) = LINK.try_lock() else { return };
    let Some(link) = slot.as_ref() else { return };
    let Some(mut outgoing) = link.outgoing.try_lock() else { return };
    let Outgoing {
        seal: Some(Seal { sealer, .. }), stream: Some(stream), bytes, sent, line: Line::Up, ..
    } = &mut *outgoing
    else {
        return;
    };
    // Encoded by hand, because `postcard` allocates: the variant, the length in groups of seven bits, the
    // text.
    let text = reason.as_bytes().get(..reason.len().min(240)).unwrap_or_default();
    let mut plain = [0u8; 256];
    let mut len = 0;
    let mut put = |byte: u8| {
        if let Some(slot) = plain.get_mut(len) {
            *slot = byte;
            len += 1;
        }
    };
    put(link.last_words_tag);
    if text.len() >= 0x80 {
        put((text.len() & 0x7f) as u8 | 0x80);
        put((text.len() >> 7) as u8);
    } else {
        put(text.len() as u8);
    }
    text.iter().copied().for_each(put);
    let mut sealed = [0u8; 256 + 32];
    let Ok(sealed_bytes) = sealer.seal_into(&plain[..len], &mut sealed) else { return };
    let waiting = bytes.get(*sent..).unwrap_or_default();
    for mut part in [waiting, &sealed[..sealed_bytes]] {
        while !part.is_empty() && time::now() < until {
            match stream.dying_write(part) {
                Some(Ok(n)) => part = part.get(n..).unwrap_or_default(),
                _ => return,
            }
            if !part.is_empty() && stream.dying_poll().is_none() {
                return;
            }
        }
    }
    stream.dying_flush(until);
}
