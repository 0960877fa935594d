//! What a virtual function gets from its master: numbers, and page entries, which the master writes (ALLOC_RES, FREE_RES,
//! WRITE_MTT; Linux `mlx4/resource_tracker.c`).

use crate::command::{Command, Commands, Opcode};
use crate::error::Error;
use crate::hardware::{Block, Hardware};
use crate::icm::pages::LOG_PAGE;
use crate::icm::{Object, PageRun};
use crate::layout::{Field, Mailbox};

/// Kinds of what is granted.
mod kind {
    pub(super) const QP: u32 = 0;
    pub(super) const CQ: u32 = 1;
    pub(super) const KEY: u32 = 4;
    pub(super) const PAGES: u32 = 5;
    pub(super) const MAC: u32 = 6;
    pub(super) const COUNTER: u32 = 9;
    /// With the number of queue pairs, completion queues and counters: for a driver, not for one of its users (Linux).
    pub(super) const OF_DRIVER: u32 = 1 << 30;
}

/// What is done with it: the modifier of the opcode.
mod step {
    /// A number only.
    pub(super) const NUMBER: u8 = 0;
    /// A number and entries in the card's tables.
    pub(super) const ALL: u8 = 1;
    /// Entries for a number.
    pub(super) const ENTRIES: u8 = 2;
}

/// Queue pair numbers that are asked for first, and at least.
const MOST_QPS: u32 = crate::qp::queue::SLOTS as u32;
const LEAST_QPS: u32 = 64;
/// Page entries of one object.
const MOST_PAGES: u64 = 1 << 20;

fn allocate<B: Block>(
    hw: &impl Hardware<Block = B>,
    commands: &mut Commands<B>,
    kind: u32,
    step: u8,
    parameter: u64,
) -> Result<u32, Error> {
    let ask = Command::new(Opcode::AllocRes).of(kind).variant(step).immediate(parameter);
    commands.run(hw, ask).map(|number| number as u32)
}

fn free<B: Block>(
    hw: &impl Hardware<Block = B>,
    commands: &mut Commands<B>,
    kind: u32,
    step: u8,
    parameter: u64,
) -> Result<(), Error> {
    let give = Command::new(Opcode::FreeRes).of(kind).variant(step).immediate(parameter);
    commands.run(hw, give).map(drop)
}

/// Numbers of queue pairs in a row, the first a multiple of how many they are: as many as the master gives.
pub(crate) fn queue_pairs<B: Block>(
    hw: &impl Hardware<Block = B>,
    commands: &mut Commands<B>,
) -> Result<(u32, u32), Error> {
    let mut count = MOST_QPS;
    loop {
        let parameter = u64::from(count) << 32 | u64::from(count);
        match allocate(hw, commands, kind::QP | kind::OF_DRIVER, step::NUMBER, parameter) {
            Ok(first) if first.is_multiple_of(count) && first > 0 => return Ok((first, count)),
            Ok(_) => return Err(Error::Nonsense("its queue pairs have impossible numbers")),
            Err(Error::Refused { .. }) if count > LEAST_QPS => count /= 2,
            Err(error) => return Err(error),
        }
    }
}

/// The number of a completion queue.
pub(crate) fn completion_queue<B: Block>(
    hw: &impl Hardware<Block = B>,
    commands: &mut Commands<B>,
) -> Result<u32, Error> {
    allocate(hw, commands, kind::CQ | kind::OF_DRIVER, step::ALL, 0)
}

/// Gives the number of a completion queue back.
pub(crate) fn give_completion_queue<B: Block>(
    hw: &impl Hardware<Block = B>,
    commands: &mut Commands<B>,
    number: u32,
) -> Result<(), Error> {
    free(hw, commands, kind::CQ, step::ALL, number.into())
}

/// The index of a key.
pub(crate) fn key<B: Block>(hw: &impl Hardware<Block = B>, commands: &mut Commands<B>) -> Result<u32, Error> {
    allocate(hw, commands, kind::KEY, step::NUMBER, 0)
}

