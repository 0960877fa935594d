//! Start of the card with its tables and operating modes (INIT_HCA).

use crate::bringup::capabilities::{Capabilities, EqScheme};
use crate::command::{Command, Commands, Opcode};
use crate::error::Error;
use crate::hardware::Hardware;
use crate::icm::layout::{
    LOG_CQS, LOG_EQS, LOG_GROUP_HASH, LOG_GROUP_LEN, LOG_GROUPS, LOG_MPTS, LOG_QPS, LOG_RDMARC, Layout,
    TableId,
};
use crate::icm::pages::LOG_PAGE;
use crate::mailbox::{Field, Mailbox};

/// The mailbox (Linux `mlx4_INIT_HCA`, PRM `init_hca`). The size of a table shares a word with its address.
mod field {
    use super::Field;
    pub(super) const VERSION: Field = Field::byte(0x000);
    /// QUERY_HCA: capabilities that a virtual function must support. A value other than zero means a mode
    /// that this driver does not know.
    pub(super) const GLOBAL_CAPABILITIES: usize = 0x004;
    pub(super) const CACHE_LINE: Field = Field::byte(0x00e);
    pub(super) const FLAGS: Field = Field::word(0x014);
    pub(super) const QPC: usize = 0x030;
    pub(super) const LOG_QPS: Field = Field::bits(0x034, 4, 0);
    pub(super) const SRQC: usize = 0x048;
    pub(super) const LOG_SRQS: Field = Field::bits(0x04c, 4, 0);
    pub(super) const CQC: usize = 0x050;
    pub(super) const LOG_CQS: Field = Field::bits(0x054, 4, 0);
    pub(super) const LARGE_EQES: Field = Field::bit(0x058, 29);
    pub(super) const LARGE_CQES: Field = Field::bit(0x058, 30);
    pub(super) const ALTC: usize = 0x060;
    pub(super) const AUXC: usize = 0x070;
    pub(super) const EQC: usize = 0x080;
    pub(super) const LOG_EQS: Field = Field::bits(0x084, 4, 0);
    pub(super) const SYSTEM_EQS: Field = Field::bits(0x088, 11, 0);
    pub(super) const RDMARC: usize = 0x090;
    pub(super) const LOG_RDMARC: Field = Field::bits(0x094, 2, 0);
    pub(super) const GROUPS: usize = 0x0c0;
    pub(super) const LOG_GROUP_LEN: Field = Field::byte(0x0d3);
    pub(super) const LOG_GROUP_HASH: Field = Field::byte(0x0d7);
    pub(super) const GROUP_STEERING: Field = Field::bit(0x0d8, 27);
    pub(super) const LOG_GROUPS: Field = Field::byte(0x0db);
    pub(super) const DMPT: usize = 0x0f0;
    pub(super) const WINDOWS: Field = Field::bit(0x0f8, 31);
    pub(super) const LOG_MPTS: Field = Field::bits(0x0f8, 5, 0);
    pub(super) const MTT: usize = 0x100;
    pub(super) const CMPT: usize = 0x108;
    pub(super) const LOG_UARS: Field = Field::bits(0x128, 11, 8);
    /// log2 of the size of a doorbell page, in units of 4096 bytes.
    pub(super) const LOG_UAR_PAGE: Field = Field::byte(0x12b);
}

/// The version of the INIT_HCA mailbox.
const VERSION: u32 = 2;
/// Cache lines of 64 bytes: log2 of their 16-byte units, and the bit that Linux also sets.
const CACHE_LINE: u32 = 2 << 5 | 1 << 4;
/// The code in the field for the number of event queues that stands for system event queues.
const SYSTEM_EQS: u32 = 0x1f;
const CHECK_PORT: u32 = 1 << 0;
const COUNTERS: u32 = 1 << 4;

/// The parameters with which a card was started, as far as its virtual functions need them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HcaParams {
    pub(crate) large_eqes: bool,
    pub(crate) large_cqes: bool,
    /// log2 of the number of memory keys.
    pub(crate) log_keys: u32,
}

impl HcaParams {
    /// Returns the capabilities as they are limited by these INIT_HCA parameters.
    pub(crate) fn restrict(self, capabilities: Capabilities) -> Capabilities {
        Capabilities { large_eqes: self.large_eqes, large_cqes: self.large_cqes, ..capabilities }
    }
}

/// Queries the parameters with which a card was started.
pub(crate) fn query(commands: &mut Commands<'_, impl Hardware>) -> Result<HcaParams, Error> {
    let hca = commands.exec_out(Command::new(Opcode::QueryHca))?;
    if hca.wide(field::GLOBAL_CAPABILITIES) != 0 {
        return Err(Error::Lacks("an operating mode that the driver knows"));
    }
    if hca.has(field::LOG_UAR_PAGE) {
        return Err(Error::Lacks("doorbell pages of 4096 bytes"));
    }
    let log_keys = hca.get(field::LOG_MPTS);
    if !(8..=24).contains(&log_keys) {
        return Err(Error::Nonsense("its table of keys has an impossible size"));
    }
    Ok(HcaParams { large_eqes: hca.has(field::LARGE_EQES), large_cqes: hca.has(field::LARGE_CQES), log_keys })
}

/// Starts a card whose tables have their memory.
pub(crate) fn start(
    commands: &mut Commands<'_, impl Hardware>,
    card: &Capabilities,
    layout: &Layout,
) -> Result<(), Error> {
    commands.exec_in(Command::new(Opcode::InitHca), &mailbox(card, layout))
}

fn mailbox(card: &Capabilities, layout: &Layout) -> Mailbox {
    let (log_eqs, system_eqs) = match card.eqs {
        EqScheme::Legacy { .. } => (LOG_EQS, 0),
        EqScheme::System { count } => (SYSTEM_EQS, count),
    };
    let mut mailbox = Mailbox::new();
    for (at, table) in [
        (field::QPC, TableId::Qpc),
        (field::SRQC, TableId::Srqc),
        (field::CQC, TableId::Cqc),
        (field::ALTC, TableId::Altc),
        (field::AUXC, TableId::Auxc),
        (field::EQC, TableId::Eqc),
        (field::RDMARC, TableId::Rdmarc),
        (field::GROUPS, TableId::Groups),
        (field::DMPT, TableId::Dmpt),
        (field::MTT, TableId::Mtt),
        (field::CMPT, TableId::CmptQp),
    ] {
        mailbox.set_wide(at, layout.table(table).base);
    }
    for (field, value) in [
        (field::VERSION, VERSION),
        (field::CACHE_LINE, CACHE_LINE),
        (field::FLAGS, CHECK_PORT | if card.counters { COUNTERS } else { 0 }),
        (field::LOG_QPS, LOG_QPS),
        (field::LOG_SRQS, layout.log_srqs),
        (field::LOG_CQS, LOG_CQS),
        (field::LARGE_EQES, card.large_eqes.into()),
        (field::LARGE_CQES, card.large_cqes.into()),
        (field::LOG_EQS, log_eqs),
        (field::SYSTEM_EQS, system_eqs),
        (field::LOG_RDMARC, LOG_RDMARC),
        (field::LOG_GROUP_LEN, LOG_GROUP_LEN),
        (field::LOG_GROUP_HASH, LOG_GROUP_HASH),
        (field::GROUP_STEERING, card.group_steering.into()),
        (field::LOG_GROUPS, LOG_GROUPS),
        (field::WINDOWS, card.windows.into()),
        (field::LOG_MPTS, LOG_MPTS),
        (field::LOG_UARS, card.uar_len.ilog2() - LOG_PAGE),
    ] {
        mailbox.set(field, value);
    }
    mailbox
}
