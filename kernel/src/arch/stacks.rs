//! The addresses of stacks: each at the top of a slot of address space whose rest is not mapped, so that an
//! overflow is a page fault. `mm::stacks` maps them.

use core::fmt;

/// The least guard below a stack, in bytes: a page.
const LEAST_GUARD: u64 = 4096;

/// The address of the first slot.
const STACKS: u64 = 0xffff_c000_0000_0000;
/// The address space of one slot, in bytes.
const SLOT: u64 = 512 << 10;
/// The number of slots of one processor: 4 MiB, so that processors share no page table.
const SLOTS_PER_CPU: u64 = 8;

/// The purpose of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Kind {
    /// The stack of tasks and of the main loop.
    Main = 0,
    /// The stack of interrupts, and of pollers that run in them.
    Interrupt = 1,
    /// The stack of exceptions that have no other kind here.
    Exception = 2,
    /// The stack of NMIs and machine checks.
    Nmi = 3,
    /// The stack of double faults.
    DoubleFault = 4,
}

impl Kind {
    /// All kinds of stacks, of which each processor has one each.
    pub(crate) const ALL: [Self; 5] =
        [Self::Main, Self::Interrupt, Self::Exception, Self::Nmi, Self::DoubleFault];

    /// Returns the number of usable bytes.
    pub(crate) const fn bytes(self) -> u64 {
        match self {
            Self::Main => 256 << 10,
            Self::Interrupt => 64 << 10,
            Self::Exception => 32 << 10,
            Self::Nmi | Self::DoubleFault => 16 << 10,
        }
    }
}

/// A stack, identified by its processor and kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stack {
    /// The index of the processor.
    pub cpu: u32,
    /// The purpose of the stack.
    pub kind: Kind,
}

impl Stack {
    /// Returns the initial stack pointer: one past the last byte.
    pub(crate) fn top(self) -> u64 {
        STACKS + (u64::from(self.cpu) * SLOTS_PER_CPU + self.kind as u64 + 1) * SLOT
    }

    /// Returns the lowest usable address.
    pub(crate) fn bottom(self) -> u64 {
        self.top() - self.kind.bytes()
    }

    /// Returns the stack in whose slot `addr` lies, in the usable part or in the guard.
    pub(crate) fn around(addr: u64) -> Option<Self> {
        let slot = addr.checked_sub(STACKS)? / SLOT;
        let cpu = u32::try_from(slot / SLOTS_PER_CPU).ok().filter(|c| *c < 4096)?;
        Kind::ALL.get((slot % SLOTS_PER_CPU) as usize).map(|kind| Self { cpu, kind: *kind })
    }

    /// Returns whether `addr` lies in the guard below the stack.
    pub(crate) fn guards(self, addr: u64) -> bool {
        addr < self.bottom()
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} stack of cpu {} ({:#x}..{:#x})", self.kind, self.cpu, self.bottom(), self.top())
    }
}

const _: () = assert!(Kind::Main.bytes() + LEAST_GUARD <= SLOT);
