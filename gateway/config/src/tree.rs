//! TOML tables as trees: values by their paths.

use std::collections::BTreeMap;

use toml::{Table, Value};

/// The steps of a dotted key.
pub(super) fn path_of(key: &str) -> Vec<String> {
    key.split('.').map(str::to_owned).collect()
}

/// The value at a path; `None` within an array.
pub(super) fn get<'t>(table: &'t Table, path: &[String]) -> Option<&'t Value> {
    let (first, rest) = path.split_first()?;
    rest.iter()
        .try_fold(table.get(first)?, |value, step| value.as_table()?.get(step))
}

/// The values of a table that are no tables, by their paths; a table for which `is_whole` holds counts as one
/// value.
pub(super) fn leaves(
    table: &Table,
    is_whole: fn(&[String]) -> bool,
) -> BTreeMap<Vec<String>, &Value> {
    let mut found = BTreeMap::new();
    collect(table, is_whole, &mut Vec::new(), &mut found);
    found
}

fn collect<'t>(
    table: &'t Table,
    is_whole: fn(&[String]) -> bool,
    path: &mut Vec<String>,
    found: &mut BTreeMap<Vec<String>, &'t Value>,
) {
    for (name, value) in table {
        path.push(name.clone());
        match value.as_table().filter(|_| !is_whole(path)) {
            Some(below) => collect(below, is_whole, path, found),
            None => {
                found.insert(path.clone(), value);
            }
        }
        path.pop();
    }
}

/// Sets or removes the value at a path.
pub(super) fn set(table: &mut Table, path: &[String], value: Option<&Value>) {
    let Some((name, rest)) = path.split_first() else {
        return;
    };
    if rest.is_empty() {
        match value {
            Some(value) => table.insert(name.clone(), value.clone()),
            None => table.remove(name),
        };
        return;
    }
    if let Value::Table(below) = table
        .entry(name.clone())
        .or_insert_with(|| Value::Table(Table::new()))
    {
        set(below, rest, value);
    }
}
