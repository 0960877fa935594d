//! The file of contexts, `~/.config/ferrolite/config.toml`, and the variables `FERROLITE_*`: the manager and
//! the key that a command uses if it is not told otherwise.

use super::toml_file::{self, Source};
use anyhow::{Context as _, Result, anyhow};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A cluster to talk to.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Context {
    /// The manager's address.
    pub(super) manager: Option<String>,
    /// The key file. A relative path counts from the directory of the file of contexts.
    pub(super) key_file: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contexts {
    /// The context that counts if no other is named.
    context: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Context>,
}

/// Returns a variable that is set and not empty.
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the context of the given name, or of `FERROLITE_CONTEXT`, or the one that the file names.
pub(super) fn chosen(name: Option<&str>) -> Result<Context> {
    let name = name.map(str::to_owned).or_else(|| variable("FERROLITE_CONTEXT"));
    let file = variable("FERROLITE_CONFIG").map(PathBuf::from).or_else(|| {
        let config = variable("XDG_CONFIG_HOME").map(PathBuf::from);
        let config = config.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".config")))?;
        Some(config.join("ferrolite/config.toml"))
    });
    let text = match file.as_deref().map(std::fs::read_to_string) {
        Some(Ok(text)) => text,
        Some(Err(error)) if error.kind() != std::io::ErrorKind::NotFound => {
            let path = file.unwrap_or_default();
            return Err(error).with_context(|| format!("cannot read {}", path.display()));
        }
        _ if name.is_none() => return Ok(Context::default()),
        _ => String::new(),
    };
    of_text(&text, &file.unwrap_or_default(), name.as_deref())
}

/// Checks a file of contexts.
pub(super) fn check(path: &Path) -> Result<()> {
    let text = toml_file::read(path)?;
    of_text(&text, path, None).map(drop)
}

fn of_text(text: &str, path: &Path, name: Option<&str>) -> Result<Context> {
    let contexts: Contexts = Source { path, text }.parse()?;
    let Some(name) = name.map(str::to_owned).or(contexts.context) else { return Ok(Context::default()) };
    let Some(mut context) = contexts.contexts.get(&name).cloned() else {
        let near = nearest(&name, contexts.contexts.keys().map(String::as_str));
        let hint = near.map_or_else(String::new, |near| format!("; is it {near}?"));
        return Err(anyhow!("{} has no context {name}{hint}", path.display()));
    };
    if let (Some(file), Some(directory)) = (&mut context.key_file, path.parent()) {
        *file = directory.join(&*file);
    }
    Ok(context)
}

/// Returns the name that is most like `name`, if any is like it.
pub(super) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // The measure and the limit by which clap suggests subcommands; it does not find two letters of a short
    // name that are exchanged.
    let likeness = |known: &str| match strsim::osa_distance(name, known) {
        1 if name.len() > 2 => 1.0,
        _ => strsim::jaro(name, known),
    };
    let like = names.map(|known| (likeness(known), known)).filter(|(like, _)| *like > 0.7);
    like.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "context = 'lab'\n[contexts.lab]\nmanager = 'lab:18500'\nkey_file = 'lab.key'\n\
                        [contexts.home]\nmanager = 'h:1'\n";

    fn context(text: &str, name: Option<&str>) -> Result<Context, String> {
        of_text(text, Path::new("/c/config.toml"), name).map_err(|error| error.to_string())
    }

    #[test]
    fn a_context_is_the_named_one_or_the_default() {
        let lab = context(FILE, None).unwrap();
        assert_eq!(lab.manager.as_deref(), Some("lab:18500"));
        assert_eq!(lab.key_file.as_deref(), Some(Path::new("/c/lab.key")));
        assert_eq!(context(FILE, Some("home")).unwrap().manager.as_deref(), Some("h:1"));
        assert!(context("", None).unwrap().manager.is_none());
    }

    #[test]
    fn mistakes_name_the_line_and_the_nearest_name() {
        let wrong = context(FILE, Some("hone")).unwrap_err();
        assert_eq!(wrong, "/c/config.toml has no context hone; is it home?");
        let wrong = context("[contexts.a]\nmanagr = 'x'\n", None).unwrap_err();
        assert_eq!(wrong, "/c/config.toml:2: unknown key managr; is it manager?");
    }
}
