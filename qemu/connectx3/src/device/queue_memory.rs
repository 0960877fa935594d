//! A queue's buffer: guest pages listed by MTT entries.

use super::hcr::Status;
use super::host::{DmaError, Host};
use super::icm::Icm;
use super::mailbox::{MAILBOX, Mailbox};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The length of an MTT entry, in bytes.
pub(super) const MTT_ENTRY: u64 = 8;
/// The present bit of an MTT entry.
const PRESENT: u64 = 1;

/// The MTT table and its access to the guest's memory.
#[derive(Clone, Copy)]
pub(super) struct MttTable<'a> {
    /// The memory of the card's tables.
    pub icm: &'a Icm,
    /// The table's ICM address (INIT_HCA).
    pub base: u64,
}

impl MttTable<'_> {
    /// Returns the bus address of the page in an entry. `mtt` is the byte offset of the first entry in the
    /// table.
    pub(super) fn page(&self, host: &dyn Host, mtt: u64, index: u64) -> Option<u64> {
        let offset = mtt.checked_add(index.checked_mul(MTT_ENTRY)?)?;
        let mut entry = [0; MTT_ENTRY as usize];
        self.icm.read(host, self.base.checked_add(offset)?, &mut entry).ok()?;
        let entry = u64::from_be_bytes(entry);
        (entry & PRESENT != 0).then_some(entry & !0x7)
    }
}

/// WRITE_MTT of a physical function's driver: writes `count` entries to the table at ICM address `base`. The
/// mailbox holds the byte offset of the first entry in the table, as the contexts of queues do, an unused
/// word, and the entries (iPXE `drivers/infiniband/hermon.c`, `hermon_alloc_mtt`). A virtual function's
/// driver passes the index of the first entry instead, which its master handles (Linux `mlx4/mr.c`,
/// `mlx4/resource_tracker.c`).
pub(super) fn write_mtt(
    icm: &mut Icm,
    base: u64,
    mailbox: &Mailbox,
    count: u32,
    host: &dyn Host,
) -> Result<(), Status> {
    const HEADER: usize = 16;
    const MAX_ENTRIES: u32 = ((MAILBOX - HEADER) / MTT_ENTRY as usize) as u32;
    let first = mailbox.u64(0x00);
    if count > MAX_ENTRIES || !first.is_multiple_of(MTT_ENTRY) {
        return Err(Status::BadParameter);
    }
    let first = base.checked_add(first).ok_or(Status::BadIndex)?;
    for index in 0..u64::from(count) {
        let offset = index * MTT_ENTRY;
        let virt = first.checked_add(offset).ok_or(Status::BadIndex)?;
        let entry = mailbox.u64(HEADER + offset as usize).to_be_bytes();
        icm.write(host, virt, &entry).map_err(|_| Status::IcmError)?;
    }
    Ok(())
}

/// The limit on the process's memory for a guest's queues, in bytes: lists of their pages, and transport
/// state. Without it, a guest could create as many queues as its tables have entries, all in the same pages
/// of its own memory.
const ALLOWANCE: u64 = 512 << 20;

/// The remaining memory limit of one card.
#[derive(Clone, Debug)]
pub(super) struct Allowance(Arc<AtomicU64>);

impl Default for Allowance {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(ALLOWANCE)))
    }
}

impl Allowance {
    /// Reserves bytes until the result is dropped. Returns `None` if too few are left.
    #[must_use]
    pub(super) fn take(&self, bytes: u64) -> Option<Held> {
        let left = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        left.is_ok().then(|| Held { from: self.clone(), bytes })
    }
}

