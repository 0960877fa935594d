//! The matrix of loaders and firmware: each combination boots `ferrolite.efi` or another boot file with the
//! real loader, and the node works.

mod canary;
mod directories;
mod disks;
mod files;
mod flood;
mod kexec;
mod libvirt;
mod mok;
mod networks;
mod secure;
mod segment;
mod service;
mod sources;
mod tools;
mod trial;

use crate::runner::{Case, Outcome};
use anyhow::{Result, anyhow};
use qemu::vm::Machine;
use std::ffi::OsString;
use std::path::Path;
use tools::Tools;
use trial::{Medium, Trial};

/// The group of these tests, with the separator.
pub const GROUP: &str = "boot::";
/// The beginning of the names of those that boot the image with the self-tests.
pub(crate) const CANARY: &str = "boot::canary-";

/// The firmware of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Firmware {
    /// SeaBIOS, on q35.
    SeaBios,
    /// qboot, the BIOS of microvm, which only starts kernels that QEMU passes.
    Qboot,
    /// OVMF: UEFI, on q35.
    Ovmf,
    /// None, on microvm: a loader that the monitor starts by PVH.
    None,
}

impl Firmware {
    const ALL: [Self; 4] = [Self::SeaBios, Self::Qboot, Self::Ovmf, Self::None];

    const fn name(self) -> &'static str {
        match self {
            Self::SeaBios => "seabios",
            Self::Qboot => "qboot",
            Self::Ovmf => "ovmf",
            Self::None => "pvh",
        }
    }

    /// Returns a machine with this firmware.
    fn machine(self, tools: &Tools) -> Result<Medium> {
        Ok(match self {
            Self::SeaBios => Medium::new(Machine::Q35, 128),
            Self::Qboot | Self::None => Medium::new(Machine::Microvm, 128),
            Self::Ovmf => {
                let drive = |unit: u32, file: &str, more: &str| -> Result<OsString> {
                    let path = tools.path(&format!("usr/share/OVMF/{file}"))?;
                    Ok(format!("if=pflash,unit={unit},format=raw,{more},file={}", path.display()).into())
                };
                Medium::new(Machine::Q35, 256)
                    .with("-drive", drive(0, "OVMF_CODE_4M.fd", "readonly=on")?)
                    .with("-drive", drive(1, "OVMF_VARS_4M.fd", "snapshot=on")?)
            }
        })
    }
}

/// The medium of a loader in a trial, for a machine with a firmware.
type Prepare = fn(&Trial<'_>, Medium) -> Result<Medium>;

/// A way to boot.
struct Loader {
    name: &'static str,
    /// The firmware with which the loader works, and the text by which the stub names what started it.
    firmware: &'static [(Firmware, &'static str)],
    prepare: Prepare,
    /// True if the quick set has it.
    quick: bool,
}

const fn loader(
    name: &'static str,
    firmware: &'static [(Firmware, &'static str)],
    prepare: Prepare,
) -> Loader {
    Loader { name, firmware, prepare, quick: false }
}

