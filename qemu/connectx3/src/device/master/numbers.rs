//! The division of the card's object numbers between the master and its slave. Sizes are Linux's defaults
//! (`mlx4/main.c`, `profile.c`).

/// The number of the slave among the functions; the physical function is 0.
pub(super) const SLAVE: u32 = 1;

/// log2 of the number of queue pairs.
pub(super) const LOG_QPS: u8 = 18;
/// log2 of the number of completion queues.
pub(super) const LOG_CQS: u8 = 16;
/// log2 of the number of shared receive queues.
pub(super) const LOG_SRQS: u8 = 16;
/// log2 of the number of memory regions.
pub(super) const LOG_MPTS: u8 = 19;
/// log2 of the number of MTT entries.
pub(super) const LOG_MTTS: u8 = 23;
/// log2 of the number of event queues in the table.
pub(super) const LOG_EQS: u8 = 9;
/// log2 of the number of READs and atomics in flight per queue pair.
pub(super) const LOG_RDMARC: u8 = 4;
/// log2 of the number of XRC domains.
pub(super) const LOG_XRCDS: u8 = 16;

/// Completion queues reserved for the firmware (QUERY_DEV_CAP).
pub(super) const RESERVED_CQS: u32 = 1 << 7;
/// Shared receive queues reserved for the firmware (QUERY_DEV_CAP).
pub(super) const RESERVED_SRQS: u32 = 1 << 6;
/// Memory regions reserved for the firmware (QUERY_DEV_CAP).
pub(super) const RESERVED_MPTS: u32 = 1 << 8;
/// MTT entries reserved for the firmware (QUERY_DEV_CAP).
pub(super) const RESERVED_MTTS: u32 = 1 << 6;

/// The first event queue of the slave. The doorbells of lower ones are at offsets of BAR 2 that hold the
/// communication channel and the MSI-X table.
pub(super) const RESERVED_EQS: u32 = 16;
/// The number of event queues, including the reserved ones.
pub(super) const EQS: u32 = 80;

/// The counter for queue pairs without a counter of their own. It is the last counter.
pub(super) const SINK_COUNTER: u32 = crate::device::statistics::InterfaceCounters::COUNT - 1;

/// The number of queue pairs of the firmware; the special ones of the physical function follow.
const SPECIAL: u32 = 64;
/// The number of functions with special queue pairs. Each has 8.
const FUNCTIONS: u32 = 128;
/// The first of the slaves' ends (proxies) of their special queue pairs.
const PROXIES: u32 = SPECIAL + 8;
/// The first of the master's ends (tunnels).
const TUNNELS: u32 = PROXIES + 8 * FUNCTIONS;
/// The first queue pair that is available for allocation.
pub(super) const FIRST_QPN: u32 = TUNNELS + 8 * FUNCTIONS;

/// A management queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Special {
    /// QP0, subnet management.
    Smi = 0,
    /// QP1, general services.
    Gsi = 2,
}

/// Returns the slave's end of a special queue pair of a port. Ports count from 0.
#[must_use]
pub(super) const fn proxy(special: Special, port: u32) -> u32 {
    PROXIES + 8 * SLAVE + special as u32 + port
}

/// Returns the master's end of a special queue pair of a port. Ports count from 0.
#[must_use]
pub(super) const fn tunnel(special: Special, port: u32) -> u32 {
    tunnel_of(proxy(special, port))
}

/// Returns the master's end for a slave's end.
#[must_use]
pub(super) const fn tunnel_of(proxy: u32) -> u32 {
    proxy - PROXIES + TUNNELS
}

/// Returns true if a number is one of the slave's proxy queue pairs.
#[must_use]
pub(super) const fn is_proxy(qpn: u32) -> bool {
    qpn >= PROXIES + 8 * SLAVE && qpn < PROXIES + 8 * SLAVE + 8
}

/// Returns whether a number belongs to the firmware or to a special queue pair.
#[must_use]
pub(super) const fn is_reserved(qpn: u32) -> bool {
    qpn < FIRST_QPN
}

/// Returns the Q_Key between the two ends of a special queue pair.
#[must_use]
pub(super) const fn proxy_q_key(qpn: u32) -> Option<u32> {
    const BASE: u32 = 0xffff_0000;
    match qpn {
        PROXIES..TUNNELS => Some(BASE + (qpn - PROXIES)),
        TUNNELS..FIRST_QPN => Some(BASE + (qpn - TUNNELS)),
        _ => None,
    }
}

/// The first row of the slave in the port's GID table. Lower rows belong to the physical function.
pub(super) const FIRST_GID: usize = 16;
/// The number of the slave's rows in the port's GID table.
pub(super) const GIDS: usize = crate::device::port::ROWS - FIRST_GID;

/// The slave's key for all its memory. On a real card each function has its own; here it is the card's.
pub(super) const RESERVED_LKEY: u32 = crate::device::memory::RESERVED_LKEY;
