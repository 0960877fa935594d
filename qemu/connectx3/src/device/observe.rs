//! What a card lets be seen of its work, for traces and counts.

use super::hcr::Command;

/// Something that happened between a driver and a card.
#[derive(Clone, Copy)]
pub enum Observation<'a> {
    /// A command has ended.
    Command {
        /// As given. Its input mailbox is still in the machine's memory.
        command: &'a Command,
        /// 0, or why it failed.
        status: u8,
    },
    /// A doorbell has been rung.
    Doorbell(Doorbell),
    /// An entry was written to an event queue.
    Event {
        /// The queue.
        eqn: u32,
        /// The entry.
        entry: &'a [u8; 32],
    },
    /// An entry was written to a completion queue.
    Completion {
        /// The queue.
        cqn: u32,
        /// The entry.
        entry: &'a [u8; 32],
    },
    /// A register that does something was written.
    Register(Register),
}

/// A doorbell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doorbell {
    /// A queue pair has something to send.
    Send {
        /// Its number.
        qpn: u32,
    },
    /// The same, with the work request.
    BlueFlame {
        /// Its number.
        qpn: u32,
    },
    /// A completion queue is armed.
    Arm {
        /// Its number.
        cqn: u32,
        /// For solicited completions only.
        solicited: bool,
        /// The consumer's index.
        consumer: u32,
        /// The sequence number of the arm.
        sequence: u32,
    },
    /// Entries of an event queue were taken.
    Event {
        /// Its number.
        eqn: u32,
        /// The consumer's index.
        consumer: u32,
        /// Whether it is armed too.
        arm: bool,
    },
    /// None that the card knows.
    Unknown {
        /// Where in BAR 2.
        offset: u64,
        /// The first word.
        word: u32,
    },
}

/// A register that does something when it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Register {
    /// Ownership is given up.
    ReleaseOwnership,
    /// A reset.
    Reset,
    /// INTx is cleared.
    ClearInterrupt,
}
