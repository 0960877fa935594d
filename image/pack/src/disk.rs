//! Disks with a GUID partition table.

use crate::PackError;
use gpt::disk::LogicalBlockSize;
use gpt::mbr::ProtectiveMBR;
use gpt::partition::Partition;
use gpt::{GptConfig, partition_types};
use std::collections::BTreeMap;
use std::io::Cursor;
use uuid::Uuid;

/// The length of a block of a disk, in bytes.
const BLOCK: usize = 512;
/// The alignment of partitions, in bytes.
const MIB: usize = 1 << 20;
/// The identifiers of disk and partition: always the same, so that two builds are equal.
const DISK: Uuid = Uuid::from_u128(0xfe55_0117_0000_4000_8000_0000_0000_0001);
const PARTITION: Uuid = Uuid::from_u128(0xfe55_0117_0000_4000_8000_0000_0000_0002);

/// Returns a disk with a GUID partition table, whose only partition is the EFI system partition `system`.
///
/// # Errors
/// If the partition does not fit.
pub fn disk(system: &[u8]) -> Result<Vec<u8>, PackError> {
    let len = MIB + system.len().next_multiple_of(MIB) + MIB;
    let mut disk = Cursor::new(vec![0; len]);
    let blocks = u32::try_from(len / BLOCK - 1).map_err(|_| PackError::TooLarge(len))?;
    ProtectiveMBR::with_lb_size(blocks).overwrite_lba0(&mut disk).map_err(partitions)?;
    let config = GptConfig::new().writable(true).logical_block_size(LogicalBlockSize::Lb512);
    let mut table = config.create_from_device(disk, Some(DISK)).map_err(partitions)?;
    let first = (MIB / BLOCK) as u64;
    let partition = Partition {
        part_type_guid: partition_types::EFI,
        part_guid: PARTITION,
        first_lba: first,
        last_lba: first + (system.len().div_ceil(BLOCK) - 1) as u64,
        flags: 0,
        name: "Ferrolite".to_owned(),
    };
    table.update_partitions(BTreeMap::from([(1, partition)])).map_err(partitions)?;
    let mut disk = table.write().map_err(partitions)?.into_inner();
    crate::put(&mut disk, MIB, system)?;
    Ok(disk)
}

fn partitions(error: impl std::fmt::Display) -> PackError {
    PackError::Partitions(error.to_string())
}
