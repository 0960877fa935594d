//! The card's capabilities, checked (QUERY_DEV_CAP, QUERY_ADAPTER, QUERY_FUNC).

use crate::command::{Command, Commands, Opcode};
use crate::error::Error;
use crate::hardware::Hardware;
use crate::mailbox::{Field, Mailbox};
use core::fmt;

/// QUERY_DEV_CAP (Linux `mlx4_QUERY_DEV_CAP`, PRM `query_dev_cap`).
mod field {
    use super::Field;
    pub(super) const LOG_SEND_ENTRIES: Field = Field::byte(0x11);
    pub(super) const LOG_RESERVED_QPS: Field = Field::bits(0x10, 11, 8);
    pub(super) const LOG_RESERVED_SRQS: Field = Field::bits(0x14, 31, 28);
    pub(super) const LOG_CQES: Field = Field::byte(0x19);
    pub(super) const LOG_RESERVED_CQS: Field = Field::bits(0x18, 11, 8);
    pub(super) const LOG_RESERVED_EQS: Field = Field::bits(0x1c, 11, 8);
    pub(super) const LOG_RESERVED_MTTS: Field = Field::bits(0x20, 31, 28);
    pub(super) const LOG_RESERVED_MPTS: Field = Field::bits(0x20, 11, 8);
    pub(super) const SYSTEM_EQS: Field = Field::bits(0x24, 11, 0);
    pub(super) const LOG_REQUESTER: Field = Field::bits(0x28, 21, 16);
    pub(super) const LOG_RESPONDER: Field = Field::bits(0x28, 5, 0);
    pub(super) const PORTS: Field = Field::bits(0x34, 3, 0);
    pub(super) const LOG_MESSAGE: Field = Field::bits(0x38, 28, 24);
    pub(super) const FLAGS_HIGH: Field = Field::word(0x40);
    pub(super) const FLAGS: Field = Field::word(0x44);
    pub(super) const RESERVED_UARS: Field = Field::bits(0x48, 31, 28);
    pub(super) const LOG_UAR_MIB: Field = Field::bits(0x48, 21, 16);
    pub(super) const LOG_MIN_PAGE: Field = Field::byte(0x4b);
    pub(super) const BLUE_FLAME: Field = Field::bit(0x4c, 31);
    pub(super) const LOG_BLUE_FLAME: Field = Field::bits(0x4c, 20, 16);
    pub(super) const SEND_ELEMENTS: Field = Field::byte(0x51);
    pub(super) const SEND_BYTES: Field = Field::half(0x52);
    pub(super) const RECEIVE_ELEMENTS: Field = Field::byte(0x55);
    pub(super) const RESERVED_PDS: Field = Field::bits(0x64, 31, 28);
    pub(super) const FLAGS2: Field = Field::word(0x70);
    /// Sizes of table entries in bytes, from RDMARC on.
    pub(super) const ENTRY_SIZES: usize = 0x80;
    pub(super) const BMME: Field = Field::word(0x94);
    pub(super) const MAX_ICM: usize = 0xa0;
}

/// Bits of the flags (Linux `include/linux/mlx4/device.h`).
mod flag {
    pub(super) const RC: u32 = 1 << 0;
    pub(super) const WINDOWS: u32 = 1 << 16;
    pub(super) const ATOMIC: u32 = 1 << 18;
    pub(super) const ROCE: u32 = 1 << 30;
    pub(super) const HIGH_STEERING: u32 = 1 << 9 | 1 << 10;
    pub(super) const HIGH_COUNTERS: u32 = 1 << 16;
    pub(super) const HIGH_LARGE_EQE: u32 = 1 << 29;
    pub(super) const HIGH_LARGE_CQE: u32 = 1 << 30;
    pub(super) const SECOND_SW_CQ_INIT: u32 = 1 << 23;
    pub(super) const BMME_ROCE_V2: u32 = 1 << 19;
}

