//! Starts the other processors by INIT and startup IPIs, all at once while the boot continues.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use x86_64::{PhysAddr, VirtAddr};

use crate::arch::percpu::{self, MAX_CPUS};
use crate::arch::stacks::{Kind, Stack};
use crate::arch::{apic, cpu, interrupts};
use crate::boot::BootInfo;
use crate::boot::acpi::{self, Tables};
use crate::mm::paging::{self, Rights};
use crate::mm::stacks;
use crate::{exec, mm, time};

core::arch::global_asm!(include_str!("ap.s"), options(att_syntax));

unsafe extern "C" {
    static ap_start: u8;
    static ap_end: u8;
    static ap_cr3: u8;
}

/// Index of the next processor to arrive. The boot processor is 0.
#[unsafe(no_mangle)]
static AP_NEXT: AtomicU32 = AtomicU32::new(1);
/// Initial stack pointers, by index.
#[unsafe(no_mangle)]
static AP_STACK_TOPS: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
/// The silence after which the processors that have not arrived are told to start once more.
const REPEAT: Duration = Duration::from_millis(200);

/// The processors that are asked to start, and the page in which they do: RAM below 640 KiB, which the frame
/// allocator does not contain.
pub(crate) struct Starting {
    apic_ids: Vec<u32>,
    page: PhysAddr,
}

/// Starts all processors of `acpi` except this one. They join the executor when they are ready.
///
/// # Safety
/// Call once, on the boot processor, after page tables, heap and interrupts are set up.
pub(crate) unsafe fn start(acpi: &Tables, boot: &BootInfo) -> Option<Starting> {
    let me = apic::id();
    let mut apic_ids = Vec::new();
    let page = boot.ram.start_page(&boot.modules);
    for id in acpi.processors.iter().copied().filter(|id| *id != me) {
        let index = apic_ids.len() as u32 + 1;
        if index as usize >= MAX_CPUS || page.is_none() || !apic::reaches(id) {
            log::error!("processor with APIC id {id} is not used");
            continue;
        }
        // The n-th processor to arrive takes the n-th stacks: mostly the n-th of the list, on its own node.
        let node = acpi.numa.node_of(id).unwrap_or(0);
        if let Err(e) = stacks::map_all(index, node) {
            log::error!("no stacks for cpu {index}: {e}");
            break;
        }
        percpu::prepare(index);
        AP_STACK_TOPS[index as usize].store(Stack { cpu: index, kind: Kind::Main }.top(), Ordering::Relaxed);
        apic_ids.push(id);
    }
    let at = page.filter(|_| !apic_ids.is_empty())?;
    let (first, len) = (&raw const ap_start, (&raw const ap_end) as usize - (&raw const ap_start) as usize);
    let to = mm::phys_to_virt(at);
    // SAFETY: the page is unused RAM, `len` is below the length of a page, and CR3 is patched inside the
    // copy.
    unsafe {
        to.copy_from_nonoverlapping(first, len);
        let cr3 = (&raw const ap_cr3) as usize - first as usize;
        to.add(cr3).cast::<u32>().write_unaligned(paging::root().as_u64() as u32);
    }
    let starting = Starting { apic_ids, page: at };
    let mapped = paging::protect(starting.alias(), mm::PAGE, Rights::ReadOnly)
        .and_then(|()| paging::map(starting.real_mode(), at, mm::PAGE, Rights::Text));
    if let Err(e) = mapped {
        log::error!("other processors stay off: {e}");
        return None;
    }
    starting.apic_ids.iter().for_each(|id| apic::send_init(*id));
    // The manual's 10 ms after INIT were for processors with an external APIC; 200 us are enough for all
    // processors with long mode.
    time::spin_for(Duration::from_micros(200));
    starting.send_startup();
    Some(starting)
}

impl Starting {
    /// Returns the virtual address of the page for real mode, which is its physical one.
    fn real_mode(&self) -> VirtAddr {
        VirtAddr::new_truncate(self.page.as_u64())
    }

    /// Returns the address of the page in the direct map.
    fn alias(&self) -> VirtAddr {
        VirtAddr::new_truncate(mm::DIRECT_MAP + self.page.as_u64())
    }

    /// Tells all processors to start. A processor that runs ignores this.
    fn send_startup(&self) {
        self.apic_ids.iter().for_each(|id| apic::send_startup(*id, (self.page.as_u64() >> 12) as u8));
    }

    /// Waits until all processors run, or none has arrived for `silence`. Returns the number of running
    /// processors.
    pub(crate) fn wait(self, silence: Duration) -> usize {
        let want = self.apic_ids.len() + 1;
        let (mut last, mut seen, mut repeated) = (time::now(), percpu::count(), false);
        while seen < want && time::now() < last + silence {
            if !repeated && time::now() > last + REPEAT {
                repeated = true;
                self.send_startup();
            }
            if percpu::count() > seen {
                (last, seen) = (time::now(), percpu::count());
            }
            core::hint::spin_loop();
        }
        let running = percpu::count();
        if running < want {
            // A late processor may still arrive, so its page stays.
            log::error!("{} of {want} processors did not start", want - running);
            return running;
        }
        let gone = paging::unmap(self.real_mode(), mm::PAGE)
            .and_then(|()| paging::protect(self.alias(), mm::PAGE, Rights::Data));
        if let Err(e) = gone {
            log::error!("the page for the start of processors: {e}");
        }
        running
    }
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
    let id = apic::id();
    percpu::announce(id, acpi::tables().numa.node_of(id).unwrap_or(0));
    exec::run()
}
