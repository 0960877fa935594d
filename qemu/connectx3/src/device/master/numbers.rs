//! How the master divides the card's numbers between itself and its slave. Sizes are Linux's defaults
//! (`mlx4/main.c`, `profile.c`).

/// The slave among the functions; the physical function is 0.
pub const SLAVE: u32 = 1;

/// log2 of queue pairs.
pub const LOG_QPS: u8 = 18;
/// log2 of completion queues.
pub const LOG_CQS: u8 = 16;
/// log2 of shared receive queues.
pub const LOG_SRQS: u8 = 16;
/// log2 of memory regions.
pub const LOG_MPTS: u8 = 19;
/// log2 of MTT entries.
pub const LOG_MTTS: u8 = 23;
/// log2 of event queues in the table.
pub const LOG_EQS: u8 = 9;
/// log2 of READs and atomics in flight of a queue pair.
pub const LOG_RDMARC: u8 = 4;
/// log2 of XRC domains.
pub const LOG_XRCDS: u8 = 16;

/// What the firmware keeps (QUERY_DEV_CAP).
pub const RESERVED_CQS: u32 = 1 << 7;
/// The same of shared receive queues.
pub const RESERVED_SRQS: u32 = 1 << 6;
/// The same of memory regions.
pub const RESERVED_MPTS: u32 = 1 << 8;
/// The same of MTT entries.
pub const RESERVED_MTTS: u32 = 1 << 6;

/// The first event queue of the slave. The doorbells of those before it lie where BAR 2 has the communication channel and
/// the MSI-X table.
pub const RESERVED_EQS: u32 = 16;
/// Event queues, the reserved ones included.
pub const EQS: u32 = 80;

/// The counter of those that have none; it is the last.
pub const SINK_COUNTER: u32 = crate::device::statistics::InterfaceCounters::COUNT - 1;

/// Queue pairs of the firmware, then the special ones of the physical function.
const SPECIAL: u32 = 64;
/// Functions that have special queue pairs, 8 each.
const FUNCTIONS: u32 = 128;
/// The slaves' own ends of their special queue pairs.
const PROXIES: u32 = SPECIAL + 8;
/// The master's ends.
const TUNNELS: u32 = PROXIES + 8 * FUNCTIONS;
/// The first queue pair that is given out.
pub const FIRST_QPN: u32 = TUNNELS + 8 * FUNCTIONS;

/// Which of the two management queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    /// QP0, subnet management.
    Smi = 0,
    /// QP1, general services.
    Gsi = 2,
}

/// The slave's end of a special queue pair of a port, from 0.
#[must_use]
pub const fn proxy(special: Special, port: u32) -> u32 {
    PROXIES + 8 * SLAVE + special as u32 + port
}

/// The master's end.
#[must_use]
pub const fn tunnel(special: Special, port: u32) -> u32 {
    tunnel_of(proxy(special, port))
}

/// The master's end for a slave's own end.
#[must_use]
pub const fn tunnel_of(proxy: u32) -> u32 {
    proxy - PROXIES + TUNNELS
}

/// Whether a number is one of the slave's own ends.
#[must_use]
pub const fn is_proxy(qpn: u32) -> bool {
    qpn >= PROXIES + 8 * SLAVE && qpn < PROXIES + 8 * SLAVE + 8
}

/// Whether a number is of the firmware or special.
#[must_use]
pub const fn is_reserved(qpn: u32) -> bool {
    qpn < FIRST_QPN
}

/// The Q_Key between the two ends of a special queue pair.
#[must_use]
pub const fn proxy_q_key(qpn: u32) -> Option<u32> {
    const BASE: u32 = 0xffff_0000;
    match qpn {
        PROXIES..TUNNELS => Some(BASE + (qpn - PROXIES)),
        TUNNELS..FIRST_QPN => Some(BASE + (qpn - TUNNELS)),
        _ => None,
    }
}

/// The first row of the slave in the port's GID table: those before it are the physical function's.
pub const FIRST_GID: usize = 16;
/// Its rows.
pub const GIDS: usize = crate::device::port::ROWS - FIRST_GID;

/// The key of the slave that reaches all its memory. On a real card each function has its own; here it is the card's.
pub const RESERVED_LKEY: u32 = crate::device::memory::RESERVED_LKEY;
