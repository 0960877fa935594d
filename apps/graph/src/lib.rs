//! Graph algorithms as vertex programs over the nodes of a cluster: PageRank, connected components, breadth
//! first search, shortest paths, triangles.
//!
//! - The vertices are divided into one contiguous range of identifiers for each node ([`Plan`]). A node
//!   holds the edges *to* its vertices, and a copy of the signal of each foreign vertex that such an edge
//!   comes from: a *ghost*. The edges to a vertex with very many of them, a *hub*, stay with the owners of
//!   their sources, which send one partial sum each.
//! - In a superstep ([`run`]) each node sends one message to each other node: the signals of the vertices
//!   that are ghosts there, partial sums for hubs, and three numbers that all nodes add up.
//! - All sums are of integers, so that the result does not depend on the number of nodes and processors.
//!
//! # Neighbours
//! [`runtime`] starts the job and exchanges the messages. Everything but [`Graph`], the application, reaches
//! other nodes by [`Net`] alone, and is tested without a cluster.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod args;
mod binary;
mod bytes;
mod compact;
mod components;
mod edge;
mod engine;
mod flg1;
mod generate;
mod job;
mod load;
mod net;
mod output;
mod part;
mod paths;
mod plan;
mod program;
mod programs;
mod read;
mod signals;
mod snap;
mod sparse;
#[cfg(test)]
mod tests;
mod triangles;

pub use args::{Algorithm, Args};
pub use compact::Compact;
pub use components::components;
pub use edge::{Edge, Edges};
pub use engine::{Outcome, run};
pub use flg1::to_flg1;
pub use generate::{Generator, Model};
pub use job::{Graph, apps};
pub use load::{Input, load};
pub use net::{Net, Task};
pub use output::push_rank;
pub use part::Part;
pub use paths::shortest_paths;
pub use plan::Plan;
pub use program::{Global, Program, Vertex};
pub use programs::{Bfs, ONE, PageRank, Stop};
pub use snap::{Fault, Format, parse_edges, parse_vertices};
pub use triangles::{Triangles, triangles};
