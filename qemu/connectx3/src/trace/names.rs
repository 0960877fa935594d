//! Names of commands, events and states.

/// The kind of a command's input modifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Modifier {
    /// The value has a meaning: a port, a part, or nothing.
    Value,
    /// The driver chooses the value: the number of an object, a count or an address.
    Picked,
}

/// A command with a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// The opcode.
    pub opcode: u16,
    /// The name.
    pub name: &'static str,
    /// The kind of the input modifier.
    pub in_mod: Modifier,
}

const fn value(opcode: u16, name: &'static str) -> Known {
    Known { opcode, name, in_mod: Modifier::Value }
}

const fn picked(opcode: u16, name: &'static str) -> Known {
    Known { opcode, name, in_mod: Modifier::Picked }
}

/// All commands with a name (Linux `include/linux/mlx4/cmd.h`), by opcode.
pub const COMMANDS: &[Known] = &[
    value(0x001, "SYS_EN"),
    value(0x002, "SYS_DIS"),
    value(0x003, "QUERY_DEV_CAP"),
    value(0x004, "QUERY_FW"),
    value(0x006, "QUERY_ADAPTER"),
    value(0x007, "INIT_HCA"),
    value(0x008, "CLOSE_HCA"),
    value(0x009, "INIT_PORT"),
    value(0x00a, "CLOSE_PORT"),
    value(0x00b, "QUERY_HCA"),
    value(0x00c, "SET_PORT"),
    picked(0x00d, "SW2HW_MPT"),
    picked(0x00e, "QUERY_MPT"),
    picked(0x00f, "HW2SW_MPT"),
    picked(0x010, "READ_MTT"),
    picked(0x011, "WRITE_MTT"),
    picked(0x012, "MAP_EQ"),
    picked(0x013, "SW2HW_EQ"),
    picked(0x014, "HW2SW_EQ"),
    picked(0x015, "QUERY_EQ"),
    picked(0x016, "SW2HW_CQ"),
    picked(0x017, "HW2SW_CQ"),
    picked(0x018, "QUERY_CQ"),
    picked(0x019, "RST2INIT_QP"),
    picked(0x01a, "INIT2RTR_QP"),
    picked(0x01b, "RTR2RTS_QP"),
    picked(0x01c, "RTS2RTS_QP"),
    picked(0x01d, "SQERR2RTS_QP"),
    picked(0x01e, "2ERR_QP"),
    picked(0x01f, "RTS2SQD_QP"),
    picked(0x020, "SQD2RTS_QP"),
    picked(0x021, "2RST_QP"),
    picked(0x022, "QUERY_QP"),
    picked(0x023, "CONF_SPECIAL_QP"),
    value(0x024, "MAD_IFC"),
    picked(0x025, "READ_MCG"),
    picked(0x026, "WRITE_MCG"),
    value(0x027, "MGID_HASH"),
    picked(0x02c, "MODIFY_CQ"),
    picked(0x02d, "INIT2INIT_QP"),
    picked(0x02e, "ACCESS_MEM"),
    value(0x02f, "SYNC_TPT"),
    value(0x030, "DIAG_RPRT"),
    value(0x031, "NOP"),
    picked(0x032, "SUSPEND_QP"),
    picked(0x033, "UNSUSPEND_QP"),
    value(0x034, "MOD_STAT_CFG"),
    picked(0x035, "SW2HW_SRQ"),
    picked(0x036, "HW2SW_SRQ"),
    picked(0x037, "QUERY_SRQ"),
    picked(0x038, "SQD2SQD_QP"),
    value(0x03a, "CONFIG_DEV"),
    value(0x03b, "ACCESS_REG"),
    picked(0x040, "ARM_SRQ"),
    value(0x043, "QUERY_PORT"),
    value(0x047, "SET_VLAN_FLTR"),
    value(0x048, "SET_MCAST_FLTR"),
    value(0x049, "DUMP_ETH_STATS"),
    value(0x04d, "SENSE_PORT"),
    value(0x050, "HW_HEALTH_CHECK"),
    picked(0x054, "QUERY_IF_STAT"),
    picked(0x055, "SET_IF_STAT"),
    value(0x056, "QUERY_FUNC"),
    value(0x057, "ARM_COMM_CHANNEL"),
    picked(0x058, "GEN_EQE"),
    picked(0x061, "UPDATE_QP"),
    picked(0x064, "FLOW_STEERING_IB_UC_QP_RANGE"),
    picked(0x065, "QP_FLOW_STEERING_ATTACH"),
    picked(0x066, "QP_FLOW_STEERING_DETACH"),
    value(0x203, "MAD_DEMUX"),
    value(0xf00, "ALLOC_RES"),
    value(0xf01, "FREE_RES"),
    picked(0xf05, "MCAST_ATTACH"),
    picked(0xf06, "UCAST_ATTACH"),
    picked(0xf08, "PROMISC"),
    value(0xf0a, "QUERY_FUNC_CAP"),
    picked(0xf0b, "QP_ATTACH"),
    value(0xff6, "RUN_FW"),
    picked(0xff9, "UNMAP_ICM"),
    picked(0xffa, "MAP_ICM"),
    value(0xffb, "UNMAP_ICM_AUX"),
    picked(0xffc, "MAP_ICM_AUX"),
    value(0xffd, "SET_ICM_SIZE"),
    value(0xffe, "UNMAP_FA"),
    picked(0xfff, "MAP_FA"),
];

/// Returns the command of an opcode.
#[must_use]
pub fn command(opcode: u16) -> Option<&'static Known> {
    COMMANDS.binary_search_by_key(&opcode, |known| known.opcode).ok().and_then(|at| COMMANDS.get(at))
}

/// Returns the name of an event type.
#[must_use]
pub const fn event(kind: u8) -> Option<&'static str> {
    Some(match kind {
        0x00 => "COMPLETION",
        0x01 => "PATH_MIGRATED",
        0x02 => "COMMUNICATION_ESTABLISHED",
        0x03 => "SEND_QUEUE_DRAINED",
        0x04 => "CQ_ERROR",
        0x05 => "WQ_CATASTROPHIC",
        0x08 => "LOCAL_CATASTROPHIC",
        0x09 => "PORT_CHANGE",
        0x0a => "COMMAND",
        0x0f => "EQ_OVERFLOW",
        0x10 => "WQ_INVALID_REQUEST",
        0x11 => "WQ_ACCESS",
        0x12 => "SRQ_CATASTROPHIC",
        0x13 => "LAST_WQE_REACHED",
        0x14 => "SRQ_LIMIT",
        0x1b => "FATAL_WARNING",
        0x1d => "PORT_MANAGEMENT_CHANGE",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_in_order() {
        assert!(COMMANDS.is_sorted_by(|a, b| a.opcode < b.opcode));
        assert_eq!(command(0x016).unwrap().name, "SW2HW_CQ");
        assert!(command(0x005).is_none());
    }
}
