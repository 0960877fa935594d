//! Vertex programs.

use runtime::JobError;

/// A vertex, as a program sees it.
#[derive(Clone, Copy, Debug)]
pub struct Vertex {
    /// The identifier in the input.
    pub id: u64,
    /// The number of edges from the vertex.
    pub out_degree: u32,
    /// The number of vertices of the graph.
    pub vertices: u64,
}

/// The numbers that all nodes have added up in a superstep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Global {
    /// The number of vertices whose values have changed.
    pub changed: u64,
    /// The sum of [`Program::mass`].
    pub mass: u64,
    /// The sum of [`Program::delta`].
    pub delta: u64,
}

impl Global {
    /// Adds the numbers of another node.
    pub(crate) fn add(&mut self, other: Self) {
        self.changed = self.changed.wrapping_add(other.changed);
        self.mass = self.mass.wrapping_add(other.mass);
        self.delta = self.delta.wrapping_add(other.delta);
    }
}

/// A vertex program. In each superstep every vertex sends a signal along its edges
/// ([`scatter`](Self::scatter)), each vertex adds up the signals that reach it ([`gather`](Self::gather),
/// [`combine`](Self::combine)), and computes its new value ([`apply`](Self::apply)).
///
/// [`combine`](Self::combine) must be associative and commutative, so that the result does not depend on the
/// distribution of the graph.
///
/// ```
/// use graph::{Global, Program, Vertex};
///
/// /// Computes the largest identifier from which a path leads to each vertex.
/// struct Largest;
///
/// impl Program for Largest {
///     const IDENTITY: u64 = 0;
///     const MONOTONE: bool = true;
///
///     fn init(&self, vertex: &Vertex) -> u64 {
///         vertex.id
///     }
///
///     fn combine(&self, a: u64, b: u64) -> u64 {
///         a.max(b)
///     }
///
///     fn apply(&self, _: &Vertex, value: u64, sum: u64, _: u64) -> u64 {
///         value.max(sum)
///     }
/// }
///
/// assert_eq!(Largest.combine(Largest::IDENTITY, 7), 7);
/// ```
pub trait Program: Send + Sync + 'static {
    /// The sum of no signals.
    const IDENTITY: u64;

    /// True if a value can be computed from the old value and the signals that have changed, and the signal
    /// [`IDENTITY`](Self::IDENTITY) has no effect. Vertices whose values have not changed send nothing then.
    const MONOTONE: bool;

    /// Returns the value of a vertex before the first superstep.
    fn init(&self, vertex: &Vertex) -> u64;

    /// Returns the signal that a vertex sends along its edges.
    fn scatter(&self, _vertex: &Vertex, value: u64) -> u64 {
        value
    }

    /// Sets the signals of vertices that have as many edges from them as `first`, and returns true, if that
    /// costs less than to call [`scatter`](Self::scatter) for each, and has the same results whatever the
    /// identifiers are. The default returns false.
    fn scatter_alike(&self, _first: &Vertex, _values: &[u64], _signals: &mut [u64]) -> bool {
        false
    }

    /// Returns the term that a signal adds to the sum of the vertex at the end of an edge.
    fn gather(&self, signal: u64, _weight: u32) -> u64 {
        signal
    }

    /// Returns the sum of two parts.
    fn combine(&self, a: u64, b: u64) -> u64;

    /// Returns the part of a superstep's new values that is the same for all vertices, of which there are
    /// `vertices`.
    fn common(&self, _vertices: u64, _global: &Global) -> u64 {
        0
    }

    /// Returns the new value of a vertex; `common` is that of [`common`](Self::common).
    fn apply(&self, vertex: &Vertex, value: u64, sum: u64, common: u64) -> u64;

    /// Returns true if no signal can change a value any more.
    fn is_final(&self, _value: u64) -> bool {
        false
    }

    /// Returns true if no further signal can change a sum for a vertex that is not final.
    fn is_enough(&self, _sum: u64) -> bool {
        false
    }

    /// Returns the part of a vertex in [`Global::mass`]. It is added up for programs that are not monotone.
    fn mass(&self, _vertex: &Vertex, _value: u64) -> u64 {
        0
    }

    /// Returns the part of a vertex in [`Global::delta`]: 0 if its value has not changed.
    fn delta(&self, _old: u64, _new: u64) -> u64 {
        0
    }

    /// Returns true if `rounds` supersteps are enough whatever the values are.
    fn is_last(&self, _rounds: u32) -> bool {
        false
    }

    /// Returns true if `rounds` supersteps are enough. `global` has the sums of the last one.
    ///
    /// # Errors
    /// [`JobError::Refused`] if the program gives up.
    fn is_done(&self, _rounds: u32, global: &Global) -> Result<bool, JobError> {
        Ok(global.changed == 0)
    }
}
