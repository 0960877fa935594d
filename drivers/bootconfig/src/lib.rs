//! The configuration with which an appliance boots: archives that loaders pass, settings of several sources
//! and their precedence, addresses of managers, and the pauses between attempts to join. No I/O.
//!
//! ```text
//! command line  ---------------> Settings::add_line  \
//! initrd, partition, boot file -> Contents -> add_file > one value for each key, and its source
//! DHCP  -----------------------> Settings::add       /
//! ```
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod backoff;
mod cpio;
mod endpoint;
mod keys;
mod module;
mod settings;

pub use backoff::Backoff;
pub use cpio::{Member, Members, archive};
pub use endpoint::{BadEndpoint, Endpoint, Host, endpoints, is_host};
pub use keys::{BadWord, KEYS, Key, LITE, key_of};
pub use module::Contents;
pub use settings::{Problem, Setting, Settings, Source};
