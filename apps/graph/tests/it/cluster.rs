//! Tests of whole jobs on clusters: equal output on any nodes, errors, generated graphs.

use graph::{Edge, Generator, Model, apps};
use runtime::testing::Cluster;
use std::fmt::Write as _;

/// Returns a generated graph as an edge list with weights, with comments and carriage returns.
pub(crate) fn edge_list(model: Model, scale: u32) -> String {
    let generator = Generator { model, scale, degree: 8, seed: 11 };
    let mut text = String::from("# A graph.\r\n");
    for number in 0..generator.edges() {
        let edge = generator.edge(number);
        writeln!(text, "{} {}\t{}\r", edge.from, edge.to, edge.weight).unwrap();
    }
    text
}

/// Clusters of 1 to 4 nodes with 1 and 2 processors.
struct Everywhere(Vec<Cluster>);

impl Everywhere {
    fn new() -> Self {
        let kinds = (1..=4).flat_map(|nodes| [1, 2].map(|cpus| (nodes, cpus)));
        Self(kinds.map(|(nodes, cpus)| Cluster::new(u64::from(nodes), nodes, cpus, apps)).collect())
    }

    /// Runs a job on each cluster. Returns the output, which must always be the same.
    fn run(&mut self, app: &str, args: &[&str], files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut first = None;
        for cluster in &mut self.0 {
            let (output, reports) = cluster.run(app, args, files).unwrap();
            assert!(*first.get_or_insert_with(|| output.clone()) == output, "{app}: {} nodes", reports.len());
        }
        first.unwrap()
    }
}

#[test]
fn a_small_graph_has_the_results_of_a_pencil() {
    let text = b"% two triangles and a loop\n1 2\n2 3\n3 1\n1 2\n\n3 4\n4 1\n9 9\n8 9";
    let mut all = Everywhere::new();
    let mut run = |app: &str, args: &[&str]| String::from_utf8(all.run(app, args, &[("g", text)])).unwrap();
    assert_eq!(run("cc", &[]), "1\t1\n2\t1\n3\t1\n4\t1\n8\t8\n9\t8\n");
    assert_eq!(run("bfs", &["source=3"]), "1\t1\n2\t2\n3\t0\n4\t1\n");
    assert_eq!(run("bfs", &["source=4", "undirected=true"]), "1\t1\n2\t2\n3\t1\n4\t0\n");
    assert_eq!(run("sssp", &["source=8"]), "8\t0\n9\t1\n");
    assert_eq!(run("triangles", &[]), "2\n");
    assert_eq!(run("triangles", &["each=true"]), "1\t2\n2\t1\n3\t2\n4\t1\n8\t0\n9\t0\n");
    // All vertices have the rank 1/6 at first; that of 9, the first, sends it to itself.
    let ranks = run("pagerank", &["iterations=1"]);
    let lines: Vec<_> = ranks.lines().collect();
    let expected = [
        (9, 0.308_333_333_333_333_3),
        (1, 0.2375),
        (2, 1.0 / 6.0),
        (3, 1.0 / 6.0),
        (4, 0.095_833_333_333_333_33),
    ];
    for (line, (vertex, rank)) in lines.iter().zip(expected) {
        let (found, number) = line.split_once('\t').unwrap();
        assert_eq!(found, vertex.to_string(), "{ranks}");
        assert!((number.parse::<f64>().unwrap() - rank).abs() < 1e-15, "{ranks}");
    }
}

#[test]
fn output_is_the_same_on_any_nodes() {
    let mut all = Everywhere::new();
    let text = edge_list(Model::Rmat, 9);
    let files: &[(&str, &[u8])] = &[("g", text.as_bytes())];
    let ranks = all.run("pagerank", &["tolerance=1e-12"], files);
    let mut last = (f64::INFINITY, 0);
    let mut sum = 0.0;
    for line in String::from_utf8(ranks).unwrap().lines() {
        let (vertex, rank) = line.split_once('\t').unwrap();
        let (vertex, rank): (u64, f64) = (vertex.parse().unwrap(), rank.parse().unwrap());
        assert!(rank < last.0 || (rank == last.0 && vertex > last.1), "{line}");
        (last, sum) = ((rank, vertex), sum + rank);
    }
    assert!((sum - 1.0).abs() < 1e-12, "{sum}");
    for (app, args) in [
        ("cc", &[][..]),
        ("bfs", &["source=6"]),
        ("sssp", &["source=6", "weights=true"]),
        ("triangles", &["each=true"]),
        ("pagerank", &["iterations=5", "hub=20"]),
    ] {
        assert!(all.run(app, args, files).len() > 1000, "{app}");
    }
}

#[test]
fn a_graph_needs_no_input() {
    let mut all = Everywhere::new();
    let generated = all.run("cc", &["generate=uniform", "scale=8", "degree=2", "seed=4"], &[]);
    let generator = Generator { model: Model::Uniform, scale: 8, degree: 2, seed: 4 };
    let edges = (0..generator.edges()).map(|number| generator.edge(number));
    let text: String = edges.map(|edge| format!("{} {}\n", edge.from, edge.to)).collect();
    assert!(generated == all.run("cc", &[], &[("g", text.as_bytes())]));
    assert!(all.run("pagerank", &["generate=rmat", "scale=8"], &[]).len() > 1000);
}

