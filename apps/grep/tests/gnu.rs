//! Tests of grep against GNU grep.

#![allow(clippy::unwrap_used, reason = "a test")]

use grep::Grep;
use mapreduce::{MapReduce, Split, Syntax, run_local};
use proto::{InputFile, JobId, JobStart, NodeId};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Returns the job, as the framework makes it.
fn grep(start: &JobStart) -> Result<Grep, String> {
    let syntax = Syntax { name: Grep::NAME, about: Grep::ABOUT, args: Grep::ARGS };
    syntax.read(&start.args).and_then(|args| Grep::new(start, &args))
}

/// Files that are deleted when this is dropped.
struct Files {
    folder: PathBuf,
    contents: Vec<(String, Vec<u8>)>,
}

impl Files {
    fn new(test: &str, contents: &[&[u8]]) -> Self {
        let folder = std::env::temp_dir().join(format!("ferrolite-grep-{}-{test}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut named = Vec::new();
        for (number, bytes) in contents.iter().enumerate() {
            let name = format!("file{number}");
            fs::write(folder.join(&name), bytes).unwrap();
            named.push((name, bytes.to_vec()));
        }
        Self { folder, contents: named }
    }

    fn ours(&self, args: &[&str], size: usize) -> Vec<u8> {
        let start = JobStart {
            job: JobId(1),
            app: "grep".into(),
            args: args.iter().map(|&a| a.into()).collect(),
            nodes: vec![NodeId(1)],
            inputs: self
                .contents
                .iter()
                .map(|(name, bytes)| InputFile { name: name.clone(), len: bytes.len() as u64 })
                .collect(),
            datasets: Vec::new(),
            share: 0,
            keep: false,
        };
        let mut splits = Vec::new();
        for (file, (_, bytes)) in self.contents.iter().enumerate() {
            let mut start = 0;
            while start < bytes.len() {
                let rest = bytes.get(start + size - 1..).unwrap_or_default();
                let allowed = rest.iter().position(|&b| Grep::cut().allows(b));
                let end = allowed.map_or(bytes.len(), |more| start + size + more);
                splits.push(Split { file: file as u32, offset: start as u64, bytes: &bytes[start..end] });
                start = end;
            }
        }
        // The order of splits does not matter.
        splits.reverse();
        run_local(&grep(&start).unwrap(), &splits).unwrap()
    }

    fn check(&self, args: &[&str]) {
        let gnu = Command::new("grep")
            .args(["-a", "-b", "-H", "-F"])
            .args(&args[..args.len() - 1])
            .args(["-e", args[args.len() - 1]])
            .args(self.contents.iter().map(|(name, _)| name))
            .current_dir(&self.folder)
            .env("LC_ALL", "C")
            .output()
            .expect("grep runs");
        assert!(gnu.stderr.is_empty());
        for size in [1, 5, 1000, 1 << 20] {
            let ours = self.ours(args, size);
            assert!(
                ours == gnu.stdout,
                "{args:?}, cut every {size} bytes: {}",
                String::from_utf8_lossy(&ours)
            );
        }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn lines_of_text() {
    let text = include_bytes!("../../../LICENSE-APACHE");
    let files = Files::new("text", &[text, include_bytes!("gnu.rs"), b""]);
    for args in [&["license"][..], &["-i", "LiCeNsE"], &["e"], &["no such line"], &[""], &["-i", ""], &["  "]]
    {
        files.check(args);
    }
}

#[test]
fn corner_cases() {
    let long = vec![b'a'; 300_000];
    let files = Files::new(
        "corner",
        &[b"", b"\n", b"\n\n\n", b"ab", b"ab\nab", b"xabab\n\nAB\xff\xfeab\0ab\n", &long, b"a\n\nb\n"],
    );
    for args in [&["ab"][..], &["a"], &["-i", "AB"], &[""], &["b"], &["aa"]] {
        files.check(args);
    }
}

#[test]
fn bad_arguments_are_refused() {
    let start = |args: &[&str]| JobStart {
        job: JobId(1),
        app: "grep".into(),
        args: args.iter().map(|&a| a.into()).collect(),
        nodes: vec![],
        inputs: vec![],
        datasets: Vec::new(),
        share: 0,
        keep: false,
    };
    for args in [&[][..], &["-v", "x"], &["a", "b"], &["a\nb"], &["-i", "a", "b"]] {
        assert!(grep(&start(args)).is_err(), "{args:?}");
    }
}
