//! `cargo xtask lint layers`: the imports of a crate that lead from a lower layer to an upper one.

use super::imports;
use super::modules::Crate;
use anyhow::{Context, Result, ensure};
use lab::paths;
use std::io;
use std::path::Path;

/// The layers of each crate: `SOURCE LAYER ...`, from the lowest to the highest. A layer is a module of the
/// root, or several with `+` between them, which may import each other.
const LAYERS: &str = include_str!("layers.txt");

/// The layers of a crate, from the lowest to the highest.
struct Layers<'a> {
    /// The directory of the crate's sources, from the root of the repository.
    source: &'a str,
    layers: Vec<Vec<&'a str>>,
}

/// Writes the imports that lead upwards in the crates below a path. Fails if there are any, or if a module
/// of the root has no layer.
pub(crate) fn lint(under: &str, out: &mut dyn io::Write) -> Result<()> {
    let mut count = 0;
    for line in LAYERS.lines() {
        let layers = Layers::parse(line)?;
        if layers.source.starts_with(under.trim_end_matches('/')) {
            for import in layers.upward(&paths::root().join(layers.source))? {
                writeln!(out, "{}: {import}", layers.source)?;
                count += 1;
            }
        }
    }
    ensure!(count == 0, "{count} imports lead to an upper layer; `cargo xtask lint layers` lists them");
    Ok(())
}

impl<'a> Layers<'a> {
    fn parse(line: &'a str) -> Result<Self> {
        let (source, layers) = line.split_once(' ').with_context(|| format!("`{line}` has no layers"))?;
        let layers = layers.split_whitespace().map(|layer| layer.split('+').collect()).collect();
        Ok(Self { source, layers })
    }

    /// Returns one line for each import between files that leads upwards.
    fn upward(&self, source: &Path) -> Result<Vec<String>> {
        let mut tree = Crate::read(source)?;
        let edges = imports::edges(&mut tree);
        let mut found = Vec::new();
        for ((from, to), path) in &edges {
            let name = |file: usize| tree.files[file].strip_prefix(source).unwrap_or(&tree.files[file]);
            let (from, to) = (name(*from), name(*to));
            if self.level(from)? < self.level(to)? {
                found.push(format!("{} imports {path} of {}", from.display(), to.display()));
            }
        }
        Ok(found)
    }

    /// Returns the number of a file's layer, from 0 for the lowest.
    fn level(&self, file: &Path) -> Result<usize> {
        let module = file.components().next().map(|first| Path::new(first.as_os_str()).with_extension(""));
        let module = module.with_context(|| format!("{} has no name", file.display()))?;
        let level = self.layers.iter().position(|layer| layer.iter().any(|name| Path::new(name) == module));
        level.with_context(|| {
            format!(
                "{}/{} has no layer: add its module to xtask/src/language/layers.txt",
                self.source,
                file.display()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upward(layers: &str, files: &[(&str, &str)]) -> Result<Vec<String>> {
        let dir = tempfile::tempdir()?;
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().context("a file is in a directory")?)?;
            std::fs::write(path, text)?;
        }
        Layers::parse(layers)?.upward(dir.path())
    }

    #[test]
    fn an_import_of_an_upper_layer_is_found() {
        let files = [
            ("main.rs", "mod low; mod high;"),
            ("low/mod.rs", "pub mod part; pub fn f() {}"),
            ("low/part.rs", "use crate::high::g; fn f() { super::f(); }"),
            ("high.rs", "pub fn g() { crate::low::f(); }"),
        ];
        let found = upward("src low high main", &files).unwrap();
        assert_eq!(found, ["low/part.rs imports crate::high::g of high.rs"]);
        assert_eq!(upward("src low+high main", &files).unwrap(), Vec::<String>::new());
        assert!(upward("src low main", &files).unwrap_err().to_string().contains("high.rs has no layer"));
    }
}