#[test]
fn graphs_without_edges() {
    let mut all = Everywhere::new();
    for app in ["pagerank", "cc", "triangles"] {
        let nothing: &[u8] = if app == "triangles" { b"0\n" } else { b"" };
        assert_eq!(all.run(app, &[], &[("g", b"# nothing\n")]), nothing, "{app}");
    }
    let files: &[(&str, &[u8])] = &[("dir/g.e", b"1 2"), ("dir/g.v", b"18446744073709551615\n1\n7\n")];
    assert_eq!(
        all.run("cc", &["vertices=g.v"], files),
        b"1\t1\n2\t1\n7\t7\n18446744073709551615\t18446744073709551615\n"
    );
    assert_eq!(all.run("bfs", &["vertices=dir/g.v", "source=7"], files), b"7\t0\n");
}

/// A comment of a megabyte, edges of many thousand bytes, and a last line without an end.
#[test]
fn lines_may_be_long() {
    let (blanks, note) = (" ".repeat(1 << 16), "x".repeat(1 << 20));
    let text = format!("# {note}\n1{blanks}2{blanks}\n{blanks}2 3\r\n\n3 4");
    let mut all = Everywhere::new();
    for text in [&text, &format!("{text}\n")] {
        assert_eq!(all.run("bfs", &["source=1"], &[("g", text.as_bytes())]), b"1\t0\n2\t1\n3\t2\n4\t3\n");
    }
}

/// The report of each node has its share of the graph, about as much as that of the others although all edges
/// lead to one vertex, and each node writes to others.
#[test]
fn the_report_has_equal_shares_of_a_star() {
    let text: String = (0..20_000).map(|leaf| format!("{} 7\n", leaf + 100)).collect();
    for nodes in 2..=4u8 {
        let mut cluster = Cluster::new(3, nodes, 1, apps);
        let (_, reports) = cluster.run("pagerank", &["iterations=3"], &[("g", text.as_bytes())]).unwrap();
        let of = |list: &[(String, u64)], name: &str| list.iter().find(|(of, _)| of == name).unwrap().1;
        for name in ["vertices", "edges"] {
            let shares: Vec<u64> = reports.iter().map(|report| of(&report.counts, name)).collect();
            assert_eq!(shares.iter().sum::<u64>(), 20_000 + u64::from(name == "vertices"));
            assert!(
                shares.iter().min().unwrap() * 5 >= shares.iter().max().unwrap() * 4,
                "{name}: {shares:?}"
            );
        }
        assert!(reports.iter().all(|report| of(&report.used, "messages") > 0), "{reports:?}");
    }
}

#[test]
fn wrong_input_is_refused_with_its_place_and_leaves_nothing() {
    for nodes in [1, 3] {
        let mut cluster = Cluster::new(3, nodes, 1, apps);
        // The first job opens the connections, which keep memory.
        cluster.run("cc", &[], &[("g", b"1 2\n2 3\n3 4\n")]).unwrap();
        let free = cluster.free();
        for (app, args, text, says) in [
            ("cc", &[][..], "1 2\n2 three\n", "g: byte 6: \"three\" is not a target"),
            ("cc", &[], "1 2\n2 3\n4", "g: byte 9: the line has no target"),
            (
                "pagerank",
                &[],
                "1 99999999999999999999\n",
                "g: byte 2: the target \"99999999999999999999\" is greater",
            ),
            ("sssp", &["source=1", "weights=true"], "1 2 3\n1 2\n", "g: byte 9: the line has no weight"),
            ("bfs", &["source=9"], "1 2\n", "source=9: the graph has no such vertex"),
            ("cc", &["vertices=v"], "1 2\n", "vertices=v: the job has no such input"),
            ("cc", &[], "1 2\n2 \u{0}\n", "g: byte 6: \"\\x00\" is not a target"),
            (
                "sssp",
                &["source=1", "weights=true"],
                "1 2 4294967296\n",
                "g: byte 4: the weight \"4294967296\" is",
            ),
            ("pagerank", &["twenty"], "1 2\n", "pagerank: unknown argument \"twenty\""),
            // The first of several wrong lines counts.
            ("cc", &[], "1 2\n3\n5\n6\n7\n8\n9\n10\n", "g: byte 5: the line has no target"),
        ] {
            let error = cluster.run(app, args, &[("g", text.as_bytes())]).unwrap_err();
            assert!(error.starts_with(says) && !error.contains('\n'), "{error}");
            assert_eq!(cluster.free(), free, "{says}");
        }
        for (_, lite) in &cluster.nodes {
            assert_eq!(lite.audit(), []);
        }
    }
}

/// Returns the edges of a text with weights.
fn edges_of(text: &str) -> Vec<(u64, u64, u32)> {
    let mut edges = Vec::new();
    let format = graph::Format { weights: true };
    graph::parse_edges(text.as_bytes(), format, |from, to, weight| edges.push((from, to, weight))).unwrap();
    edges
}

