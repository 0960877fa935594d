//! The documentation names only existing cases.

use semantics::CASES;

const DOCS: &str = concat!(
    include_str!("../../../../docs/reference/lite-calls.md"),
    include_str!("../../../../docs/reference/lite-defects.md")
);

#[test]
fn cases_that_are_named_exist() {
    let subjects: Vec<_> = CASES.iter().filter_map(|case| case.name.split("::").next()).collect();
    let named = DOCS
        .split('`')
        .filter(|word| word.split_once("::").is_some_and(|(subject, _)| subjects.contains(&subject)));
    let mut count = 0;
    for name in named {
        assert!(CASES.iter().any(|case| case.name == name), "docs/reference names `{name}`");
        count += 1;
    }
    assert!(count > 30, "docs/reference names {count} cases");
}

#[test]
fn each_case_has_a_name_of_its_own() {
    for (i, case) in CASES.iter().enumerate() {
        assert!(CASES.iter().skip(i + 1).all(|other| other.name != case.name), "{}", case.name);
    }
}
