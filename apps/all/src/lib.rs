//! The table of applications. The appliance's image and `lite-node` link it, and so each application runs on
//! both.
//!
//! An application is a feature of this crate and a line of [`all`]. `cargo xtask new-app NAME` adds both.
//!
//! # Neighbours
//! The applications are below, each in a crate of its own, and [`runtime`] defines them. perftest needs more
//! than LITE, and the kernel adds it to its image.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use runtime::App;

/// Returns all applications that are selected by features.
#[must_use]
pub fn all() -> Vec<Box<dyn App>> {
    let apps: Vec<Vec<Box<dyn App>>> = vec![
        #[cfg(feature = "wordcount")]
        vec![Box::new(mapreduce::Job::<wordcount::WordCount>::default())],
        #[cfg(feature = "grep")]
        vec![Box::new(mapreduce::Job::<grep::Grep>::default())],
        #[cfg(feature = "bench")]
        litebench::apps(),
        #[cfg(feature = "echo")]
        vec![Box::new(echo::Echo)],
        #[cfg(feature = "graph")]
        graph::apps(),
        #[cfg(feature = "log")]
        logjob::apps(),
        // The next application: `cargo xtask new-app` inserts its line above this one.
    ];
    apps.into_iter().flatten().collect()
}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/writing-apps.md")]
struct WritingApps;
