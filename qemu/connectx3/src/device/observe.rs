//! Observations of a card's work, for traces and counts.

use super::hcr::Command;

/// An interaction between a driver and a card.
#[derive(Clone, Copy)]
pub enum Observation<'a> {
    /// A command has ended.
    Command {
        /// The command as issued. Its input mailbox is still in the machine's memory.
        command: &'a Command,
        /// The status; 0 for success.
        status: u8,
    },
    /// A doorbell has been rung.
    Doorbell(Doorbell),
    /// An entry was written to an event queue.
    Event {
        /// The number of the queue.
        eqn: u32,
        /// The entry's bytes.
        entry: &'a [u8; 32],
    },
    /// An entry was written to a completion queue.
    Completion {
        /// The number of the queue.
        cqn: u32,
        /// The entry's bytes.
        entry: &'a [u8; 32],
    },
    /// A register with a side effect was written.
    Register(Register),
}

/// A doorbell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doorbell {
    /// A queue pair has work requests to send.
    Send {
        /// The number of the queue pair.
        qpn: u32,
    },
    /// A queue pair has work requests to send, and the doorbell carries the first of them.
    BlueFlame {
        /// The number of the queue pair.
        qpn: u32,
    },
    /// A completion queue is armed.
    Arm {
        /// The number of the queue.
        cqn: u32,
        /// True if armed for solicited completions only.
        solicited: bool,
        /// The consumer index.
        consumer: u32,
        /// The sequence number of the arming.
        sequence: u32,
    },
    /// Entries of an event queue were consumed.
    Event {
        /// The number of the queue.
        eqn: u32,
        /// The consumer index.
        consumer: u32,
        /// True if the queue is armed too.
        arm: bool,
    },
    /// A write that is no known doorbell.
    Unknown {
        /// The offset in BAR 2.
        offset: u64,
        /// The first 32-bit word.
        word: u32,
    },
}

/// A register with a side effect when written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Register {
    /// Ownership is released.
    ReleaseOwnership,
    /// The card is reset.
    Reset,
    /// INTx is cleared.
    ClearInterrupt,
}
