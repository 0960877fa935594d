//! FAT file systems with a few files, each in one run of clusters (Microsoft, FAT: General Overview
//! of On-Disk Format 1.03). All times are 1 January 1980.

use crate::PackError;

/// The length of a sector, in bytes.
const SECTOR: usize = 512;
const MIB: usize = 1 << 20;
/// The number of copies of the table.
const TABLES: usize = 2;
/// The length of a directory entry, and the entries of the root directory of FAT16.
const ENTRY: usize = 32;
const ROOT_ENTRIES: usize = 512;
/// The attributes of entries.
const DIRECTORY: u8 = 0x10;
const ARCHIVE: u8 = 0x20;
const VOLUME: u8 = 0x08;
/// The most clusters of FAT16. A file system with more of them is FAT32.
const MOST_OF_FAT16: usize = 65_524;
/// The date 1 January 1980.
const DATE: u16 = 1 << 5 | 1;
const LABEL: &[u8; 11] = b"FERROLITE  ";
/// The serial number: always the same, so that two builds are equal.
const SERIAL: u32 = 0xfe55_0117;
/// The code of the boot sector: a jump in front of the parameters, which nothing runs.
const JUMP: [u8; 3] = [0xeb, 0xfe, 0x90];

/// The size of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fat {
    /// FAT16, as small as the files allow.
    Small,
    /// FAT32, which firmware expects on a disk that stays in the machine: at least 65,525 clusters.
    Fat32,
}

/// The measures of a file system, in sectors.
struct Layout {
    kind: Fat,
    sectors: usize,
    cluster: usize,
    reserved: usize,
    table: usize,
    root: usize,
}

impl Layout {
    /// Returns the layout for that many bytes of files and directories.
    fn new(kind: Fat, content: usize) -> Self {
        let (cluster, least, reserved, root, entry) = match kind {
            Fat::Small if content < 28 * MIB => (1, 3 * MIB, 1, ROOT_ENTRIES * ENTRY / SECTOR, 2),
            Fat::Small => (8, 20 * MIB, 1, ROOT_ENTRIES * ENTRY / SECTOR, 2),
            Fat::Fat32 => (1, 36 * MIB, 32, 0, 4),
        };
        let sectors = (content + content / 64 + MIB).next_multiple_of(MIB).max(least) / SECTOR;
        let table = (sectors / cluster + 2) * entry;
        Self { kind, sectors, cluster, reserved, table: table.div_ceil(SECTOR), root }
    }

    const fn data(&self) -> usize {
        self.reserved + TABLES * self.table + self.root
    }

    /// Returns the offset of a cluster, in bytes.
    const fn offset(&self, cluster: usize) -> usize {
        (self.data() + (cluster - 2) * self.cluster) * SECTOR
    }

    /// Returns the number of all clusters.
    const fn total(&self) -> usize {
        (self.sectors - self.data()) / self.cluster
    }

    /// Returns the number of clusters for `len` bytes.
    const fn clusters(&self, len: usize) -> usize {
        len.div_ceil(self.cluster * SECTOR)
    }

    /// Returns the boot sector.
    fn boot_sector(&self) -> Vec<u8> {
        let is_fat32 = self.kind == Fat::Fat32;
        let mut s = JUMP.to_vec();
        s.extend(b"FERROLIT");
        let u16 = |s: &mut Vec<u8>, value: usize| s.extend((value as u16).to_le_bytes());
        let u32 = |s: &mut Vec<u8>, value: usize| s.extend((value as u32).to_le_bytes());
        u16(&mut s, SECTOR);
        s.push(self.cluster as u8);
        u16(&mut s, self.reserved);
        s.push(TABLES as u8);
        u16(&mut s, if is_fat32 { 0 } else { ROOT_ENTRIES });
        u16(&mut s, 0);
        s.push(0xf8); // a fixed disk
        u16(&mut s, if is_fat32 { 0 } else { self.table });
        u16(&mut s, 32); // sectors of a track, heads: of no meaning
        u16(&mut s, 64);
        u32(&mut s, 0);
        u32(&mut s, self.sectors);
        if is_fat32 {
            u32(&mut s, self.table);
            u32(&mut s, 0);
            u32(&mut s, 2); // the cluster of the root directory
            u16(&mut s, 1); // the sector of the summary of free clusters
            u16(&mut s, 6); // the sector of the copy of this sector
            s.extend([0; 12]);
        }
        s.extend([0x80, 0, 0x29]);
        u32(&mut s, SERIAL as usize);
        s.extend(LABEL);
        s.extend(if is_fat32 { b"FAT32   " } else { b"FAT16   " });
        s.resize(SECTOR - 2, 0);
        s.extend([0x55, 0xaa]);
        s
    }
}

/// Returns an entry of a directory.
fn entry(name: &[u8; 11], attributes: u8, cluster: usize, len: usize) -> [u8; ENTRY] {
    let mut entry = [0; ENTRY];
    let [low, high] = [cluster as u16, (cluster >> 16) as u16].map(u16::to_le_bytes);
    let date = DATE.to_le_bytes();
    let fields: [(usize, &[u8]); 8] = [
        (0, name),
        (11, &[attributes]),
        (16, &date),
        (18, &date),
        (20, &high),
        (24, &date),
        (26, &low),
        (28, &(len as u32).to_le_bytes()),
    ];
    for (at, bytes) in fields {
        entry.iter_mut().skip(at).zip(bytes).for_each(|(place, byte)| *place = *byte);
    }
    entry
}

