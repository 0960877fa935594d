//! Memory maps of machines, as their owners have published them in logs of Linux: the start and the
//! end of each entry, and whether it is RAM.

use super::*;
use alloc::vec::Vec;

type Entries = &'static [(u64, u64, bool)];

struct Machine {
    name: &'static str,
    /// The page for the start of processors.
    start_page: Option<u64>,
    map: Entries,
}

const MACHINES: &[Machine] = &[
    // The loader of this machine lists only the page of the interrupt vectors as RAM.
    Machine {
        name: "Samsung 500C, a Chromebook",
        start_page: None,
        map: &[(0, 0x1000, true), (0xffff_f000, 0x1_0000_0000, false)],
    },
    Machine {
        name: "a server with a tape drive, EFI of 2014, cut at 2 GB",
        start_page: Some(0x8000),
        map: &[
            (0, 0x6_c000, true),
            (0x6_c000, 0x6_d000, false),
            (0x6_d000, 0x9_f000, true),
            (0x9_f000, 0xa_0000, false),
            (0x10_0000, 0x7d24_5000, true),
            (0x7d24_5000, 0x7d27_0000, false),
            (0x7d27_0000, 0x7d29_b000, true),
            (0x7d29_b000, 0x7d2c_6000, false),
            (0x7d2c_6000, 0x7d6d_d000, true),
        ],
    },
    Machine {
        name: "a PC with measured launch, 16 GB",
        start_page: Some(0x8000),
        map: &[
            (0, 0x5_8000, true),
            (0x5_8000, 0x5_9000, false),
            (0x5_9000, 0x5_f000, true),
            (0x5_f000, 0x6_0000, false),
            (0x6_0000, 0x9_f000, true),
            (0x9_f000, 0xa_0000, false),
            (0x10_0000, 0x80_0000, true),
            (0x80_0000, 0xb5_f000, false),
            (0xb5_f000, 0xbcbf_f000, true),
            (0xbcbf_f000, 0xd92a_5000, false),
            (0xd92a_5000, 0xd92d_6000, false),
            (0xd92d_6000, 0xd9a5_e000, false),
            (0xd9a5_e000, 0xda1c_f000, false),
            (0xda1c_f000, 0xdb70_0000, false),
            (0xdbef_0000, 0xdc00_0000, false),
            (0xdd00_0000, 0xdf80_0000, false),
            (0xf800_0000, 0xfc00_0000, false),
            (0xfec0_0000, 0xfec0_1000, false),
            (0xfed0_0000, 0xfed0_4000, false),
            (0xfed1_c000, 0xfed3_0000, false),
            (0xfed4_0000, 0xfed4_5000, false),
            (0xfee0_0000, 0xfee0_1000, false),
            (0xff00_0000, 0x1_0000_0000, false),
            (0x1_0000_0000, 0x4_1e80_0000, true),
        ],
    },
    Machine {
        name: "a laptop of 2013, RAM in pieces below 3 GB",
        start_page: Some(0x8000),
        map: &[
            (0, 0x5_8000, true),
            (0x5_8000, 0x5_9000, false),
            (0x5_9000, 0x9_e000, true),
            (0x9_e000, 0xa_0000, false),
            (0x10_0000, 0xad85_3000, true),
            (0xad85_3000, 0xad85_a000, false),
            (0xad85_a000, 0xae0d_3000, true),
            (0xae0d_3000, 0xae37_4000, false),
            (0xae37_4000, 0xbd8c_6000, true),
            (0xbd8c_6000, 0xbdac_f000, false),
            (0xbdac_f000, 0xbde0_1000, true),
            (0xbde0_1000, 0xbeb0_6000, false),
            (0xbeb0_6000, 0xbeff_f000, false),
            (0xbeff_f000, 0xbf00_0000, true),
        ],
    },
    Machine {
        name: "Dell of 2022, 34 GB, above 1 MiB",
        start_page: None,
        map: &[
            (0x10_0000, 0x57cb_6000, true),
            (0x57cb_6000, 0x5cd1_1000, false),
            (0x5cd1_1000, 0x5d57_2000, false),
            (0x5d57_2000, 0x5d7f_f000, false),
            (0x5d7f_f000, 0x5d80_0000, true),
            (0x5d80_0000, 0x6600_0000, false),
            (0x6640_0000, 0x6660_0000, false),
            (0x66e0_0000, 0x7080_0000, false),
            (0xc000_0000, 0xd000_0000, false),
            (0xf900_0000, 0xfa00_0000, false),
            (0xfed2_0000, 0xfed8_0000, false),
            (0xff00_0000, 0x1_0000_0000, false),
            (0x1_0000_0000, 0x8_8f80_0000, true),
        ],
    },
    Machine {
        name: "a PC of 2013 whose low RAM ends within a page",
        start_page: Some(0x8000),
        map: &[
            (0, 0x9_f800, true),
            (0x9_f800, 0xa_0000, false),
            (0xe_0000, 0x10_0000, false),
            (0x10_0000, 0xdf9b_f000, true),
            (0xdf9b_f000, 0xdfab_f000, false),
            (0xdfab_f000, 0xdfbb_f000, false),
            (0xdfbb_f000, 0xdfbf_5000, false),
            (0xdfbf_5000, 0xdfc0_0000, true),
            (0xdfc0_0000, 0xe000_0000, false),
            (0xf800_0000, 0xfc00_0000, false),
            (0xfec0_0000, 0xfec0_1000, false),
            (0xfec1_0000, 0xfec1_1000, false),
            (0xfee0_0000, 0xfee0_1000, false),
        ],
    },
    Machine {
        name: "a laptop with RAM between tables",
        start_page: Some(0x8000),
        map: &[
            (0, 0x9_fc00, true),
            (0x9_fc00, 0xa_0000, false),
            (0xe_0000, 0x10_0000, false),
            (0x10_0000, 0xbbb6_c000, true),
            (0xbbb6_c000, 0xbbbb_f000, false),
            (0xbbbb_f000, 0xbbc7_3000, true),
            (0xbbc7_3000, 0xbbcb_f000, false),
            (0xbbcb_f000, 0xbbce_9000, true),
            (0xbbce_9000, 0xbbcf_f000, false),
            (0xbbcf_f000, 0xbbd0_0000, true),
            (0xbbd0_0000, 0xc000_0000, false),
            (0xf800_0000, 0xfc00_0000, false),
        ],
    },
    Machine {
        name: "ASUS A7V of 2000",
        start_page: Some(0x8000),
        map: &[
            (0, 0x9_e800, true),
            (0x9_e800, 0xa_0000, false),
            (0xf_0000, 0x10_0000, false),
            (0x10_0000, 0xffe_c000, true),
            (0xffe_c000, 0xffe_f000, false),
            (0xffe_f000, 0xfff_f000, false),
            (0xfff_f000, 0x1000_0000, false),
            (0xffff_0000, 0x1_0000_0000, false),
        ],
    },
    Machine {
        name: "a PC of 2005 with tables that end within a page",
        start_page: Some(0x8000),
        map: &[
            (0, 0x9_fc00, true),
            (0x9_fc00, 0xa_0000, false),
            (0xe_0000, 0x10_0000, false),
            (0x10_0000, 0x3fff_0000, true),
            (0x3fff_0000, 0x3fff_ffc0, false),
            (0x3fff_ffc0, 0x4000_0000, false),
            (0xffb8_0000, 0xffc0_0000, false),
            (0xfff8_0000, 0x1_0000_0000, false),
        ],
    },
    Machine {
        name: "QEMU's pc, with a reserved range below 1 TiB",
        start_page: Some(0x8000),
        map: &[
            (0, 0x9_fc00, true),
            (0x9_fc00, 0xa_0000, false),
            (0xf_0000, 0x10_0000, false),
            (0x10_0000, 0xffe_0000, true),
            (0xffe_0000, 0x1000_0000, false),
            (0xfffc_0000, 0x1_0000_0000, false),
            (0xfd_0000_0000, 0x100_0000_0000, false),
        ],
    },
];

#[test]
fn published_maps() {
    for machine in MACHINES {
        let mut spans = Spans::<512>::new();
        let ram = || machine.map.iter().filter(|(.., is_ram)| *is_ram);
        // The order must not matter.
        ram().rev().for_each(|(start, end, _)| spans.add(*start, *end));
        machine
            .map
            .iter()
            .filter(|(.., is_ram)| !is_ram)
            .for_each(|(start, end, _)| spans.remove(*start, *end));
        let expected: Vec<_> = ram().map(|(start, end, _)| Span { start: *start, end: *end }).collect();
        assert_eq!((spans.spans(), spans.dropped()), (&*expected, 0), "{}", machine.name);
        assert_eq!(start_page(&spans, core::iter::empty()), machine.start_page, "{}", machine.name);
        // A page below that another loader has taken moves the start, and does not prevent it.
        let taken = machine.start_page.map(|start| Span { start, end: start + 1 });
        let other = start_page(&spans, taken.into_iter());
        assert_eq!(other.is_some(), machine.start_page.is_some(), "{}", machine.name);
        assert!(other.is_none() || other != machine.start_page, "{}", machine.name);
    }
}
