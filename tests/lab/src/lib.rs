//! Labs: machines that `cargo xtask` boots for runs, tests and measurements, and the programs in them.
//!
//! From the bottom up:
//!
//! - the host: directories ([`paths`]), other programs ([`tool`], [`cargo`]), prerequisites
//!   ([`setup`], [`text`]), output for people ([`ui`]), interrupts ([`interrupt`]);
//! - the programs under test: the appliance's [`image`], and the [`manager`] with its clients;
//! - nodes without machines: [`processes`];
//! - the machines: [`appliances`] for one run, a [`cluster`] without a job, Linux [`hosts`] beside
//!   appliances, Linux machines on emulated cards ([`cx3`]), a Linux [`peer`] on a fabric, and pairs for
//!   [`perftest`].
#![forbid(unsafe_code)]

pub mod appliances;
mod apt;
pub mod cargo;
pub mod cluster;
pub mod cx3;
pub mod hosts;
pub mod image;
pub mod interrupt;
pub mod manager;
pub mod network_services;
pub mod paths;
pub mod peer;
pub mod perftest;
pub mod processes;
pub mod release;
pub mod setup;
pub mod text;
pub mod tool;
pub mod ui;
