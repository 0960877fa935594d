//! The heap, the frame allocator and checked memory.

use alloc::vec::Vec;
use platform::{IoAddr, Memory, MemoryError};

use super::{Outcome, ensure};
use crate::mm::memory::PhysicalMemory;
use crate::mm::{self, frames, heap, paging};

/// A small generator that repeats from its seed.
pub struct Xorshift(pub u64);

impl Xorshift {
    /// The next number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

pub fn run() -> Outcome {
    let blocks = allocations()?;
    runs_of_frames()?;
    checked_memory()?;
    let s = heap::stats();
    Ok(alloc::format!("{blocks} blocks, heap {} KiB", s.claimed >> 10))
}

/// Random blocks, grown and shrunk, each filled with a byte of its own that must stay.
fn allocations() -> Result<u64, alloc::string::String> {
    let before = heap::stats().in_use;
    let mut random = Xorshift(0x9e37_79b9_7f4a_7c15);
    let mut live: Vec<(u8, Vec<u8>)> = Vec::new();
    let mut bytes = 0;
    let limit = frames::totals().1.min(64 << 20) / 4;
    for i in 0..20_000u64 {
        let size = match random.below(20) {
            0 => random.below(200_000),
            1..5 => random.below(5000),
            _ => random.below(200),
        };
        let byte = i as u8;
        let mut block = Vec::with_capacity(size as usize);
        block.resize(size as usize, byte);
        bytes += size;
        live.push((byte, block));
        while bytes > limit || random.below(3) == 0 {
            let Some(at) = (!live.is_empty()).then(|| random.below(live.len() as u64) as usize) else {
                break;
            };
            let (byte, block) = live.swap_remove(at);
            ensure!(block.iter().all(|b| *b == byte), "a block of {} bytes changed", block.len());
            bytes -= block.len() as u64;
        }
        if random.below(4) == 0
            && let Some((byte, block)) = live.last_mut()
        {
            let new = block.len() + random.below(3000) as usize;
            bytes += (new - block.len()) as u64;
            block.resize(new, *byte);
        }
    }
    for (byte, block) in &live {
        ensure!(block.iter().all(|b| b == byte), "a block of {} bytes changed", block.len());
    }
    drop(live);
    let after = heap::stats().in_use;
    ensure!(after == before, "{before} bytes were in use before, {after} after");
    Ok(20_000)
}

/// Random runs: aligned, apart, within RAM, all given back.
fn runs_of_frames() -> Result<(), alloc::string::String> {
    let before = frames::stats();
    let mut random = Xorshift(0x1234_5678_9abc_def1);
    let mut live: Vec<(u64, u64)> = Vec::new();
    for _ in 0..2000 {
        if random.below(5) < 3 {
            let bytes = random.below(64 * 4096) + 1;
            let align = 4096 << random.below(4);
            if let Some(at) = frames::alloc_within(bytes, align, u64::MAX) {
                let (at, end) = (at.as_u64(), at.as_u64() + bytes.next_multiple_of(4096));
                ensure!(at.is_multiple_of(align), "run {at:#x} is not aligned to {align:#x}");
                ensure!(live.iter().all(|(a, e)| end <= *a || *e <= at), "run {at:#x} overlaps another");
                ensure!(PhysicalMemory.check(IoAddr(at), end - at).is_ok(), "run {at:#x} is not in RAM");
                live.push((at, end));
            }
        } else if !live.is_empty() {
            let (at, end) = live.swap_remove(random.below(live.len() as u64) as usize);
            frames::free(x86_64::PhysAddr::new_truncate(at), end - at);
        }
    }
    for (at, end) in live {
        frames::free(x86_64::PhysAddr::new_truncate(at), end - at);
    }
    // `live` itself may have grown the heap meanwhile.
    let grown = before.free - frames::stats().free;
    ensure!(grown <= 1 << 20, "{grown} bytes of frames were lost");
    Ok(())
}

/// What is no free RAM is refused; what is reads back.
fn checked_memory() -> Result<(), alloc::string::String> {
    let m = PhysicalMemory;
    let (first, len) = m.range();
    let image = mm::image();
    let tables = paging::pools().next().ok_or("no page tables")?;
    let refused = [
        (first.0 + len, 1),
        (first.0 + len - 4, 8),
        (u64::MAX - 3, 8),
        (image.start, 8),
        (image.rodata_end, 8),
        (tables.start.as_u64(), 8),
        (tables.start.as_u64() - 4, 8),
        (0xfee0_0000, 4),
        (0xa_0000, 1),
    ];
    for (addr, bytes) in refused {
        ensure!(
            m.check(IoAddr(addr), bytes) == Err(MemoryError::OutOfRange),
            "{addr:#x}+{bytes} was accepted"
        );
    }
    let at = m.alloc(10_000).ok_or("no memory")?;
    let mut buf = [0u8; 100];
    m.read(at, &mut buf).map_err(|e| alloc::format!("{e}"))?;
    ensure!(buf == [0; 100], "fresh memory is not zero");
    let data: Vec<u8> = (0..100).collect();
    let io = |r: Result<(), MemoryError>| r.map_err(|e| alloc::format!("{e}"));
    for offset in [0, 1, 7, 8, 4090, 9899] {
        let place = IoAddr(at.0 + offset);
        io(m.write(place, &data))?;
        io(m.read(place, &mut buf))?;
        ensure!(buf.as_slice() == data.as_slice(), "memory at {place:?} does not read back");
    }
    io(m.write(at, &data))?;
    io(m.copy(at, IoAddr(at.0 + 10), 90))?;
    io(m.read(IoAddr(at.0 + 10), &mut buf[..90]))?;
    ensure!(buf[..90] == data[..90], "an overlapping copy went wrong");
    io(m.fill(at, 16, 0xff))?;
    let old = m.fetch_add(at, 2).map_err(|e| alloc::format!("{e}"))?;
    let swapped = m.compare_swap(at, 1, 77).map_err(|e| alloc::format!("{e}"))?;
    let now = m.compare_swap(at, 1, 78).map_err(|e| alloc::format!("{e}"))?;
    ensure!((old, swapped, now) == (u64::MAX, 1, 77), "atomics gave {old:#x}, {swapped}, {now}");
    ensure!(
        m.fetch_add(IoAddr(at.0 + 4), 1) == Err(MemoryError::Misaligned),
        "a misaligned atomic was accepted"
    );
    m.free(at, 10_000);
    Ok(())
}
