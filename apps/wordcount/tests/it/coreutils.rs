//! Tests of word count against the pipeline of standard tools that defines it.

use mapreduce::{MapReduce, Split, run_local};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::io::Write;
use std::process::{Command, Stdio};
use wordcount::WordCount;

/// The reference: reads from standard input.
const PIPELINE: &str = r#"export LC_ALL=C
tr -cs A-Za-z '\n' | tr A-Z a-z | sed '/^$/d' | sort | uniq -c | sed -E 's/^ *([0-9]+) (.*)$/\2\t\1/' |
sort -t "$(printf '\t')" -k2,2nr -k1,1"#;

fn reference(text: &[u8]) -> Vec<u8> {
    let mut shell = Command::new("sh")
        .args(["-c", PIPELINE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh runs");
    let mut stdin = shell.stdin.take().expect("stdin is a pipe");
    // `tr` at the front drains its input, whatever follows; `sort` holds the output until then.
    stdin.write_all(text).expect("the pipeline takes its input");
    drop(stdin);
    let output = shell.wait_with_output().expect("sh ends");
    assert!(output.status.success());
    output.stdout
}

/// Cuts as a manager would: at the first allowed byte behind every `size` bytes.
fn splits(text: &[u8], size: usize) -> Vec<Split<'_>> {
    let rule = WordCount::cut();
    let mut splits = Vec::new();
    let mut start = 0;
    while start < text.len() {
        let rest = text.get(start + size - 1..).unwrap_or_default();
        let end = rest.iter().position(|&b| rule.allows(b)).map_or(text.len(), |more| start + size + more);
        splits.push(Split { file: 0, offset: start as u64, bytes: &text[start..end] });
        start = end;
    }
    splits
}

fn check(text: &[u8]) {
    let expected = reference(text);
    for size in [1, 7, 100, 1 << 20] {
        if text.len() / size < 100_000 {
            assert!(
                run_local(&WordCount, &splits(text, size)).unwrap() == expected,
                "cut every {size} bytes"
            );
        }
    }
}

#[test]
fn corner_cases() {
    check(b"");
    check(b"\n");
    check(b"a");
    check(b"\xff");
    check(b"No final newline");
    check(b"  leading, trailing...  \n\n");
    check(b"don't mix-up snake_case and C3PO; E=mc^2 [A] `z` {Z} @a\0b");
    check(b"sixteenletterszz sixteenletterszzz Sixteenletterszz seventeenlettersx");
}

#[test]
fn one_word_of_a_megabyte() {
    let mut text = vec![b'x'; 1 << 20];
    text[500_000] = b'Q';
    check(&text);
    text.extend_from_slice(b" and ");
    text.extend(text.clone());
    check(&text);
}

#[test]
fn every_byte_value() {
    let text: Vec<u8> = (0..200_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    check(&text);
}

#[test]
fn this_crate_and_its_neighbours() {
    let mut text = Vec::new();
    for source in [
        include_str!("coreutils.rs"),
        include_str!("../../src/lib.rs"),
        include_str!("../../../../README.md"),
        include_str!("../../../../LICENSE-APACHE"),
        include_str!("../../../../Cargo.lock"),
    ] {
        text.extend_from_slice(source.as_bytes());
    }
    check(&text);
}

#[test]
fn random_words() {
    let word = prop_oneof![
        8 => "[a-cA-C]{1,4}",
        4 => "[a-z]{5,20}",
        1 => "[a-b]{15,18}",
        2 => "[ ,.\n\t0-9_-]{1,3}",
    ];
    let text = proptest::collection::vec((word, "[ \n'-]"), 0..2000);
    TestRunner::new(Config { cases: 12, ..Config::default() })
        .run(&text, |words| {
            let text: String = words.into_iter().flat_map(|(word, space)| [word, space]).collect();
            check(text.as_bytes());
            Ok(())
        })
        .unwrap();
}
