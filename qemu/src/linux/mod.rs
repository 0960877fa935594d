//! Linux guests from Debian packages: the yardstick of the benchmarks, and a SoftRoCE (`rdma_rxe`) peer on the fabric.
//!
//! [`Image::build`] makes a kernel and an initramfs out of packages of the host's own Debian suite, installed nowhere and
//! without being root; [`Guest::boot`] starts a machine from them in about 2.5 s (TCG), and [`Guest::run`] runs commands
//! in it. [`baseline`] measures with it what the appliance is compared to.

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
pub use guest::{Card, Guest, GuestConfig, Network, Starting, quoted};
pub use image::{Image, Release};
pub use job::Job;
pub use netboot::Netboot;
pub use perftest::{Bandwidth, Latency};
pub use sdk::compile;
pub use streams::Input;
pub use terminal::SessionEnd;
