//! The glossary of `ARCHITECTURE.md` is complete, sorted, and has no term that nothing uses.

use std::collections::BTreeSet;
use std::fs;

use super::files::files;
use super::repository;

/// Words that are no standard terms, or mean something special here. A name in the code that uses one of them
/// is understood only with the glossary.
const REQUIRED: [&str; 28] = [
    "adopt",
    "bind",
    "busy cgroup",
    "claim",
    "claim group",
    "cleanup queue",
    "creates in flight",
    "exec permit",
    "grace",
    "hosted plugin",
    "infra container",
    "instance",
    "keyed lock",
    "launcher",
    "lease",
    "ledger",
    "lifeline",
    "logkeeper",
    "persisted exit",
    "pin",
    "predecessor",
    "predecessor call",
    "protected exit",
    "record",
    "remnant",
    "slot",
    "spool",
    "step",
];

/// The terms, in the order of the text. Each has one line: `- **term**: meaning.`
fn terms() -> Vec<String> {
    let text = fs::read_to_string(repository().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md is there");
    let (_, glossary) = text.split_once("### Glossary").expect("ARCHITECTURE.md has a glossary");
    let glossary = glossary.split("\n#").next().unwrap_or_default();
    let terms = glossary.lines().filter_map(|line| line.strip_prefix("- **")).map(|line| {
        let (term, meaning) =
            line.split_once("**: ").unwrap_or_else(|| panic!("not `- **term**: meaning.`: {line}"));
        assert!(meaning.ends_with('.'), "the meaning of {term} is no sentence on one line");
        term.to_owned()
    });
    terms.collect()
}

#[test]
fn glossary_terms_are_unique_and_sorted() {
    let terms = terms();
    let mut sorted = terms.clone();
    sorted.sort_by_key(|term| term.to_lowercase());
    sorted.dedup();
    assert_eq!(terms, sorted, "the glossary is sorted, and has each term once");
    let known: BTreeSet<&str> = terms.iter().flat_map(|term| term.split('/')).collect();
    let missing: Vec<&&str> = REQUIRED.iter().filter(|term| !known.contains(**term)).collect();
    assert!(missing.is_empty(), "the glossary lacks {missing:?}");
}

#[test]
fn glossary_terms_are_all_used() {
    let mut source = String::new();
    for path in files(&[".rs"]) {
        source.push_str(&fs::read_to_string(&path).expect("a source file can be read").to_lowercase());
    }
    // `cleanup queue` is `CleanupQueue`, `cleanup_queue`, or these words in a comment.
    let letters: String = source.chars().filter(|letter| letter.is_alphanumeric()).collect();
    let unused: Vec<String> = terms()
        .into_iter()
        .filter(|term| {
            term.split('/').all(|one| {
                let one: String =
                    one.to_lowercase().chars().filter(|letter| letter.is_alphanumeric()).collect();
                !letters.contains(&one)
            })
        })
        .collect();
    assert!(unused.is_empty(), "nothing uses {unused:?}");
}
