//! The arguments of the applications, as `KEY=VALUE`.

use crate::generate::{Generator, MAX_SCALE, Model};
use crate::programs::{ONE, Stop};
use alloc::format;
use alloc::string::{String, ToString};
use runtime::{Arg, Syntax};

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

    /// Returns the name, the purpose and the arguments.
    pub(crate) fn syntax(self) -> Syntax {
        let (about, args): (_, &[Arg]) = match self {
            Self::PageRank => ("ranks the vertices of a graph", &PAGERANK),
            Self::Components => ("finds the connected components of a graph", &COMMON),
            Self::Bfs => ("counts the edges from a vertex to all others", &BFS),
            Self::Sssp => ("finds shortest paths from a vertex", &SSSP),
            Self::Triangles => ("counts the triangles of a graph", &TRIANGLES),
        };
        Syntax { name: self.name(), about, args }
    }

    /// Returns true if the algorithm always lets an edge lead in both directions, also without
    /// `undirected=true`.
    fn is_undirected(self) -> bool {
        matches!(self, Self::Components | Self::Triangles)
    }
}

/// The name, the purpose and the arguments of the application that writes the compact form.
pub(crate) const COMPACT: Syntax = Syntax {
    name: "compact",
    about: "writes a graph in the compact form FLG1",
    args: &[WEIGHTS, COMMON[1], COMMON[2], COMMON[3], COMMON[4]],
};

const WEIGHTS: Arg = Arg::optional("weights", "true");
const UNDIRECTED: Arg = Arg::optional("undirected", "true");
const SOURCE: Arg = Arg::required("source", "ID");

/// Returns the arguments of an algorithm and those that all of them have.
const fn with_common<const N: usize, const ALL: usize>(own: [Arg; N]) -> [Arg; ALL] {
    let mut all = [UNDIRECTED; ALL];
    let mut at = 0;
    while at < ALL {
        all[at] = if at < N { own[at] } else { COMMON[at - N] };
        at += 1;
    }
    all
}

const COMMON: [Arg; 6] = [
    Arg::optional("vertices", "FILE"),
    Arg::optional("generate", "rmat|uniform"),
    Arg::optional("scale", "S"),
    Arg::optional("degree", "16"),
    Arg::optional("seed", "1"),
    Arg::optional("hub", "EDGES"),
];
const PAGERANK: [Arg; 9] =
    with_common([Arg::optional("iterations", "K"), Arg::optional("tolerance", "T"), UNDIRECTED]);
const BFS: [Arg; 8] = with_common([SOURCE, UNDIRECTED]);
const SSSP: [Arg; 9] = with_common([SOURCE, WEIGHTS, UNDIRECTED]);
const TRIANGLES: [Arg; 7] = with_common([Arg::optional("each", "true")]);

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

/// Returns a tolerance in parts of [`ONE`].
fn tolerance(value: &str) -> Option<u64> {
    let parsed = value.parse::<f64>().ok().filter(|number| *number >= 1e-18 && *number <= 2.0)?;
    Some((parsed * ONE as f64) as u64)
}

impl Args {
    /// Reads the arguments of a job.
    ///
    /// # Errors
    /// A reason for users, in one line.
    pub fn parse(algorithm: Algorithm, args: &[String]) -> Result<Self, String> {
        let args = Self::read(&algorithm.syntax(), args)?;
        Ok(Self { undirected: algorithm.is_undirected() || args.undirected, ..args })
    }

    /// Reads the arguments of a job of any graph application. Those that it does not have are absent.
    pub(crate) fn read(syntax: &Syntax, args: &[String]) -> Result<Self, String> {
        let args = syntax.read(args)?;
        let iterations = args.number("iterations", 0..=1_000_000)?;
        let stop = match (iterations, args.text("tolerance")) {
            (Some(_), Some(_)) => return Err(syntax.complaint("want either iterations= or tolerance=")),
            (Some(iterations), None) => Stop::Iterations(iterations),
            (None, Some(value)) => Stop::Tolerance(tolerance(value).ok_or_else(|| {
                syntax.complaint(&format!("tolerance={value}: want a number from 1e-18 to 2"))
            })?),
            (None, None) => Stop::Tolerance(ONE / 1_000_000_000),
        };
        Ok(Self {
            stop,
            source: args.number("source", 0..=u64::MAX)?.unwrap_or(0),
            undirected: args.flag("undirected")?,
            weights: args.flag("weights")?,
            each: args.flag("each")?,
            vertices: args.text("vertices").map(ToString::to_string),
            generator: generator(syntax, &args)?,
            hub: args.number("hub", 1..=u64::MAX)?,
        })
    }
}

/// Returns the generated graph, if there is one.
fn generator(syntax: &Syntax, args: &runtime::Args<'_>) -> Result<Option<Generator>, String> {
    let model = args.one_of("generate", &[("rmat", Model::Rmat), ("uniform", Model::Uniform)])?;
    let scale = args.number("scale", 0..=MAX_SCALE)?;
    let degree = args.number("degree", 1..=1 << 16)?;
    let seed = args.number("seed", 0..=u64::MAX)?;
    match (model, scale) {
        (Some(model), Some(scale)) => {
            Ok(Some(Generator { model, scale, degree: degree.unwrap_or(16), seed: seed.unwrap_or(1) }))
        }
        (Some(_), None) => Err(syntax.complaint("a generated graph needs scale=")),
        (None, None) if degree.is_none() && seed.is_none() => Ok(None),
        (None, _) => Err(syntax.complaint("scale=, degree= and seed= need generate=")),
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
            (Algorithm::PageRank, "twenty", "unknown argument \"twenty\""),
            (Algorithm::PageRank, "source=6", "unknown argument \"source=6\""),
            (Algorithm::PageRank, "iterations=-1", "want a number from 0 to 1000000"),
            (Algorithm::PageRank, "iterations=1 tolerance=1", "either iterations= or tolerance="),
            (Algorithm::PageRank, "tolerance=0", "want a number from 1e-18 to 2"),
            (Algorithm::PageRank, "tolerance=nan", "want a number from 1e-18 to 2"),
            (Algorithm::Bfs, "", "source=ID is missing"),
            (Algorithm::Components, "undirected=true", "unknown argument"),
            (Algorithm::Sssp, "source=6 weights=yes", "want true or false"),
            (Algorithm::Components, "generate=rmat", "a generated graph needs scale="),
            (Algorithm::Components, "scale=3", "need generate="),
            (Algorithm::Components, "generate=tree scale=3", "want rmat or uniform"),
        ] {
            let error = parse(algorithm, args).unwrap_err();
            let usage = format!("; usage: {}", algorithm.syntax().usage());
            assert!(error.contains(says) && error.ends_with(&usage) && !error.contains('\n'), "{error}");
        }
    }
}