/// The compact form has the same results as the text, wherever its records are cut.
#[test]
fn a_compact_graph_is_the_same_graph() {
    let mut all = Everywhere::new();
    let generator = Generator { model: Model::Rmat, scale: 8, degree: 12, seed: 3 };
    // Identifiers of 4 bytes, and one of 8 bytes.
    for far in [0, 1 << 40] {
        let line = |edge: Edge| format!("{} {} {}\n", edge.from, edge.to + far, edge.weight % 100);
        let text: String = (0..generator.edges()).map(|number| line(generator.edge(number))).collect();
        let source = text.split(' ').next().unwrap();
        let edges = edges_of(&text);
        let (plain, weighted) = (graph::to_flg1(&edges, false), graph::to_flg1(&edges, true));
        assert!(weighted.len() > plain.len() && plain.len() >= 32 + 8 * edges.len());
        let text: &[(&str, &[u8])] = &[("g", text.as_bytes())];
        let from = &format!("source={source}")[..];
        assert!(all.run("cc", &[], &[("g.flg", &plain)]) == all.run("cc", &[], text));
        let args = &[from, "weights=true", "undirected=true"];
        assert!(all.run("sssp", args, &[("g.flg", &weighted)]) == all.run("sssp", args, text));
        // Weights that do not count, and two forms in one job.
        let twice: &[(&str, &[u8])] = &[("g.flg", &weighted), text[0], ("again.flg", &plain)];
        assert!(all.run("bfs", &[from], twice) == all.run("bfs", &[from], text));
    }
    let nothing = graph::to_flg1(&[], false);
    assert_eq!(all.run("triangles", &[], &[("g.flg", &nothing)]), b"0\n");
}

#[test]
fn a_wrong_compact_graph_is_refused_with_its_place() {
    let edges: Vec<(u64, u64, u32)> = (0..500).map(|n| (n, n * 7 % 500, 1)).collect();
    let good = graph::to_flg1(&edges, false);
    for nodes in [1, 3] {
        let mut cluster = Cluster::new(3, nodes, 1, apps);
        cluster.run("cc", &[], &[("g", &good)]).unwrap();
        let free = cluster.free();
        let mut refused = |args: &[&str], says: &str, change: &dyn Fn(&mut Vec<u8>)| {
            let mut file = good.clone();
            change(&mut file);
            let error = cluster.run("sssp", args, &[("g", &file)]).unwrap_err();
            assert!(error.starts_with(says) && !error.contains('\n'), "{error}");
            assert_eq!(cluster.free(), free, "{says}");
        };
        let (args, weighted) = (&["source=1"][..], &["source=1", "weights=true"][..]);
        refused(args, "g: byte 3000: the file has 3000 bytes, and its 500 edges need 4032", &|file| {
            file.truncate(3000);
        });
        refused(args, "g: byte 7: the file ends in its header of 32 bytes", &|file| file.truncate(7));
        refused(args, "g: byte 4: the flags 0x50 are unknown", &|file| file[4] = 0x50);
        refused(args, "g: byte 16: the checksum is not that of the edges", &|file| file[3000] ^= 4);
        refused(weighted, "g: byte 4: the edges have no weights", &|_| {});
    }
}

/// The application `compact` writes the same bytes on any nodes, and its output is a graph as a file and as a
/// dataset.
#[test]
fn a_compact_graph_is_made_and_kept() {
    let mut all = Everywhere::new();
    let text = edge_list(Model::Rmat, 8);
    let files: &[(&str, &[u8])] = &[("g", text.as_bytes())];
    let weighted = &["source=6", "weights=true"][..];
    let file = all.run("compact", &["weights=true"], files);
    let lengths = all.run("sssp", weighted, files);
    assert!(all.run("sssp", weighted, &[("g.flg", &file)]) == lengths);
    let plain = all.run("compact", &[], files);
    assert!(plain.starts_with(b"FLG1") && plain.len() < file.len());
    assert!(all.run("compact", &[], &[("g.flg", &file)]) == plain);
    let ranks = all.run("pagerank", &["iterations=3"], files);
    let made = all.run("compact", &["generate=uniform", "scale=7"], &[]);
    let components = all.run("cc", &["generate=uniform", "scale=7"], &[]);
    for cluster in &mut all.0 {
        for (args, given, app, next, expected) in [
            (&["weights=true"][..], files, "sssp", weighted, &lengths),
            (&[], files, "pagerank", &["iterations=3"], &ranks),
            (&["generate=uniform", "scale=7"], &[], "cc", &[], &components),
            (&["generate=uniform", "scale=7"], &[], "compact", &[], &made),
        ] {
            let dataset = cluster.keep("compact", args, given).unwrap();
            let (output, _) =
                cluster.run_with(app, next, &[], std::slice::from_ref(&dataset), false).unwrap();
            assert!(output == *expected, "{app} of a dataset");
        }
        let error = cluster.run("compact", &["weights=true"], &[("g", b"1 2 3\n1 2\n")]).unwrap_err();
        assert_eq!(error, "g: byte 9: the line has no weight");
    }
    assert_eq!(all.run("compact", &[], &[("g", b"")]), graph::to_flg1(&[], false));
}
