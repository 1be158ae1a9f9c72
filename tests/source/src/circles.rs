//! Circles: sets of files each of which leads to each other by imports, so that none can be understood without the others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The circles of two files and more among these imports, the largest first, by Tarjan's algorithm.
///
/// No two of them have a file in common: of circles that share a file, all files make one.
#[must_use]
pub fn circles(imports: &BTreeMap<PathBuf, BTreeSet<PathBuf>>) -> Vec<Vec<PathBuf>> {
    let mut search = Search {
        imports,
        numbers: BTreeMap::new(),
        open: Vec::new(),
        circles: Vec::new(),
    };
    for file in imports.keys() {
        if !search.numbers.contains_key(file.as_path()) {
            search.visit(file);
        }
    }
    search
        .circles
        .sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
    search.circles
}

struct Search<'a> {
    imports: &'a BTreeMap<PathBuf, BTreeSet<PathBuf>>,
    /// In which order files were reached.
    numbers: BTreeMap<&'a Path, usize>,
    /// Those of which it is not known yet whether they are in a circle.
    open: Vec<&'a Path>,
    circles: Vec<Vec<PathBuf>>,
}

impl<'a> Search<'a> {
    /// The lowest number among the open files that can be reached from here.
    fn visit(&mut self, file: &'a Path) -> usize {
        let number = self.numbers.len();
        let position = self.open.len();
        self.numbers.insert(file, number);
        self.open.push(file);
        let mut lowest = number;
        for next in self.imports.get(file).into_iter().flatten() {
            let reached = match self.numbers.get(next.as_path()) {
                None => self.visit(next),
                Some(known) if self.open.contains(&next.as_path()) => *known,
                Some(_) => continue,
            };
            lowest = lowest.min(reached);
        }
        if lowest == number {
            let mut circle: Vec<PathBuf> = self
                .open
                .split_off(position)
                .into_iter()
                .map(Path::to_owned)
                .collect();
            if circle.len() > 1 {
                circle.sort();
                self.circles.push(circle);
            }
        }
        lowest
    }
}
