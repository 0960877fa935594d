//! The files of a new application, and the files that name it.

use super::name::Name;
use anyhow::{Context, Result};
use lab::paths;
use std::fs;
use std::path::{Path, PathBuf};

/// The files of the template, from the folder of the crate.
const TEMPLATE: [(&str, &str); 3] = [
    ("Cargo.toml", include_str!("../../../apps/template/Cargo.toml")),
    ("src/lib.rs", include_str!("../../../apps/template/src/lib.rs")),
    ("tests/job.rs", include_str!("../../../apps/template/tests/job.rs")),
];
/// The manifest of the workspace.
const WORKSPACE: &str = "Cargo.toml";
/// The manifest and the source of the table of applications.
const TABLE: [&str; 2] = ["apps/all/Cargo.toml", "apps/all/src/lib.rs"];
/// The files that cargo changes.
const LOCKS: [&str; 2] = ["Cargo.lock", "kernel/Cargo.lock"];

/// Changes that can be undone.
#[derive(Default)]
pub(super) struct Changes {
    /// The former contents of files.
    files: Vec<(PathBuf, Vec<u8>)>,
    /// The new folder.
    folder: Option<PathBuf>,
}

impl Changes {
    /// Restores the files, and removes the folder.
    pub(super) fn undo(self) -> Result<()> {
        if let Some(folder) = self.folder {
            fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        for (path, bytes) in self.files {
            fs::write(&path, bytes).with_context(|| format!("cannot restore {}", path.display()))?;
        }
        Ok(())
    }

    /// Keeps the contents of a file of the repository, and returns them.
    fn keep(&mut self, root: &Path, name: &str) -> Result<String> {
        let path = root.join(name);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {name}"))?;
        self.files.push((path, text.clone().into_bytes()));
        Ok(text)
    }
}

/// Writes the crate, and adds it to the workspace and to the table.
pub(super) fn write(name: &Name, changes: &mut Changes) -> Result<()> {
    let root = paths::root();
    let mut edited = Vec::new();
    let [manifest, source] = TABLE;
    for (file, edit) in
        [(WORKSPACE, member as fn(&str, &Name) -> Option<String>), (manifest, feature), (source, row)]
    {
        let text = changes.keep(&root, file)?;
        let text = edit(&text, name).with_context(|| format!("{file} has no place for an application"))?;
        edited.push((root.join(file), text));
    }
    for file in LOCKS {
        changes.keep(&root, file)?;
    }
    let folder = root.join("apps").join(name.text());
    fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    changes.folder = Some(folder.clone());
    edited.extend(TEMPLATE.map(|(file, text)| (folder.join(file), filled(text, name))));
    for (path, text) in edited {
        let to = path.display();
        path.parent().map_or(Ok(()), fs::create_dir_all).with_context(|| format!("cannot make {to}"))?;
        fs::write(&path, text).with_context(|| format!("cannot write {to}"))?;
    }
    Ok(())
}

/// Returns a file of the template with the names of the application.
fn filled(text: &str, name: &Name) -> String {
    let quoted = |text: &str| format!("\"{text}\"");
    text.replace(&quoted("template"), &quoted(name.text()))
        .replace("template::", &format!("{}::", name.identifier()))
        .replace("Template", &name.type_name())
}

/// Adds `new` before the first occurrence of `place`.
fn before(text: &str, place: &str, new: &str) -> Option<String> {
    let (front, back) = text.split_once(place)?;
    Some(format!("{front}{new}{place}{back}"))
}

/// Adds the crate to the members of the workspace.
fn member(text: &str, name: &Name) -> Option<String> {
    before(text, "\"apps/perftest\",", &format!("\"apps/{name}\", "))
}

/// Adds the crate to the features and dependencies of the table.
fn feature(text: &str, name: &Name) -> Option<String> {
    let text = before(text, "]\nbench = ", &format!(", \"{name}\""))?;
    let text = before(&text, "\n[dependencies]\n", &format!("{name} = [\"dep:{name}\"]\n"))?;
    let dependency = format!("{name} = {{ path = \"../{name}\", optional = true }}\n");
    before(&text, "\n[dev-dependencies]\n", &dependency)
}

/// Adds the applications of the crate to the table.
fn row(text: &str, name: &Name) -> Option<String> {
    let row = format!("#[cfg(feature = \"{name}\")]\n        {}::apps(),\n        ", name.identifier());
    before(text, "// The next application: ", &row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_and_the_workspace_have_places() {
        let name: Name = "word-length".parse().unwrap();
        let edited = |file: &str, edit: fn(&str, &Name) -> Option<String>| {
            let text = fs::read_to_string(paths::root().join(file)).unwrap();
            // A second application fits too.
            edit(&edit(&text, &name).unwrap(), &"second".parse().unwrap()).unwrap()
        };
        let [manifest, source] = TABLE;
        assert!(
            edited(WORKSPACE, member).contains("\"apps/word-length\", \"apps/second\", \"apps/perftest\"")
        );
        let manifest = edited(manifest, feature);
        assert!(manifest.contains(", \"word-length\", \"second\"]\n"), "{manifest}");
        for line in [
            "\nword-length = [\"dep:word-length\"]\n",
            "\nsecond = { path = \"../second\", optional = true }\n",
        ] {
            assert!(manifest.contains(line), "{manifest}");
        }
        let source = edited(source, row);
        assert!(source.contains("#[cfg(feature = \"word-length\")]\n        word_length::apps(),\n"));
    }

    #[test]
    fn the_template_is_filled_everywhere() {
        for (file, text) in TEMPLATE {
            let filled = filled(text, &"word-length".parse().unwrap());
            assert!(!filled.to_lowercase().contains("template"), "{file}: {filled}");
        }
    }
}
