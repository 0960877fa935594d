//! Large send offload: the card divides one work request's data into TCP segments of a given size.

use super::checksum;
use super::headers::{Headers, Ip, Length, Transport, Version};

/// The maximum length of the header in a work request, in bytes.
const MAX_HEADER: usize = 256;
/// Flags in byte 13 of the TCP header: those that only the last segment keeps, and those that only the first
/// segment keeps.
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// The segment of a work request that describes the segmentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut<'a> {
    /// The length of data per segment, in bytes.
    pub segment: usize,
    /// The Ethernet, IP and TCP headers of the first segment.
    pub header: &'a [u8],
}

impl<'a> Cut<'a> {
    /// Parses the bytes that follow the control segment. Returns also the remaining bytes.
    #[must_use]
    pub(super) fn parse(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (word, rest) = bytes.split_first_chunk::<4>()?;
        let word = u32::from_be_bytes(*word);
        let (segment, len) = ((word >> 16) as usize, (word & 0xffff) as usize);
        let header = rest.get(..len)?;
        if segment == 0 || len > MAX_HEADER {
            return None;
        }
        Some((Self { segment, header }, bytes.get((4 + len).next_multiple_of(16)..).unwrap_or_default()))
    }

    /// Returns the segments, or `None` if the header is not a TCP header.
    pub(super) fn segments(&self, data: &[u8]) -> Option<Vec<Vec<u8>>> {
        let headers = Headers::parse(self.header, Length::Ignored);
        let ip = headers.ip.filter(|ip| ip.transport() == Some(Transport::Tcp))?;
        let count = data.len().div_ceil(self.segment).max(1);
        let mut frames = Vec::with_capacity(count);
        for index in 0..count {
            let at = index * self.segment;
            let part = data.get(at..(at + self.segment).min(data.len()))?;
            let mut frame = Vec::with_capacity(self.header.len() + part.len());
            frame.extend_from_slice(self.header);
            frame.extend_from_slice(part);
            amend(&mut frame, &ip, index, at, index + 1 == count)?;
            let headers = Headers { ip: Some(Ip { end: frame.len(), ..ip }), ..headers };
            checksum::fill(&mut frame, &headers, true, true);
            frames.push(frame);
        }
        Some(frames)
    }
}

/// Updates the fields of the headers that differ between segments.
fn amend(frame: &mut [u8], ip: &Ip, index: usize, offset: usize, last: bool) -> Option<()> {
    let len = frame.len() - ip.start;
    match ip.version {
        Version::V4 => {
            put16(frame, ip.start + 2, u16::try_from(len).ok()?)?;
            let id = super::headers::be16(frame, ip.start + 4)?;
            put16(frame, ip.start + 4, id.wrapping_add(index as u16))?;
        }
        Version::V6 => put16(frame, ip.start + 4, u16::try_from(len.checked_sub(40)?).ok()?)?,
    }
    let sequence = frame.get_mut(ip.payload + 4..ip.payload + 8)?;
    let first = u32::from_be_bytes(*sequence.first_chunk()?);
    sequence.copy_from_slice(&first.wrapping_add(offset as u32).to_be_bytes());
    let flags = frame.get_mut(ip.payload + 13)?;
    if !last {
        *flags &= !FIN_PSH;
    }
    if index > 0 {
        *flags &= !CWR;
    }
    Some(())
}

fn put16(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    bytes.get_mut(at..at + 2)?.copy_from_slice(&value.to_be_bytes());
    Some(())
}
