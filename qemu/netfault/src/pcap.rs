//! Captures in the classic pcap format with nanoseconds, as Wireshark and tcpdump read them.
//!
//! Format: `draft-ietf-opsawg-pcap`; magic 0xa1b23c4d (nanoseconds), version 2.4, link type 1 (Ethernet).

use std::io::{self, Write};

const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const LINKTYPE_ETHERNET: u32 = 1;
const SNAP_LEN: u32 = 65_535;
/// The number of buffered bytes at which records are written.
const BATCH: usize = 64 * 1024;

/// A writer of captures. It writes whole records, so an interrupted capture ends cleanly.
/// [`flush`](Self::flush) and drop write the buffered records.
#[derive(Debug)]
pub struct PcapWriter<W: Write> {
    writer: W,
    pending: Vec<u8>,
}

impl<W: Write> PcapWriter<W> {
    /// Writes the file header.
    pub fn new(mut writer: W) -> io::Result<Self> {
        let mut header = Vec::with_capacity(24);
        header.extend(MAGIC_NANOSECONDS.to_le_bytes());
        header.extend(2u16.to_le_bytes());
        header.extend(4u16.to_le_bytes());
        header.extend([0; 8]); // time zone and accuracy: always zero
        header.extend(SNAP_LEN.to_le_bytes());
        header.extend(LINKTYPE_ETHERNET.to_le_bytes());
        writer.write_all(&header)?;
        Ok(Self { writer, pending: Vec::with_capacity(BATCH + 8192) })
    }

    /// Adds an Ethernet frame (without check sequence) that was seen `unix_ns` nanoseconds after 1970.
    pub fn frame(&mut self, unix_ns: u64, frame: &[u8]) -> io::Result<()> {
        let original = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        let kept = original.min(SNAP_LEN);
        let seconds = u32::try_from(unix_ns / 1_000_000_000).unwrap_or(u32::MAX);
        let nanoseconds = u32::try_from(unix_ns % 1_000_000_000).unwrap_or(0);
        for field in [seconds, nanoseconds, kept, original] {
            self.pending.extend(field.to_le_bytes());
        }
        self.pending.extend(&frame[..kept as usize]);
        if self.pending.len() >= BATCH { self.write_pending() } else { Ok(()) }
    }

    /// Writes all buffered records.
    pub fn flush(&mut self) -> io::Result<()> {
        self.write_pending()?;
        self.writer.flush()
    }

    fn write_pending(&mut self) -> io::Result<()> {
        let written = self.writer.write_all(&self.pending);
        self.pending.clear();
        written
    }
}

impl<W: Write> Drop for PcapWriter<W> {
    fn drop(&mut self) {
        // An error cannot be reported here; a caller that needs it calls `flush`.
        let _ = self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let mut file = Vec::new();
        let mut pcap = PcapWriter::new(&mut file).unwrap();
        pcap.frame(0x10_0000_0000, &[1, 2, 3]).unwrap();
        drop(pcap);
        let mut expected = vec![0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        expected.extend([0xff, 0xff, 0, 0, 1, 0, 0, 0]);
        // 68.719476736 s: 719476736 = 0x2ae25800.
        expected.extend([68, 0, 0, 0, 0x00, 0x58, 0xe2, 0x2a, 3, 0, 0, 0, 3, 0, 0, 0, 1, 2, 3]);
        assert_eq!(file, expected);
    }

    #[test]
    fn a_long_frame_is_cut_and_says_so() {
        let mut file = Vec::new();
        PcapWriter::new(&mut file).unwrap().frame(0, &vec![0; 70_000]).unwrap();
        assert_eq!(file.len(), 24 + 16 + 65_535);
        assert_eq!(file[32..40], [0xff, 0xff, 0, 0, 0x70, 0x11, 1, 0]);
    }
}
