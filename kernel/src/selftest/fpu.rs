//! Interrupts during float, SIMD and red-zone work: the interrupted code's state must not change.
//!
//! Each processor's timer and IPIs from its neighbour interrupt at 10 to 20 kHz. The handler itself uses f64,
//! AVX2 and formatting. The interrupted checks know their results: registers filled with a pattern, a leaf
//! function that keeps data below the stack pointer, sums, vector loops, formatting, and 128-bit division
//! from the prebuilt libraries.

use alloc::string::String;
use alloc::vec::Vec;
use core::arch::naked_asm;
use core::fmt::Write;
use core::hint::black_box;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use platform::Instant;

use super::{Outcome, ensure, seconds};
use crate::arch::percpu::this_cpu;
use crate::arch::{apic, cpu, interrupts, percpu, this_cpu_index};
use crate::{exec, time};

/// The time between two timer interrupts of a processor: 14 kHz.
const TICK: Duration = Duration::from_micros(70);

static HANDLED: AtomicU64 = AtomicU64::new(0);
static HANDLER_ERRORS: AtomicU64 = AtomicU64::new(0);

/// A buffer for text that needs no heap.
struct Text {
    bytes: [u8; 64],
    len: usize,
}

impl Write for Text {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        for byte in s.bytes() {
            *self.bytes.get_mut(self.len).ok_or(core::fmt::Error)? = byte;
            self.len += 1;
        }
        Ok(())
    }
}

fn formats_right() -> bool {
    let mut text = Text { bytes: [0; 64], len: 0 };
    let value = black_box(1234.5678f64) * black_box(2.0);
    write!(
        text,
        "{value:.4} {:e} {}",
        black_box(6.25e-9f64),
        black_box(u128::MAX) / black_box(10u128.pow(19) + 9)
    )
    .is_ok()
        && &text.bytes[..text.len] == b"2469.1356 6.25e-9 34028236692093846315".as_slice()
}

fn sum() -> f64 {
    (1..400u32).map(|i| black_box(f64::from(i)).sqrt_approx() / 3.0).sum()
}

/// Newton's square root, in plain f64 arithmetic.
trait SqrtApprox {
    fn sqrt_approx(self) -> f64;
}

impl SqrtApprox for f64 {
    fn sqrt_approx(self) -> f64 {
        (0..6).fold(self, |x, _| 0.5 * (x + self / x))
    }
}

fn vectors(seed: u32) -> u32 {
    let mut lanes = [seed; 64];
    for round in 0..16u32 {
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane = lane.wrapping_mul(0x9e37_79b1) ^ (i as u32 + round);
        }
    }
    lanes.iter().fold(0, |a, b| a.rotate_left(3) ^ b)
}

#[target_feature(enable = "avx2")]
fn vectors_avx2(seed: u32) -> u32 {
    vectors(black_box(seed))
}

fn has_avx2() -> bool {
    cpu::XSAVE_ON.load(Ordering::Relaxed) && cpu::bit(cpu::cpuid(7, 0).ebx, 5)
}

/// Fills the red zone with `rdi`, waits, and returns the number of its words that changed.
#[unsafe(naked)]
extern "C" fn red_zone(_pattern: u64) -> u64 {
    naked_asm!(
        "xor eax, eax",
        "mov rcx, -16",
        "2:",
        "mov [rsp + 8 * rcx], rdi",
        "inc rcx",
        "jnz 2b",
        "mov ecx, 500",
        "3:",
        "dec ecx",
        "jnz 3b",
        "mov rcx, -16",
        "4:",
        "xor edx, edx",
        "cmp [rsp + 8 * rcx], rdi",
        "setne dl",
        "add rax, rdx",
        "inc rcx",
        "jnz 4b",
        "ret",
    );
}

/// Fills xmm6 to xmm15 with `rdi`, waits, and returns a mask of the bytes that changed.
#[unsafe(naked)]
extern "C" fn sse_registers(_pattern: u64) -> u64 {
    naked_asm!(
        "movq xmm0, rdi",
        "punpcklqdq xmm0, xmm0",
        "movdqa xmm6, xmm0",
        "movdqa xmm7, xmm0",
        "movdqa xmm8, xmm0",
        "movdqa xmm9, xmm0",
        "movdqa xmm15, xmm0",
        "mov ecx, 500",
        "2:",
        "dec ecx",
        "jnz 2b",
        "pcmpeqb xmm6, xmm0",
        "pcmpeqb xmm7, xmm0",
        "pcmpeqb xmm8, xmm0",
        "pcmpeqb xmm9, xmm0",
        "pcmpeqb xmm15, xmm0",
        "pand xmm6, xmm7",
        "pand xmm8, xmm9",
        "pand xmm6, xmm8",
        "pand xmm6, xmm15",
        "movq xmm1, rdi",
        "punpcklqdq xmm1, xmm1",
        "pcmpeqb xmm0, xmm1",
        "pand xmm6, xmm0",
        "pmovmskb eax, xmm6",
        "xor eax, 0xffff",
        "ret",
    );
}

