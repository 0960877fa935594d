//! ISO 9660 images that boot as CDs and as USB sticks, under BIOS by isolinux and under UEFI by a FAT file
//! system (ECMA-119; El Torito Bootable CD-ROM Format Specification 1.0).
//!
//! ```text
//! sector 0   the master boot record of isolinux, for USB sticks: partition 2 is the FAT file system
//! 16, 17, 18 the volume descriptor, the boot record, the end of the descriptors
//! 19, 20     the path table, little-endian and big-endian
//! 21, 22     the root directory, the boot catalogue
//! 23 ...     the files
//! ```

use crate::PackError;

/// The length of a sector, and the number of blocks of 512 bytes in it.
const SECTOR: usize = 2048;
const BLOCKS: usize = 4;
/// The sectors of the fixed parts.
const VOLUME: usize = 16;
const BOOT: usize = 17;
const END: usize = 18;
const PATHS: usize = 19;
const PATHS_BIG: usize = 20;
const ROOT: usize = 21;
const CATALOGUE: usize = 22;
const FILES: usize = 23;
/// The length of isolinux's master boot record, and the offset of the partition table.
const MBR_CODE: usize = 432;
const PARTITIONS: usize = 446;
/// The identifier of the disk in the master boot record.
const DISK: u32 = 0xfe55_0117;
/// The names of the loader's file, and of the file system of UEFI.
const LOADER: &str = "ISOLINUX.BIN";
const SYSTEM: &str = "EFI.IMG";
/// The platforms of a boot catalogue.
const BIOS: u8 = 0;
const EFI: u8 = 0xef;

/// The parts of an image.
#[derive(Clone, Copy, Debug)]
pub struct Iso<'a> {
    /// The loader for BIOS: `isolinux.bin`.
    pub loader: &'a [u8],
    /// The master boot record that starts the loader from a USB stick: `isohdpfx.bin`.
    pub boot_record: &'a [u8],
    /// The FAT file system that UEFI boots from.
    pub system: &'a [u8],
    /// The files for the loader, by names of at most eight capital letters, a dot and three further ones.
    pub files: &'a [(&'a str, &'a [u8])],
}

/// A number in both byte orders, as most fields of ISO 9660 are.
fn both(value: u32) -> [u8; 8] {
    let ([a, b, c, d], [e, f, g, h]) = (value.to_le_bytes(), value.to_be_bytes());
    [a, b, c, d, e, f, g, h]
}

fn both_short(value: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (value.to_le_bytes(), value.to_be_bytes());
    [a, b, c, d]
}

/// Returns a directory record.
fn record(name: &[u8], sector: usize, len: usize, is_directory: bool) -> Vec<u8> {
    let mut record = vec![0, 0];
    record.extend(both(sector as u32));
    record.extend(both(len as u32));
    // 1 January 1980, 0:00:00, Greenwich.
    record.extend([80, 1, 1, 0, 0, 0, 0]);
    record.extend([u8::from(is_directory) << 1, 0, 0]);
    record.extend(both_short(1));
    record.push(name.len() as u8);
    record.extend_from_slice(name);
    record.resize(record.len().next_multiple_of(2), 0);
    let len = record.len() as u8;
    if let Some(first) = record.first_mut() {
        *first = len;
    }
    record
}

impl Iso<'_> {
    /// Returns the image.
    ///
    /// # Errors
    /// If the loader is no isolinux, the files' names do not fit in a sector, or the file system has 32 MiB.
    pub fn image(&self) -> Result<Vec<u8>, PackError> {
        if self.loader.len() < 64 || self.boot_record.len() < MBR_CODE {
            return Err(PackError::Stub("the loader is no isolinux"));
        }
        // The boot catalogue has 16 bits for the length of the file system.
        let blocks = u16::try_from(self.system.len().div_ceil(512))
            .map_err(|_| PackError::TooLarge(self.system.len()))?;
        let mut files = vec![(LOADER, self.loader), (SYSTEM, self.system)];
        files.extend(self.files);
        files.sort_by_key(|(name, _)| *name);
        let mut image = vec![0; FILES * SECTOR];
        let root = |name: &[u8]| record(name, ROOT, SECTOR, true);
        let mut directory = [root(&[0]), root(&[1])].concat();
        let mut sectors = (0, 0);
        for (name, content) in files {
            let sector = image.len() / SECTOR;
            directory.extend(record(format!("{name};1").as_bytes(), sector, content.len(), false));
            match name {
                LOADER => sectors.0 = sector,
                SYSTEM => sectors.1 = sector,
                _ => {}
            }
            image.extend_from_slice(content);
            image.resize(image.len().next_multiple_of(SECTOR), 0);
        }
        if directory.len() > SECTOR {
            return Err(PackError::Stub("too many files"));
        }
        let (loader, system) = sectors;
        let len = image.len() / SECTOR;
        self.patch_loader(&mut image, loader)?;
        put(&mut image, ROOT, &directory)?;
        put(&mut image, VOLUME, &volume(len))?;
        put(&mut image, BOOT, &boot_record())?;
        put(&mut image, END, b"\xffCD001\x01")?;
        let path = |sector: [u8; 4], parent: [u8; 2]| [&[1, 0][..], &sector, &parent, &[0, 0]].concat();
        put(&mut image, PATHS, &path((ROOT as u32).to_le_bytes(), [1, 0]))?;
        put(&mut image, PATHS_BIG, &path((ROOT as u32).to_be_bytes(), [0, 1]))?;
        put(&mut image, CATALOGUE, &catalogue(loader, system, blocks))?;
        put(&mut image, 0, &self.master_boot_record(loader, system, len)?)?;
        Ok(image)
    }

    /// Writes the table into isolinux by which it finds itself on the CD: the sectors of the volume
    /// descriptor and of the file, its length, and the sum of its words from byte 64 on.
    fn patch_loader(&self, image: &mut [u8], sector: usize) -> Result<(), PackError> {
        let words = self.loader.get(64..).unwrap_or_default().chunks(4);
        let sum = words.fold(0_u32, |sum, word| {
            let mut bytes = [0; 4];
            bytes.iter_mut().zip(word).for_each(|(place, byte)| *place = *byte);
            sum.wrapping_add(u32::from_le_bytes(bytes))
        });
        let table = [VOLUME as u32, sector as u32, self.loader.len() as u32, sum];
        let mut bytes = table.map(u32::to_le_bytes).concat();
        bytes.resize(56, 0);
        crate::put(image, sector * SECTOR + 8, &bytes)
    }

    /// Returns the first sector: isolinux's code for USB sticks, and a partition table. The first partition
    /// is the whole image, of no type, because partitions must not overlap; the second one is the file system
    /// of UEFI.
    fn master_boot_record(&self, loader: usize, system: usize, len: usize) -> Result<Vec<u8>, PackError> {
        let mut first = self.boot_record.get(..MBR_CODE).unwrap_or_default().to_vec();
        first.extend(((loader * BLOCKS) as u64).to_le_bytes());
        first.extend(DISK.to_le_bytes());
        first.resize(512, 0);
        let partition = |flag: u8, kind: u8, sector: usize, blocks: usize| {
            let addresses = [sector * BLOCKS, blocks].map(|number| (number as u32).to_le_bytes()).concat();
            [&[flag, 0, 2, 0, kind, 0xff, 0xff, 0xff][..], &addresses].concat()
        };
        crate::put(&mut first, PARTITIONS, &partition(0x80, 0, 0, len * BLOCKS))?;
        let blocks = self.system.len().div_ceil(512);
        crate::put(&mut first, PARTITIONS + 16, &partition(0, EFI, system, blocks))?;
        crate::put(&mut first, 510, &[0x55, 0xaa])?;
        Ok(first)
    }
}

