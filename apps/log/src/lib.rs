//! LITE-Log: a log that all nodes of a cluster append to and read, in memory of the cluster. Its operations
//! are one-sided: a commit costs one fetch-add and one write, and no processor of the log's homes takes part.
//!
//! ```
//! # use lite::{Lite, NodeId};
//! # use litelog::{Log, LogOptions, Position};
//! # async fn example(lite: &Lite) -> Result<(), Box<dyn std::error::Error>> {
//! // On one node: the log lies on nodes 1 and 2.
//! let log = Log::create(lite, "orders", &[NodeId(1), NodeId(2)], LogOptions::default()).await?;
//! // On any node, once it exists.
//! let log = Log::open(lite, "orders").await?;
//! let writer = log.writer().await?;
//! let at = writer.append(b"an order").await?;
//! writer.commit(&[b"two orders", b"in one record"]).await?;
//! assert_eq!(log.read(at).await?.entries().next(), Some(&b"an order"[..]));
//! let mut scan = log.scan(Position::START);
//! while let Some(record) = scan.next().await? {
//!     println!("{}: {} entries", record.position(), record.entries().len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # How it is built
//! - The directory is a region with the tail, the head, the table of writers and the fixed part of the log.
//! - Segments are regions on the homes in turn. Truncation frees them, and no segment is used again.
//! - A frame holds one commit, and has a check that covers its position and the log's key.
//! - Holes of writers that have died or given up are filled by any reader that meets them.
//!
//! `docs/design/log.md` says why that is safe.
//!
//! # Neighbours
//! [`lite`] is below. The simulation (`cargo xtask sim --app log`) and the application `log` are above.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod create;
mod desk;
mod directory;
mod error;
mod frame;
mod keeper;
mod layout;
mod pending;
mod planted;
mod reader;
mod segments;
mod service;
mod window;
mod writer;

pub use create::Log;
pub use error::{AppendError, LogError, ReadError};
pub use frame::Entries;
#[cfg(feature = "testing")]
pub use frame::frame_at;
pub use layout::{LogOptions, Position};
#[cfg(all(feature = "testing", debug_assertions))]
pub use planted::{Bug, plant};
pub use reader::{Record, Scan};
pub use writer::Writer;