/// The size of an entry in each ICM table, in bytes: powers of two, at most a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EntrySizes {
    pub(crate) rdmarc: u64,
    pub(crate) qpc: u64,
    pub(crate) auxc: u64,
    pub(crate) altc: u64,
    pub(crate) eqc: u64,
    pub(crate) cqc: u64,
    pub(crate) srqc: u64,
    pub(crate) cmpt: u64,
    pub(crate) mtt: u64,
    pub(crate) dmpt: u64,
}

/// The numbering of event queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EqScheme {
    /// Legacy: event queues `0..reserved` belong to the firmware.
    Legacy { reserved: u32 },
    /// System numbering: `QUERY_FUNC` reports which of the card's `count` event queues this function may use.
    System { count: u32 },
}

/// A BlueFlame register. A work request is written to one of its two halves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlueFlame {
    /// The size of a half, in bytes.
    pub(crate) half: u64,
}

/// The capabilities of a card.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Capabilities {
    pub(crate) reserved_qps: u32,
    pub(crate) reserved_srqs: u32,
    pub(crate) reserved_cqs: u32,
    pub(crate) reserved_mtts: u32,
    pub(crate) reserved_mpts: u32,
    pub(crate) reserved_pds: u32,
    pub(crate) eqs: EqScheme,
    pub(crate) log_send_entries: u32,
    pub(crate) log_cqes: u32,
    /// The maximum number of READs and atomics in flight, as requester and as responder.
    pub(crate) max_rd_atomic: u8,
    pub(crate) ports: u8,
    pub(crate) log_message: u32,
    /// The size of all doorbell pages, in bytes.
    pub(crate) uar_len: u64,
    pub(crate) blue_flame: Option<BlueFlame>,
    /// True if frames, also unicast, are steered by entries of the multicast table (B0 steering).
    pub(crate) group_steering: bool,
    pub(crate) counters: bool,
    pub(crate) windows: bool,
    pub(crate) large_eqes: bool,
    pub(crate) large_cqes: bool,
    /// True if the driver must mark the entries of new completion queues.
    pub(crate) marks_cqs: bool,
    pub(crate) roce: bool,
    pub(crate) roce_v2: bool,
    pub(crate) sizes: EntrySizes,
    pub(crate) max_icm: u64,
}

impl Capabilities {
    /// Queries the card's capabilities (QUERY_DEV_CAP).
    pub(crate) fn query(commands: &mut Commands<'_, impl Hardware>) -> Result<Self, Error> {
        let capabilities = Self::parse(&commands.exec_out(Command::new(Opcode::QueryDevCap))?)?;
        if capabilities.uar_len > commands.hw.doorbells_len() {
            return Err(Error::Nonsense("its doorbells are beyond BAR 2"));
        }
        Ok(capabilities)
    }

