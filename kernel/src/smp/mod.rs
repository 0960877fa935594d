//! Starts the other processors by INIT and startup IPIs, all at once while the boot continues.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use x86_64::{PhysAddr, VirtAddr};

use crate::arch::percpu::{self, MAX_CPUS};
use crate::arch::stacks::{Kind, Stack};
use crate::arch::{apic, cpu, interrupts};
use crate::mm::paging::{self, Rights};
use crate::mm::stacks;
use crate::{exec, mm, time};

core::arch::global_asm!(include_str!("ap.s"), options(att_syntax));

unsafe extern "C" {
    static ap_start: u8;
    static ap_end: u8;
    static ap_cr3: u8;
}

/// The address of the real-mode page: below 640 KiB, above the memory that firmware uses. The frame allocator
/// does not contain the first MiB.
const TRAMPOLINE: u64 = 0x8000;

/// Index of the next processor to arrive. The boot processor is 0.
#[unsafe(no_mangle)]
static AP_NEXT: AtomicU32 = AtomicU32::new(1);
/// Initial stack pointers, by index.
#[unsafe(no_mangle)]
static AP_STACK_TOPS: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
/// The number of processors to which a startup IPI was sent.
static ASKED: AtomicUsize = AtomicUsize::new(0);

/// Returns true if the firmware's memory map has RAM for the trampoline.
fn trampoline_is_ram() -> bool {
    mm::frames::overlaps_ram(TRAMPOLINE, TRAMPOLINE + mm::PAGE)
}

/// Starts all processors in `apic_ids` except this one. They join the executor when they are ready.
///
/// # Safety
/// Call once, on the boot processor, after page tables, heap and interrupts are set up.
pub(crate) unsafe fn start(apic_ids: &[u32]) {
    let me = apic::id();
    let mut others = 0;
    for id in apic_ids.iter().filter(|id| **id != me) {
        if others + 1 >= MAX_CPUS || !trampoline_is_ram() {
            log::error!("processor with APIC id {id} is not used");
            continue;
        }
        let index = others as u32 + 1;
        if let Err(e) = stacks::map_all(index) {
            log::error!("no stacks for cpu {index}: {e}");
            break;
        }
        percpu::prepare(index);
        AP_STACK_TOPS[others + 1].store(Stack { cpu: index, kind: Kind::Main }.top(), Ordering::Relaxed);
        others += 1;
    }
    if others == 0 {
        return;
    }
    let at = PhysAddr::new_truncate(TRAMPOLINE);
    let to = mm::phys_to_virt(at);
    let (first, len) = (&raw const ap_start, (&raw const ap_end) as usize - (&raw const ap_start) as usize);
    // SAFETY: the page is unused RAM, `len` is below the length of a page, and CR3 is patched inside the
    // copy.
    unsafe {
        to.copy_from_nonoverlapping(first, len);
        let cr3 = (&raw const ap_cr3) as usize - first as usize;
        to.add(cr3).cast::<u32>().write_unaligned(paging::root().as_u64() as u32);
    }
    let page = VirtAddr::new_truncate(TRAMPOLINE);
    let alias = VirtAddr::new_truncate(mm::DIRECT_MAP + TRAMPOLINE);
    let mapped = paging::protect(alias, mm::PAGE, Rights::ReadOnly)
        .and_then(|()| paging::map(page, at, mm::PAGE, Rights::Text));
    if let Err(e) = mapped {
        log::error!("other processors stay off: {e}");
        return;
    }
    let targets = || apic_ids.iter().filter(|id| **id != me).take(others);
    ASKED.store(others, Ordering::Relaxed);
    targets().for_each(|id| apic::send_init(*id));
    // The manual's 10 ms after INIT were for processors with an external APIC; 200 us are enough for all
    // processors with long mode.
    time::spin_for(Duration::from_micros(200));
    targets().for_each(|id| apic::send_startup(*id, (TRAMPOLINE >> 12) as u8));
}

/// Waits until all processors run, for at most `limit`. Half-way, a second startup IPI goes to all. Returns
/// the number of running processors.
pub(crate) fn wait(limit: Duration, apic_ids: &[u32]) -> usize {
    let want = ASKED.load(Ordering::Relaxed) + 1;
    let begun = time::now();
    let mut again = false;
    while percpu::count() < want && time::now() < begun + limit {
        if !again && time::now() > begun + limit / 2 && AP_NEXT.load(Ordering::Relaxed) == 1 {
            again = true;
            let me = apic::id();
            apic_ids
                .iter()
                .filter(|id| **id != me)
                .for_each(|id| apic::send_startup(*id, (TRAMPOLINE >> 12) as u8));
        }
        core::hint::spin_loop();
    }
    let running = percpu::count();
    if running < want {
        // A late processor may still arrive, so its trampoline stays.
        log::error!("{} of {want} processors did not start", want - running);
        return running;
    }
    let gone = paging::unmap(VirtAddr::new_truncate(TRAMPOLINE), mm::PAGE).and_then(|()| {
        paging::protect(VirtAddr::new_truncate(mm::DIRECT_MAP + TRAMPOLINE), mm::PAGE, Rights::Data)
    });
    if let Err(e) = gone {
        log::error!("trampoline: {e}");
    }
    running
}

/// The entry of an application processor into Rust: on its own stack, with interrupts off.
#[unsafe(no_mangle)]
extern "C" fn ap_entry(index: u32) -> ! {
    cpu::init_floating_point();
    cpu::init_memory_types();
    // SAFETY: `index` belongs to this processor alone (`AP_NEXT`); `start` has prepared it and mapped its
    // stacks.
    unsafe { percpu::install(index) };
    interrupts::load();
    apic::enable();
    exec::init_this_cpu();
    percpu::announce(apic::id());
    exec::run()
}
