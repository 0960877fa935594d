//! Debian packages, which are looked up, downloaded and unpacked, but not installed; and the contents of the
//! programs in them.

pub(crate) mod apt;
pub(crate) mod archive;
pub(crate) mod command;
pub(crate) mod elf;
mod packages;
mod suites;

pub(crate) use apt::Apt;
pub use packages::Packages;
