//! Debian packages, which are looked up, downloaded and unpacked, but not installed; and the contents of the
//! programs in them.

pub mod apt;
pub mod archive;
pub mod command;
pub mod elf;
mod suites;

pub use apt::Apt;
