//! LITE on nodes that share one thread and a network in memory.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod allocations;
mod connections;
mod control;
#[cfg(debug_assertions)]
mod cores;
mod departed;
mod departed_requests;
mod given_up;
mod handover;
mod hostile;
#[cfg(debug_assertions)]
mod interleavings;
mod large;
mod membership;
mod mishaps;
mod names;
mod notify;
mod one_sided;
mod own_memory;
mod posting;
mod qos;
mod regions;
mod rpc;
mod silence;
mod sync;
mod two_nodes;
mod unfinished;
mod vacate;

use lite::Lite;
use std::future::poll_fn;
use std::task::Poll;

/// Starts a task on a node of the cluster.
fn spawn(lite: &Lite, task: impl Future<Output = ()> + Send + 'static) {
    lite.platform().spawn("test", Box::pin(task));
}

/// Keeps a value until the cluster ends, as a program that continues does. A value that is forgotten instead
/// would keep the memory of its node for as long as the tests run.
fn keep<T: Send + 'static>(lite: &Lite, value: T) {
    let mut own_waker = None;
    spawn(lite, async move {
        // A task ends once nothing can wake it. This one keeps its own waker, until the world drops it.
        poll_fn(|context| {
            own_waker = Some(context.waker().clone());
            Poll::<()>::Pending
        })
        .await;
        drop(value);
    });
}
