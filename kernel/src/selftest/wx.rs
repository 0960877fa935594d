//! Tests write, execute and guard rights on each processor, with probes that recover from faults.

use alloc::boxed::Box;
use alloc::string::String;

use super::{Outcome, ensure};
use crate::arch::stacks::{Kind, Stack};
use crate::arch::{cpu, percpu, probe};
use crate::exec;
use crate::mm::{self, DIRECT_MAP, paging};

static mut DATA: [u8; 64] = [0xc3; 64];
static READ_ONLY: [u8; 64] = [0xc3; 64];

/// An address and the accesses that it must allow. Non-executable memory holds return instructions where
/// possible, so that a wrongly possible execution returns and is reported.
struct Case {
    name: &'static str,
    addr: u64,
    rights: (bool, bool, bool),
}

fn check(case: &Case) -> Outcome {
    let (read, write, execute) = case.rights;
    let a = case.addr;
    ensure!(probe::readable(a) == read, "{} at {a:#x}: readable is not {read}", case.name);
    ensure!(probe::writable(a) == write, "{} at {a:#x}: writable is not {write}", case.name);
    ensure!(probe::executable(a) == execute, "{} at {a:#x}: executable is not {execute}", case.name);
    Ok(String::new())
}

fn check_all(cpu: usize) -> Outcome {
    const RX: (bool, bool, bool) = (true, false, true);
    const R: (bool, bool, bool) = (true, false, false);
    const RW: (bool, bool, bool) = (true, true, false);
    const NONE: (bool, bool, bool) = (false, false, false);
    let case = |name, addr, rights| Case { name, addr, rights };
    let image = mm::image();
    let text = probe::return_instruction();
    let data = (&raw const DATA) as u64;
    let read_only = (&raw const READ_ONLY) as u64;
    let heap = Box::new([0xc3u8; 64]);
    let heap_at = heap.as_ptr() as u64;
    let on_stack = [0xc3u8; 64];
    let stack_at = core::hint::black_box(&on_stack).as_ptr() as u64;
    let frame = mm::frames::alloc_zeroed(4096).ok_or("no frame")?;
    // SAFETY: this function owns the frame.
    unsafe { mm::phys_to_virt(frame).write_bytes(0xc3, 4096) };
    let mut cases = alloc::vec![
        case("text", text, RX),
        case("text in the direct map", DIRECT_MAP + image.physical(text), R),
        case("read-only data", read_only, R),
        case("read-only data in the direct map", DIRECT_MAP + image.physical(read_only), R),
        case("data", data, RW),
        case("data in the direct map", DIRECT_MAP + image.physical(data), RW),
        case("heap", heap_at, RW),
        case("frame", mm::phys_to_virt(frame) as u64, RW),
        case("stack", stack_at, RW),
        case("page after the image", image.end, NONE),
        case("null", 0, NONE),
        case("AP trampoline", 0x8000, NONE),
        case("end of the direct map", DIRECT_MAP + mm::DIRECT_MAP_BYTES - 4096, NONE),
    ];
    let tables = paging::tables();
    cases.push(case("first page table", DIRECT_MAP + tables.start.as_u64(), R));
    cases.push(case("memory for the last page table", DIRECT_MAP + tables.end.as_u64() - 8, R));
    for kind in [Kind::Main, Kind::Interrupt, Kind::Exception, Kind::Nmi, Kind::DoubleFault] {
        let stack = Stack { cpu: cpu as u32, kind };
        cases.push(case("lowest word of a stack", stack.bottom(), RW));
        cases.push(case("guard page", stack.bottom() - 8, NONE));
        cases.push(case("bottom of a guard page", stack.bottom() - 4096, NONE));
        cases.push(case("page above a stack", stack.top(), NONE));
    }
    ensure!(cpu::combines_writes(), "cpu {cpu}: pages for combined writes are something else");
    let outcome = cases.iter().try_for_each(|p| check(p).map(|_| ()));
    mm::frames::free(frame, 4096);
    outcome.map(|()| alloc::format!("{}", cases.len()))
}

/// Checks all addresses on every processor.
pub(super) async fn run() -> Outcome {
    let mut cases = String::new();
    for cpu in 0..percpu::count() {
        let result = exec::spawn_on(cpu, "wx", async move { check_all(cpu) }).await;
        cases = result.map_err(|e| alloc::format!("cpu {cpu}: {e}"))?;
    }
    let hits: u64 = (0..percpu::count())
        .filter_map(percpu::cpu)
        .map(|c| c.probe_hits.load(core::sync::atomic::Ordering::Relaxed))
        .sum();
    Ok(alloc::format!("{cases} cases on {} processors, {hits} faults recovered", percpu::count()))
}
