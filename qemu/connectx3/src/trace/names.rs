//! Names of commands, events and states.

use crate::device::opcode as op;

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
    value(op::SYS_EN, "SYS_EN"),
    value(op::SYS_DIS, "SYS_DIS"),
    value(op::QUERY_DEV_CAP, "QUERY_DEV_CAP"),
    value(op::QUERY_FW, "QUERY_FW"),
    value(op::QUERY_ADAPTER, "QUERY_ADAPTER"),
    value(op::INIT_HCA, "INIT_HCA"),
    value(op::CLOSE_HCA, "CLOSE_HCA"),
    value(op::INIT_PORT, "INIT_PORT"),
    value(op::CLOSE_PORT, "CLOSE_PORT"),
    value(op::QUERY_HCA, "QUERY_HCA"),
    value(op::SET_PORT, "SET_PORT"),
    picked(op::SW2HW_MPT, "SW2HW_MPT"),
    picked(op::QUERY_MPT, "QUERY_MPT"),
    picked(op::HW2SW_MPT, "HW2SW_MPT"),
    picked(op::READ_MTT, "READ_MTT"),
    picked(op::WRITE_MTT, "WRITE_MTT"),
    picked(op::MAP_EQ, "MAP_EQ"),
    picked(op::SW2HW_EQ, "SW2HW_EQ"),
    picked(op::HW2SW_EQ, "HW2SW_EQ"),
    picked(op::QUERY_EQ, "QUERY_EQ"),
    picked(op::SW2HW_CQ, "SW2HW_CQ"),
    picked(op::HW2SW_CQ, "HW2SW_CQ"),
    picked(op::QUERY_CQ, "QUERY_CQ"),
    picked(op::RST2INIT_QP, "RST2INIT_QP"),
    picked(op::INIT2RTR_QP, "INIT2RTR_QP"),
    picked(op::RTR2RTS_QP, "RTR2RTS_QP"),
    picked(op::RTS2RTS_QP, "RTS2RTS_QP"),
    picked(op::SQERR2RTS_QP, "SQERR2RTS_QP"),
    picked(op::TO_ERR_QP, "2ERR_QP"),
    picked(op::RTS2SQD_QP, "RTS2SQD_QP"),
    picked(op::SQD2RTS_QP, "SQD2RTS_QP"),
    picked(op::TO_RST_QP, "2RST_QP"),
    picked(op::QUERY_QP, "QUERY_QP"),
    picked(op::CONF_SPECIAL_QP, "CONF_SPECIAL_QP"),
    value(op::MAD_IFC, "MAD_IFC"),
    picked(op::READ_MCG, "READ_MCG"),
    picked(op::WRITE_MCG, "WRITE_MCG"),
    value(op::MGID_HASH, "MGID_HASH"),
    picked(op::MODIFY_CQ, "MODIFY_CQ"),
    picked(op::INIT2INIT_QP, "INIT2INIT_QP"),
    picked(op::ACCESS_MEM, "ACCESS_MEM"),
    value(op::SYNC_TPT, "SYNC_TPT"),
    value(op::DIAG_RPRT, "DIAG_RPRT"),
    value(op::NOP, "NOP"),
    picked(op::SUSPEND_QP, "SUSPEND_QP"),
    picked(op::UNSUSPEND_QP, "UNSUSPEND_QP"),
    value(op::MOD_STAT_CFG, "MOD_STAT_CFG"),
    picked(op::SW2HW_SRQ, "SW2HW_SRQ"),
    picked(op::HW2SW_SRQ, "HW2SW_SRQ"),
    picked(op::QUERY_SRQ, "QUERY_SRQ"),
    picked(op::SQD2SQD_QP, "SQD2SQD_QP"),
    value(op::CONFIG_DEV, "CONFIG_DEV"),
    value(op::ACCESS_REG, "ACCESS_REG"),
    picked(op::ARM_SRQ, "ARM_SRQ"),
    value(op::QUERY_PORT, "QUERY_PORT"),
    value(op::SET_VLAN_FLTR, "SET_VLAN_FLTR"),
    value(op::SET_MCAST_FLTR, "SET_MCAST_FLTR"),
    value(op::DUMP_ETH_STATS, "DUMP_ETH_STATS"),
    value(op::SENSE_PORT, "SENSE_PORT"),
    value(op::HW_HEALTH_CHECK, "HW_HEALTH_CHECK"),
    picked(op::QUERY_IF_STAT, "QUERY_IF_STAT"),
    picked(op::SET_IF_STAT, "SET_IF_STAT"),
    value(op::QUERY_FUNC, "QUERY_FUNC"),
    value(op::ARM_COMM_CHANNEL, "ARM_COMM_CHANNEL"),
    picked(op::GEN_EQE, "GEN_EQE"),
    picked(op::UPDATE_QP, "UPDATE_QP"),
    picked(op::FLOW_STEERING_IB_UC_QP_RANGE, "FLOW_STEERING_IB_UC_QP_RANGE"),
    picked(op::QP_FLOW_STEERING_ATTACH, "QP_FLOW_STEERING_ATTACH"),
    picked(op::QP_FLOW_STEERING_DETACH, "QP_FLOW_STEERING_DETACH"),
    value(op::MAD_DEMUX, "MAD_DEMUX"),
    value(op::ALLOC_RES, "ALLOC_RES"),
    value(op::FREE_RES, "FREE_RES"),
    picked(op::MCAST_ATTACH, "MCAST_ATTACH"),
    picked(op::UCAST_ATTACH, "UCAST_ATTACH"),
    picked(op::PROMISC, "PROMISC"),
    value(op::QUERY_FUNC_CAP, "QUERY_FUNC_CAP"),
    picked(op::QP_ATTACH, "QP_ATTACH"),
    value(op::RUN_FW, "RUN_FW"),
    picked(op::UNMAP_ICM, "UNMAP_ICM"),
    picked(op::MAP_ICM, "MAP_ICM"),
    value(op::UNMAP_ICM_AUX, "UNMAP_ICM_AUX"),
    picked(op::MAP_ICM_AUX, "MAP_ICM_AUX"),
    value(op::SET_ICM_SIZE, "SET_ICM_SIZE"),
    value(op::UNMAP_FA, "UNMAP_FA"),
    picked(op::MAP_FA, "MAP_FA"),
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