/// A counter of a port's frames; `None` if the master has none left.
pub(crate) fn counter<B: Block>(
    hw: &impl Hardware<Block = B>,
    commands: &mut Commands<B>,
) -> Result<Option<u8>, Error> {
    match allocate(hw, commands, kind::COUNTER | kind::OF_DRIVER, step::NUMBER, 0) {
        Ok(counter) => Ok(u8::try_from(counter).ok()),
        Err(Error::Refused { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A row of a port's table of addresses, for this one.
pub(crate) fn mac_row<B: Block>(
    hw: &impl Hardware<Block = B>,
    commands: &mut Commands<B>,
    port: u8,
    mac: [u8; 6],
) -> Result<u8, Error> {
    let [a, b, c, d, e, f] = mac;
    let mac = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
    let row = allocate(hw, commands, u32::from(port) << 8 | kind::MAC, step::ALL, mac)?;
    u8::try_from(row)
        .ok()
        .filter(|row| *row < 128)
        .ok_or(Error::Nonsense("its address has an impossible row"))
}

/// Has entries made for `count` numbers of objects from `first` on, where they are made apart.
pub(crate) fn back<B: Block>(
    hw: &impl Hardware<Block = B>,
    commands: &mut Commands<B>,
    object: Object,
    first: u64,
    count: u64,
) -> Result<(), Error> {
    let kind = match object {
        Object::Qp => kind::QP,
        Object::Key => kind::KEY,
        Object::Cq | Object::Eq | Object::Srq => return Ok(()),
    };
    (first..first + count)
        .try_for_each(|number| allocate(hw, commands, kind, step::ENTRIES, number).map(drop))
}

/// Has `count` page entries written, as `entry` gives them by their number from 0 on.
pub(crate) fn map<B: Block>(
    hw: &impl Hardware<Block = B>,
    commands: &mut Commands<B>,
    count: u64,
    entry: &dyn Fn(u64) -> u64,
) -> Result<PageRun, Error> {
    let pages = Some(count).filter(|count| (1..=MOST_PAGES).contains(count));
    let pages = pages.ok_or(Error::Exhausted("page entries"))?;
    let first = allocate(hw, commands, kind::PAGES, step::ALL, order(pages).into())?;
    let run = PageRun::new(first.into(), pages << LOG_PAGE);
    let written = write_pages(hw, commands, first, pages, entry);
    if written.is_err() {
        unmap_queue(hw, commands, run);
    }
    written.map(|()| run)
}

/// Gives page entries back. The card no longer uses them.
pub(crate) fn unmap_queue<B: Block>(hw: &impl Hardware<Block = B>, commands: &mut Commands<B>, run: PageRun) {
    let parameter = u64::from(order(run.pages())) << 32 | run.first();
    if let Err(error) = free(hw, commands, kind::PAGES, step::ALL, parameter) {
        log::warn!("mlx4: page entries stay taken: {error}");
    }
}

/// log2 of how many page entries are asked for.
const fn order(pages: u64) -> u32 {
    pages.next_power_of_two().ilog2()
}

fn write_pages<B: Block>(
    hw: &impl Hardware<Block = B>,
    commands: &mut Commands<B>,
    first: u32,
    pages: u64,
    entry: &dyn Fn(u64) -> u64,
) -> Result<(), Error> {
    const FIRST: Field = Field::word(0x04);
    const ENTRIES: usize = 0x10;
    /// Entries of one command (Linux `MLX4_MAILBOX_SIZE / 8 - 2`).
    const MOST: u64 = 510;
    for skip in (0..pages).step_by(MOST as usize) {
        let count = MOST.min(pages - skip);
        let mut mailbox = Mailbox::new().with(FIRST, first + skip as u32);
        for page in 0..count {
            mailbox.set_wide(ENTRIES + 8 * page as usize, entry(skip + page));
        }
        commands.send(hw, Command::new(Opcode::WriteMtt).of(count as u32), &mailbox)?;
    }
    Ok(())
}
