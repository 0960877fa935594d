//! The arguments of the applications, as `KEY=VALUE`.

use crate::generate::{Generator, MAX_SCALE, Model};
use crate::programs::{ONE, Stop};
use alloc::format;
use alloc::string::{String, ToString};
use core::str::FromStr;

/// An algorithm, which is an application of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// The rank of each vertex.
    PageRank,
    /// The connected component of each vertex.
    Components,
    /// The distance of each vertex from a source, in edges.
    Bfs,
    /// The distance of each vertex from a source, in weights.
    Sssp,
    /// The number of triangles.
    Triangles,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 5] = [Self::PageRank, Self::Components, Self::Bfs, Self::Sssp, Self::Triangles];

    /// Returns the name of the application.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PageRank => "pagerank",
            Self::Components => "cc",
            Self::Bfs => "bfs",
            Self::Sssp => "sssp",
            Self::Triangles => "triangles",
        }
    }

    /// Returns a description for users, without the arguments that all graph applications have.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            Self::PageRank => "ranks the vertices of a graph: [iterations=K | tolerance=T] [undirected=true]",
            Self::Components => "finds the connected components of a graph",
            Self::Bfs => "counts the edges from a vertex to all others: source=ID [undirected=true]",
            Self::Sssp => "finds shortest paths from a vertex: source=ID [weights=true] [undirected=true]",
            Self::Triangles => "counts the triangles of a graph: [each=true]",
        }
    }

    /// Returns true if the algorithm always lets an edge lead in both directions, also without
    /// `undirected=true`.
    fn is_undirected(self) -> bool {
        matches!(self, Self::Components | Self::Triangles)
    }

    /// Returns true if the algorithm accepts an argument.
    fn accepts(self, key: &str) -> bool {
        match key {
            "vertices" | "generate" | "scale" | "degree" | "seed" | "hub" => true,
            "iterations" | "tolerance" => self == Self::PageRank,
            "undirected" => !self.is_undirected(),
            "source" => matches!(self, Self::Bfs | Self::Sssp),
            "weights" => self == Self::Sssp,
            "each" => self == Self::Triangles,
            _ => false,
        }
    }
}

/// The arguments of every graph application.
pub(crate) const COMMON: &str =
    "[vertices=FILE] [generate=rmat|uniform scale=S [degree=16] [seed=1]] [hub=EDGES]";

/// The arguments of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Args {
    /// The condition that ends PageRank.
    pub stop: Stop,
    /// The vertex at which a search begins.
    pub source: u64,
    /// True if each edge leads in both directions.
    pub undirected: bool,
    /// True if each line of the input has a weight.
    pub weights: bool,
    /// True if the triangles at each vertex are printed.
    pub each: bool,
    /// The name of the input file that has vertices and not edges.
    pub vertices: Option<String>,
    /// The generated graph; `None` if the graph is read.
    pub generator: Option<Generator>,
    /// The least number of edges to a hub; `None` selects it by the size of the graph.
    pub hub: Option<u64>,
}

/// Returns the value of an argument, which must be from `least` to `most`.
fn number<T: FromStr + PartialOrd + ToString>(
    key: &str,
    value: &str,
    least: T,
    most: T,
) -> Result<T, String> {
    let parsed = value.parse().ok().filter(|number| *number >= least && *number <= most);
    parsed.ok_or_else(|| {
        format!("{key}={value}: want a number from {} to {}", least.to_string(), most.to_string())
    })
}

fn flag(key: &str, value: &str) -> Result<bool, String> {
    value.parse().map_err(|_| format!("{key}={value}: want true or false"))
}

/// Returns a tolerance in parts of [`ONE`].
fn tolerance(value: &str) -> Result<u64, String> {
    let parsed = value.parse::<f64>().ok().filter(|number| *number >= 1e-18 && *number <= 2.0);
    let fixed = parsed.map(|number| (number * ONE as f64) as u64);
    fixed.ok_or_else(|| format!("tolerance={value}: want a number from 1e-18 to 2"))
}

