//! Objects of libibverbs that are destroyed with their owners. Each holds those that it depends on, so the
//! order is one that libibverbs allows.
//!
//! libibverbs' calls may come from any thread (rdma-core, `libibverbs.md`, "Thread safety"), hence `Send` and
//! `Sync`.

use crate::Arena;
use rdma_mummy_sys as ibv;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use verbs::RemoteKey;

/// Converts the error number of a call, 0 for success.
pub(super) fn check(errno: i32) -> io::Result<()> {
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}

/// Converts the result of a call that reports an error by a null pointer and `errno`.
fn made<T>(object: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(object).ok_or_else(io::Error::last_os_error)
}

fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?)
}

/// An open RDMA device (`ibv_context`).
#[derive(Debug)]
pub(super) struct Context(NonNull<ibv::ibv_context>);

// SAFETY: see the top of the file.
unsafe impl Send for Context {}
// SAFETY: see the top of the file.
unsafe impl Sync for Context {}

/// An asynchronous event about the port or the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AsyncEvent {
    /// The device has failed.
    DeviceFatal,
    /// A property of the port has changed.
    Port,
    /// Any other event; completions report its effects.
    Other,
}

impl Context {
    /// Opens a device.
    ///
    /// # Safety
    /// `device` must be one of a device list that has not been freed.
    pub(super) unsafe fn open(device: *mut ibv::ibv_device) -> io::Result<Self> {
        // SAFETY: the caller guarantees it.
        let context = Self(made(unsafe { ibv::ibv_open_device(device) })?);
        set_nonblocking(context.async_fd())?;
        Ok(context)
    }

    /// Queries the limits of the device.
    pub(super) fn attributes(&self) -> io::Result<ibv::ibv_device_attr> {
        let mut attributes = MaybeUninit::zeroed();
        // SAFETY: the context is open, and the call fills its argument.
        check(unsafe { ibv::ibv_query_device(self.0.as_ptr(), attributes.as_mut_ptr()) })?;
        // SAFETY: plain numbers, zeroed before.
        Ok(unsafe { attributes.assume_init() })
    }

    /// Queries the attributes of a port.
    pub(super) fn port(&self, port: u8) -> io::Result<ibv::ibv_port_attr> {
        let mut attributes = MaybeUninit::<ibv::ibv_port_attr>::zeroed();
        // SAFETY: the context is open, and the call fills its argument.
        check(unsafe { ibv::ibv_query_port(self.0.as_ptr(), port, attributes.as_mut_ptr()) })?;
        // SAFETY: plain numbers, zeroed before.
        Ok(unsafe { attributes.assume_init() })
    }

