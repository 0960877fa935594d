//! Tests of the algorithms on any number of nodes without a cluster, against independent references.

mod algorithms;
mod nodes;
mod reference;
mod shapes;
