//! Evaluates SPDX licence expressions against a list of licences.

use std::collections::BTreeSet;

/// Returns whether the `allowed` licences alone meet the expression. One that is unreadable is not allowed.
pub(super) fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    // Older crates write `A/B` for `A OR B`.
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any(&mut rest, allowed) == Some(true) && rest.is_empty()
}

fn any(rest: &mut &[&str], allowed: &BTreeSet<&str>) -> Option<bool> {
    let mut met = all(rest, allowed)?;
    while take(rest, "OR") {
        met |= all(rest, allowed)?;
    }
    Some(met)
}

fn all(rest: &mut &[&str], allowed: &BTreeSet<&str>) -> Option<bool> {
    let mut met = one(rest, allowed)?;
    while take(rest, "AND") {
        met &= one(rest, allowed)?;
    }
    Some(met)
}

fn one(rest: &mut &[&str], allowed: &BTreeSet<&str>) -> Option<bool> {
    if take(rest, "(") {
        let met = any(rest, allowed)?;
        return take(rest, ")").then_some(met);
    }
    let (name, after) = rest.split_first()?;
    *rest = after;
    if !take(rest, "WITH") {
        return Some(allowed.contains(name));
    }
    let (exception, after) = rest.split_first()?;
    *rest = after;
    Some(allowed.contains(format!("{name} WITH {exception}").as_str()))
}

fn take(rest: &mut &[&str], word: &str) -> bool {
    let found = rest.first() == Some(&word);
    if found {
        *rest = &rest[1..];
    }
    found
}

#[test]
fn spdx_expressions_are_evaluated() {
    let allowed = BTreeSet::from([
        "MIT",
        "Apache-2.0",
        "Unicode-3.0",
        "Apache-2.0 WITH LLVM-exception",
    ]);
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0-only", false),
        ("MIT OR GPL-3.0-only", true),
        ("GPL-2.0/MIT", true),
        ("MIT AND GPL-3.0-only", false),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("GPL-3.0-only OR (MIT AND OpenSSL)", false),
        ("Apache-2.0 WITH LLVM-exception OR GPL-3.0-only", true),
        ("GPL-2.0 WITH Classpath-exception-2.0", false),
        ("", false),
        ("MIT OR", false),
        ("(MIT", false),
        ("MIT MIT", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), expected, "{expression:?}");
    }
}
