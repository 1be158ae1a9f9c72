//! Says what is wrong with the merged configuration, and finds what is only unknown in it.

use figment::error::{Actual, Kind};

use super::layers::Layers;
use crate::error::ConfigError;
use crate::nearest::nearest;
use crate::security;

/// The path of the key or value that an error is about, if a start ignores it: this version does not know it, and it
/// is none of security.
pub(super) fn ignorable(error: &figment::Error) -> Option<Vec<String>> {
    match &error.kind {
        Kind::UnknownField(field, known) => {
            let section = section_of(&error.path, field);
            let meant = nearest(field, known.iter().copied());
            (!security::is_unknown_key_refused(section, meant))
                .then(|| [section, std::slice::from_ref(field)].concat())
        }
        Kind::UnknownVariant(..) => {
            (!security::is_value_refused(&error.path)).then(|| error.path.clone())
        }
        Kind::Message(_)
        | Kind::InvalidType(..)
        | Kind::InvalidValue(..)
        | Kind::InvalidLength(..)
        | Kind::MissingField(_)
        | Kind::DuplicateField(_)
        | Kind::ISizeOutOfRange(_)
        | Kind::USizeOutOfRange(_)
        | Kind::Unsupported(_)
        | Kind::UnsupportedKey(..) => None,
    }
}

/// The section of an unknown key: figment's path leads either to it or to the key itself.
fn section_of<'p>(path: &'p [String], field: &str) -> &'p [String] {
    match path.split_last() {
        Some((last, section)) if last == field => section,
        Some(_) | None => path,
    }
}

/// The error, with the position of its value and words of TOML.
pub(super) fn explain(layers: &Layers, error: figment::Error) -> ConfigError {
    let figment::Error { path, kind, .. } = error;
    let key = path.join(".");
    let wrong = |expected: String, found: String| ConfigError::WrongType {
        location: layers.origin_of(&path),
        key: key.clone(),
        expected,
        found,
    };
    match kind {
        Kind::UnknownField(field, known) => {
            let section = section_of(&path, &field);
            let full = [section, std::slice::from_ref(&field)].concat();
            let hint = match nearest(&field, known.iter().copied()) {
                Some(meant) => format!("did you mean \"{meant}\"?"),
                None => format!("known keys are {}", known.join(", ")),
            };
            ConfigError::UnknownKey {
                location: layers.origin_of(&full),
                section: section.join("."),
                key: field,
                hint,
            }
        }
        Kind::InvalidType(found, expected) | Kind::InvalidValue(found, expected) => {
            wrong(article(&expected), show_actual(&found))
        }
        Kind::InvalidLength(found, expected) => wrong(expected, format!("{found} items")),
        Kind::UnknownVariant(found, known) => {
            let words: Vec<String> = known.iter().map(|word| format!("{word:?}")).collect();
            wrong(format!("one of {}", words.join(", ")), format!("{found:?}"))
        }
        kind @ (Kind::Message(_)
        | Kind::MissingField(_)
        | Kind::DuplicateField(_)
        | Kind::ISizeOutOfRange(_)
        | Kind::USizeOutOfRange(_)
        | Kind::Unsupported(_)
        | Kind::UnsupportedKey(..)) => ConfigError::Invalid {
            location: layers.origin_of(&path),
            key,
            why: kind.to_string(),
        },
    }
}

// === words ===

/// TOML's names for types, instead of serde's, which are Rust's.
fn article(expected: &str) -> String {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => "an integer that is not negative".into(),
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "an integer".into(),
        "path string" => "a string (a path)".into(),
        "a boolean" => "true or false".into(),
        "a sequence" => "an array".into(),
        "a map" => "a table".into(),
        other if other.starts_with("struct ") => "a table".into(),
        other if other.starts_with("enum ") => "a string".into(),
        other => other.into(),
    }
}

/// A value with its type, in TOML's words.
pub(super) fn show_actual(actual: &Actual) -> String {
    match actual {
        Actual::Bool(value) => format!("the boolean {value}"),
        Actual::Unsigned(value) => format!("the integer {value}"),
        Actual::Signed(value) => format!("the integer {value}"),
        Actual::Float(value) => format!("the number {value}"),
        Actual::Char(value) => format!("the string \"{value}\""),
        Actual::Str(value) => format!("the string {value:?}"),
        Actual::Seq => "an array".into(),
        Actual::Map => "a table".into(),
        Actual::Bytes(_)
        | Actual::Unit
        | Actual::Option
        | Actual::NewtypeStruct
        | Actual::Enum
        | Actual::UnitVariant
        | Actual::NewtypeVariant
        | Actual::TupleVariant
        | Actual::StructVariant
        | Actual::Other(_) => actual.to_string(),
    }
}