    /// Parses the output mailbox of QUERY_DEV_CAP.
    pub(crate) fn parse(mailbox: &Mailbox) -> Result<Self, Error> {
        let get = |field| mailbox.get(field);
        let (flags, high) = (get(field::FLAGS), get(field::FLAGS_HIGH));
        for (bit, what) in [(flag::RC, "reliable connections"), (flag::ATOMIC, "atomic operations")] {
            if flags & bit == 0 {
                return Err(Error::Lacks(what));
            }
        }
        if get(field::LOG_MIN_PAGE) > 12 {
            return Err(Error::Lacks("pages of 4096 bytes"));
        }
        let ports = get(field::PORTS) as u8;
        if !(1..=2).contains(&ports) {
            return Err(Error::Nonsense("its number of ports is neither 1 nor 2"));
        }
        if get(field::SEND_BYTES) < 256 || get(field::SEND_ELEMENTS) < 4 || get(field::RECEIVE_ELEMENTS) < 4 {
            return Err(Error::Lacks("work requests of 256 bytes"));
        }
        let legacy = (4 * get(field::RESERVED_UARS)).max(1 << get(field::LOG_RESERVED_EQS));
        let eqs = match get(field::SYSTEM_EQS) {
            0 => EqScheme::Legacy { reserved: legacy },
            count => EqScheme::System { count },
        };
        // The halves of a register have 64 to 512 bytes: a work request is copied in pieces of 64.
        let blue_flame = match get(field::LOG_BLUE_FLAME) {
            log @ 7..=10 if mailbox.has(field::BLUE_FLAME) => Some(BlueFlame { half: 1 << (log - 1) }),
            _ => None,
        };
        Ok(Self {
            reserved_qps: 1 << get(field::LOG_RESERVED_QPS),
            reserved_srqs: 1 << get(field::LOG_RESERVED_SRQS),
            reserved_cqs: 1 << get(field::LOG_RESERVED_CQS),
            reserved_mtts: 1 << get(field::LOG_RESERVED_MTTS),
            reserved_mpts: 1 << get(field::LOG_RESERVED_MPTS),
            reserved_pds: get(field::RESERVED_PDS),
            eqs,
            log_send_entries: get(field::LOG_SEND_ENTRIES).min(16),
            log_cqes: get(field::LOG_CQES).min(22),
            max_rd_atomic: 1 << get(field::LOG_REQUESTER).min(get(field::LOG_RESPONDER)).min(7),
            ports,
            log_message: get(field::LOG_MESSAGE),
            uar_len: 1 << (20 + get(field::LOG_UAR_MIB).min(32)),
            blue_flame,
            group_steering: high & flag::HIGH_STEERING == flag::HIGH_STEERING,
            counters: high & flag::HIGH_COUNTERS != 0,
            windows: flags & flag::WINDOWS != 0,
            large_eqes: high & flag::HIGH_LARGE_EQE != 0,
            large_cqes: high & flag::HIGH_LARGE_CQE != 0,
            marks_cqs: get(field::FLAGS2) & flag::SECOND_SW_CQ_INIT != 0,
            roce: flags & flag::ROCE != 0,
            roce_v2: get(field::BMME) & flag::BMME_ROCE_V2 != 0,
            sizes: entry_sizes(mailbox)?,
            max_icm: mailbox.wide(field::MAX_ICM),
        })
    }
}

fn entry_sizes(mailbox: &Mailbox) -> Result<EntrySizes, Error> {
    let size = |index: usize| match mailbox.get(Field::half(field::ENTRY_SIZES + 2 * index)) {
        len @ 8..=4096 => Ok(u64::from(len).next_power_of_two()),
        _ => Err(Error::Nonsense("its table entries have an impossible size")),
    };
    let sizes = EntrySizes {
        rdmarc: size(0)?,
        qpc: size(1)?,
        auxc: size(2)?,
        altc: size(3)?,
        eqc: size(4)?,
        cqc: size(5)?,
        srqc: size(6)?,
        cmpt: size(7)?,
        mtt: size(8)?,
        dmpt: size(9)?,
    };
    // The driver writes these entries itself.
    if sizes.mtt == 8 { Ok(sizes) } else { Err(Error::Lacks("page entries of 8 bytes")) }
}

/// The card's model, as its manufacturer names it, such as `MT_1170110023`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BoardId([u8; 16]);

impl BoardId {
    /// Queries the card, which stores the words in reverse byte order.
    pub(crate) fn query(commands: &mut Commands<'_, impl Hardware>) -> Result<Self, Error> {
        const BOARD_ID: usize = 0xf0;
        let mut id = commands.exec_out(Command::new(Opcode::QueryAdapter))?.array(BOARD_ID);
        for word in id.as_chunks_mut::<4>().0 {
            word.reverse();
        }
        Ok(Self(id))
    }
}

impl fmt::Display for BoardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let printable = self.0.iter().take_while(|byte| byte.is_ascii_graphic());
        printable.map(|byte| char::from(*byte)).try_for_each(|c| fmt::Write::write_char(f, c))
    }
}

