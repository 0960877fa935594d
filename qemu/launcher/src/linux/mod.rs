//! Linux guests from Debian packages: the baseline of the benchmarks, and a SoftRoCE (`rdma_rxe`) peer on the
//! fabric.
//!
//! [`Image::build`] makes a kernel and an initramfs from packages of the host's Debian suite, without
//! installing them and without root. [`Guest::boot`] starts a machine from them in about 2.5 s (TCG), and
//! [`Guest::run`] runs commands in it. [`baseline`] uses it for the measurements to which the appliance is
//! compared.

pub mod baseline;
mod channel;
mod cpio;
mod exchange;
mod guest;
mod image;
mod job;
mod layer;
mod machine;
mod modules;
mod netboot;
pub mod perftest;
mod sdk;
mod streams;
mod terminal;
mod tsc;
mod vmlinux;

pub use channel::{Output, RunError, Status};
pub use exchange::{Exchanged, Listens, exchange};
pub use guest::{Card, Guest, GuestConfig, Network, Starting, in_system, quoted};
pub use image::{Image, Release};
pub use job::Job;
pub use netboot::Netboot;
pub use perftest::{Bandwidth, Latency};
pub use sdk::compile;
pub use streams::Input;
pub use terminal::SessionEnd;
