//! Tests of the heap, the frame allocator and checked memory.

use alloc::vec::Vec;
use platform::{IoAddr, Lent, Memory, MemoryError};

use super::{Outcome, ensure};
use crate::arch::percpu;
use crate::exec;
use crate::mm::memory::LentMemory;
use crate::mm::{self, frames, heap, paging};

/// A small pseudo-random generator that is determined by its seed.
pub(super) struct Xorshift(pub u64);

impl Xorshift {
    /// Returns the next number below `n`.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

pub(super) async fn run() -> Outcome {
    let blocks = allocations()?;
    runs_of_frames()?;
    checked_memory()?;
    own_pages()?;
    if percpu::count() > 1 {
        a_loan_ends_after_accesses().await?;
    }
    let s = heap::stats();
    Ok(alloc::format!("{blocks} blocks, heap {} KiB", s.claimed >> 10))
}

/// Checks that pages are zeroed, are reached by their owner only, and return to the frame allocator.
fn own_pages() -> Result<(), alloc::string::String> {
    const LEN: usize = (1 << 20) + 1;
    // The first pages may make the heap grow.
    drop(LentMemory.pages(LEN));
    let before = frames::totals().1;
    for byte in [1, 2] {
        let mut pages = LentMemory.pages(LEN).ok_or("no pages")?;
        ensure!(pages.len() == LEN && pages.iter().all(|b| *b == 0), "pages are not zeroed");
        pages.fill(byte);
        let at = mm::virt_to_phys(pages.as_ptr()).ok_or("pages are not in the direct map")?;
        let refused = LentMemory.write(IoAddr(at.as_u64()), &[9]) == Err(MemoryError::OutOfRange);
        ensure!(refused && pages.iter().all(|b| *b == byte), "pages can be written by address");
        ensure!(frames::totals().1 < before, "pages are not taken from the frames");
    }
    ensure!(frames::totals().1 == before, "pages have not returned to the frame allocator");
    let mut pages = LentMemory.pages(LEN).ok_or("no pages")?;
    pages.fill(3);
    let at = mm::virt_to_phys(pages.as_ptr()).ok_or("pages are not in the direct map")?;
    let lent = LentMemory.lend_pages(pages).map_err(|_| "pages are not lent")?;
    ensure!(lent.addr().0 == at.as_u64() && lent.size() == LEN as u64, "pages are not lent in place");
    let mut last = [0; 2];
    LentMemory.read(IoAddr(at.as_u64() + LEN as u64 - 2), &mut last).map_err(|_| "no access by address")?;
    ensure!(last == [3; 2], "lent pages have lost their content");
    drop(lent);
    let refused = LentMemory.write(IoAddr(at.as_u64()), &[9]) == Err(MemoryError::OutOfRange);
    ensure!(refused, "pages can be written by address after their loan");
    ensure!(frames::totals().1 == before, "lent pages have not returned to the frame allocator");
    Ok(())
}

/// Allocates, resizes and frees random blocks. Each is filled with its own byte, which must not change.
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

/// Allocates random runs of frames, which must be aligned, disjoint and in RAM, and frees them.
fn runs_of_frames() -> Result<(), alloc::string::String> {
    let before = frames::stats();
    let mut random = Xorshift(0x1234_5678_9abc_def1);
    let mut live: Vec<(u64, u64)> = Vec::new();
    for round in 0..2000 {
        if round == 1000 {
            totals_are_true()?;
        }
        if random.below(5) < 3 {
            let bytes = random.below(64 * 4096) + 1;
            let align = 4096 << random.below(4);
            if let Some(at) = frames::alloc_within(bytes, align, u64::MAX) {
                let (at, end) = (at.as_u64(), at.as_u64() + bytes.next_multiple_of(4096));
                ensure!(at.is_multiple_of(align), "run {at:#x} is not aligned to {align:#x}");
                ensure!(live.iter().all(|(a, e)| end <= *a || *e <= at), "run {at:#x} overlaps another");
                let in_ram = frames::ram().any(|r| r.start.as_u64() <= at && end <= r.end.as_u64());
                ensure!(in_ram, "run {at:#x} is not in RAM");
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
    totals_are_true()?;
    // The list `live` itself may have grown the heap meanwhile.
    let grown = before.free - frames::stats().free;
    ensure!(grown <= 1 << 20, "{grown} bytes of frames were lost");
    Ok(())
}

/// Checks that the running totals of frames equal the sums of a walk over all frames, while no other task
/// allocates or frees frames.
fn totals_are_true() -> Result<(), alloc::string::String> {
    let lent = mm::lent::covered();
    let totals = || (frames::totals(), frames::lendable_totals());
    for _ in 0..100 {
        let before = totals();
        let (all, lendable) = (frames::stats(), frames::stats_among(&lent.ranges));
        if totals() == before {
            let walked = ((all.total, all.free), (lendable.total, lendable.free));
            ensure!(walked == before, "a walk counts {walked:?} bytes, the totals are {before:?}");
            return Ok(());
        }
    }
    Err("frames are allocated and freed all the time".into())
}

/// Checks that every kind of access to memory that is not lent is refused, also to RAM of the heap and of
/// stacks, and that lent memory reads back.
fn checked_memory() -> Result<(), alloc::string::String> {
    unlent_memory_is_refused()?;
    let m = LentMemory;
    let run = m.lend(10_000).ok_or("no memory")?;
    let at = run.addr();
    lent_memory_reads_back(at)?;
    copies_of_every_length(at)?;
    atomics_work(at)?;
    one_run(&*run)
}

/// Returns memory while another processor fills it by its address: the memory is free when it is filled.
async fn a_loan_ends_after_accesses() -> Result<(), alloc::string::String> {
    const LEN: u64 = 2 << 20;
    for round in 0..100 {
        let run = LentMemory.lend(LEN).ok_or("no memory")?;
        let at = run.addr();
        let fill = exec::spawn_on(1, "fill", async move { LentMemory.fill(at, LEN, 0xee) });
        let byte = |offset: u64| {
            let at = mm::phys_to_virt(x86_64::PhysAddr::new(at.0 + offset));
            // SAFETY: the direct map has all RAM, and only the fill changes these bytes.
            unsafe { at.read_volatile() }
        };
        while byte(0) == 0 {
            core::hint::spin_loop();
        }
        drop(run);
        ensure!(byte(LEN - 1) == 0xee, "round {round}: memory is free that is still being filled");
        fill.await.map_err(|e| alloc::format!("{e}"))?;
    }
    Ok(())
}

/// Attempts every kind of access to addresses that are not lent.
fn unlent_memory_is_refused() -> Result<(), alloc::string::String> {
    let m = LentMemory;
    let (first, len) = m.range();
    let image = mm::image();
    let tables = paging::tables();
    let physical = |of: *const u8| mm::virt_to_phys(of).map(x86_64::PhysAddr::as_u64).ok_or("not mapped");
    let mut on_heap = alloc::boxed::Box::new([0x5au8; 64]);
    let on_stack = [0x5au8; 64];
    let frame = frames::alloc_zeroed(4096).ok_or("no frame")?;
    let given_back = m.lend(4096).ok_or("no memory")?.addr();
    let refused = [
        ("beyond all memory", first.0 + len, 1),
        ("across the end of all memory", first.0 + len - 4, 8),
        ("across the end of addresses", u64::MAX - 3, 8),
        ("text", image.phys, 8),
        ("data", image.physical(image.rodata_end), 8),
        ("a page table", tables.start.as_u64(), 8),
        ("before the page tables", tables.start.as_u64() - 4, 8),
        ("a device", 0xfee0_0000, 4),
        ("the first MiB", 0xa_0000, 1),
        ("the heap", physical(on_heap.as_ptr())?, 64),
        ("a stack", physical(core::hint::black_box(&on_stack).as_ptr())?, 64),
        ("a frame of a driver", frame.as_u64(), 64),
        ("memory that was given back", given_back.0, 64),
    ];
    for (name, addr, bytes) in refused {
        let addr = IoAddr(addr);
        let mut buf = [0; 64];
        let buf = buf.get_mut(..bytes).ok_or("a length")?;
        let results = [
            m.check(addr, bytes as u64),
            m.read(addr, buf),
            m.write(addr, buf),
            m.fill(addr, bytes as u64, 0),
            m.copy(addr, addr, bytes as u64),
        ];
        ensure!(
            results.iter().all(|r| *r == Err(MemoryError::OutOfRange)),
            "{name} was reached: {results:?}"
        );
        let word = IoAddr(addr.0 & !7);
        ensure!(m.fetch_add(word, 1).is_err(), "{name} was reached by an atomic");
        ensure!(m.compare_swap(word, 0, 1).is_err(), "{name} was reached by an atomic");
    }
    ensure!(core::hint::black_box(&mut *on_heap).iter().all(|b| *b == 0x5a), "the heap was changed");
    frames::free(frame, 4096);
    Ok(())
}

/// Writes, reads and copies lent memory of at least 10,000 bytes at `at`, which must be fresh.
fn lent_memory_reads_back(at: IoAddr) -> Result<(), alloc::string::String> {
    let m = LentMemory;
    let io = |r: Result<(), MemoryError>| r.map_err(|e| alloc::format!("{e}"));
    let mut buf = [0u8; 100];
    io(m.read(at, &mut buf))?;
    ensure!(buf == [0; 100], "fresh memory is not zero");
    let data: Vec<u8> = (0..100).collect();
    for offset in [0, 1, 7, 8, 4090, 9899] {
        let addr = IoAddr(at.0 + offset);
        io(m.write(addr, &data))?;
        io(m.read(addr, &mut buf))?;
        ensure!(buf.as_slice() == data.as_slice(), "memory at {addr:?} does not read back");
    }
    io(m.write(at, &data))?;
    io(m.copy(at, IoAddr(at.0 + 10), 90))?;
    io(m.read(IoAddr(at.0 + 10), &mut buf[..90]))?;
    ensure!(buf[..90] == data[..90], "an overlapping copy went wrong");
    Ok(())
}

/// Performs atomics on lent memory at `at`.
fn atomics_work(at: IoAddr) -> Result<(), alloc::string::String> {
    let m = LentMemory;
    m.fill(at, 16, 0xff).map_err(|e| alloc::format!("{e}"))?;
    let old = m.fetch_add(at, 2).map_err(|e| alloc::format!("{e}"))?;
    let swapped = m.compare_swap(at, 1, 77).map_err(|e| alloc::format!("{e}"))?;
    let now = m.compare_swap(at, 1, 78).map_err(|e| alloc::format!("{e}"))?;
    ensure!((old, swapped, now) == (u64::MAX, 1, 77), "atomics gave {old:#x}, {swapped}, {now}");
    ensure!(
        m.fetch_add(IoAddr(at.0 + 4), 1) == Err(MemoryError::Misaligned),
        "a misaligned atomic was accepted"
    );
    Ok(())
}

/// Checks that a run is accessible by offsets up to its last byte and no further, and that its offsets and
/// its addresses refer to the same bytes.
fn one_run(run: &dyn Lent) -> Result<(), alloc::string::String> {
    let m = LentMemory;
    let io = |r: Result<(), MemoryError>| r.map_err(|e| alloc::format!("{e}"));
    let mut bytes = [0; 100];
    for (offset, len) in [(0, 100), (8, 8), (9, 8), (9_900, 100), (9_999, 1), (10_000, 0)] {
        let (bytes, value) = (bytes.get_mut(..len).ok_or("a length")?, offset as u8 | 1);
        bytes.fill(value);
        io(run.write(offset, bytes))?;
        bytes.fill(0);
        io(m.read(IoAddr(run.addr().0 + offset), bytes))?;
        ensure!(bytes.iter().all(|b| *b == value), "a write to byte {offset} of a run is not at its address");
        bytes.fill(0);
        io(run.read(offset, bytes))?;
        ensure!(bytes.iter().all(|b| *b == value), "byte {offset} of a run does not read back");
    }
    for (offset, len) in [(9_901, 100), (10_000, 1), (10_001, 0), (u64::MAX, 1)] {
        let bytes = bytes.get_mut(..len).ok_or("a length")?;
        let results = [run.read(offset, bytes), run.write(offset, bytes)];
        ensure!(results == [Err(MemoryError::OutOfRange); 2], "byte {offset} of a run: {results:?}");
    }
    Ok(())
}

/// Copies up to 300 bytes at all alignments: between lent memory and buffers, and within lent memory with an
/// overlap.
fn copies_of_every_length(at: IoAddr) -> Result<(), alloc::string::String> {
    const MOST: usize = 300;
    let m = LentMemory;
    let io = |r: Result<(), MemoryError>| r.map_err(|e| alloc::format!("{e}"));
    let data: Vec<u8> = (0..MOST).map(|n| (n * 7 + n / 256) as u8 | 1).collect();
    let mut buf = [0u8; MOST + 32];
    for len in 0..MOST {
        for offset in [0usize, 1, 3, 8, 15] {
            let data = data.get(..len).ok_or("a length")?;
            io(m.fill(at, buf.len() as u64, 0))?;
            io(m.write(IoAddr(at.0 + offset as u64), data))?;
            // Copies once up and once down, each over existing bytes.
            for (from, to) in [(offset, offset + 9), (offset + 9, offset + 2)] {
                io(m.copy(IoAddr(at.0 + from as u64), IoAddr(at.0 + to as u64), len as u64))?;
            }
            io(m.read(at, &mut buf))?;
            let copied = buf.iter().skip(offset + 2).take(len).eq(data.iter());
            ensure!(copied, "{len} bytes at offset {offset} were copied wrongly");
            let reached = if len == 0 { 0 } else { offset + 9 + len };
            ensure!(buf.iter().skip(reached).all(|b| *b == 0), "a copy of {len} bytes wrote beyond its end");
            ensure!(buf.iter().take(offset).all(|b| *b == 0), "a copy of {len} bytes wrote before its start");
        }
    }
    Ok(())
}
