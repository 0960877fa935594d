//! Measures the fabric: latency and throughput between two machines that are threads of this program.
//!
//! `cargo run --release -p fabric --example fabric_speed`

use anyhow::{Context, Result};
use fabric::{Fabric, FabricConfig};
use netfault::Faults;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    println!(
        "{:<10} {:>6} {:>28} {:>28}",
        "faults", "bytes", "half round trip p50/p99 us", "one way Mframe/s  MB/s"
    );
    for faults in ["", "delay_us=0,loss=0.000000001"] {
        for size in [64, 1024, 4158] {
            let (p50, p99) = latency(faults, size, 5000)?;
            let (frames, bytes) = throughput(faults, size, 60_000)?;
            let name = if faults.is_empty() { "none" } else { "considered" };
            println!("{name:<10} {size:>6} {p50:>18.1} {p99:>9.1} {frames:>18.3} {bytes:>9.0}");
        }
    }
    Ok(())
}

/// Starts a fabric with two machines that know each other's address.
fn pair(faults: &str, dir: &Path) -> Result<(Fabric, UnixStream, UnixStream)> {
    let faults = Faults::parse(faults)?;
    let fabric = Fabric::start(&FabricConfig { ports: 2, dir: dir.into(), faults, seed: 1, pcap: None })?;
    let connect = |port| -> Result<UnixStream> {
        let stream = UnixStream::connect(fabric.socket(port))?;
        stream.set_read_timeout(Some(LIMIT))?;
        Ok(stream)
    };
    let (mut a, mut b) = (connect(0)?, connect(1)?);
    // `b`'s connection may be accepted only after `a`'s first frames, so `a` repeats them until one arrives.
    b.set_read_timeout(Some(Duration::from_millis(20)))?;
    let mut buffer = vec![0; 68];
    loop {
        a.write_all(&frame(2, 1, 64))?;
        if b.read_exact(&mut buffer).is_ok() {
            break;
        }
    }
    b.set_read_timeout(Some(LIMIT))?;
    b.write_all(&frame(1, 2, 64))?;
    a.read_exact(&mut buffer)?;
    Ok((fabric, a, b))
}

fn frame(to: u8, from: u8, size: u32) -> Vec<u8> {
    let mut bytes = size.to_be_bytes().to_vec();
    bytes.extend([2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb5]);
    bytes.resize(4 + size as usize, 0);
    bytes
}

fn latency(faults: &str, size: u32, rounds: usize) -> Result<(f64, f64)> {
    let dir = tempfile::tempdir()?;
    let (_fabric, mut a, mut b) = pair(faults, dir.path())?;
    let echo = std::thread::spawn(move || -> Result<()> {
        let (reply, mut buffer) = (frame(1, 2, size), vec![0; 4 + size as usize]);
        for _ in 0..rounds {
            b.read_exact(&mut buffer)?;
            b.write_all(&reply)?;
        }
        Ok(())
    });
    let (request, mut buffer) = (frame(2, 1, size), vec![0; 4 + size as usize]);
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        a.write_all(&request)?;
        a.read_exact(&mut buffer)?;
        times.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
    }
    echo.join().ok().context("the echo panicked")??;
    times.sort_by(f64::total_cmp);
    Ok((times[rounds / 2], times[rounds * 99 / 100]))
}

/// Returns the throughput in millions of frames and of bytes per second.
fn throughput(faults: &str, size: u32, count: usize) -> Result<(f64, f64)> {
    let dir = tempfile::tempdir()?;
    let (_fabric, mut a, mut b) = pair(faults, dir.path())?;
    // Less data in flight than the port's queue holds, so that nothing is dropped: the receiver grants
    // windows.
    let window = 256;
    let batch = frame(2, 1, size).repeat(window / 4);
    let start = Instant::now();
    let receiver = std::thread::spawn(move || -> Result<()> {
        let mut left = count * (4 + size as usize);
        let (grant, mut unacknowledged) = (frame(1, 2, 64), 0);
        let mut buffer = vec![0; 256 * 1024];
        while left > 0 {
            let n = b.read(&mut buffer)?.min(left);
            left -= n;
            unacknowledged += n;
            while unacknowledged >= window / 4 * (4 + size as usize) {
                unacknowledged -= window / 4 * (4 + size as usize);
                b.write_all(&grant)?;
            }
        }
        Ok(())
    });
    let (mut credit, mut grant) = (4, vec![0; 68]);
    for _ in 0..count.div_ceil(window / 4) {
        if credit == 0 {
            a.read_exact(&mut grant)?;
            credit += 1;
        }
        a.write_all(&batch)?;
        credit -= 1;
    }
    receiver.join().ok().context("the receiver panicked")??;
    let seconds = start.elapsed().as_secs_f64();
    Ok((count as f64 / seconds / 1e6, count as f64 * f64::from(size) / seconds / 1e6))
}
