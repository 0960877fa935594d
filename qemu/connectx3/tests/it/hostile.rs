//! Findings of fuzzing (`fuzz/`), as commands that a driver never issues.

use connectx3_testdriver::driver::Node;

const MAP_FA: u32 = 0xfff;
const NOP: u32 = 0x031;

/// Checks that the card still works.
fn assert_alive(node: &mut Node) {
    assert_eq!(node.raw_command(NOP, 0, 0, 0).0, 0);
}

#[test]
fn firmware_may_be_given_more_pages_than_can_be_counted() {
    let mut node = Node::new(1);
    const LOG_PAGES: u32 = 63;
    let entries: Vec<_> = (0..4).map(|entry| (16 * entry + 0x0c, LOG_PAGES)).collect();
    node.try_command(MAP_FA, 0, 4, &entries);
    assert_alive(&mut node);
}
