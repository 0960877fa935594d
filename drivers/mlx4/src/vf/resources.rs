//! The resources that a virtual function receives from its master: numbers, and page entries, which the
//! master writes (ALLOC_RES, FREE_RES, WRITE_MTT; Linux `mlx4/resource_tracker.c`).

use crate::command::{Command, Commands, Opcode};
use crate::error::Error;
use crate::hardware::Hardware;
use crate::icm::pages::LOG_PAGE;
use crate::icm::{Object, PageRun};
use crate::mailbox::{Field, Mailbox};

/// Kinds of resources.
mod kind {
    pub(super) const QP: u32 = 0;
    pub(super) const CQ: u32 = 1;
    pub(super) const KEY: u32 = 4;
    pub(super) const PAGES: u32 = 5;
    pub(super) const MAC: u32 = 6;
    pub(super) const COUNTER: u32 = 9;
    /// Flag for queue pairs, completion queues and counters: they are for a driver, not for one of its users
    /// (Linux).
    pub(super) const OF_DRIVER: u32 = 1 << 30;
}

/// The operation on a resource: the modifier of the opcode.
mod step {
    /// The step of ALLOC_RES that reserves a number.
    pub(super) const NUMBER: u8 = 0;
    /// Reserve a number, with entries in the card's tables.
    pub(super) const ALL: u8 = 1;
    /// Make entries for a reserved number.
    pub(super) const ENTRIES: u8 = 2;
}

/// The number of queue pair numbers that the driver requests first, and the least that it accepts.
const MAX_QPS: u32 = crate::datapath::ring::SLOTS as u32;
const MIN_QPS: u32 = 64;
/// The maximum number of page entries of one object.
const MAX_PAGES: u64 = 1 << 20;

fn allocate(
    commands: &mut Commands<'_, impl Hardware>,
    kind: u32,
    step: u8,
    parameter: u64,
) -> Result<u32, Error> {
    let ask = Command::new(Opcode::AllocRes).of(kind).variant(step).immediate(parameter);
    commands.exec(ask).map(|number| number as u32)
}

fn free(
    commands: &mut Commands<'_, impl Hardware>,
    kind: u32,
    step: u8,
    parameter: u64,
) -> Result<(), Error> {
    let give = Command::new(Opcode::FreeRes).of(kind).variant(step).immediate(parameter);
    commands.exec(give).map(drop)
}

/// Allocates consecutive queue pair numbers, as many as the master grants. Returns the first and the count;
/// the first is a multiple of the count.
pub(crate) fn queue_pairs(commands: &mut Commands<'_, impl Hardware>) -> Result<(u32, u32), Error> {
    let mut count = MAX_QPS;
    loop {
        let parameter = u64::from(count) << 32 | u64::from(count);
        match allocate(commands, kind::QP | kind::OF_DRIVER, step::NUMBER, parameter) {
            Ok(first) if first.is_multiple_of(count) && first > 0 => return Ok((first, count)),
            Ok(_) => return Err(Error::Nonsense("its queue pairs have impossible numbers")),
            Err(Error::Refused { .. }) if count > MIN_QPS => count /= 2,
            Err(error) => return Err(error),
        }
    }
}

/// Allocates the number of a completion queue.
pub(crate) fn allocate_cq(commands: &mut Commands<'_, impl Hardware>) -> Result<u32, Error> {
    allocate(commands, kind::CQ | kind::OF_DRIVER, step::ALL, 0)
}

/// Frees the number of a completion queue.
pub(crate) fn free_cq(commands: &mut Commands<'_, impl Hardware>, number: u32) -> Result<(), Error> {
    free(commands, kind::CQ, step::ALL, number.into())
}

/// Allocates the index of a key.
pub(crate) fn key(commands: &mut Commands<'_, impl Hardware>) -> Result<u32, Error> {
    allocate(commands, kind::KEY, step::NUMBER, 0)
}

/// Allocates a counter for a port's frames; `None` if the master has none left.
pub(crate) fn counter(commands: &mut Commands<'_, impl Hardware>) -> Result<Option<u8>, Error> {
    match allocate(commands, kind::COUNTER | kind::OF_DRIVER, step::NUMBER, 0) {
        Ok(counter) => Ok(u8::try_from(counter).ok()),
        Err(Error::Refused { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Allocates a row for an Ethernet address in a port's address table.
pub(crate) fn mac_row(
    commands: &mut Commands<'_, impl Hardware>,
    port: u8,
    mac: [u8; 6],
) -> Result<u8, Error> {
    let [a, b, c, d, e, f] = mac;
    let mac = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
    let row = allocate(commands, u32::from(port) << 8 | kind::MAC, step::ALL, mac)?;
    u8::try_from(row)
        .ok()
        .filter(|row| *row < 128)
        .ok_or(Error::Nonsense("its address has an impossible row"))
}

/// Makes table entries for `count` objects from number `first` on, unless they are made together with the
/// number.
pub(crate) fn ensure_icm(
    commands: &mut Commands<'_, impl Hardware>,
    object: Object,
    first: u64,
    count: u64,
) -> Result<(), Error> {
    let kind = match object {
        Object::Qp => kind::QP,
        Object::Key => kind::KEY,
        Object::Cq | Object::Eq | Object::Srq => return Ok(()),
    };
    (first..first + count).try_for_each(|number| allocate(commands, kind, step::ENTRIES, number).map(drop))
}

/// Makes the master write `count` page entries. `entry` returns each by its index from 0 on.
pub(crate) fn map(
    commands: &mut Commands<'_, impl Hardware>,
    count: u64,
    entry: &dyn Fn(u64) -> u64,
) -> Result<PageRun, Error> {
    let pages = Some(count).filter(|count| (1..=MAX_PAGES).contains(count));
    let pages = pages.ok_or(Error::Exhausted("page entries"))?;
    let first = allocate(commands, kind::PAGES, step::ALL, order(pages).into())?;
    let run = PageRun::new(first.into(), pages << LOG_PAGE);
    let written = write_pages(commands, first, pages, entry);
    if written.is_err() {
        unmap(commands, run);
    }
    written.map(|()| run)
}

/// Frees page entries, which the card must no longer use.
pub(crate) fn unmap(commands: &mut Commands<'_, impl Hardware>, run: PageRun) {
    let parameter = u64::from(order(run.pages())) << 32 | run.first();
    if let Err(error) = free(commands, kind::PAGES, step::ALL, parameter) {
        log::warn!("mlx4: page entries cannot be freed: {error}");
    }
}

/// Returns log2 of the number of page entries to request.
const fn order(pages: u64) -> u32 {
    pages.next_power_of_two().ilog2()
}

fn write_pages(
    commands: &mut Commands<'_, impl Hardware>,
    first: u32,
    pages: u64,
    entry: &dyn Fn(u64) -> u64,
) -> Result<(), Error> {
    const FIRST: Field = Field::word(0x04);
    const ENTRIES: usize = 0x10;
    /// The maximum number of entries in one command (Linux `MLX4_MAILBOX_SIZE / 8 - 2`).
    const MAX_PER_COMMAND: u64 = 510;
    for skip in (0..pages).step_by(MAX_PER_COMMAND as usize) {
        let count = MAX_PER_COMMAND.min(pages - skip);
        let mut mailbox = Mailbox::new().with(FIRST, first + skip as u32);
        for page in 0..count {
            mailbox.set_wide(ENTRIES + 8 * page as usize, entry(skip + page));
        }
        commands.exec_in(Command::new(Opcode::WriteMtt).of(count as u32), &mailbox)?;
    }
    Ok(())
}