/// Returns the first event queue that the function may use, as QUERY_FUNC reports it if the card has system
/// event queues.
pub(crate) fn first_eq(commands: &mut Commands<'_, impl Hardware>, scheme: EqScheme) -> Result<u32, Error> {
    const RESERVED: Field = Field::half(0x04);
    const MAX: Field = Field::half(0x06);
    match scheme {
        EqScheme::Legacy { reserved } => Ok(reserved),
        EqScheme::System { count } => {
            let function = commands.exec_out(Command::new(Opcode::QueryFunc))?;
            let first = function.get(RESERVED);
            if first < function.get(MAX) && first < count {
                Ok(first)
            } else {
                Err(Error::Nonsense("no event queue is left for this function"))
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The mailbox of a ConnectX-3 Pro, as real cards were seen to fill it (docs/design/mlx4.md).
    fn mailbox() -> Mailbox {
        let mut mailbox = Mailbox::new();
        for (field, value) in [
            (field::LOG_SEND_ENTRIES, 14),
            (field::LOG_RESERVED_QPS, 6),
            (field::LOG_RESERVED_SRQS, 6),
            (field::LOG_CQES, 22),
            (field::LOG_RESERVED_CQS, 7),
            (field::LOG_RESERVED_EQS, 2),
            (field::LOG_RESERVED_MTTS, 6),
            (field::LOG_RESERVED_MPTS, 8),
            (field::LOG_REQUESTER, 7),
            (field::LOG_RESPONDER, 4),
            (field::PORTS, 1),
            (field::LOG_MESSAGE, 30),
            (field::FLAGS, flag::RC | flag::ATOMIC | flag::ROCE),
            (field::LOG_UAR_MIB, 3),
            (field::LOG_MIN_PAGE, 9),
            (field::SEND_ELEMENTS, 62),
            (field::SEND_BYTES, 1008),
            (field::RECEIVE_ELEMENTS, 32),
            (field::RESERVED_PDS, 4),
            (field::BMME, flag::BMME_ROCE_V2),
        ] {
            mailbox.set(field, value);
        }
        for (index, size) in [32, 256, 128, 64, 128, 128, 128, 64, 8, 64].into_iter().enumerate() {
            mailbox.set(Field::half(field::ENTRY_SIZES + 2 * index), size);
        }
        mailbox.set_wide(field::MAX_ICM, 1 << 40);
        mailbox
    }

    pub(crate) fn pro() -> Capabilities {
        Capabilities::parse(&mailbox()).unwrap()
    }

    #[test]
    fn reported_capabilities_are_parsed_and_checked() {
        let pro = pro();
        assert_eq!(
            (pro.reserved_qps, pro.reserved_cqs, pro.max_rd_atomic, pro.uar_len),
            (64, 128, 16, 8 << 20)
        );
        assert_eq!(pro.eqs, EqScheme::Legacy { reserved: 4 });
        assert!(pro.roce_v2 && pro.blue_flame.is_none());
        let refused = |field, value| Capabilities::parse(&mailbox().with(field, value)).unwrap_err();
        assert_eq!(refused(field::PORTS, 3), Error::Nonsense("its number of ports is neither 1 nor 2"));
        assert_eq!(refused(field::FLAGS, 0), Error::Lacks("reliable connections"));
        assert_eq!(refused(field::LOG_MIN_PAGE, 13), Error::Lacks("pages of 4096 bytes"));
        assert!(
            matches!(refused(Field::half(0x82), 0), Error::Nonsense(_)),
            "queue pair contexts of no bytes"
        );
        assert!(matches!(refused(Field::half(0x90), 16), Error::Lacks(_)), "longer page entries");
    }

    /// Any mailbox is either accepted or refused, without a panic.
    #[test]
    fn any_mailbox_is_accepted_or_refused() {
        let mailboxes = if cfg!(miri) { 5 } else { 2000 };
        let mut seed = 1u64;
        for _ in 0..mailboxes {
            let words = core::iter::from_fn(|| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                Some(seed ^ seed >> 29)
            });
            let _ = Capabilities::parse(&Mailbox::from_words(words));
        }
    }
}
