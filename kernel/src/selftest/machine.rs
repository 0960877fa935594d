//! Self-tests of large and real machines: NUMA nodes, interrupts and devices that a former kernel has left
//! behind, power.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use platform::Memory;

use super::{Outcome, ensure};
use crate::arch::{apic, cpu, interrupts, percpu, this_cpu_index};
use crate::boot::{acpi, fw_cfg};
use crate::mm::memory::LentMemory;
use crate::mm::{PAGE, frames};
use crate::warm::{self, Passed};
use crate::{boot, cmdline, console, exec, pci};

/// Checks that all processors that the firmware lists run tasks, all at the same time.
pub(super) async fn crowd() -> Outcome {
    let listed = acpi::tables().processors.len();
    let cpus = percpu::count();
    ensure!(cpus == listed, "{cpus} of {listed} processors run");
    let arrived = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for cpu in 0..cpus {
        let arrived = arrived.clone();
        tasks.push(exec::spawn_on(cpu, "crowd", async move {
            arrived.fetch_add(1, Ordering::SeqCst);
            // Each task waits for all others, so no processor can run two of them one after the other.
            while arrived.load(Ordering::SeqCst) < cpus {
                core::hint::spin_loop();
            }
            (this_cpu_index(), apic::id())
        }));
    }
    let mut ids = Vec::new();
    for (cpu, task) in tasks.into_iter().enumerate() {
        let (ran_on, id) = task.await;
        ensure!(ran_on == cpu, "a task for cpu {cpu} ran on cpu {ran_on}");
        ids.push(id);
    }
    ids.sort_unstable();
    ids.dedup();
    ensure!(ids.len() == cpus, "{} local APICs for {cpus} processors", ids.len());
    Ok(format!("{cpus} processors ran tasks, APIC ids up to {}", ids.last().copied().unwrap_or(0)))
}

/// Checks that each processor allocates from its NUMA node, and from another node when its own is exhausted.
pub(super) async fn numa() -> Outcome {
    let numa = &acpi::tables().numa;
    ensure!(numa.nodes() > 1, "this machine has {} NUMA nodes", numa.nodes());
    let mut nodes = Vec::new();
    for cpu in 0..percpu::count() {
        let node = exec::spawn_on(cpu, "numa", async { on_this_processor() }).await?;
        nodes.push(node);
    }
    Ok(format!("cpus on nodes {nodes:?}"))
}

/// Returns the NUMA node of this processor, from which its memory comes.
fn on_this_processor() -> Result<usize, String> {
    let numa = &acpi::tables().numa;
    let node = numa.node_of(apic::id()).ok_or("the firmware names no node of this processor")?;
    let is_near = |at: u64, len: u64| numa.memory_of(node).any(|r| r.start <= at && at + len <= r.end);
    let frame = frames::alloc(PAGE).ok_or("no frame")?;
    ensure!(is_near(frame.as_u64(), PAGE), "{frame:?} is not memory of node {node}");
    frames::free(frame, PAGE);
    let lent = LentMemory.lend(3 * PAGE).ok_or("no memory to lend")?;
    ensure!(is_near(lent.addr().0, 3 * PAGE), "{:#x} is not memory of node {node}", lent.addr().0);
    let mut taken = Vec::new();
    let (large, mut far) = (8 << 20, None);
    while let (None, Some(run)) = (far, frames::alloc(large)) {
        taken.push(run);
        far = (!is_near(run.as_u64(), large)).then_some(run);
    }
    taken.into_iter().for_each(|run| frames::free(run, large));
    ensure!(far.is_some(), "no memory of other nodes is used when that of node {node} is exhausted");
    Ok(node)
}

/// Checks that interrupts are discarded which a former kernel has left in service and requested.
pub(super) fn stale() -> Outcome {
    let on = cpu::interrupts_off();
    apic::set_timer(None);
    let before = interrupts::drain();
    for vector in [0x21, 0x2f, 0x40, 0xec] {
        apic::send(apic::id(), vector);
    }
    let drained = interrupts::drain();
    let again = interrupts::drain();
    cpu::interrupts_restore(on);
    ensure!((drained, again) == (4, 0), "{drained} and {again} interrupts were discarded, not 4 and 0");
    Ok(format!("{before} before"))
}

/// Checks that devices lose the bus, and bridges do not.
pub(super) fn masters() -> Outcome {
    let functions = pci::functions();
    functions.iter().for_each(pci::Function::enable);
    let masters = || functions.iter().filter(|f| f.is_master()).map(|f| f.address).collect::<Vec<_>>();
    let before = masters();
    pci::quiet::early();
    let after = masters();
    let bridges = functions.iter().filter(|f| f.is_bridge()).map(|f| f.address);
    ensure!(before.len() > after.len(), "no device has lost the bus: {before:?}, then {after:?}");
    let kept: Vec<_> = bridges.filter(|address| before.contains(address)).collect();
    ensure!(after == kept, "{after:?} master the bus, not the bridges {kept:?}");
    Ok(format!("{} of {} functions have lost the bus", before.len() - after.len(), before.len()))
}

/// Halts, when all consoles show all lines.
pub(super) fn halt() -> ! {
    crate::println!("selftest halt: the end");
    console::flush();
    cpu::interrupts_off();
    cpu::halt_for_ever()
}

/// Boots the image that fw_cfg contains, unless no further boot is asked for.
pub(super) fn warm() -> Outcome {
    let left = cmdline::number("selftest_s", 0);
    let (total, free) = frames::totals();
    crate::println!(
        "warm boot: {left} left, {} processors, {total} bytes of memory, {free} free",
        percpu::count()
    );
    if left == 0 {
        return Ok(String::new());
    }
    let image = fw_cfg::read("opt/ferrolite/image").ok_or("fw_cfg has no opt/ferrolite/image")?;
    let cmdline = format!("selftest=warm selftest_s={}", left - 1);
    warm::Next::load(&image, &Passed { cmdline, ..Passed::default() }, boot::info())?.enter()
}
