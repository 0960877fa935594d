//! An RNIC in software: [`roce`] over any Ethernet port.
#![no_std]
#![forbid(unsafe_code)]

mod port;

pub use port::EthernetPort;
