//! `cargo xtask effort`: the paper's table of the effort for applications, repeated for ours.

use crate::bench::Table;
use crate::language::each_source;
use anyhow::{Context, Result};
use lab::paths;
use std::collections::BTreeSet;
use std::path::Path;
use syn::visit::{self, Visit};

/// An application, and its counterpart in LITE's paper.
struct Application {
    name: &'static str,
    /// The folders of its code.
    folders: &'static [&'static str],
    /// The paper's lines of code, lines that use LITE, and days of a student, from the authors' slides.
    paper: Option<(&'static str, u32, u32)>,
}

/// The applications in the order of the paper's table.
const APPLICATIONS: [Application; 6] = [
    Application { name: "LITE-Log", folders: &["apps/log"], paper: Some(("330", 36, 1)) },
    Application {
        name: "LITE-MapReduce, with word count",
        folders: &["apps/mapreduce", "apps/wordcount"],
        paper: Some(("600 of 3000", 49, 4)),
    },
    Application { name: "LITE-Graph", folders: &["apps/graph"], paper: Some(("1400", 20, 7)) },
    Application { name: "LITE-Kernel-DSM", folders: &[], paper: Some(("3000", 45, 26)) },
    Application { name: "LITE-Graph-DSM", folders: &[], paper: Some(("1300", 0, 5)) },
    Application { name: "the runtime of jobs", folders: &["apps/runtime"], paper: None },
];

/// Methods of LITE that are no operations.
const NOT_COUNTED: [&str; 12] =
    ["clone", "data", "drop", "fmt", "from", "get", "into_data", "is_empty", "len", "new", "next", "poll"];
/// Methods of LITE whose names are common: they count if the receiver is known to be LITE's.
const COMMON: [&str; 10] =
    ["close", "fetch_add", "free", "load", "lock", "map", "name", "read", "store", "write"];

/// The counts of one application.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    files: u32,
    lines: u32,
    lite: u32,
}

/// Prints the table.
pub(crate) fn effort() -> Result<()> {
    let lite = Names::of(&[paths::root().join("lite/src").as_path()], &mut Names::methods)?;
    let remark = "lines without blanks, comments and tests, formatted for 110 columns; with LITE: lines that call a method of \
                  a public type of the crate lite, by its name, or name a path of the crate, imports aside. LITE-MapReduce \
                  and LITE-Graph reach LITE through the runtime, which they share. The paper's numbers are those \
                  of the authors' slides; LITE-MapReduce there changes 600 of Phoenix's 3,000 lines";
    let heads = ["application", "lines", "with LITE", "files", "the paper: lines", "with LITE", "days"];
    let mut table = Table::new("Effort", remark, &heads);
    for application in APPLICATIONS {
        let ours = if application.folders.is_empty() { None } else { Some(application.count(&lite)?) };
        let number = |of: fn(&Count) -> u32| ours.as_ref().map_or("-".into(), |count| of(count).to_string());
        let paper = application
            .paper
            .map(|(lines, lite, days)| [lines.to_owned(), lite.to_string(), days.to_string()]);
        let [lines, with, days] = paper.unwrap_or_else(|| std::array::from_fn(|_| "-".to_owned()));
        let name = application.name.to_owned();
        table.row([name, number(|c| c.lines), number(|c| c.lite), number(|c| c.files), lines, with, days]);
    }
    println!("{}", table.text());
    Ok(())
}

impl Application {
    fn count(&self, lite: &BTreeSet<String>) -> Result<Count> {
        let folders: Vec<_> =
            self.folders.iter().map(|folder| paths::root().join(folder).join("src")).collect();
        let folders: Vec<&Path> = folders.iter().map(AsRef::as_ref).collect();
        let own = Names::of(&folders, &mut Names::functions)?;
        let handles = Names::of(&folders, &mut Names::handles)?;
        let calls = Calls { lite, own: &own, handles: &handles };
        let mut count = Count::default();
        for folder in folders {
            each_source(folder, &mut |path, text| {
                if !path.components().any(|part| part.as_os_str() == "tests") {
                    count.add(text, &calls);
                }
            })?;
        }
        Ok(count)
    }
}

impl Count {
    fn add(&mut self, text: &str, calls: &Calls<'_>) {
        self.files += 1;
        for line in code(text) {
            self.lines += 1;
            self.lite += u32::from(calls.are_in(line));
        }
    }
}

/// Returns the lines of a file that are neither blank nor comments nor tests. The file is formatted by
/// `rustfmt`, so the closing brace of a test has the indentation of its attribute.
fn code(text: &str) -> Vec<&str> {
    let mut code = Vec::new();
    let mut lines = text.lines().filter(|line| {
        let line = line.trim_start();
        !line.is_empty() && !line.starts_with("//")
    });
    while let Some(line) = lines.next() {
        if !line.trim_start().starts_with("#[cfg(test)]") {
            code.push(line);
            continue;
        }
        let end = format!("{}}}", " ".repeat(line.len() - line.trim_start().len()));
        let mut item = lines.by_ref().skip_while(|line| line.trim_start().starts_with("#["));
        if item.next().is_some_and(|first| !first.ends_with([';', '}'])) {
            item.find(|line| *line == end);
        }
    }
    code
}

/// The names by which calls into LITE are found.
struct Calls<'a> {
    /// The methods of LITE's public types.
    lite: &'a BTreeSet<String>,
    /// The application's own functions, which may have the same names.
    own: &'a BTreeSet<String>,
    /// The fields and arguments of the application whose types are LITE's.
    handles: &'a BTreeSet<String>,
}

