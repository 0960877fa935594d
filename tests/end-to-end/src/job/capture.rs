//! Checks captures of `--pcap` with our own parser, and with Wireshark's where that is installed.

use anyhow::{Context, Result, bail, ensure};
use lab::tool;
use roce::wire::{Error, Frame};
use std::path::Path;
use std::process::Command;

/// Magic numbers of pcap files in this machine's byte order: microseconds and nanoseconds.
const MAGIC: [u32; 2] = [0xa1b2_c3d4, 0xa1b2_3c4d];
/// The lengths of the file's header and of each frame's header, in bytes.
const FILE_HEADER: usize = 24;
const FRAME_HEADER: usize = 16;

/// Checks a capture of all frames of a run: it is complete, contains RoCE frames, and the ICRC of each is
/// right.
pub(super) fn check(path: &Path) -> Result<()> {
    let bytes = std::fs::read(path).context("no capture")?;
    let frames = frames(&bytes).context("the capture is cut")?;
    let mut roce = 0u64;
    for (n, frame) in frames.iter().enumerate() {
        match Frame::parse(frame) {
            Ok(frame) if frame.icrc_ok() => roce += 1,
            Ok(_) => bail!("frame {} has a wrong ICRC", n + 1),
            Err(Error::NotRoce) => {}
            Err(e) => bail!("frame {}: {e}", n + 1),
        }
    }
    ensure!(roce > 0, "no RoCE frame in {}", frames.len());
    if tool::exists("tshark") {
        let mut tshark = Command::new("tshark");
        tshark.args(["-Y", "infiniband", "-T", "fields", "-e", "frame.number", "-r"]).arg(path);
        let listed = tool::output(&mut tshark)?.split(|b| *b == b'\n').filter(|l| !l.is_empty()).count();
        ensure!(listed as u64 == roce, "Wireshark finds {listed} RoCE frames, not {roce}");
    }
    Ok(())
}

/// Returns the frames of a capture, or `None` if the file is malformed or truncated.
pub(crate) fn frames(bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let word = |bytes: &[u8], at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let (header, mut rest) = bytes.split_at_checked(FILE_HEADER)?;
    let mut frames = Vec::new();
    MAGIC.contains(&word(header, 0)?).then_some(())?;
    while !rest.is_empty() {
        let (header, behind) = rest.split_at_checked(FRAME_HEADER)?;
        let (kept, len) = (word(header, 8)?, word(header, 12)?);
        let (frame, behind) = behind.split_at_checked(usize::try_from(kept).ok().filter(|_| kept == len)?)?;
        frames.push(frame);
        rest = behind;
    }
    Some(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_are_read_back_and_cut_ones_are_not() {
        let mut bytes = Vec::new();
        let mut writer = netfault::pcap::PcapWriter::new(&mut bytes).unwrap();
        writer.frame(5, b"one").unwrap();
        writer.frame(6, b"frame").unwrap();
        writer.flush().unwrap();
        drop(writer);
        assert_eq!(frames(&bytes).unwrap(), [&b"one"[..], b"frame"]);
        assert_eq!(frames(&bytes[..bytes.len() - 1]), None);
        assert_eq!(frames(&bytes[..FILE_HEADER - 1]), None);
        assert_eq!(frames(&[0; 40]), None);
    }
}
