//! Import circles between files: such files can be understood only together. A file with those below it (`x.rs` and `x/…`) is
//! one idea, and may be a circle; a circle of two ideas is on the list here, with its reason. Circles of tests have to be small
//! alone. What counts as an import is in `switchyard_source::imports`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use switchyard_source::circles;
use switchyard_source::imports::imports;

use super::repository;
use super::source::sources;

/// As many files may a circle have at most.
const MOST: usize = 6;

/// Circles of more than one idea, each by one of its files, and why they stay.
const EXEMPT: &[(&str, &str)] = &[];

#[test]
fn import_circles_are_small_and_of_one_idea() {
    let mut unused: BTreeSet<&str> = EXEMPT.iter().map(|(file, _)| *file).collect();
    let mut wrong = Vec::new();
    for source in sources() {
        for circle in circles(&imports(&source.root)) {
            let files: Vec<String> = circle.iter().map(|file| relative(file)).collect();
            let exempt = files
                .iter()
                .find(|file| EXEMPT.iter().any(|(exempt, _)| exempt == file));
            if let Some(exempt) = exempt {
                unused.remove(exempt.as_str());
            }
            let is_of_tests = files.iter().all(|file| file.starts_with("tests/"));
            let is_allowed = is_of_tests || exempt.is_some() || is_one_idea(&circle);
            if circle.len() > MOST || !is_allowed {
                wrong.push(format!(
                    "{}: {} files:\n    {}",
                    source.name,
                    files.len(),
                    files.join("\n    ")
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "move what points the wrong way into the lower file:\n{}",
        wrong.join("\n")
    );
    assert!(
        unused.is_empty(),
        "these are in no circle of two ideas any more: {unused:?}"
    );
    assert!(EXEMPT.iter().all(|(_, why)| !why.is_empty()));
}

/// Returns whether these files are one file and others below it. The root of a crate, above all, is no idea.
fn is_one_idea(files: &[PathBuf]) -> bool {
    let is_root = |file: &Path| file.ends_with("lib.rs") || file.ends_with("main.rs");
    files.iter().any(|above| {
        let dir = above.with_extension("");
        !is_root(above)
            && files
                .iter()
                .all(|file| file == above || file.starts_with(&dir))
    })
}

fn relative(file: &Path) -> String {
    file.strip_prefix(repository())
        .unwrap_or(file)
        .display()
        .to_string()
}

#[test]
fn a_file_with_those_below_it_is_one_idea() {
    let of = |files: &[&str]| is_one_idea(&files.iter().map(PathBuf::from).collect::<Vec<_>>());
    assert!(of(&["a/x.rs", "a/x/y.rs", "a/x/y/z.rs"]));
    assert!(
        !of(&["a/x.rs", "a/xy/z.rs"])
            && !of(&["a/x/y.rs", "a/x/z.rs"])
            && !of(&["a/lib.rs", "a/lib/x.rs"])
    );
}
