//! Checked views of bytes.

/// A table, or another run of bytes. All integers are little endian.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// Returns the byte at `at`.
    #[must_use]
    pub fn u8(self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    /// Returns the 16-bit integer at `at`.
    #[must_use]
    pub fn u16(self, at: usize) -> Option<u16> {
        Some(u16::from_le_bytes(self.0.get(at..at.checked_add(2)?)?.try_into().ok()?))
    }

    /// Returns the 32-bit integer at `at`.
    #[must_use]
    pub fn u32(self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(self.0.get(at..at.checked_add(4)?)?.try_into().ok()?))
    }

    /// Returns the 64-bit integer at `at`.
    #[must_use]
    pub fn u64(self, at: usize) -> Option<u64> {
        Some(u64::from_le_bytes(self.0.get(at..at.checked_add(8)?)?.try_into().ok()?))
    }

    /// Returns true if the bytes add up to 0, as those of ACPI's tables do.
    #[must_use]
    pub fn sum_is_zero(self) -> bool {
        self.0.iter().fold(0u8, |a, b| a.wrapping_add(*b)) == 0
    }

    /// Returns the register that the generic address structure at `at` describes (ACPI 6.5, 5.2.3.2).
    #[must_use]
    pub fn register(self, at: usize) -> Option<Register> {
        let addr = self.u64(at.checked_add(4)?).filter(|a| *a != 0)?;
        match self.u8(at)? {
            0 => Some(Register::Memory(addr)),
            1 => Some(Register::Port(u16::try_from(addr).ok()?)),
            _ => None,
        }
    }

    /// Returns the structures of a list that begins at `first`. Each has a type, its length including these
    /// two bytes, and its contents.
    pub fn structures(self, first: usize) -> impl Iterator<Item = (u8, Self)> + 'a {
        let mut rest = self.0.get(first..).unwrap_or_default();
        core::iter::from_fn(move || {
            let len = usize::from(*rest.get(1)?);
            let (structure, after) = rest.split_at_checked(len).filter(|_| len >= 2)?;
            rest = after;
            Some((*structure.first()?, Self(structure)))
        })
    }
}

/// The location of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// A register at a physical address.
    Memory(u64),
    /// A register at an I/O port.
    Port(u16),
}
