//! Tests over a made-up sysfs.

use super::examine;
use super::sysfs::{CAPABILITIES, MSIX, PCI_EXPRESS, STATUS, address, capability};
use std::fs;
use std::os::unix::fs::symlink;
use tempfile::TempDir;

/// Returns a sysfs tree with a card at 0000:03:00.0.
fn tree(device: &str, driver: Option<&str>) -> TempDir {
    let tree = TempDir::new().unwrap();
    let at = tree.path().join("bus/pci/devices/0000:03:00.0");
    let write = |name: &str, text: &str| {
        let path = at.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("vendor", "0x15b3\n");
    write("device", &format!("{device}\n"));
    let line = |start: u64, len: u64| format!("{start:#018x} {:#018x} 0x0000000000040200\n", start + len - 1);
    let none = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
    write(
        "resource",
        &format!("{}{none}{}{none}", line(0xf000_0000, 1 << 20), line(0x38_0000_0000, 8 << 20)),
    );
    write("sriov_totalvfs", "8\n");
    write("sriov_numvfs", "0\n");
    write("infiniband/mlx4_0/fw_ver", "2.42.5000\n");
    write("infiniband/mlx4_0/board_id", "MT_1200111019\n");
    write("infiniband/mlx4_0/ports/1/state", "4: ACTIVE\n");
    write("infiniband/mlx4_0/ports/1/link_layer", "Ethernet\n");
    write("infiniband/mlx4_0/ports/1/rate", "40 Gb/sec (4X QDR)\n");
    let group = tree.path().join("kernel/iommu_groups/17");
    fs::create_dir_all(group.join("devices")).unwrap();
    fs::write(group.join("devices/0000:03:00.0"), "").unwrap();
    symlink(&group, at.join("iommu_group")).unwrap();
    if let Some(driver) = driver {
        symlink(tree.path().join(driver), at.join("driver")).unwrap();
    }
    let mut config = vec![0u8; 256];
    config[STATUS] = 0x10;
    config[CAPABILITIES] = 0x60;
    config[0x60..0x62].copy_from_slice(&[PCI_EXPRESS, 0x9c]);
    config[0x72..0x74].copy_from_slice(&[0x83, 0]);
    config[0x9c..0xa0].copy_from_slice(&[MSIX, 0, 127, 0]);
    fs::write(at.join("config"), config).unwrap();
    tree
}

#[test]
fn a_card_that_is_ready() {
    let tree = tree("0x1007", Some("vfio-pci"));
    let report = examine(tree.path(), "0000:03:00.0").unwrap();
    for part in [
        "ConnectX-3 Pro (15b3:1007) at 0000:03:00.0",
        "registers 1024 KiB, doorbells 8192 KiB",
        "128 by MSI-X",
        "generation 3, 8 lanes",
        "2.42.5000, board MT_1200111019",
        "Ethernet, 4: ACTIVE",
        "group 17, shared with nobody",
        "RoCE v2",
        "-device vfio-pci,host=0000:03:00.0",
    ] {
        assert!(report.contains(part), "no `{part}` in\n{report}");
    }
    assert!(!report.contains("to be done first"), "{report}");
}

#[test]
fn what_is_to_be_done_is_said() {
    let tree = tree("0x1003", Some("mlx4_core"));
    let at = tree.path().join("bus/pci/devices/0000:03:00.0");
    fs::write(at.join("sriov_numvfs"), "4").unwrap();
    fs::write(tree.path().join("kernel/iommu_groups/17/devices/0000:00:01.0"), "").unwrap();
    let report = examine(tree.path(), "0000:03:00.0").unwrap();
    for part in ["no RoCE v2", "4 virtual functions", "also 0000:00:01.0", "driver_override", "driver/unbind"]
    {
        assert!(report.contains(part), "no `{part}` in\n{report}");
    }
    fs::remove_file(at.join("iommu_group")).unwrap();
    fs::write(at.join("resource"), "").unwrap();
    let report = examine(tree.path(), "0000:03:00.0").unwrap();
    for part in ["IOMMU is off", "BAR 0", "BAR 2"] {
        assert!(report.contains(part), "no `{part}` in\n{report}");
    }
}

#[test]
fn a_virtual_function_needs_its_master() {
    let tree = tree("0x1004", Some("vfio-pci"));
    let master = tree.path().join("bus/pci/devices/0000:02:00.0");
    fs::create_dir_all(&master).unwrap();
    symlink(&master, tree.path().join("bus/pci/devices/0000:03:00.0/physfn")).unwrap();
    let report = examine(tree.path(), "0000:03:00.0").unwrap();
    assert!(report.contains("master 0000:02:00.0 must be driven by mlx4_core"), "{report}");
    symlink(tree.path().join("mlx4_core"), master.join("driver")).unwrap();
    let report = examine(tree.path(), "0000:03:00.0").unwrap();
    assert!(report.contains("master:     0000:02:00.0") && report.contains("ready to be"), "{report}");
}

#[test]
fn what_is_no_card_is_an_error() {
    let tree = tree("0x1019", None);
    let error = |address: &str| examine(tree.path(), address).unwrap_err().to_string();
    assert!(error("0000:03:00.0").contains("is 15b3:1019, not a ConnectX-3"));
    assert!(error("0000:04:00.0").contains("there is no PCI function 0000:04:00.0"));
    fs::remove_file(tree.path().join("bus/pci/devices/0000:03:00.0/vendor")).unwrap();
    assert!(error("0000:03:00.0").contains("no `vendor`"));
}

#[test]
fn addresses() {
    for (text, full) in [("03:00.0", "0000:03:00.0"), ("0001:AF:1f.7", "0001:af:1f.7")] {
        assert_eq!(address(text).unwrap(), full);
    }
    for wrong in
        ["", "3:0.0", "03:00", "03:20.0", "03:00.8", "00:00:03:00.0", "../03:00.0", "03:00.0/..", "xx:00.0"]
    {
        assert!(address(wrong).is_err(), "{wrong}");
    }
}

/// Parses random configuration spaces: the walk must end, and stay inside.
#[test]
fn capabilities_that_go_round_end() {
    let mut config = vec![0u8; 256];
    config[STATUS] = 0x10;
    config[CAPABILITIES] = 0x40;
    config[0x40..0x42].copy_from_slice(&[1, 0x40]);
    assert_eq!(capability(&config, MSIX), None);
    config[CAPABILITIES] = 0xff;
    assert_eq!(capability(&config, MSIX), None);
    assert_eq!(capability(&[], MSIX), None);
    assert_eq!(capability(&config[..64], MSIX), None);
}
