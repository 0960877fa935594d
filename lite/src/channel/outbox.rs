//! Messages of a channel that wait for room on the queue pair.

use super::wire::ReplyHeader;
use crate::base::lock::Mutex;
use crate::base::writers::{AtomicUsize, Ordering};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};
use spin::MutexGuard;

/// A message that needs no room in a ring.
pub(crate) enum Out {
    /// A reply: index of the slot, header, and data.
    Reply(u32, ReplyHeader, Vec<u8>),
    /// A credit message: the grains consumed in all, modulo 2^24.
    Credit(u32),
}

/// Replies and credits that found no room on the queue pair.
#[derive(Default)]
pub(crate) struct Outbox {
    messages: Mutex<VecDeque<Out>>,
    /// The number of messages. Written only under their lock.
    count: AtomicUsize,
}

impl Outbox {
    /// Returns true if no message waits. Another core may add one at the same time.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Locks the messages.
    pub(crate) fn lock(&self) -> Waiting<'_> {
        Waiting { messages: self.messages.lock(), count: &self.count }
    }
}

/// The messages of an outbox, which is locked until this is dropped.
pub(crate) struct Waiting<'a> {
    messages: MutexGuard<'a, VecDeque<Out>>,
    count: &'a AtomicUsize,
}

impl Deref for Waiting<'_> {
    type Target = VecDeque<Out>;

    fn deref(&self) -> &VecDeque<Out> {
        &self.messages
    }
}

impl DerefMut for Waiting<'_> {
    fn deref_mut(&mut self) -> &mut VecDeque<Out> {
        &mut self.messages
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.count.store(self.messages.len(), Ordering::Release);
    }
}