    /// Returns the descriptor that becomes readable with an asynchronous event.
    pub(super) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the context.
        unsafe { BorrowedFd::borrow_raw(self.0.as_ref().async_fd) }
    }

    /// Takes an asynchronous event, if there is one.
    pub(super) fn take_event(&self) -> Option<AsyncEvent> {
        let mut event = MaybeUninit::<ibv::ibv_async_event>::zeroed();
        // SAFETY: the context is open, its descriptor does not block, and the call fills its argument.
        if unsafe { ibv::ibv_get_async_event(self.0.as_ptr(), event.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: within the event. It is read as a number, because a newer library may have more events than
        // the binding.
        let kind = unsafe { (&raw const (*event.as_ptr()).event_type).cast::<u32>().read() };
        // SAFETY: it is the event that was just obtained.
        unsafe { ibv::ibv_ack_async_event(event.as_mut_ptr()) };
        use ibv::ibv_event_type as kinds;
        const PORT: [u32; 4] = [
            kinds::IBV_EVENT_PORT_ACTIVE as u32,
            kinds::IBV_EVENT_PORT_ERR as u32,
            kinds::IBV_EVENT_LID_CHANGE as u32,
            kinds::IBV_EVENT_GID_CHANGE as u32,
        ];
        Some(match kind {
            k if k == kinds::IBV_EVENT_DEVICE_FATAL as u32 => AsyncEvent::DeviceFatal,
            k if PORT.contains(&k) => AsyncEvent::Port,
            _ => AsyncEvent::Other,
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: all dependent objects held the context, so this is the last reference.
        unsafe { ibv::ibv_close_device(self.0.as_ptr()) };
    }
}

/// A protection domain (`ibv_pd`).
#[derive(Debug)]
pub(super) struct Domain {
    raw: NonNull<ibv::ibv_pd>,
    _context: Arc<Context>,
}

// SAFETY: see the top of the file.
unsafe impl Send for Domain {}
// SAFETY: see the top of the file.
unsafe impl Sync for Domain {}

impl Domain {
    pub(super) fn new(context: Arc<Context>) -> io::Result<Self> {
        // SAFETY: the context is open.
        let raw = made(unsafe { ibv::ibv_alloc_pd(context.0.as_ptr()) })?;
        Ok(Self { raw, _context: context })
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: all dependent objects held the domain, so this is the last reference.
        unsafe { ibv::ibv_dealloc_pd(self.raw.as_ptr()) };
    }
}

/// The registered memory of the arena (`ibv_mr`).
#[derive(Debug)]
pub(super) struct Region {
    raw: NonNull<ibv::ibv_mr>,
    arena: Arc<Arena>,
    _domain: Arc<Domain>,
}

// SAFETY: see the top of the file.
unsafe impl Send for Region {}
// SAFETY: see the top of the file.
unsafe impl Sync for Region {}

/// All remote rights, and the local right to write.
pub(super) const ACCESS: u32 = ibv::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
    | ibv::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
    | ibv::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
    | ibv::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;

impl Region {
    pub(super) fn new(domain: Arc<Domain>, arena: Arc<Arena>) -> io::Result<Self> {
        let (start, len) = arena.raw();
        // SAFETY: the mapping lives as long as this object, which holds it, and is accessed only by atomics.
        let raw = made(unsafe { ibv::ibv_reg_mr(domain.raw.as_ptr(), start, len, ACCESS as i32) })?;
        Ok(Self { raw, arena, _domain: domain })
    }

    pub(super) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Returns the key of local work requests.
    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: the region is registered; its keys do not change.
        unsafe { self.raw.as_ref() }.lkey
    }

    /// Returns the key that peers use (rkey).
    pub(super) fn rkey(&self) -> RemoteKey {
        // SAFETY: as above.
        RemoteKey(unsafe { self.raw.as_ref() }.rkey)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the region is registered once and deregistered once.
        if unsafe { ibv::ibv_dereg_mr(self.raw.as_ptr()) } != 0 {
            // The device may still reach the arena: it must stay mapped.
            mem::forget(self.arena.clone());
        }
    }
}

/// A channel that announces completions by a file descriptor.
#[derive(Debug)]
pub(super) struct Channel {
    raw: NonNull<ibv::ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: see the top of the file.
unsafe impl Send for Channel {}
// SAFETY: see the top of the file.
unsafe impl Sync for Channel {}

impl Channel {
    pub(super) fn new(context: Arc<Context>) -> io::Result<Self> {
        // SAFETY: the context is open.
        let raw = made(unsafe { ibv::ibv_create_comp_channel(context.0.as_ptr()) })?;
        let channel = Self { raw, context };
        set_nonblocking(channel.fd())?;
        Ok(channel)
    }

    /// Returns the descriptor that becomes readable with an event.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd as RawFd) }
    }

    /// Takes all pending events. Returns true if there were any.
    pub(super) fn take_events(&self) -> bool {
        let mut any = false;
        loop {
            let (mut cq, mut own) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel exists, does not block, and the call fills its arguments.
            if unsafe { ibv::ibv_get_cq_event(self.raw.as_ptr(), &mut cq, &mut own) } != 0 {
                return any;
            }
            // SAFETY: the destruction of a completion queue waits until all its events have been
            // acknowledged.
            unsafe { ibv::ibv_ack_cq_events(cq, 1) };
            any = true;
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: its completion queues held the channel, so this is the last reference.
        unsafe { ibv::ibv_destroy_comp_channel(self.raw.as_ptr()) };
    }
}

/// A completion queue (`ibv_cq`).
#[derive(Debug)]
pub(super) struct CompletionQueue {
    raw: NonNull<ibv::ibv_cq>,
    _channel: Arc<Channel>,
}

// SAFETY: see the top of the file.
unsafe impl Send for CompletionQueue {}
// SAFETY: see the top of the file.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    pub(super) fn new(channel: Arc<Channel>, depth: i32) -> io::Result<Self> {
        let context = channel.context.0.as_ptr();
        // SAFETY: context and channel exist; the queue has no user context.
        let raw = unsafe { ibv::ibv_create_cq(context, depth, ptr::null_mut(), channel.raw.as_ptr(), 0) };
        Ok(Self { raw: made(raw)?, _channel: channel })
    }

    /// Takes completions, oldest first, and returns their number.
    pub(super) fn poll(&self, out: &mut [ibv::ibv_wc]) -> usize {
        let room = i32::try_from(out.len()).unwrap_or(i32::MAX);
        // SAFETY: the queue exists, and the call writes at most `room` entries.
        let taken = unsafe { ibv::ibv_poll_cq(self.raw.as_ptr(), room, out.as_mut_ptr()) };
        usize::try_from(taken).unwrap_or(0).min(out.len())
    }

    /// Requests an event for the next completion.
    pub(super) fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue exists.
        check(unsafe { ibv::ibv_req_notify_cq(self.raw.as_ptr(), 0) })
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: its queue pairs held the queue, so this is the last reference.
        unsafe { ibv::ibv_destroy_cq(self.raw.as_ptr()) };
    }
}

