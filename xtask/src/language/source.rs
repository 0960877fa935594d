//! The comments and functions of a Rust file, found by lines. The file is formatted by `rustfmt`, so the
//! closing brace of a function has the indentation of its first line.

use anyhow::Result;
use std::path::Path;

/// A comment: consecutive lines with the same mark.
pub(super) struct Comment {
    /// The number of the comment's first line, from 1.
    pub line: usize,
    pub is_doc: bool,
    /// The lines of the comment, joined by spaces.
    pub text: String,
}

/// A file as the lint sees it.
pub(super) struct Source<'a> {
    lines: Vec<&'a str>,
    pub comments: Vec<Comment>,
    /// The first line, the number of lines and the name of each function.
    pub functions: Vec<(usize, usize, &'a str)>,
}

impl<'a> Source<'a> {
    pub(super) fn parse(text: &'a str) -> Self {
        let lines: Vec<&str> = text.lines().collect();
        Self { comments: comments(&lines), functions: functions(&lines), lines }
    }

    /// Returns the numbers, from 1, of comments' lines with more than `limit` characters, without those of
    /// tables.
    pub(super) fn wide_comments(&self, limit: usize) -> impl Iterator<Item = usize> {
        let wide = move |line: &&str| {
            split(line).is_some_and(|(_, text)| !text.starts_with('|')) && line.chars().count() > limit
        };
        self.lines.iter().enumerate().filter(move |(_, line)| wide(line)).map(|(at, _)| at + 1)
    }
}

/// Returns the mark at the start of a comment's line, and the text after it; `None` if this is no comment.
fn split(line: &str) -> Option<(&'static str, &str)> {
    let line = line.trim_start();
    let mark = ["///", "//!", "//"].into_iter().find(|mark| line.starts_with(mark))?;
    Some((mark, line[mark.len()..].trim()))
}

fn comments(lines: &[&str]) -> Vec<Comment> {
    let mut comments: Vec<Comment> = Vec::new();
    let mut former = None;
    for (at, line) in lines.iter().enumerate() {
        let here = split(line);
        match (here, former, comments.last_mut()) {
            (Some((mark, text)), Some(before), Some(comment)) if mark == before => {
                comment.text.push(' ');
                comment.text.push_str(text);
            }
            (Some((mark, text)), ..) => {
                comments.push(Comment { line: at + 1, is_doc: mark != "//", text: text.into() });
            }
            (None, ..) => {}
        }
        former = here.map(|(mark, _)| mark);
    }
    comments
}

/// Returns the name of the function that begins on a line, if one does.
fn function(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let words = [
        "pub",
        "pub(crate)",
        "pub(super)",
        "const",
        "async",
        "unsafe",
        "extern",
        "\"C\"",
        "\"sysv64\"",
        "default",
    ];
    before.split_whitespace().all(|word| words.contains(&word)).then_some(())?;
    after.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

fn functions<'a>(lines: &[&'a str]) -> Vec<(usize, usize, &'a str)> {
    let mut functions = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = function(line) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        let is_end = |line: &&str| line.strip_prefix(indent).is_some_and(|rest| rest == "}");
        // A function without a body, or on one line, ends before the next line with no larger indentation.
        let is_over =
            |line: &&str| !line.is_empty() && !line.starts_with(&format!("{indent} ")) && !is_end(line);
        let rest = &lines[at + 1..];
        let end = rest.iter().position(is_end);
        let over =
            rest.iter().position(|line| is_over(line) && !line.trim_start().starts_with([')', '{', 'w']));
        if let Some(end) = end.filter(|end| over.is_none_or(|over| *end < over)) {
            functions.push((at + 1, end + 2, name));
        }
    }
    functions
}

/// Calls `call` for every Rust file below a directory, with its path and text. Leaves out `target` and hidden
/// folders.
pub(crate) fn each(dir: &Path, call: &mut dyn FnMut(&Path, &str)) -> Result<()> {
    let mut entries = std::fs::read_dir(dir)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() {
            if name != "target" && !name.to_string_lossy().starts_with('.') {
                each(&path, call)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            call(&path, &std::fs::read_to_string(&path)?);
        }
    }
    Ok(())
}
