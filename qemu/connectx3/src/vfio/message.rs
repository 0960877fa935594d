//! Messages: a header of 16 bytes and a body, all little-endian.

/// The length of a header, in bytes.
pub(super) const HEADER: usize = 16;
/// The maximum length of an accepted message, in bytes. QEMU transfers at most 1 MiB of data in one.
pub(super) const MAX_MESSAGE: usize = (1 << 20) + 4096;

/// The command of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Command {
    Version,
    DmaMap,
    DmaUnmap,
    GetInfo,
    GetRegionInfo,
    GetIrqInfo,
    SetIrqs,
    RegionRead,
    RegionWrite,
    Reset,
    RegionWriteMulti,
}

impl Command {
    const fn from_code(code: u16) -> Option<Self> {
        Some(match code {
            1 => Self::Version,
            2 => Self::DmaMap,
            3 => Self::DmaUnmap,
            4 => Self::GetInfo,
            5 => Self::GetRegionInfo,
            7 => Self::GetIrqInfo,
            8 => Self::SetIrqs,
            9 => Self::RegionRead,
            10 => Self::RegionWrite,
            13 => Self::Reset,
            15 => Self::RegionWriteMulti,
            _ => return None,
        })
    }
}

/// The header of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    /// The number that links a reply to its request.
    pub id: u16,
    /// The command's code as received.
    pub code: u16,
    /// The length of the message in bytes, including the header.
    pub size: u32,
    /// True for a reply.
    pub reply: bool,
    /// True if the sender wants no reply.
    pub no_reply: bool,
}

impl Header {
    const TYPE_MASK: u32 = 0xf;
    const TYPE_REPLY: u32 = 1;
    const NO_REPLY: u32 = 1 << 4;
    const ERROR: u32 = 1 << 5;

    /// Parses a header.
    pub(super) fn parse(bytes: &[u8; HEADER]) -> Self {
        let [id0, id1, c0, c1, s0, s1, s2, s3, f0, f1, f2, f3, ..] = *bytes;
        let flags = u32::from_le_bytes([f0, f1, f2, f3]);
        Self {
            id: u16::from_le_bytes([id0, id1]),
            code: u16::from_le_bytes([c0, c1]),
            size: u32::from_le_bytes([s0, s1, s2, s3]),
            reply: flags & Self::TYPE_MASK == Self::TYPE_REPLY,
            no_reply: flags & Self::NO_REPLY != 0,
        }
    }

    /// Returns the command, if it is supported.
    pub(super) const fn command(&self) -> Option<Command> {
        Command::from_code(self.code)
    }

    /// Returns the reply to this message: a body, or an error number.
    pub(super) fn reply(&self, result: &Result<Vec<u8>, Errno>) -> Vec<u8> {
        let (flags, error, body) = match result {
            Ok(body) => (Self::TYPE_REPLY, 0, body.as_slice()),
            Err(Errno(errno)) => (Self::TYPE_REPLY | Self::ERROR, *errno, [].as_slice()),
        };
        let mut out = Vec::with_capacity(HEADER + body.len());
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.code.to_le_bytes());
        out.extend_from_slice(&((HEADER + body.len()) as u32).to_le_bytes());
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&error.to_le_bytes());
        out.extend_from_slice(body);
        out
    }
}

/// A Linux error number, as it appears in a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub u32);

impl Errno {
    /// EINVAL: the body is too short or invalid.
    pub const INVALID: Self = Self(22);
    /// EOPNOTSUPP: the command is not supported.
    pub const UNSUPPORTED: Self = Self(95);
}

/// A body, read from front to back.
pub(super) struct Body<'a>(pub &'a [u8]);

impl<'a> Body<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (front, rest) = self.0.split_first_chunk().ok_or(Errno::INVALID)?;
        self.0 = rest;
        Ok(*front)
    }
    /// Removes and returns the next 16 bits.
    pub(super) fn u16(&mut self) -> Result<u16, Errno> {
        self.take().map(u16::from_le_bytes)
    }
    /// Removes and returns the next 32 bits.
    pub(super) fn u32(&mut self) -> Result<u32, Errno> {
        self.take().map(u32::from_le_bytes)
    }
    /// Removes and returns the next 64 bits.
    pub(super) fn u64(&mut self) -> Result<u64, Errno> {
        self.take().map(u64::from_le_bytes)
    }
    /// Removes and returns the next `len` bytes.
    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Errno> {
        let (front, rest) = self.0.split_at_checked(len).ok_or(Errno::INVALID)?;
        self.0 = rest;
        Ok(front)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_golden() {
        let bytes = [0x34, 0x12, 9, 0, 32, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0];
        let header = Header::parse(&bytes);
        assert_eq!(header, Header { id: 0x1234, code: 9, size: 32, reply: false, no_reply: true });
        assert_eq!(header.command(), Some(Command::RegionRead));
        assert_eq!(
            header.reply(&Ok(vec![7, 8])),
            [0x34, 0x12, 9, 0, 18, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 8]
        );
        assert_eq!(
            header.reply(&Err(Errno::INVALID)),
            [0x34, 0x12, 9, 0, 16, 0, 0, 0, 0x21, 0, 0, 0, 22, 0, 0, 0]
        );
    }

    #[test]
    fn a_short_body_is_an_error() {
        let mut body = Body(&[1, 0, 0]);
        assert_eq!(body.u16(), Ok(1));
        assert_eq!(body.u16(), Err(Errno::INVALID));
        assert_eq!(body.bytes(2), Err(Errno::INVALID));
        assert_eq!(body.bytes(1), Ok([0].as_slice()));
    }
}
