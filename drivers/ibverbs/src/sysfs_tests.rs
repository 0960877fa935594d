//! The port's directory, in a synthetic `/sys/class` with the texts of a real one.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use super::*;

fn put(root: &Path, file: &str, text: &str) {
    let path = root.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Makes the directory of rdma_rxe on eth0, with an additional RoCE v1 entry, as mlx4 has.
fn rxe0() -> (tempfile::TempDir, PortDir) {
    let root = tempfile::tempdir().unwrap();
    let port = "infiniband/rxe0/ports/1";
    for (index, gid, kind) in [
        (0, "fe80:0000:0000:0000:5054:00ff:fe00:0001", "RoCE v2"),
        (1, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"),
        (10, "0000:0000:0000:0000:0000:ffff:0a00:0001", "IB/RoCE v1"),
        (2, "0000:0000:0000:0000:0000:0000:0000:0000", ""),
        (3, "no gid", "RoCE v2"),
    ] {
        put(root.path(), &format!("{port}/gids/{index}"), &format!("{gid}\n"));
        if !kind.is_empty() {
            put(root.path(), &format!("{port}/gid_attrs/types/{index}"), &format!("{kind}\n"));
            put(root.path(), &format!("{port}/gid_attrs/ndevs/{index}"), "eth0\n");
        }
    }
    put(root.path(), &format!("{port}/gids/4"), "");
    put(root.path(), "net/eth0/address", "52:54:00:00:00:01\n");
    put(root.path(), "net/bad/address", "52:54:00:00:00:01:02\n");
    put(root.path(), "net/short/address", "52:54\n");
    put(root.path(), &format!("{port}/hw_counters/sent_pkts"), "12\n");
    put(root.path(), &format!("{port}/hw_counters/duplicate_request"), "0\n");
    put(root.path(), &format!("{port}/hw_counters/lifespan"), "10\n");
    put(root.path(), &format!("{port}/hw_counters/odd"), "N/A\n");
    let port = PortDir::new(root.path(), "rxe0", 1);
    (root, port)
}

#[test]
fn the_gid_table_has_its_filled_entries_in_order() {
    let (_root, port) = rxe0();
    let gids = port.gids().unwrap();
    let seen: Vec<_> = gids.iter().map(|g| (g.index, g.gid.to_string(), g.link)).collect();
    assert_eq!(
        seen,
        [
            (0, "fe80::5054:ff:fe00:1".into(), LinkKind::RoceV2),
            (1, "::ffff:10.0.0.1".into(), LinkKind::RoceV2),
            (10, "::ffff:10.0.0.1".into(), LinkKind::RoceV1),
        ]
    );
    assert!(gids.iter().all(|g| g.netdev.as_deref() == Some("eth0")));
    assert!(PortDir::new(Path::new("/nonexistent"), "rxe0", 1).gids().is_err());
}

#[test]
fn the_address_of_the_interface() {
    let (_root, port) = rxe0();
    assert_eq!(port.mac("eth0"), Some(MacAddr([0x52, 0x54, 0, 0, 0, 1])));
    assert_eq!((port.mac("bad"), port.mac("short"), port.mac("none")), (None, None, None));
}

#[test]
fn counters_are_read_again_each_time() {
    let (root, port) = rxe0();
    let counters = port.counters();
    let read = || {
        let mut seen = Vec::new();
        counters.for_each(&mut |counter| seen.push(counter));
        seen
    };
    assert_eq!(read(), [("duplicate_request", 0), ("sent_pkts", 12)]);
    put(root.path(), "infiniband/rxe0/ports/1/hw_counters/sent_pkts", "18446744073709551615\n");
    assert_eq!(read(), [("duplicate_request", 0), ("sent_pkts", u64::MAX)]);
    let none = PortDir::new(root.path(), "rxe1", 1).counters();
    none.for_each(&mut |counter| panic!("{counter:?}"));
}
