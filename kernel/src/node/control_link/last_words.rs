//! Last words: a dying node tells the manager the last lines of its log and the reason of its end.

use core::time::Duration;

use super::{LINK, Line, Outgoing, Seal};
use crate::net::stack::TcpStream;
use crate::sync::IrqMutex;
use crate::{console, time};
use platform::Instant;

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

/// Sends the last words of a dying node: tells the manager the lines of the log that it does not have, if
/// its release knows such lines, and `reason`, within 200 ms if possible. Does not allocate.
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
    let Some(mut buffers) = BUFFERS.try_lock() else { return };
    let Buffers { plain, sealed, lines } = &mut *buffers;
    let waiting = bytes.get(*sent..).unwrap_or_default();
    if !write(stream, waiting, until) {
        return;
    }
    let taken = console::take_log_dying(lines);
    let text = reason.as_bytes().get(..reason.len().min(240)).unwrap_or_default();
    let lines = link.log_tag.map(|tag| (tag, lines.get(..taken).unwrap_or_default()));
    for (tag, text) in lines.into_iter().chain([(link.last_words_tag, text)]) {
        let plain = encode(tag, text, plain);
        let Ok(len) = sealer.seal_into(plain, sealed) else { return };
        if !write(stream, sealed.get(..len).unwrap_or_default(), until) {
            return;
        }
    }
    stream.dying_flush(until);
}

/// The bytes of the log that go before the last words.
const LINES: usize = 4 << 10;

/// Buffers for the messages of a dying node, whose stacks may be short.
struct Buffers {
    plain: [u8; LINES + 8],
    sealed: [u8; LINES + 128],
    lines: [u8; LINES],
}

static BUFFERS: IrqMutex<Buffers> =
    IrqMutex::new(Buffers { plain: [0; LINES + 8], sealed: [0; LINES + 128], lines: [0; LINES] });

/// Encodes a message of one text by hand, because `postcard` allocates: the variant, the length in groups of
/// seven bits, the text.
fn encode<'a>(tag: u8, text: &[u8], into: &'a mut [u8]) -> &'a [u8] {
    let mut len = 0;
    let mut put = |byte: u8| {
        if let Some(slot) = into.get_mut(len) {
            *slot = byte;
            len += 1;
        }
    };
    put(tag);
    let mut rest = text.len();
    while rest >= 0x80 {
        put((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    put(rest as u8);
    text.iter().copied().for_each(put);
    into.get(..len).unwrap_or_default()
}

/// Writes bytes to the connection until the deadline. Returns false if that has failed.
fn write(stream: &TcpStream, mut part: &[u8], until: Instant) -> bool {
    while !part.is_empty() && time::now() < until {
        match stream.dying_write(part) {
            Some(Ok(n)) => part = part.get(n..).unwrap_or_default(),
            _ => return false,
        }
        if !part.is_empty() && stream.dying_poll().is_none() {
            return false;
        }
    }
    true
}
