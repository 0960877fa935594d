//! Measures Linux in the kind of machine in which appliances are measured: `cargo run -p qemu --example
//! linux_baseline -- FILE`.
//!
//! Counts the words of FILE in one process and in a pipeline, and runs SoftRoCE between two guests. The
//! figures are meaningful only if the host is otherwise idle.

use anyhow::{Context, Result};
use qemu::Qemu;
use qemu::linux::Image;
use qemu::linux::baseline::{RxePair, Wire, WordCountGuest, build_rate};
use std::path::{Path, PathBuf};
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(300);

fn main() -> Result<()> {
    let input = std::env::args().nth(1).context("usage: linux_baseline FILE")?;
    let qemu = Qemu::find()?.context("qemu-system-x86_64 is not installed")?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let image = Image::build(&target.join("linux-guest"))?;
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rate = build_rate(&workspace, &target.join("linux-guest/rate"))?;

    let mut guest = WordCountGuest::boot(&qemu, &image, &rate, Path::new(&input))?;
    let process = guest.process(3, WITHIN)?;
    println!("word count, one process: {:.3} s, {:.1} MB/s", process.median_s, process.mb_per_s());
    let pipeline = guest.pipeline(WITHIN)?.elapsed.as_secs_f64();
    println!(
        "word count, busybox pipeline: {pipeline:.3} s, {:.2} MB/s",
        process.bytes as f64 / pipeline / 1e6
    );
    drop(guest);

    let mut pair = RxePair::boot(&qemu, &image, Wire::Memory)?;
    let rxe = pair.measure(1000)?;
    let (write, read) = (rxe.write_latency, rxe.read_latency);
    println!(
        "rxe 8 B write: p50 {:.0} us, average {:.0} us (half a round trip)",
        write.p50_us, write.average_us
    );
    println!("rxe 8 B read: p50 {:.0} us, average {:.0} us", read.p50_us, read.average_us);
    println!("rxe 64 KiB write: {:.1} MiB/s", rxe.write_bandwidth.average_mib_s);
    Ok(())
}