impl Args {
    /// Reads the arguments of a job.
    ///
    /// # Errors
    /// A reason for users, in one line.
    pub fn parse(algorithm: Algorithm, args: &[String]) -> Result<Self, String> {
        let usage = |why: String| format!("{} {why}; {}; {COMMON}", algorithm.name(), algorithm.about());
        let mut parsed = Self {
            stop: Stop::Tolerance(ONE / 1_000_000_000),
            source: 0,
            undirected: algorithm.is_undirected(),
            weights: false,
            each: false,
            vertices: None,
            generator: None,
            hub: None,
        };
        let (mut stops, mut source) = (0, None);
        let mut generator = Generator { model: Model::Rmat, scale: 0, degree: 16, seed: 1 };
        let (mut model, mut scale, mut shaped) = (None, None, false);
        for arg in args {
            let Some((key, value)) = arg.split_once('=').filter(|(key, _)| algorithm.accepts(key)) else {
                return Err(usage(format!("does not know the argument {arg:?}")));
            };
            match key {
                "iterations" => parsed.stop = Stop::Iterations(number(key, value, 0, 1_000_000)?),
                "tolerance" => parsed.stop = Stop::Tolerance(tolerance(value)?),
                "source" => source = Some(number(key, value, 0, u64::MAX)?),
                "undirected" => parsed.undirected = flag(key, value)?,
                "weights" => parsed.weights = flag(key, value)?,
                "each" => parsed.each = flag(key, value)?,
                "hub" => parsed.hub = Some(number(key, value, 1, u64::MAX)?),
                "vertices" => parsed.vertices = Some(value.to_string()),
                "scale" => scale = Some(number(key, value, 0, MAX_SCALE)?),
                "degree" => generator.degree = number(key, value, 1, 1 << 16)?,
                "seed" => generator.seed = number(key, value, 0, u64::MAX)?,
                _ => model = Some(self::model(value)?),
            }
            stops += u32::from(matches!(key, "iterations" | "tolerance"));
            shaped |= matches!(key, "scale" | "degree" | "seed");
        }
        if stops > 1 {
            return Err(usage("takes either iterations= or tolerance=, once".to_string()));
        }
        parsed.generator = match (model, scale) {
            (Some(model), Some(scale)) => Some(Generator { model, scale, ..generator }),
            (Some(_), None) => return Err(usage("needs scale= for a generated graph".to_string())),
            (None, _) if shaped => {
                return Err(usage("needs generate= for scale=, degree= and seed=".to_string()));
            }
            (None, _) => None,
        };
        if algorithm.accepts("source") {
            parsed.source = source.ok_or_else(|| usage("needs source=ID".to_string()))?;
        }
        Ok(parsed)
    }
}

fn model(value: &str) -> Result<Model, String> {
    match value {
        "rmat" => Ok(Model::Rmat),
        "uniform" => Ok(Model::Uniform),
        _ => Err(format!("generate={value}: want rmat or uniform")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn parse(algorithm: Algorithm, args: &str) -> Result<Args, String> {
        let args: Vec<String> = args.split_whitespace().map(String::from).collect();
        Args::parse(algorithm, &args)
    }

    #[test]
    fn arguments_are_read() {
        let args = parse(Algorithm::PageRank, "iterations=20 undirected=true").unwrap();
        assert_eq!((args.stop, args.undirected), (Stop::Iterations(20), true));
        let args = parse(Algorithm::PageRank, "tolerance=1e-12").unwrap();
        assert_eq!(args.stop, Stop::Tolerance((1e-12 * ONE as f64) as u64));
        assert!(parse(Algorithm::Components, "").unwrap().undirected);
        let args = parse(Algorithm::Sssp, "source=6 weights=true").unwrap();
        assert_eq!((args.source, args.weights), (6, true));
        let args = parse(Algorithm::Triangles, "each=true generate=uniform scale=5 seed=9").unwrap();
        let generator = Generator { model: Model::Uniform, scale: 5, degree: 16, seed: 9 };
        assert_eq!((args.each, args.generator), (true, Some(generator)));
    }

    #[test]
    fn wrong_arguments_are_refused_in_one_line() {
        for (algorithm, args, says) in [
            (Algorithm::PageRank, "twenty", "does not know the argument \"twenty\""),
            (Algorithm::PageRank, "source=6", "does not know the argument \"source=6\""),
            (Algorithm::PageRank, "iterations=-1", "want a number from 0 to 1000000"),
            (Algorithm::PageRank, "iterations=1 tolerance=1", "either iterations= or tolerance="),
            (Algorithm::PageRank, "tolerance=0", "want a number from 1e-18 to 2"),
            (Algorithm::PageRank, "tolerance=nan", "want a number from 1e-18 to 2"),
            (Algorithm::Bfs, "", "needs source=ID"),
            (Algorithm::Components, "undirected=true", "does not know the argument"),
            (Algorithm::Sssp, "source=6 weights=yes", "want true or false"),
            (Algorithm::Components, "generate=rmat", "needs scale="),
            (Algorithm::Components, "scale=3", "needs generate="),
            (Algorithm::Components, "generate=tree scale=3", "want rmat or uniform"),
        ] {
            let error = parse(algorithm, args).unwrap_err();
            assert!(error.contains(says) && !error.contains('\n'), "{error}");
        }
    }
}
