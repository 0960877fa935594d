//! Flaws of an image, for the tests of rollouts. A test writes the letter of a flaw into the file of an
//! image, so that each flaw makes another image of one build.

use crate::exec;
use core::hint::black_box;
use core::time::Duration;
use proto::RnicOffer;

/// A text that occurs once in the file of the image, and the letter of the flaw behind it; `-` for none.
#[used]
static FLAW: [u8; 21] = *b"flaw of a selftest: -";

/// The time between the digest that the manager is told and the panic: for the message to leave the machine.
const PANIC_AFTER: Duration = Duration::from_millis(20);

fn is(letter: u8) -> bool {
    // The compiler must not know the letter, because the file is changed after the build.
    black_box(&FLAW).last() == Some(&letter)
}

/// Returns the digest of its kernel that the image tells the manager: another one with the flaw `h`. With the
/// flaw `p` the image panics afterwards.
pub(super) fn digest(kernel: [u8; 32]) -> [u8; 32] {
    if is(b'p') {
        exec::spawn("flaw", async {
            exec::sleep(PANIC_AFTER).await;
            panic!("the image of a test panics after its join");
        })
        .detach();
    }
    if is(b'h') { kernel.map(|byte| !byte) } else { kernel }
}

/// Changes the Ethernet address to which peers send RoCE, in the offer of an image with the flaw `r`.
pub(super) fn offer(mut offer: RnicOffer) -> RnicOffer {
    if is(b'r') {
        offer.mac.0[5] ^= 0x80;
    }
    offer
}
