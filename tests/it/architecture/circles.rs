//! Import cycles between files: such files can be understood only together, so cycles must be small, and must
//! not grow. What counts as an import is in `switchyard_source::imports`.

use std::path::Path;

use switchyard_source::circles;
use switchyard_source::imports::imports;

use super::repository;
use super::source::sources;

/// As many files may a circle have at most.
const MOST: usize = 6;

#[test]
fn import_cycles_stay_small() {
    let mut wrong = Vec::new();
    for source in sources() {
        for circle in circles(&imports(&source.root)) {
            if circle.len() > MOST {
                let files: Vec<String> = circle.iter().map(|file| relative(file)).collect();
                wrong.push(format!("{}: {} files:\n    {}", source.name, files.len(), files.join("\n    ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn relative(file: &Path) -> String {
    file.strip_prefix(repository()).unwrap_or(file).display().to_string()
}
