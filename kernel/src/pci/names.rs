//! Names of functions for people: by id for devices that matter here, by class for all others.

/// Vendor, device, name.
const KNOWN: &[(u16, u16, &str)] = &[
    (0x15b3, 0x1003, "Mellanox ConnectX-3"),
    (0x15b3, 0x1004, "Mellanox ConnectX-3 virtual function"),
    (0x15b3, 0x1007, "Mellanox ConnectX-3 Pro"),
    (0x1af4, 0x1000, "virtio network (transitional)"),
    (0x1af4, 0x1001, "virtio block (transitional)"),
    (0x1af4, 0x1005, "virtio entropy (transitional)"),
    (0x1af4, 0x1041, "virtio network"),
    (0x1af4, 0x1042, "virtio block"),
    (0x1af4, 0x1043, "virtio console"),
    (0x1af4, 0x1044, "virtio entropy"),
    (0x1234, 0x1111, "QEMU VGA"),
    (0x1b36, 0x0008, "QEMU PCIe host bridge"),
    (0x1b36, 0x000c, "QEMU PCIe root port"),
    (0x8086, 0x10d3, "Intel 82574L Ethernet"),
    (0x8086, 0x2918, "Intel ICH9 LPC bridge"),
    (0x8086, 0x2922, "Intel ICH9 SATA (AHCI)"),
    (0x8086, 0x2930, "Intel ICH9 SMBus"),
    (0x8086, 0x29c0, "Intel Q35 host bridge"),
];

/// Base class, subclass, name. `None` stands for any other subclass.
const CLASSES: &[(u8, Option<u8>, &str)] = &[
    (0x01, Some(0x01), "IDE controller"),
    (0x01, Some(0x04), "RAID controller"),
    (0x01, Some(0x06), "SATA controller"),
    (0x01, Some(0x07), "SAS controller"),
    (0x01, Some(0x08), "NVMe controller"),
    (0x01, None, "storage controller"),
    (0x02, Some(0x00), "Ethernet controller"),
    (0x02, Some(0x07), "InfiniBand controller"),
    (0x02, None, "network controller"),
    (0x03, None, "display controller"),
    (0x04, None, "multimedia controller"),
    (0x05, None, "memory controller"),
    (0x06, Some(0x00), "host bridge"),
    (0x06, Some(0x01), "ISA bridge"),
    (0x06, Some(0x04), "PCI bridge"),
    (0x06, None, "bridge"),
    (0x07, None, "communication controller"),
    (0x08, Some(0x06), "IOMMU"),
    (0x08, None, "system peripheral"),
    (0x0b, None, "processor"),
    (0x0c, Some(0x03), "USB controller"),
    (0x0c, Some(0x05), "SMBus controller"),
    (0x0c, Some(0x06), "InfiniBand controller"),
    (0x0c, None, "serial bus controller"),
    (0x10, None, "encryption controller"),
    (0x11, None, "signal processing controller"),
    (0x12, None, "processing accelerator"),
];

/// Returns the name of a function.
pub(super) fn of(id: (u16, u16), class: (u8, u8, u8)) -> &'static str {
    let known = KNOWN.iter().find(|(vendor, device, _)| (*vendor, *device) == id).map(|k| k.2);
    let matches =
        |c: &&(u8, Option<u8>, &'static str)| c.0 == class.0 && c.1.is_none_or(|sub| sub == class.1);
    known.or_else(|| CLASSES.iter().find(matches).map(|c| c.2)).unwrap_or("unknown function")
}