/// Fills ymm registers with `rdi`, waits, and returns a mask of the bytes that changed.
#[unsafe(naked)]
extern "C" fn avx_registers(_pattern: u64) -> u64 {
    naked_asm!(
        "vmovq xmm0, rdi",
        "vpbroadcastq ymm0, xmm0",
        "vmovdqa ymm5, ymm0",
        "vmovdqa ymm8, ymm0",
        "vmovdqa ymm12, ymm0",
        "vmovdqa ymm15, ymm0",
        "mov ecx, 500",
        "2:",
        "dec ecx",
        "jnz 2b",
        "vpcmpeqb ymm5, ymm5, ymm0",
        "vpcmpeqb ymm8, ymm8, ymm0",
        "vpcmpeqb ymm12, ymm12, ymm0",
        "vpcmpeqb ymm15, ymm15, ymm0",
        "vpand ymm5, ymm5, ymm8",
        "vpand ymm12, ymm12, ymm15",
        "vpand ymm5, ymm5, ymm12",
        "vmovq xmm1, rdi",
        "vpbroadcastq ymm1, xmm1",
        "vpcmpeqb ymm0, ymm0, ymm1",
        "vpand ymm5, ymm5, ymm0",
        "vpmovmskb eax, ymm5",
        "not eax",
        "vzeroupper",
        "ret",
    );
}

/// Overwrites, in each interrupt, the state that the stub must have saved, and arms the next interrupt.
fn hook(vector: u8) {
    if vector != interrupts::TIMER && vector != interrupts::TEST {
        return;
    }
    let n = HANDLED.fetch_add(1, Ordering::Relaxed);
    let mut right = formats_right();
    if has_avx2() {
        // SAFETY: the processor has AVX2 and its state is enabled.
        right &= unsafe { vectors_avx2(n as u32) } == vectors(black_box(n as u32));
        right &= avx_registers(n.wrapping_mul(0x0123_4567_89ab_cdef)) == 0;
    }
    right &= sse_registers(!n) == 0;
    if !right {
        HANDLER_ERRORS.fetch_add(1, Ordering::Relaxed);
    }
    if vector == interrupts::TIMER {
        exec::tick_after(TICK);
        interrupt_neighbour();
    }
}

/// Sends a test interrupt to the next processor, if there is another.
fn interrupt_neighbour() {
    let next = (this_cpu_index() + 1) % percpu::count();
    if next != this_cpu_index()
        && let Some(next) = percpu::cpu(next)
    {
        apic::send(next.apic_id.load(Ordering::Relaxed), interrupts::TEST);
    }
}

/// Works until `end`, and further until `least` interrupts have come or `latest` has passed. Returns the
/// number of rounds.
fn work(end: Instant, latest: Instant, least: u64) -> Result<u64, String> {
    let taken = || this_cpu().interrupts.load(Ordering::Relaxed);
    let enough = taken() + least;
    let expected_sum = sum().to_bits();
    let expected_vectors = vectors(5);
    let words = "the quick brown fox \u{e9}\u{4e2d}\u{1f980} jumps".as_bytes();
    let mut rounds = 0u64;
    while time::now() < end || taken() < enough && time::now() < latest {
        let pattern = rounds.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let changed = red_zone(pattern);
        ensure!(changed == 0, "{changed} words of the red zone changed in round {rounds}");
        let changed = sse_registers(pattern);
        ensure!(changed == 0, "SSE registers changed ({changed:#x}) in round {rounds}");
        if has_avx2() {
            let changed = avx_registers(pattern) as u32;
            ensure!(changed == 0, "AVX registers changed ({changed:#x}) in round {rounds}");
            // SAFETY: the processor has AVX2 and its state is enabled.
            let got = unsafe { vectors_avx2(5) };
            ensure!(got == expected_vectors, "AVX2 loop: {got:#x} in round {rounds}");
        }
        interrupt_neighbour();
        ensure!(sum().to_bits() == expected_sum, "f64 sum changed in round {rounds}");
        ensure!(vectors(black_box(5)) == expected_vectors, "SSE2 loop changed in round {rounds}");
        interrupt_neighbour();
        ensure!(formats_right(), "formatting changed in round {rounds}");
        ensure!(core::str::from_utf8(black_box(words)).is_ok(), "UTF-8 check changed in round {rounds}");
        rounds += 1;
    }
    Ok(rounds)
}

pub(super) async fn run() -> Outcome {
    ensure!(formats_right(), "formatting is wrong without interrupts");
    interrupts::TEST_HOOK.call_once(|| hook);
    let length = seconds(10);
    let cpus = percpu::count();
    // The least number of interrupts per processor: a host with fewer processors than this machine delivers
    // fewer to each.
    let least = length.as_secs() * 2000 / cpus as u64;
    let end = time::now() + length;
    let latest = time::now() + length * 20;
    let tasks: Vec<_> = (0..cpus)
        .map(|cpu| {
            exec::spawn_on(cpu, "fpu", async move {
                exec::tick_after(TICK);
                let before = this_cpu().interrupts.load(Ordering::Relaxed);
                let rounds = work(end, latest, least);
                (rounds, this_cpu().interrupts.load(Ordering::Relaxed) - before)
            })
        })
        .collect();
    let mut total = 0;
    let mut all_rounds = 0;
    for (cpu, task) in tasks.into_iter().enumerate() {
        let (rounds, count) = task.await;
        all_rounds += rounds.map_err(|e| alloc::format!("cpu {cpu}: {e}"))?;
        ensure!(
            count >= least,
            "cpu {cpu} had only {count} interrupts, too few to mean much (least {least})"
        );
        total += count;
    }
    let errors = HANDLER_ERRORS.load(Ordering::Relaxed);
    ensure!(errors == 0, "{errors} handlers went wrong");
    let avx = if has_avx2() { "AVX2" } else { "SSE2 only" };
    Ok(alloc::format!("{total} interrupts on {cpus} cpus, {all_rounds} rounds, {avx}"))
}