/// All loaders.
const LOADERS: &[Loader] = &[
    Loader {
        quick: true,
        ..loader(
            "kernel-of-qemu",
            &[
                (Firmware::SeaBios, "QEMU (0xb0), 16-bit entry"),
                (Firmware::Qboot, "QEMU (0xb0), 16-bit entry"),
                (Firmware::Ovmf, "EDK II (0x10000), UEFI application from another device"),
            ],
            disks::kernel,
        )
    },
    loader(
        "64-bit-entry-at-2M",
        &[(Firmware::None, "an unregistered loader (0xff), 64-bit entry, at 0x200000")],
        disks::test_loader,
    ),
    loader("bootx64", &[(Firmware::Ovmf, "EDK II (0x10000), UEFI application from a disk")], disks::bootx64),
    loader(
        "image-disk",
        &[(Firmware::Ovmf, "EDK II (0x10000), UEFI application from a disk")],
        disks::image_disk,
    ),
    loader(
        "image-iso-as-a-cd",
        &[
            (Firmware::SeaBios, "Syslinux (0x30), 16-bit entry"),
            (Firmware::Ovmf, "EDK II (0x10000), UEFI application from a CD"),
        ],
        disks::image_cd,
    ),
    loader(
        "image-iso-as-a-disk",
        &[
            (Firmware::SeaBios, "Syslinux (0x30), 16-bit entry"),
            // OVMF looks for the format of CDs on all media first.
            (Firmware::Ovmf, "EDK II (0x10000), UEFI application from a CD"),
        ],
        disks::image_usb,
    ),
    loader("grub-on-a-cd", &[(Firmware::SeaBios, "GRUB (0x72), 32-bit entry")], disks::grub_cd),
    loader("grub-on-a-disk", &[(Firmware::SeaBios, "GRUB (0x72), 32-bit entry")], disks::grub_disk),
    loader("grub", &[(Firmware::Ovmf, "GRUB (0x72), 32-bit entry under UEFI")], disks::grub_efi),
    loader(
        "grub-2.12",
        &[(Firmware::Ovmf, "EDK II (0x10000), UEFI application from a disk")],
        disks::newer_grub_efi,
    ),
    loader(
        "systemd-boot",
        &[(Firmware::Ovmf, "EDK II (0x10000), UEFI application from a disk, systemd-boot ")],
        disks::systemd_boot,
    ),
    loader(
        "image-uki",
        &[(Firmware::Ovmf, "EDK II (0x10000), UEFI application from memory, systemd-stub ")],
        disks::image_uki,
    ),
    loader(
        "uki-with-handover",
        &[(Firmware::Ovmf, "EDK II (0x10000), UEFI handover from a disk, systemd-stub ")],
        disks::uki_with_handover,
    ),
    loader("pxelinux", &[(Firmware::SeaBios, "Syslinux (0x30), 16-bit entry")], networks::pxelinux),
    loader(
        "image-pxe",
        &[
            (Firmware::SeaBios, "Syslinux (0x30), 16-bit entry"),
            (Firmware::Ovmf, "EDK II (0x10000), UEFI application from a network"),
        ],
        networks::image_pxe,
    ),
    loader(
        "ipxe",
        &[
            (Firmware::SeaBios, "iPXE (0x46), 16-bit entry"),
            (Firmware::Ovmf, "EDK II (0x10000), UEFI application from a network, iPXE"),
        ],
        networks::ipxe,
    ),
];

/// Returns the cases. If `full`, a missing package is a failure.
pub(crate) fn cases(full: bool) -> Vec<Case> {
    let combinations = LOADERS.iter().flat_map(|loader| {
        let firmware = Firmware::ALL.into_iter().filter_map(|firmware| {
            let (_, says) = loader.firmware.iter().find(|(fits, _)| *fits == firmware)?;
            Some((firmware, *says))
        });
        firmware.map(move |(firmware, says)| (loader, firmware, says))
    });
    let case = |(loader, firmware, says): (&'static Loader, Firmware, &'static str)| {
        let check = move |tools: &Tools, log: &Path| {
            let trial = Trial::new(tools, log)?;
            let medium = (loader.prepare)(&trial, firmware.machine(tools)?)?;
            trial.joins(medium, &[&format!("started by {says}")])
        };
        let quick = loader.quick && firmware != Firmware::Ovmf;
        with_tools(&format!("{}-{}", loader.name, firmware.name()), full, check).full_if(!quick)
    };
    combinations
        .map(case)
        .chain(secure::cases(full))
        .chain(mok::cases(full))
        .chain(kexec::cases(full))
        .chain(canary::cases(full))
        .chain(files::cases(full))
        .chain(directories::cases())
        .chain(service::cases(full))
        .chain(sources::cases(full))
        .chain(libvirt::cases(full))
        .collect()
}

/// Returns a case that needs the packages.
fn with_tools(
    name: &str,
    full: bool,
    check: impl FnOnce(&Tools, &Path) -> Result<()> + Send + 'static,
) -> Case {
    Case::new(format!("{GROUP}{name}"), move |log| match Tools::get() {
        Ok(tools) => check(tools, log).map(|()| Outcome::Passed),
        Err(why) if full => Err(anyhow!(why)),
        Err(why) => Ok(Outcome::Skipped(why)),
    })
}
