//! Rewrites a configuration file of an older version for this one.

use std::path::Path;

use toml_edit::{Item, Key, Table, TableLike, table};

use super::document::{Document, Location};
use super::error::ConfigError;
use super::load::read_file;
use super::removed::REMOVED;
use super::renamed::{RENAMED, RenamedKey};
use super::tree::path_of;

/// A file for this version.
#[derive(Debug, PartialEq, Eq)]
pub struct Migrated {
    /// Its content. Comments and the order of keys are as before; the comments above a deleted key go with it.
    pub text: String,
    /// The changes, each with its position in the former content.
    pub changes: Vec<String>,
}

/// A change of a key.
struct Edit {
    former: Vec<String>,
    /// `None`: it is deleted.
    present: Option<Vec<String>>,
}

/// Returns the content of a file with the keys of older versions renamed and deleted. Writes nothing.
///
/// # Errors
/// The file cannot be read, is no TOML, or does not state the version that this build reads.
pub fn migrate(path: &Path) -> Result<Migrated, ConfigError> {
    Ok(rewrite(path, read_file(path)?.document, RENAMED))
}

fn rewrite(path: &Path, document: Document, renamed: &[RenamedKey]) -> Migrated {
    let edits: Vec<Edit> = edits(&document, renamed);
    let changes = edits
        .iter()
        .map(|edit| {
            let line = document.line_of(&edit.former).unwrap_or(1);
            let path = path.to_owned();
            format!("{}: {}", Location::File { path, line }, edit.text())
        })
        .collect();
    let mut root = document.into_mut();
    for Edit { former, present } in &edits {
        match present {
            Some(present) => rename(root.as_table_mut(), former, present),
            None => drop(remove(root.as_table_mut(), former)),
        }
    }
    Migrated {
        text: root.to_string(),
        changes,
    }
}

/// The changes that a file needs. A renamed key beside one with the present name has no effect, and is deleted.
fn edits(document: &Document, renamed: &[RenamedKey]) -> Vec<Edit> {
    let renamed = renamed.iter().map(|renamed| {
        let present = path_of(renamed.to);
        let is_set_beside = document.line_of(&present).is_some();
        Edit {
            former: path_of(renamed.key),
            present: (!is_set_beside).then_some(present),
        }
    });
    let removed = REMOVED.iter().map(|removed| Edit {
        former: removed.path(),
        present: None,
    });
    renamed
        .chain(removed)
        .filter(|edit| document.line_of(&edit.former).is_some())
        .collect()
}

impl Edit {
    fn text(&self) -> String {
        let former = self.former.join(".");
        match &self.present {
            Some(present) => format!("{former} is renamed to {}", present.join(".")),
            None => format!("{former} is deleted, because it has no effect"),
        }
    }
}

/// The table at a path below another one.
fn table_at<'t>(table: &'t mut dyn TableLike, path: &[String]) -> Option<&'t mut dyn TableLike> {
    let Some((first, rest)) = path.split_first() else {
        return Some(table);
    };
    table_at(table.get_mut(first)?.as_table_like_mut()?, rest)
}

fn remove(root: &mut Table, path: &[String]) -> Option<(Key, Item)> {
    let (last, section) = path.split_last()?;
    let table = table_at(root, section)?;
    let key = table.key(last)?.clone();
    Some((key, table.remove(last)?))
}

/// Gives a key another path, at its place if it stays in its section.
fn rename(root: &mut Table, former: &[String], present: &[String]) {
    let Some((old, from)) = former.split_last() else {
        return;
    };
    let Some((new, to)) = present.split_last() else {
        return;
    };
    if from == to {
        if let Some(section) = table_at(root, from) {
            rename_within(section, old, new);
        }
        return;
    }
    let Some((key, item)) = remove(root, former) else {
        return;
    };
    let mut section: &mut dyn TableLike = root;
    for step in to {
        // A section of the wrong type makes the file invalid, with and without this key.
        match section
            .entry(step)
            .or_insert_with(table)
            .as_table_like_mut()
        {
            Some(below) => section = below,
            None => return,
        }
    }
    section.entry_format(&named(&key, new)).or_insert(item);
}

/// Renames one key of a section. All keys are inserted again, since a new one comes last.
fn rename_within(section: &mut dyn TableLike, old: &str, new: &str) {
    let names: Vec<String> = section.iter().map(|(name, _)| name.to_owned()).collect();
    for name in names {
        let Some(key) = section.key(&name).cloned() else {
            continue;
        };
        let Some(item) = section.remove(&name) else {
            continue;
        };
        let key = if name == old { named(&key, new) } else { key };
        section.entry_format(&key).or_insert(item);
    }
}

/// A key with the comments and spaces of another one.
fn named(key: &Key, name: &str) -> Key {
    Key::new(name)
        .with_leaf_decor(key.leaf_decor().clone())
        .with_dotted_decor(key.dotted_decor().clone())
}

#[cfg(test)]
mod tests;