/// Returns the form of a name in a directory: eight capital letters or digits, and three further ones.
fn short_name(name: &str) -> Result<[u8; 11], PackError> {
    let (base, extension) = name.split_once('.').unwrap_or((name, ""));
    let is_valid = |part: &str, most: usize| {
        part.len() <= most && part.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
    };
    if base.is_empty() || !is_valid(base, 8) || !is_valid(extension, 3) {
        return Err(PackError::Name(name.to_owned()));
    }
    let mut short = [b' '; 11];
    let (first, second) = short.split_at_mut(8);
    first.iter_mut().zip(base.bytes()).for_each(|(place, byte)| *place = byte);
    second.iter_mut().zip(extension.bytes()).for_each(|(place, byte)| *place = byte);
    Ok(short)
}

/// A file system that is being written.
struct Writer {
    layout: Layout,
    disk: Vec<u8>,
    /// The clusters in use: for each the next one, or the end.
    chains: Vec<u32>,
}

impl Writer {
    /// Writes bytes to the next free clusters. Returns the first one.
    fn add(&mut self, bytes: &[u8]) -> Result<usize, PackError> {
        let first = self.chains.len();
        let count = self.layout.clusters(bytes.len()).max(1);
        let next = (first + 1..first + count).map(|next| next as u32);
        self.chains.extend(next.chain([u32::MAX >> 4]));
        crate::put(&mut self.disk, self.layout.offset(first), bytes)?;
        Ok(first)
    }

    fn write_tables(&mut self) -> Result<(), PackError> {
        let mut table = Vec::new();
        for next in &self.chains {
            match self.layout.kind {
                Fat::Small => table.extend((*next as u16).to_le_bytes()),
                Fat::Fat32 => table.extend(next.to_le_bytes()),
            }
        }
        (0..TABLES).try_for_each(|copy| {
            let at = self.layout.reserved + copy * self.layout.table;
            crate::put(&mut self.disk, at * SECTOR, &table)
        })
    }
}

/// Returns a FAT file system with one file below directories, as in `EFI/BOOT/BOOTX64.EFI`. Each name has at
/// most eight capital letters or digits, a dot, and three further ones.
///
/// # Errors
/// If a name has another form, or the file is too large.
pub fn fat(path: &str, file: &[u8], kind: Fat) -> Result<Vec<u8>, PackError> {
    let mut names = path.split('/').map(short_name).collect::<Result<Vec<_>, _>>()?;
    let name = names.pop().ok_or_else(|| PackError::Name(path.to_owned()))?;
    let layout = Layout::new(kind, file.len());
    if u32::try_from(file.len()).is_err() || (kind == Fat::Small && layout.total() > MOST_OF_FAT16) {
        return Err(PackError::TooLarge(file.len()));
    }
    let disk = vec![0; layout.sectors * SECTOR];
    let mut writer = Writer { layout, disk, chains: vec![0x0fff_fff8, 0x0fff_ffff] };
    // The root directory of FAT32 is the first cluster; then come the directories, from the top.
    let is_fat32 = kind == Fat::Fat32;
    let mut root_entries = entry(LABEL, VOLUME, 0, 0).to_vec();
    let root = if is_fat32 { writer.add(&[])? } else { 0 };
    let first = writer.chains.len();
    let children = names.iter().enumerate().map(|(index, name)| (*name, DIRECTORY, first + index, 0));
    let mut children: Vec<_> = children.collect();
    children.push((name, ARCHIVE, first + names.len(), file.len()));
    let mut children =
        children.into_iter().map(|(name, kind, cluster, len)| entry(&name, kind, cluster, len));
    root_entries.extend(children.next().unwrap_or_default());
    for (index, child) in children.enumerate() {
        // The parent of a directory in the root is 0.
        let (own, parent) = (first + index, if index == 0 { 0 } else { first + index - 1 });
        let dots = [entry(b".          ", DIRECTORY, own, 0), entry(b"..         ", DIRECTORY, parent, 0)];
        writer.add(&[dots.concat().as_slice(), &child].concat())?;
    }
    writer.add(file)?;
    let at = if is_fat32 {
        writer.layout.offset(root)
    } else {
        (writer.layout.data() - writer.layout.root) * SECTOR
    };
    crate::put(&mut writer.disk, at, &root_entries)?;
    writer.write_tables()?;
    let boot = writer.layout.boot_sector();
    crate::put(&mut writer.disk, 0, &boot)?;
    if is_fat32 {
        let used = writer.chains.len() - 2;
        let summary = summary(writer.layout.total() - used, writer.chains.len());
        for copy in [0, 6 * SECTOR] {
            crate::put(&mut writer.disk, copy, &boot)?;
            crate::put(&mut writer.disk, copy + SECTOR, &summary)?;
        }
    }
    Ok(writer.disk)
}

/// Returns the sector with the number of free clusters and the first one (`FSInfo`).
fn summary(free: usize, next: usize) -> Vec<u8> {
    let mut sector = b"RRaA".to_vec();
    sector.resize(484, 0);
    sector.extend(b"rrAa");
    sector.extend((free as u32).to_le_bytes());
    sector.extend((next as u32).to_le_bytes());
    sector.resize(SECTOR - 2, 0);
    sector.extend([0x55, 0xaa]);
    sector
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_file_system_stays_one_of_fat16() {
        let image = |mib: usize| fat("EFI/BOOT/BOOTX64.EFI", &vec![0; mib * MIB], Fat::Small);
        // The most clusters of one sector, and of eight.
        for mib in [1, 27, 28, 250] {
            assert!(image(mib).is_ok(), "{mib} MiB");
        }
        assert!(matches!(image(256), Err(PackError::TooLarge(len)) if len == 256 * MIB));
        assert!(matches!(fat("EFI/bootx64.efi", &[], Fat::Small), Err(PackError::Name(_))));
    }
}
