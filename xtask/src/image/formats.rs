//! The forms of a boot file, which all have the same EFI program inside.

use super::tools;
use anyhow::Result;
use pack::{Fat, Iso};
use std::path::PathBuf;

/// The name under which firmware looks for a program on a removable medium.
const REMOVABLE: &str = "EFI/BOOT/BOOTX64.EFI";
/// The configuration of isolinux. The suffix `.EFI` would mean nothing to it, and `LINUX` says what it is.
const ISOLINUX: &[u8] = b"DEFAULT ferrolite\nLABEL ferrolite\n  LINUX FERROLIT.EFI\n";
/// The configuration of pxelinux.
const PXELINUX: &[u8] = b"DEFAULT ferrolite\nLABEL ferrolite\n  LINUX ferrolite.efi\n";
/// The script for iPXE, which names files relative to its own address.
const IPXE: &[u8] = b"#!ipxe\nkernel ferrolite.efi || shell\nboot\n";
/// iPXE for UEFI, by the firmware's network driver, for the manager's PXE service.
const IPXE_EFI: &str = "usr/lib/ipxe/snponly.efi";
/// The loader that all of syslinux needs under BIOS.
const LDLINUX: &str = "usr/lib/syslinux/modules/bios/ldlinux.c32";

/// An EFI program, to be put on a medium.
pub(super) struct Boot<'a> {
    pub(super) efi: Vec<u8>,
    /// The key and the certificate of a signature.
    pub(super) sign: Option<&'a [PathBuf]>,
    pub(super) version: &'a str,
}

impl Boot<'_> {
    /// Returns the program, signed if that is asked for.
    pub(super) fn signed(&self) -> Result<Vec<u8>> {
        self.sign(&self.efi)
    }

    fn sign(&self, program: &[u8]) -> Result<Vec<u8>> {
        match self.sign {
            Some([key, certificate]) => tools::sign(program, key, certificate),
            _ => Ok(program.to_vec()),
        }
    }

    /// Returns a CD: isolinux for BIOS, and the program itself for UEFI.
    pub(super) fn iso(&self) -> Result<Vec<u8>> {
        let efi = self.signed()?;
        let file = |name: &str| tools::file(&format!("usr/lib/ISOLINUX/{name}"));
        let iso = Iso {
            loader: &file("isolinux.bin")?,
            boot_record: &file("isohdpfx.bin")?,
            system: &pack::fat(REMOVABLE, &efi, Fat::Small)?,
            files: &[
                ("FERROLIT.EFI", &efi),
                ("ISOLINUX.CFG", ISOLINUX),
                ("LDLINUX.C32", &tools::file(LDLINUX)?),
            ],
        };
        Ok(iso.image()?)
    }

    /// Returns a disk whose only partition is the EFI system partition.
    pub(super) fn disk(&self) -> Result<Vec<u8>> {
        let system = pack::fat(REMOVABLE, &self.signed()?, Fat::Fat32)?;
        Ok(pack::disk(&system)?)
    }

    /// Returns a unified kernel image. The signature is that of the whole.
    pub(super) fn uki(&self) -> Result<Vec<u8>> {
        let stub = tools::file("usr/lib/systemd/boot/efi/linuxx64.efi.stub")?;
        let version = self.version.split(' ').next().unwrap_or_default();
        let release = format!("ID=ferrolite\nNAME=Ferrolite\nPRETTY_NAME=Ferrolite\nVERSION_ID={version}\n");
        let sections = [(".osrel", release.as_bytes()), (".linux", &self.efi)];
        self.sign(&pack::with_sections(&stub, &sections)?)
    }

    /// Returns the files of a directory for a TFTP or HTTP server, or for the manager's PXE service. UEFI
    /// loads the program itself, or iPXE; a BIOS loads pxelinux.
    pub(super) fn pxe(&self) -> Result<[(PathBuf, Vec<u8>); 6]> {
        Ok([
            ("ferrolite.efi".into(), self.signed()?),
            ("boot.ipxe".into(), IPXE.to_vec()),
            ("pxelinux.0".into(), tools::file("usr/lib/PXELINUX/pxelinux.0")?),
            ("ldlinux.c32".into(), tools::file(LDLINUX)?),
            ("ipxe.efi".into(), tools::file(IPXE_EFI)?),
            ("pxelinux.cfg/default".into(), PXELINUX.to_vec()),
        ])
    }
}
