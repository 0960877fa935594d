//! Comments and functions of a Rust file, by its lines. `rustfmt` has laid the file out, so a function ends where its closing brace
//! stands under its first line.

use anyhow::Result;
use std::path::Path;

/// A comment: lines of one kind that follow one another.
pub struct Comment {
    /// Line of the file, from 1.
    pub line: usize,
    pub is_doc: bool,
    /// The lines, joined by blanks.
    pub text: String,
}

/// A file as the lint sees it.
pub struct Source<'a> {
    lines: Vec<&'a str>,
    pub comments: Vec<Comment>,
    /// First line, number of lines, name.
    pub functions: Vec<(usize, usize, &'a str)>,
}

impl<'a> Source<'a> {
    pub fn parse(text: &'a str) -> Self {
        let lines: Vec<&str> = text.lines().collect();
        Self { comments: comments(&lines), functions: functions(&lines), lines }
    }

    /// Returns the lines, from 1, of comments with more characters than `limit`.
    pub fn wide_comments(&self, limit: usize) -> impl Iterator<Item = usize> {
        let wide = move |line: &&str| line.trim_start().starts_with("//") && line.chars().count() > limit;
        self.lines.iter().enumerate().filter(move |(_, line)| wide(line)).map(|(at, _)| at + 1)
    }
}

/// Returns the mark that begins a comment's line, and the text after it.
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

/// Returns the name of the function that a line begins.
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
        // A function without a body, or on one line, ends before the next line that is no deeper.
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

/// Calls `each` for every Rust file below a directory, with its text. Folders of compiled and of hidden things are left out.
pub fn each(dir: &Path, call: &mut dyn FnMut(&Path, &str)) -> Result<()> {
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