fn put(image: &mut [u8], sector: usize, bytes: &[u8]) -> Result<(), PackError> {
    crate::put(image, sector * SECTOR, bytes)
}

/// Returns the primary volume descriptor of an image of `len` sectors.
fn volume(len: usize) -> Vec<u8> {
    let mut volume = b"\x01CD001\x01\0".to_vec();
    let text = |volume: &mut Vec<u8>, text: &str, len: usize| {
        volume.extend(text.bytes().chain(std::iter::repeat(b' ')).take(len));
    };
    text(&mut volume, "", 32);
    text(&mut volume, "FERROLITE", 32);
    volume.extend([0; 8]);
    volume.extend(both(len as u32));
    volume.extend([0; 32]);
    // The number of volumes, the number of this one, the length of a sector, the length of the path table.
    for value in [1, 1, SECTOR as u16] {
        volume.extend(both_short(value));
    }
    volume.extend(both(10));
    volume.extend((PATHS as u32).to_le_bytes());
    volume.extend([0; 4]);
    volume.extend((PATHS_BIG as u32).to_be_bytes());
    volume.extend([0; 4]);
    volume.extend(record(&[0], ROOT, SECTOR, true));
    for len in [128, 128, 128, 128, 37, 37, 37] {
        text(&mut volume, "", len);
    }
    // The times of creation and change, and those of expiry and of the first use, which are not given.
    for time in ["1980010100000000", "1980010100000000", "0000000000000000", "0000000000000000"] {
        volume.extend(time.bytes());
        volume.push(0);
    }
    volume.push(1);
    volume
}

/// Returns the boot record, which names the sector of the boot catalogue.
fn boot_record() -> Vec<u8> {
    let mut record = b"\0CD001\x01EL TORITO SPECIFICATION".to_vec();
    record.resize(0x47, 0);
    record.extend((CATALOGUE as u32).to_le_bytes());
    record
}

/// Returns the boot catalogue: the loader for BIOS, and the file system for UEFI.
fn catalogue(loader: usize, system: usize, system_blocks: u16) -> Vec<u8> {
    // The words of the first entry add up to zero.
    let mut catalogue = vec![1, BIOS];
    catalogue.resize(28, 0);
    catalogue.extend([0xaa, 0x55, 0x55, 0xaa]);
    let boots = |catalogue: &mut Vec<u8>, blocks: u16, sector: usize| {
        catalogue.extend([0x88, 0, 0, 0, 0, 0]);
        catalogue.extend(blocks.to_le_bytes());
        catalogue.extend((sector as u32).to_le_bytes());
        catalogue.resize(catalogue.len().next_multiple_of(32), 0);
    };
    boots(&mut catalogue, BLOCKS as u16, loader);
    catalogue.extend([0x91, EFI, 1, 0]);
    catalogue.resize(96, 0);
    boots(&mut catalogue, system_blocks, system);
    catalogue
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_the_boot_catalogue_cannot_describe_is_refused() {
        let image = |blocks: usize| {
            let (loader, system) = (vec![0; 2048], vec![0; blocks * 512]);
            Iso { loader: &loader, boot_record: &loader, system: &system, files: &[] }.image()
        };
        assert!(image(65_535).is_ok());
        assert!(matches!(image(65_536), Err(PackError::TooLarge(len)) if len == 32 << 20));
    }
}
