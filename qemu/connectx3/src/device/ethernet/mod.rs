//! Ethernet frames: their headers and offloads, and the distribution of frames over queue pairs.

pub mod checksum;
pub mod filter;
pub mod frames;
pub mod headers;
pub mod rss;
mod segmentation;
