//! Ethernet frames: their headers and offloads, and the distribution of frames over queue pairs.

pub(super) mod checksum;
pub(super) mod filter;
pub(super) mod frames;
pub(super) mod headers;
pub(super) mod rss;
mod segmentation;
