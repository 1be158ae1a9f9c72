//! Prints the effective configuration.

use std::fmt::Write as _;

use toml::{Table, Value};

use super::change::Effective;

impl Effective {
    /// The configuration as TOML; with `origin`, each line has a comment with the source of its
    /// value.
    #[must_use]
    pub fn dump(&self, origin: bool) -> String {
        let mut out = String::new();
        self.table(&mut out, &mut Vec::new(), &self.values, origin);
        out
    }

    fn table(&self, out: &mut String, path: &mut Vec<String>, table: &Table, origin: bool) {
        let (tables, values): (Vec<_>, Vec<_>) =
            table.iter().partition(|(_, value)| value.is_table());
        if !path.is_empty() && (!values.is_empty() || tables.is_empty()) {
            let name: Vec<String> = path.iter().map(|step| key(step)).collect();
            append(out, format_args!("\n[{}]\n", name.join(".")));
        }
        for (name, value) in values {
            path.push(name.clone());
            append(out, format_args!("{} = {value}", key(name)));
            if origin {
                append(out, format_args!("  # {}", self.origin_of(path)));
            }
            out.push('\n');
            path.pop();
        }
        for (name, value) in tables {
            path.push(name.clone());
            if let Value::Table(below) = value {
                self.table(out, path, below, origin);
            }
            path.pop();
        }
    }
}

fn append(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text)
        .expect("writing to a string cannot fail");
}

/// A key in TOML syntax.
fn key(name: &str) -> String {
    let bare = !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    if bare {
        name.to_owned()
    } else {
        Value::String(name.to_owned()).to_string()
    }
}
