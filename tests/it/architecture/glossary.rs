//! The glossary is sorted and short, has no term that nothing uses, and explains the names of public types that
//! are no standard terms.

use std::collections::BTreeSet;
use std::fs;

use super::files::files;
use super::repository;

/// The glossary, below the root of the repository.
const GLOSSARY: &str = "docs/glossary.md";

/// Maximum number of terms. A term that one place uses is explained by the doc comment there.
const MOST_TERMS: usize = 60;

/// Words in names of public types that are no standard terms: the names are understood only with the glossary.
/// No other entry is required.
const REQUIRED: [&str; 9] = [
    "launcher", "lease", "ledger", "lifeline", "owner", "pin", "remnant", "scope", "step",
];

/// The terms, in the order of the text. An entry is `- **term**: meaning.`; its further lines are indented.
fn terms() -> Vec<String> {
    let text = fs::read_to_string(repository().join(GLOSSARY)).expect("the glossary is there");
    let mut entries: Vec<String> = Vec::new();
    for line in text.lines().skip_while(|line| !line.starts_with("- ")) {
        match (line.strip_prefix("  "), entries.last_mut()) {
            (Some(rest), Some(entry)) => {
                entry.push(' ');
                entry.push_str(rest);
            }
            _ => entries.push(line.to_owned()),
        }
    }
    let terms = entries.iter().map(|entry| {
        let (term, meaning) = entry
            .strip_prefix("- **")
            .and_then(|entry| entry.split_once("**: "))
            .unwrap_or_else(|| panic!("not `- **term**: meaning.`: {entry}"));
        assert!(
            meaning.ends_with('.'),
            "the meaning of {term} does not end with a full stop"
        );
        term.to_owned()
    });
    terms.collect()
}

/// The letters and digits of a text, in lower case.
fn letters(text: &str) -> String {
    text.to_lowercase()
        .chars()
        .filter(|letter| letter.is_alphanumeric())
        .collect()
}

#[test]
fn glossary_terms_are_few_unique_and_sorted() {
    let terms = terms();
    let mut sorted = terms.clone();
    sorted.sort_by_key(|term| term.to_lowercase());
    sorted.dedup();
    assert_eq!(
        terms, sorted,
        "the glossary is sorted, and has each term once"
    );
    assert!(
        terms.len() <= MOST_TERMS,
        "the glossary has {} terms, more than {MOST_TERMS}",
        terms.len()
    );
    let known: BTreeSet<&str> = terms.iter().map(String::as_str).collect();
    let missing: Vec<&&str> = REQUIRED
        .iter()
        .filter(|term| !known.contains(**term))
        .collect();
    assert!(missing.is_empty(), "the glossary lacks {missing:?}");
}

#[test]
fn required_terms_are_words_of_public_types() {
    let mut types = BTreeSet::new();
    for path in files(&[".rs"]) {
        let text = fs::read_to_string(&path).expect("a source file can be read");
        types.extend(text.lines().filter_map(public_type).map(str::to_owned));
    }
    let has_word = |term: &str| {
        let (first, rest) = term.split_at(1);
        let word = first.to_uppercase() + rest;
        types.iter().any(|name| name.contains(&word))
    };
    let superfluous: Vec<&&str> = REQUIRED.iter().filter(|term| !has_word(term)).collect();
    assert!(
        superfluous.is_empty(),
        "no public type has the words {superfluous:?}: demand no entries for them"
    );
}

/// The name of the public type that a line declares.
fn public_type(line: &str) -> Option<&str> {
    let declared = line.trim_start().strip_prefix("pub ")?;
    let kinds = ["struct ", "enum ", "trait ", "type "];
    let name = kinds.iter().find_map(|kind| declared.strip_prefix(kind))?;
    name.split(|letter: char| !letter.is_alphanumeric()).next()
}

#[test]
fn glossary_terms_are_all_used() {
    let mut used = String::new();
    for path in files(&[".rs", ".md"]) {
        if !path.ends_with(GLOSSARY) && !path.ends_with("it/architecture/glossary.rs") {
            // `predecessor call` is `PredecessorCall`, `predecessor_call`, or these words in a text.
            used.push_str(&letters(
                &fs::read_to_string(&path).expect("a file of the repository is text"),
            ));
            used.push('\n');
        }
    }
    let unused: Vec<String> = terms()
        .into_iter()
        .filter(|term| !used.contains(&letters(term)))
        .collect();
    assert!(unused.is_empty(), "nothing uses {unused:?}");
}
