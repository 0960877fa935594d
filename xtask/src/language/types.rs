//! `cargo xtask lint types`: the types of a crate that have too many fields, or methods in too many files.

use super::modules::{Crate, FileId, Target};
use super::structure::{Budget, in_crates};
use anyhow::{Result, ensure};
use lab::paths;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use syn::Item;

/// The largest number of fields of a type.
const MOST_FIELDS: usize = 20;
/// The largest number of files with inherent methods of one type.
const MOST_FILES: usize = 5;

/// A type that breaks the rule, in one line.
pub(super) type Finding = String;

/// Writes the large types of each crate below a path. Fails if a crate has more than its budget.
pub(crate) fn lint(under: &str, out: &mut dyn io::Write) -> Result<()> {
    let mut over = Vec::new();
    for budget in in_crates("types", under)? {
        let found = large_types(&paths::root().join(&budget.source))?;
        let Budget { source, most, .. } = &budget;
        writeln!(out, "{source}: {} large types, {most} are allowed", found.len())?;
        for finding in &found {
            writeln!(out, "  {finding}")?;
        }
        over.extend(budget.exceeded_by(found.len(), "large types"));
    }
    ensure!(over.is_empty(), "{}", over.join("; "));
    Ok(())
}

/// Returns the large types of the crate whose sources are in a directory.
pub(super) fn large_types(source: &Path) -> Result<Vec<Finding>> {
    let tree = Crate::read(source)?;
    let mut fields = BTreeMap::new();
    let mut files = BTreeMap::<_, BTreeSet<FileId>>::new();
    for (id, module) in tree.modules.iter().enumerate() {
        for item in &module.items {
            match item {
                Item::Struct(item) => {
                    fields.insert((module.file, item.ident.to_string()), item.fields.len());
                }
                Item::Impl(item) if item.trait_.is_none() => {
                    let syn::Type::Path(path) = &*item.self_ty else { continue };
                    let names: Vec<_> =
                        path.path.segments.iter().map(|part| part.ident.to_string()).collect();
                    if let (Some(Target::Item(home)), Some(name)) = (tree.resolve(id, &names), names.last()) {
                        files.entry((home, name.clone())).or_default().insert(module.file);
                    }
                }
                _ => {}
            }
        }
    }
    let mut reasons = BTreeMap::<_, Vec<String>>::new();
    for (key, count) in fields.iter().filter(|(_, count)| **count > MOST_FIELDS) {
        reasons.entry(key).or_default().push(format!("has {count} fields"));
    }
    for (key, files) in files.iter().filter(|(_, files)| files.len() > MOST_FILES) {
        reasons.entry(key).or_default().push(format!("has methods in {} files", files.len()));
    }
    let line = |((file, name), reasons): (&(FileId, String), Vec<String>)| {
        let path = &tree.files[*file];
        let path = path.strip_prefix(source).unwrap_or(path).display();
        format!("{path}: {name} {}", reasons.join(" and "))
    };
    Ok(reasons.into_iter().map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    /// Writes a crate with a type of this number of fields whose methods are in this number of files, and
    /// returns its large types.
    fn found(fields: usize, files: usize) -> Vec<Finding> {
        let dir = tempfile::tempdir().unwrap();
        let mut root = String::from("mod home; pub use home::Large;\n");
        for file in 0..files {
            writeln!(root, "mod m{file};").unwrap();
            let text =
                format!("use crate::Large; impl Large {{ fn f{file}() {{}} }} impl Clone for Large {{}}");
            std::fs::write(dir.path().join(format!("m{file}.rs")), text).unwrap();
        }
        let members: String = (0..fields).map(|field| format!("f{field}: u8,")).collect();
        let home = format!("pub struct Large {{ {members} }} impl Default for Large {{}}");
        std::fs::write(dir.path().join("home.rs"), home).unwrap();
        std::fs::write(dir.path().join("lib.rs"), root).unwrap();
        large_types(dir.path()).unwrap()
    }

    #[test]
    fn a_type_with_many_fields_is_found() {
        assert_eq!(found(MOST_FIELDS, 0), Vec::<String>::new());
        assert_eq!(found(MOST_FIELDS + 1, 0), ["home.rs: Large has 21 fields"]);
    }

    #[test]
    fn a_type_with_methods_in_many_files_is_found() {
        assert_eq!(found(1, MOST_FILES), Vec::<String>::new());
        assert_eq!(found(1, MOST_FILES + 1), ["home.rs: Large has methods in 6 files"]);
    }
}
