//! `cargo xtask lint cycles`: the largest group of files of a crate that import each other, directly or
//! through others of the group.

use super::imports::{self, Edges};
use super::modules::{Crate, FileId};
use super::structure::{Budget, in_crates};
use anyhow::{Result, ensure};
use lab::paths;
use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

/// The files of the largest cycle of a crate, and the imports between them.
pub(super) struct Cycle {
    files: Vec<PathBuf>,
    /// The importing file, the imported file, and the imported path.
    imports: Vec<(PathBuf, PathBuf, String)>,
}

/// Writes the largest cycle of each crate below a path. Fails if one has more files than its budget.
pub(crate) fn lint(under: &str, out: &mut dyn io::Write) -> Result<()> {
    let mut over = Vec::new();
    for budget in in_crates("cycles", under)? {
        let cycle = Cycle::largest_of(&paths::root().join(&budget.source))?;
        write!(out, "{}", cycle.describe(&budget)?)?;
        over.extend(budget.exceeded_by(cycle.files.len(), "files in a cycle of imports"));
    }
    ensure!(over.is_empty(), "{}", over.join("; "));
    Ok(())
}

impl Cycle {
    /// Finds the largest cycle of the crate whose sources are in a directory. A crate without cycles has one
    /// of a single file.
    pub(super) fn largest_of(source: &Path) -> Result<Self> {
        let mut tree = Crate::read(source)?;
        let edges = imports::edges(&mut tree);
        let group = largest_group(&tree, &edges);
        let name = |file: FileId| {
            let path = &tree.files[file];
            path.strip_prefix(source).unwrap_or(path).to_owned()
        };
        let inside = |(from, to): &(FileId, FileId)| group.contains(from) && group.contains(to);
        let imports = edges.iter().filter(|(edge, _)| inside(edge));
        let imports = imports.map(|((from, to), path)| (name(*from), name(*to), path.clone())).collect();
        let mut files: Vec<_> = group.iter().map(|file| name(*file)).collect();
        files.sort();
        Ok(Self { files, imports })
    }

    /// Returns the number of files.
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    fn describe(&self, budget: &Budget) -> Result<String> {
        let mut text = String::new();
        writeln!(
            text,
            "{}: {} files in the largest cycle, {} are allowed",
            budget.source,
            self.len(),
            budget.most
        )?;
        for file in &self.files {
            writeln!(text, "  {}", file.display())?;
            for (_, to, path) in self.imports.iter().filter(|(from, ..)| from == file) {
                writeln!(text, "    {} by {path}", to.display())?;
            }
        }
        Ok(text)
    }
}

/// Returns the files of the largest strongly connected component.
fn largest_group(tree: &Crate, edges: &Edges) -> Vec<FileId> {
    let mut graph = DiGraphMap::<FileId, ()>::new();
    (0..tree.files.len()).for_each(|file| {
        graph.add_node(file);
    });
    for (from, to) in edges.keys() {
        graph.add_edge(*from, *to, ());
    }
    tarjan_scc(&graph).into_iter().max_by_key(Vec::len).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a crate of the given files, and returns its largest cycle.
    fn cycle_of(files: &[(&str, &str)]) -> Cycle {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Cycle::largest_of(dir.path()).unwrap()
    }

    fn files(cycle: &Cycle) -> Vec<String> {
        cycle.files.iter().map(|file| file.display().to_string()).collect()
    }

    #[test]
    fn files_that_import_each_other_are_a_cycle() {
        let cycle = cycle_of(&[
            ("lib.rs", "mod a; mod b; mod c; pub use c::C;"),
            ("a.rs", "use crate::b::B; pub struct A(B);"),
            ("b.rs", "pub struct B; fn f() { let _ = super::c::C; }"),
            ("c.rs", "pub struct C; fn f(_: Option<crate::a::A>) {}"),
        ]);
        assert_eq!(files(&cycle), ["a.rs", "b.rs", "c.rs"]);
        let paths: Vec<_> = cycle.imports.iter().map(|(.., path)| path.as_str()).collect();
        assert_eq!(paths, ["crate::b::B", "super::c::C", "crate::a::A"]);
    }

    #[test]
    fn files_in_a_row_are_no_cycle() {
        let cycle = cycle_of(&[
            ("main.rs", "mod a; mod b; fn main() { a::run(); }"),
            ("a.rs", "use crate::b; pub fn run() { b::run(); }"),
            ("b.rs", "use log::info; pub fn run() { info!(\"crate::a::run\"); std::process::exit(0); }"),
        ]);
        assert_eq!(cycle.len(), 1);
    }

    #[test]
    fn a_re_exported_name_counts_for_the_file_that_defines_it() {
        let parent = ("a/mod.rs", "mod inner; mod user; pub use inner::Inner;");
        let inner = ("a/inner.rs", "pub struct Inner;");
        let root = ("lib.rs", "mod a;");
        assert_eq!(
            cycle_of(&[root, parent, inner, ("a/user.rs", "use super::Inner; type T = Inner;")]).len(),
            1
        );
        let inner = ("a/inner.rs", "pub struct Inner; fn f(_: super::user::T) {}");
        let cycle = cycle_of(&[root, parent, inner, ("a/user.rs", "use super::Inner; pub type T = Inner;")]);
        assert_eq!(files(&cycle), ["a/inner.rs", "a/user.rs"]);
    }

    #[test]
    fn a_module_that_uses_its_child_is_in_a_cycle_with_it() {
        let child = ("a/child.rs", "pub fn f(_: super::A) {}");
        let uses = "mod child; pub struct A; fn f() { child::f(A); }";
        assert_eq!(files(&cycle_of(&[("lib.rs", "mod a;"), ("a.rs", uses), child])), ["a/child.rs", "a.rs"]);
        let declares = "mod child; pub use child::f; pub struct A;";
        assert_eq!(cycle_of(&[("lib.rs", "mod a;"), ("a.rs", declares), child]).len(), 1);
    }

    #[test]
    fn tests_are_left_out() {
        let cycle = cycle_of(&[
            ("lib.rs", "mod a; mod b; #[cfg(test)] mod tests;"),
            ("a.rs", "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }"),
            ("b.rs", "use crate::a::A; pub struct B(A); #[cfg(test)] impl B { fn f() { crate::a::f(); } }"),
            ("tests.rs", "this is not Rust"),
        ]);
        assert_eq!(cycle.len(), 1);
    }

    #[test]
    fn paths_in_macros_and_functions_count() {
        let root = ("lib.rs", "mod a; mod b;");
        let a = ("a.rs", "pub fn f() { assert!(x.b == crate::b::G, \"{}\", 1); }");
        let cycle = cycle_of(&[root, a, ("b.rs", "pub const G: u8 = 1; fn g() { use super::a; a::f(); }")]);
        assert_eq!(files(&cycle), ["a.rs", "b.rs"]);
    }
}