/// A reserved part of the memory limit.
#[derive(Debug)]
pub(super) struct Held {
    from: Allowance,
    bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.from.0.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

/// A queue's buffer. Its pages are read from the MTT at creation; changed entries take effect only in a new
/// queue or after a resize.
#[derive(Debug)]
pub(super) struct QueueMemory {
    _held: Held,
    pages: Vec<u64>,
    log_page: u8,
    /// The offset of the queue in its first page, in bytes.
    offset: u64,
    len: u64,
}

impl QueueMemory {
    /// Creates the buffer of `len` bytes at `offset` in the first of the pages from MTT entry `mtt` on.
    /// Returns `None` if an entry is not present.
    pub(super) fn new(
        table: MttTable<'_>,
        host: &dyn Host,
        mtt: u64,
        log_page: u8,
        offset: u64,
        len: u64,
    ) -> Option<Self> {
        if !(12..=31).contains(&log_page) || offset >= 1 << log_page {
            return None;
        }
        let count = offset.checked_add(len)?.div_ceil(1 << log_page);
        let held = table.icm.allowance().take(count.checked_mul(8)?)?;
        let pages = (0..count).map(|i| table.page(host, mtt, i)).collect::<Option<Vec<_>>>()?;
        Some(Self { _held: held, pages, log_page, offset, len })
    }

    /// Returns the bus address of the byte at `at`, and the number of bytes from there to the end of its
    /// page. `at` wraps at the queue's length.
    fn locate(&self, at: u64) -> Option<(u64, u64)> {
        let position = self.offset + at % self.len.max(1);
        let within = position & ((1 << self.log_page) - 1);
        let page = self.pages.get((position >> self.log_page) as usize)?;
        Some((page + within, (1 << self.log_page) - within))
    }

    fn each(
        &self,
        at: u64,
        len: usize,
        mut act: impl FnMut(u64, usize, usize) -> Result<(), DmaError>,
    ) -> Result<(), DmaError> {
        let mut done = 0;
        while done < len {
            let (bus, rest) = self.locate(at + done as u64).ok_or(DmaError { addr: at, len })?;
            let n = (rest as usize).min(len - done);
            act(bus, done, n)?;
            done += n;
        }
        Ok(())
    }

    /// Fills entries of `stride` bytes with zeros, except for their last byte, which marks the owner.
    pub(super) fn mark(
        &self,
        host: &dyn Host,
        entries: Range<u64>,
        stride: usize,
        owner: u8,
    ) -> Result<(), DmaError> {
        const BLOCK: u64 = 64 << 10;
        let (mut at, end) = (entries.start * stride as u64, entries.end * stride as u64);
        let mut block = vec![0; end.saturating_sub(at).min(BLOCK) as usize];
        for last in block.iter_mut().skip(stride - 1).step_by(stride) {
            *last = owner;
        }
        while at < end {
            let n = (end - at).min(BLOCK) as usize;
            self.write(host, at, block.get(..n).unwrap_or_default())?;
            at += n as u64;
        }
        Ok(())
    }

    /// Reads from the queue.
    pub(super) fn read(&self, host: &dyn Host, at: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        let len = buf.len();
        self.each(at, len, |bus, from, n| host.read(bus, &mut buf[from..from + n]))
    }

    /// Writes to the queue.
    pub(super) fn write(&self, host: &dyn Host, at: u64, data: &[u8]) -> Result<(), DmaError> {
        self.each(at, data.len(), |bus, from, n| host.write(bus, &data[from..from + n]))
    }

    /// Writes an entry whose last byte marks the owner: its last eight bytes are written after the rest.
    /// Entries do not cross pages.
    pub(super) fn publish(&self, host: &dyn Host, at: u64, entry: &[u8]) -> Result<(), DmaError> {
        let error = DmaError { addr: at, len: entry.len() };
        let (front, last) = entry.split_last_chunk::<8>().ok_or(error)?;
        self.write(host, at, front)?;
        let (bus, _) = self.locate(at + front.len() as u64).ok_or(error)?;
        host.publish(bus, *last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_comes_back() {
        let allowance = Allowance::default();
        let most = allowance.take(ALLOWANCE - 8);
        assert!(most.is_some() && allowance.take(9).is_none());
        let rest = allowance.take(8);
        assert!(rest.is_some() && allowance.take(1).is_none());
        drop(most);
        assert!(allowance.take(9).is_some());
    }
}
