//! Opcodes of commands (Linux `include/linux/mlx4/cmd.h`; those below 0x40 and from 0xff7 on are also in the
//! PRM) and their status codes.

use core::fmt;

/// The opcode of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
#[allow(missing_docs, reason = "the names are the specification's")]
pub enum Opcode {
    QueryDevCap = 0x003,
    QueryFw = 0x004,
    QueryAdapter = 0x006,
    InitHca = 0x007,
    CloseHca = 0x008,
    InitPort = 0x009,
    ClosePort = 0x00a,
    QueryHca = 0x00b,
    SetPort = 0x00c,
    Sw2HwMpt = 0x00d,
    WriteMtt = 0x011,
    MapEq = 0x012,
    Sw2HwEq = 0x013,
    Sw2HwCq = 0x016,
    Hw2SwCq = 0x017,
    Rst2InitQp = 0x019,
    Init2RtrQp = 0x01a,
    Rtr2RtsQp = 0x01b,
    ToRstQp = 0x021,
    ConfSpecialQp = 0x023,
    MadIfc = 0x024,
    ReadMcg = 0x025,
    WriteMcg = 0x026,
    MgidHash = 0x027,
    ConfigDev = 0x03a,
    QueryPort = 0x043,
    SetVlanFltr = 0x047,
    SetMcastFltr = 0x048,
    QueryFunc = 0x056,
    AllocRes = 0xf00,
    FreeRes = 0xf01,
    QueryFuncCap = 0xf0a,
    QpAttach = 0xf0b,
    RunFw = 0xff6,
    MapIcm = 0xffa,
    UnmapIcmAux = 0xffb,
    MapIcmAux = 0xffc,
    SetIcmSize = 0xffd,
    UnmapFa = 0xffe,
    MapFa = 0xfff,
}

/// The reason for which the card has refused a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names are the specification's")]
pub enum Status {
    InternalError,
    BadOpcode,
    BadParameter,
    BadSystemState,
    BadResource,
    ResourceBusy,
    ExceedsLimit,
    BadResourceState,
    BadIndex,
    BadNvmem,
    IcmError,
    BadQpState,
    BadSegment,
    RegionBound,
    BadPacket,
    BadSize,
    /// The function is not the primary one.
    MultiFunction,
    /// A code that no source names.
    Other(u8),
}

impl Status {
    /// Returns the status for a code; `None` means success.
    pub(crate) const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x00 => return None,
            0x01 => Self::InternalError,
            0x02 => Self::BadOpcode,
            0x03 => Self::BadParameter,
            0x04 => Self::BadSystemState,
            0x05 => Self::BadResource,
            0x06 => Self::ResourceBusy,
            0x08 => Self::ExceedsLimit,
            0x09 => Self::BadResourceState,
            0x0a => Self::BadIndex,
            0x0b => Self::BadNvmem,
            0x0c => Self::IcmError,
            0x10 => Self::BadQpState,
            0x20 => Self::BadSegment,
            0x21 => Self::RegionBound,
            0x30 => Self::BadPacket,
            0x40 => Self::BadSize,
            0x50 => Self::MultiFunction,
            code => Self::Other(code),
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            Self::InternalError => "internal error",
            Self::BadOpcode => "no such command",
            Self::BadParameter => "bad parameter",
            Self::BadSystemState => "not in this state of the card",
            Self::BadResource => "no such object",
            Self::ResourceBusy => "in use",
            Self::ExceedsLimit => "beyond a limit",
            Self::BadResourceState => "not in this state of the object",
            Self::BadIndex => "bad index",
            Self::BadNvmem => "flash memory is corrupt",
            Self::IcmError => "no memory is mapped there",
            Self::BadQpState => "not in this state of the queue pair",
            Self::BadSegment => "bad segment",
            Self::RegionBound => "windows are bound to the region",
            Self::BadPacket => "bad management packet",
            Self::BadSize => "bad size",
            Self::MultiFunction => "another function is the primary one",
            Self::Other(code) => return write!(f, "status {code:#04x}"),
        };
        f.write_str(words)
    }
}
