//! Interrupts: one eventfd per MSI-X vector, and one for INTx. QEMU keeps the MSI-X table and its masks.

use super::message::Errno;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The VFIO index of INTx.
pub(super) const INTX: u32 = 0;
/// The VFIO index of MSI-X.
pub(super) const MSIX: u32 = 2;

/// The number of vectors in the MSI-X table.
pub const VECTORS: u32 = 128;

/// The eventfds that the client has provided.
#[derive(Debug, Default)]
pub struct Interrupts {
    msix: Vec<Option<OwnedFd>>,
    intx: Mutex<Intx>,
}

/// The level-triggered interrupt.
#[derive(Debug, Default)]
struct Intx {
    fd: Option<OwnedFd>,
    /// True while the device asserts the interrupt.
    asserted: bool,
    /// True while the client masks the interrupt: from the event until the guest has handled it.
    masked: bool,
}

impl Intx {
    /// Signals the interrupt if it is asserted and not masked. The client masks it when it receives the event
    /// and unmasks it at the guest's end of interrupt; a level that is then still asserted is signalled
    /// again.
    fn deliver(&mut self) {
        if self.asserted
            && !self.masked
            && let Some(fd) = &self.fd
        {
            self.masked = true;
            signal(fd);
        }
    }
}

impl Interrupts {
    /// Returns whether the guest has enabled MSI-X.
    pub const fn msix_enabled(&self) -> bool {
        !self.msix.is_empty()
    }

    /// Signals an MSI-X vector, if the guest uses it.
    pub fn message(&self, vector: u16) {
        if let Some(Some(fd)) = self.msix.get(usize::from(vector)) {
            signal(fd);
        }
    }

    /// Sets the level of INTx.
    pub fn level(&self, asserted: bool) {
        let mut intx = self.intx();
        intx.asserted = asserted;
        intx.deliver();
    }

    fn intx(&self) -> MutexGuard<'_, Intx> {
        self.intx.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// SET_IRQS: sets, masks or triggers interrupts.
    pub fn set(
        &mut self,
        flags: u32,
        index: u32,
        start: u32,
        count: u32,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Errno> {
        const DATA_EVENTFD: u32 = 1 << 2;
        const MASK: u32 = 1 << 3;
        const UNMASK: u32 = 1 << 4;
        const TRIGGER: u32 = 1 << 5;
        // A write must not block, whatever the descriptor refers to.
        for fd in &fds {
            let status = fcntl_getfl(fd).map_err(|_| Errno::INVALID)?;
            fcntl_setfl(fd, status | OFlags::NONBLOCK).map_err(|_| Errno::INVALID)?;
        }
        match index {
            INTX => {
                let mut intx = self.intx();
                if flags & TRIGGER != 0 && flags & (MASK | UNMASK) == 0 {
                    intx.fd = fds.into_iter().next();
                }
                intx.masked = flags & MASK != 0;
                intx.deliver();
            }
            MSIX if flags & TRIGGER != 0 && count == 0 => self.msix.clear(),
            MSIX if flags & TRIGGER != 0 => {
                let end = start.checked_add(count).filter(|&end| end <= VECTORS).ok_or(Errno::INVALID)?;
                if self.msix.len() < end as usize {
                    self.msix.resize_with(end as usize, || None);
                }
                // Without descriptors the vectors exist but have no destination yet.
                let mut fds = if flags & DATA_EVENTFD != 0 { fds } else { Vec::new() }.into_iter();
                for slot in &mut self.msix[start as usize..end as usize] {
                    *slot = fds.next();
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Adds one to an eventfd. The write fails only when the counter is full, and then the event is pending
/// anyway.
fn signal(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn count(fd: &OwnedFd) -> u64 {
        let mut value = [0; 8];
        rustix::io::read(fd, &mut value).map_or(0, |_| u64::from_ne_bytes(value))
    }

    #[test]
    fn vectors_come_one_by_one_and_the_first_may_have_no_descriptor() {
        let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let mut interrupts = Interrupts::default();
        interrupts.set(0x21, MSIX, 0, 1, vec![]).unwrap();
        assert!(interrupts.msix_enabled());
        interrupts.message(0);
        interrupts.set(0x24, MSIX, 1, 1, vec![fd.try_clone().unwrap()]).unwrap();
        interrupts.message(1);
        interrupts.message(7);
        assert_eq!(count(&fd), 1);
        assert_eq!(interrupts.set(0x24, MSIX, 127, 2, vec![]), Err(Errno::INVALID));
        interrupts.set(0x21, MSIX, 0, 0, vec![]).unwrap();
        assert!(!interrupts.msix_enabled());
    }

    #[test]
    fn a_level_still_asserted_at_the_end_of_interrupt_is_an_event_again() {
        let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let mut interrupts = Interrupts::default();
        interrupts.set(0x24, INTX, 0, 1, vec![fd.try_clone().unwrap()]).unwrap();
        interrupts.level(true);
        interrupts.level(true);
        assert_eq!(count(&fd), 1);
        interrupts.set(0x11, INTX, 0, 1, vec![]).unwrap();
        assert_eq!(count(&fd), 1);
        interrupts.level(false);
        interrupts.set(0x11, INTX, 0, 1, vec![]).unwrap();
        assert_eq!(count(&fd), 0);
    }
}
