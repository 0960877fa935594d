//! Operations that drivers of the Hermon family use and Linux does not: page table entries by command, small
//! mailboxes, and commands without one (iPXE `drivers/infiniband/hermon.c`).

use connectx3_testdriver::driver::{KEY, Node};

const WRITE_MTT: u32 = 0x011;
/// The address of the driver's output mailbox, and the length of iPXE's.
const OUT_BOX: u64 = 0x2000;
const MAILBOX: usize = 1024;

#[test]
fn page_table_entries_are_written_by_their_byte_address() {
    let mut node = Node::new(1);
    let (untouched, first) = (node.map_pages(0, 4096), node.map_pages(0, 2 * 4096));
    let entries = [(0x04, first), (0x10, 1), (0x14, 0x0020_3001), (0x1c, 0x0020_5001)];
    node.command(WRITE_MTT, 0, 2, &entries);
    let at = node.page_entry(first);
    let words = [0, 4, 8, 12].map(|offset| node.machine.be32(at + offset));
    assert_eq!(words, [1, 0x0020_3001, 0, 0x0020_5001]);
    assert_eq!(node.machine.be32(node.page_entry(untouched) + 4), 1, "the entry before it does not change");
    // An unaligned entry; more entries than a mailbox holds; an address without memory.
    assert_eq!(node.try_command(WRITE_MTT, 0, 1, &[(0x04, first + 4)]), 0x03);
    assert_eq!(node.try_command(WRITE_MTT, 0, 511, &[(0x04, first)]), 0x03);
    assert_eq!(node.try_command(WRITE_MTT, 0, 1, &[(0x00, 1)]), 0x0c);
    assert_eq!(node.try_command(WRITE_MTT, 0, 1, &[(0x00, u32::MAX), (0x04, u32::MAX - 7)]), 0x0a);
}

#[test]
fn no_command_writes_more_than_a_small_mailbox_holds() {
    let mut node = Node::new(1);
    let region = KEY >> 8;
    for (opcode, in_mod) in
        [(0x003, 0), (0x004, 0), (0x006, 0), (0x00b, 0), (0x00e, region), (0x043, 1), (0x025, 0), (0x024, 1)]
    {
        node.machine.put(OUT_BOX + MAILBOX as u64, &[0xee; 4096 - MAILBOX]);
        // The input of MAD_IFC: Get(NodeInfo).
        let mad = [(0x00, 0x0101_0101), (0x10, 0x0011_0000)];
        node.command(opcode, 0, in_mod, &mad);
        let behind = node.machine.bytes(OUT_BOX + MAILBOX as u64, 4096 - MAILBOX);
        assert!(behind.iter().all(|byte| *byte == 0xee), "command {opcode:#x} writes beyond");
    }
}

#[test]
fn a_region_is_taken_back_without_a_mailbox() {
    const HW2SW_MPT: u64 = 0x00f;
    let mut node = Node::new(1);
    node.machine.put(0, &[0xee; 4096]);
    let index = u64::from(KEY >> 8);
    node.hcr([0, index, 0, HW2SW_MPT]);
    assert_eq!(node.machine.bytes(0, 4096), [0xee; 4096], "nothing is written at address 0");
    assert_ne!(node.raw_command(HW2SW_MPT as u32, 1, index as u32, 0).0, 0, "it is gone");
}