impl Calls<'_> {
    fn are_in(&self, line: &str) -> bool {
        let is_import = ["use ", "pub use "].iter().any(|word| line.trim_start().starts_with(word));
        if is_import {
            return false;
        }
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let path = line.match_indices("lite::").any(|(at, _)| !line[..at].ends_with(is_name));
        path || line.match_indices('.').any(|(at, _)| {
            let (before, after) = (&line[..at], &line[at + 1..]);
            let name = after.split_once('(').map_or("", |(name, _)| name);
            let receiver = before.rsplit(|c| !is_name(c)).next().unwrap_or_default();
            let is_common = COMMON.contains(&name) || self.own.contains(name);
            let is_handle = self.handles.contains(receiver) || ["lite", "lock"].contains(&receiver);
            self.lite.contains(name) && (is_handle || !is_common)
        })
    }
}

/// Names that are found in syntax trees.
#[derive(Default)]
struct Names {
    names: BTreeSet<String>,
    kind: Kind,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Kind {
    /// The public methods.
    #[default]
    Methods,
    /// All functions and methods.
    Functions,
    /// The fields and arguments of LITE's types.
    Handles,
}

/// LITE's types whose methods are operations.
const HANDLES: [&str; 9] =
    ["Lite", "Lmr", "Mailbox", "Lock", "LockGuard", "Counter", "Event", "Barrier", "Server"];

impl Names {
    /// Returns the names in all files of some folders.
    fn of(
        folders: &[&Path],
        find: &mut dyn FnMut(&syn::File) -> BTreeSet<String>,
    ) -> Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        let mut failed = None;
        for folder in folders {
            each_source(folder, &mut |path, text| {
                if path.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "testing")
                {
                    return;
                }
                match syn::parse_file(text) {
                    Ok(file) => names.extend(find(&file)),
                    Err(error) => failed = Some((path.to_owned(), error)),
                }
            })?;
        }
        match failed {
            None => Ok(names),
            Some((path, error)) => Err(error).with_context(|| format!("cannot parse {}", path.display())),
        }
    }

    fn found(file: &syn::File, kind: Kind) -> BTreeSet<String> {
        let mut found = Self { kind, ..Self::default() };
        found.visit_file(file);
        found.names
    }

    fn methods(file: &syn::File) -> BTreeSet<String> {
        let mut names = Self::found(file, Kind::Methods);
        names.retain(|name| !NOT_COUNTED.contains(&name.as_str()));
        names
    }

    fn functions(file: &syn::File) -> BTreeSet<String> {
        Self::found(file, Kind::Functions)
    }

    fn handles(file: &syn::File) -> BTreeSet<String> {
        Self::found(file, Kind::Handles)
    }
}

/// Returns true if a type is one of LITE's handles, or has one as an argument.
fn is_handle(of: &syn::Type) -> bool {
    struct Found(bool);
    impl<'a> Visit<'a> for Found {
        fn visit_path_segment(&mut self, segment: &'a syn::PathSegment) {
            self.0 |= HANDLES.iter().any(|handle| segment.ident == handle);
            visit::visit_path_segment(self, segment);
        }
    }
    let mut found = Found(false);
    found.visit_type(of);
    found.0
}

impl<'a> Visit<'a> for Names {
    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        for part in &item.items {
            let syn::ImplItem::Fn(method) = part else { continue };
            let public = matches!(method.vis, syn::Visibility::Public(_));
            let wanted = match self.kind {
                Kind::Methods => public && item.trait_.is_none() && method.sig.receiver().is_some(),
                Kind::Functions => true,
                Kind::Handles => false,
            };
            if wanted {
                self.names.insert(method.sig.ident.to_string());
            }
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_field(&mut self, field: &'a syn::Field) {
        if let Some(name) = &field.ident
            && self.kind == Kind::Handles
            && is_handle(&field.ty)
        {
            self.names.insert(name.to_string());
        }
    }

    fn visit_pat_type(&mut self, argument: &'a syn::PatType) {
        if let syn::Pat::Ident(name) = &*argument.pat
            && self.kind == Kind::Handles
            && is_handle(&argument.ty)
        {
            self.names.insert(name.ident.to_string());
        }
        visit::visit_pat_type(self, argument);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "//! A file.\nuse lite::Lmr;\n\nstruct Own {\n    segment: Arc<Lmr>,\n    bytes: Vec<u8>,\n}\n\n\
                        impl Own {\n    // A comment.\n    fn write(&self, lmr: &Lmr) {\n        self.segment.write(0, &[]);\n\
                        \x20       self.bytes.write(0);\n        lmr.fetch_add(0, 1);\n        lite::start();\n    }\n}\n\n\
                        #[cfg(test)]\nmod tests {\n    fn f() {\n        lmr.read(0);\n    }\n}\nfn last() {}\n";

    #[test]
    fn lines_and_calls_are_counted() {
        let file = syn::parse_file(TEXT).unwrap();
        let (own, handles) = (Names::functions(&file), Names::handles(&file));
        assert!(own.contains("write") && handles.contains("segment") && handles.contains("lmr"));
        let lite = ["write", "fetch_add", "read"].map(String::from).into();
        let calls = Calls { lite: &lite, own: &own, handles: &handles };
        let mut count = Count::default();
        count.add(TEXT, &calls);
        assert_eq!(count, Count { files: 1, lines: 14, lite: 3 });
    }

    #[test]
    fn public_methods_are_found() {
        let text =
            "impl A { pub fn a(&self) {} fn b(&self) {} pub fn c() {} } impl T for A { fn d(&self) {} }";
        let names = Names::methods(&syn::parse_file(text).unwrap());
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["a"]);
    }
}