/// A reliable connected queue pair.
#[derive(Debug)]
pub(super) struct QueuePair {
    raw: NonNull<ibv::ibv_qp>,
    queues: [Arc<CompletionQueue>; 2],
    domain: Arc<Domain>,
    /// True if it has been destroyed; only while it is being dropped.
    destroyed: bool,
}

// SAFETY: see the top of the file.
unsafe impl Send for QueuePair {}
// SAFETY: see the top of the file.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Makes a queue pair with queues of at least the sizes in `cap`.
    pub(super) fn new(
        domain: Arc<Domain>,
        send_cq: Arc<CompletionQueue>,
        recv_cq: Arc<CompletionQueue>,
        cap: ibv::ibv_qp_cap,
    ) -> io::Result<Self> {
        let mut attributes = ibv::ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: send_cq.raw.as_ptr(),
            recv_cq: recv_cq.raw.as_ptr(),
            srq: ptr::null_mut(),
            cap,
            qp_type: ibv::ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: all objects that it names exist, and this object holds them.
        let raw = made(unsafe { ibv::ibv_create_qp(domain.raw.as_ptr(), &mut attributes) })?;
        Ok(Self { raw, queues: [send_cq, recv_cq], domain, destroyed: false })
    }

    /// Destroys the queue pair.
    ///
    /// # Errors
    /// The device may continue to serve the queue pair, which is returned for another attempt.
    pub(super) fn destroy(mut self) -> Result<(), (Self, io::Error)> {
        // SAFETY: made once, not destroyed yet, and gone after this unless it fails, which changes nothing.
        match check(unsafe { ibv::ibv_destroy_qp(self.raw.as_ptr()) }) {
            Ok(()) => {
                self.destroyed = true;
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }

    /// Forgets the queue pair, which the kernel has destroyed with its device.
    pub(super) fn forget(mut self) {
        self.destroyed = true;
    }

    /// Returns the queue pair's number.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: the queue pair exists; its number does not change.
        unsafe { self.raw.as_ref() }.qp_num
    }

    /// Changes the attributes that `mask` names.
    pub(super) fn modify(
        &self,
        attributes: &mut ibv::ibv_qp_attr,
        mask: ibv::ibv_qp_attr_mask,
    ) -> io::Result<()> {
        // SAFETY: the queue pair exists, and the attributes are only read.
        check(unsafe { ibv::ibv_modify_qp(self.raw.as_ptr(), attributes, mask.0 as i32) })
    }

    /// Posts a chain of send work. An error includes the number of requests posted.
    ///
    /// # Safety
    /// `first` must be followed by `next` up to a null one, all in one array from `first` on, with lists of
    /// elements in memory that the device may access until the work completes.
    pub(super) unsafe fn post_send(&self, first: *mut ibv::ibv_send_wr) -> Result<(), (usize, io::Error)> {
        let mut bad = ptr::null_mut();
        // SAFETY: the caller guarantees it.
        match check(unsafe { ibv::ibv_post_send(self.raw.as_ptr(), first, &mut bad) }) {
            Ok(()) => Ok(()),
            Err(e) => Err((posted(first, bad), e)),
        }
    }

    /// Posts a chain of receive work, as `post_send` does.
    ///
    /// # Safety
    /// The requirements of `post_send`.
    pub(super) unsafe fn post_recv(&self, first: *mut ibv::ibv_recv_wr) -> Result<(), (usize, io::Error)> {
        let mut bad = ptr::null_mut();
        // SAFETY: the caller guarantees it.
        match check(unsafe { ibv::ibv_post_recv(self.raw.as_ptr(), first, &mut bad) }) {
            Ok(()) => Ok(()),
            Err(e) => Err((posted(first, bad), e)),
        }
    }
}

/// Returns the number of elements of an array before the refused one.
fn posted<T>(first: *mut T, refused: *mut T) -> usize {
    (refused as usize).checked_sub(first as usize).map_or(0, |bytes| bytes / mem::size_of::<T>())
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if self.destroyed {
            return;
        }
        // SAFETY: made once, and not destroyed yet.
        if check(unsafe { ibv::ibv_destroy_qp(self.raw.as_ptr()) }).is_err() {
            // The objects that it uses stay until the process ends.
            mem::forget((self.queues.clone(), self.domain.clone()));
        }
    }
}
