//! The resources of the driver: memory for the card's tables, the time of bring-up, and no heap allocation on
//! the data path.

use crate::common::pair::End;
use crate::common::wire::exchange;
use crate::common::{begun, node};
use connectx3::device::Profile;
use mlx4::{Config, Hardware};
use std::time::Duration;
use verbs::{
    Completion, CqOptions, LinkKind, Payload, QpOptions, RecvWr, Rnic, SendOp, SendWr, VerbsError, WrId,
};

/// The figures of docs/design/mlx4.md, on each profile; printed with `--nocapture`.
#[test]
fn tables_take_memory_for_what_is_there() {
    const PEERS: u32 = 256;
    const LANES: u32 = 4;
    for profile in Profile::NAMES {
        let (_machine, driver) = begun(profile, 1, &Config::default());
        let at_start = driver.table_bytes();
        assert!(at_start <= 512 << 10, "{profile}: {at_start}");
        let cq = driver.create_cq(CqOptions { depth: 1000 }).unwrap();
        let options = QpOptions { send_cq: cq, recv_cq: cq, send_depth: 8, recv_depth: 1 };
        for _ in 0..PEERS * LANES {
            driver.create_qp(options).unwrap();
        }
        let with_peers = driver.table_bytes();
        println!(
            "{profile:>13}: {:>4} KiB at start, {:>4} KiB for {PEERS} peers",
            at_start >> 10,
            with_peers >> 10
        );
        assert!(with_peers <= 3 << 20, "{profile}: {with_peers}");
        // A virtual function's tables are its master's.
        assert_eq!(with_peers == 0, profile == "vf", "{profile}");
    }
}

/// Completion queues can be made and destroyed, but not while a queue pair uses them; the memory of the
/// tables does not grow with their number.
#[test]
fn completion_queues_are_destroyed() {
    let (_machine, driver) = node("pro", 1);
    let mut taken = None;
    for _ in 0..200 {
        let cq = driver.create_cq(CqOptions { depth: 1000 }).unwrap();
        let options = QpOptions { send_cq: cq, recv_cq: cq, send_depth: 8, recv_depth: 1 };
        let qp = driver.create_qp(options).unwrap();
        assert_eq!(driver.destroy_cq(cq), Err(VerbsError::InvalidState));
        driver.destroy_qp(qp).unwrap();
        assert_eq!(driver.destroy_cq(cq), Ok(()));
        assert_eq!(driver.destroy_cq(cq), Err(VerbsError::NotFound));
        assert_eq!(driver.create_qp(options), Err(VerbsError::NotFound));
        // Queue pair numbers are not reused at once, and take a little memory for tables.
        let bytes = driver.table_bytes();
        assert!(bytes <= *taken.get_or_insert(bytes) + (64 << 10), "{bytes}");
    }
}

#[test]
fn a_card_is_up_in_a_tenth_of_a_second_beside_its_own_time() {
    let (machine, driver) = node("pro", 1);
    assert!(machine.waited() < Duration::from_millis(100), "{:?}", machine.waited());
    drop(driver);
    // The card was released, and can be acquired again.
    drop(machine.start(&Config::default()).unwrap());
    // It cannot be acquired while another driver owns it.
    let ownership = machine.plug().register(0x8069c);
    assert_eq!((ownership, machine.start(&Config::default()).err()), (0, Some(mlx4::Error::Owned)));
    machine.plug().set_register(0x8069c, 0);
    let again = machine.start(&Config::default()).unwrap();
    let identity = again.identity();
    let words = format!("{} {} port {}", identity.board, identity.firmware, identity.port);
    assert_eq!(words, "FER0000000003 2.42.5000 port 1");
}

#[test]
fn the_data_path_allocates_nothing() {
    let ((ma, da), (mb, db)) = (node("pro", 1), node("pro", 2));
    let (a, b) = (End::new(&da, &ma.bus.data), End::new(&db, &mb.bus.data));
    a.connect(&b, LinkKind::RoceV2);
    b.connect(&a, LinkKind::RoceV2);
    let there = b.put(&[0; 64]);
    let op = SendOp::Write { data: Payload::Inline(&[7; 64]), remote: b.remote(there), imm: Some(1) };
    let work = [SendWr { id: WrId(1), op, signaled: true, solicited: false, fence: false }];
    let mut out = [Completion::BLANK; 4];
    for _ in 0..20 {
        let receive = [RecvWr { id: WrId(2), scatter: &[] }];
        let heap = allocation_counter::measure(|| {
            b.rnic.post_recv(b.qp, &receive).unwrap();
        });
        assert_eq!(heap.count_total, 0, "post_recv");
        // The emulated card allocates when its doorbell rings, in this thread. The measurement excludes that.
        a.rnic.post_send(a.qp, &work).unwrap();
        exchange(&[&ma, &mb]);
        let heap = allocation_counter::measure(|| {
            assert_eq!(a.rnic.poll_cq(a.cq, &mut out), 1);
            assert_eq!(b.rnic.poll_cq(b.cq, &mut out), 1);
        });
        assert_eq!(heap.count_total, 0, "poll_cq");
    }
}
