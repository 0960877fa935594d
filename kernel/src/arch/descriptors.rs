//! Segment descriptors, and the task state segment with its interrupt stacks: one set per processor.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::mem::size_of;

use super::stacks::{Kind, Stack};

const NULL: u64 = 0;
const CODE: u64 = 0x00af_9b00_0000_ffff;
const DATA: u64 = 0x00cf_9300_0000_ffff;
/// Selector of the code segment.
pub(super) const CODE_SELECTOR: u16 = 8;
const DATA_SELECTOR: u16 = 16;
const TSS_SELECTOR: u16 = 24;

/// Index into the interrupt stack table, 1 to 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Ist {
    /// Device interrupts, timer, IPIs.
    Interrupt = 1,
    Exception = 2,
    /// The stack of NMIs and machine checks.
    Nmi = 3,
    DoubleFault = 4,
}

#[repr(C, packed(4))]
struct Tss {
    reserved0: u32,
    rsp: [u64; 3],
    reserved1: u64,
    ist: [u64; 7],
    reserved2: u64,
    reserved3: u16,
    iomap: u16,
}

const _: () = assert!(size_of::<Tss>() == 104);

/// The descriptor tables of one processor. They must not move once they are loaded.
pub(super) struct Descriptors {
    gdt: UnsafeCell<[u64; 5]>,
    tss: Tss,
}

#[repr(C, packed(2))]
struct Pointer {
    limit: u16,
    base: u64,
}

impl Descriptors {
    /// Returns tables that use the interrupt stacks of processor `cpu`.
    pub(super) fn new(cpu: u32) -> Self {
        let mut ist = [0; 7];
        let stacks = [
            (Ist::Interrupt, Kind::Interrupt),
            (Ist::Exception, Kind::Exception),
            (Ist::Nmi, Kind::Nmi),
            (Ist::DoubleFault, Kind::DoubleFault),
        ];
        for (slot, kind) in stacks {
            ist[slot as usize - 1] = Stack { cpu, kind }.top();
        }
        let iomap = size_of::<Tss>() as u16;
        let tss = Tss { reserved0: 0, rsp: [0; 3], reserved1: 0, ist, reserved2: 0, reserved3: 0, iomap };
        Self { gdt: UnsafeCell::new([NULL, CODE, DATA, 0, 0]), tss }
    }

    /// Sets the address in the task state segment's descriptor to the segment's present address.
    pub(super) fn link(&mut self) {
        let base = (&raw const self.tss) as u64;
        let gdt = self.gdt.get_mut();
        gdt[3] =
            (size_of::<Tss>() as u64 - 1) | (base & 0xff_ffff) << 16 | 0x89 << 40 | (base >> 24 & 0xff) << 56;
        gdt[4] = base >> 32;
    }

    /// Loads the tables on this processor. This clears the FS and GS bases. The processor marks the task
    /// state segment busy in the table.
    ///
    /// # Safety
    /// `self` must have been linked at its present address, and must never move nor be freed. The stacks must
    /// be mapped.
    pub(super) unsafe fn load(&self) {
        let pointer = Pointer { limit: size_of::<[u64; 5]>() as u16 - 1, base: self.gdt.get() as u64 };
        // SAFETY: the table has the segments that the selectors name; the far return reloads CS.
        unsafe {
            asm!(
                "lgdt [{pointer}]",
                "push {code}",
                "lea {scratch}, [rip + 2f]",
                "push {scratch}",
                "retfq",
                "2:",
                "mov ds, {data:e}",
                "mov es, {data:e}",
                "mov ss, {data:e}",
                "mov fs, {null:e}",
                "mov gs, {null:e}",
                "ltr {tss:x}",
                pointer = in(reg) &raw const pointer,
                code = in(reg) u64::from(CODE_SELECTOR),
                data = in(reg) u32::from(DATA_SELECTOR),
                null = in(reg) 0u32,
                tss = in(reg) TSS_SELECTOR,
                scratch = out(reg) _,
            );
        }
    }
}
