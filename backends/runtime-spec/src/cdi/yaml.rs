//! Converts YAML to JSON, with limits on depth and number of values that are enforced during parsing, so that
//! neither nesting nor references can use more resources. Values without quotes are those of YAML 1.1, as the reference
//! implementation of CDI reads them: `0660` is octal, `yes` is true.

use std::collections::HashMap;
use std::str::Chars;

use serde_json::{Map, Number, Value};
use yaml_rust2::Event;
use yaml_rust2::parser::{Parser, Tag};
use yaml_rust2::scanner::TScalarStyle;

/// The maximum nesting depth of a document.
const MAX_DEPTH: usize = 32;
/// The maximum number of values in a document; values that are repeated by reference count each time.
const MAX_VALUES: usize = 200_000;

/// The handle of the tags of the types that every YAML has.
const CORE_TAG: &str = "tag:yaml.org,2002:";

/// The key whose value is an object, or a list of objects, with further entries.
const MERGE_KEY: &str = "<<";

/// Parses a text with a single document. The error describes what is wrong, also if the document is too large
/// or has what JSON cannot express.
pub(super) fn read(text: &str) -> Result<Value, String> {
    let mut parser: Parser<Chars<'_>> = Parser::new_from_str(text);
    let mut reader = Reader {
        open: Vec::new(),
        anchors: HashMap::new(),
        left: MAX_VALUES,
        document: None,
    };
    loop {
        match parser.next_token().map_err(|fault| fault.to_string())?.0 {
            Event::Nothing | Event::StreamStart | Event::DocumentEnd => {}
            Event::StreamEnd => {
                return reader
                    .document
                    .ok_or_else(|| "it holds no document".to_owned());
            }
            Event::DocumentStart if reader.document.is_some() => {
                return Err("it holds several documents".to_owned());
            }
            Event::DocumentStart => {}
            Event::SequenceStart(anchor, _) => reader.open(anchor, Content::List(Vec::new()))?,
            Event::MappingStart(anchor, _) => {
                reader.open(anchor, Content::Object(Map::new(), None))?
            }
            Event::SequenceEnd | Event::MappingEnd => reader.close()?,
            Event::Scalar(text, TScalarStyle::Plain, _, None)
                if text == MERGE_KEY && reader.merge() => {}
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar(text, style, tag.as_ref())?;
                reader.scalar(value, anchor)?;
            }
            Event::Alias(anchor) => reader.alias(anchor)?,
        }
    }
}

/// Builds a document from the events of a parser.
struct Reader {
    /// The lists and objects that are not complete, the outermost first.
    open: Vec<Open>,
    /// Values that can be repeated by reference.
    anchors: HashMap<usize, Done>,
    /// Number of values that the document may still have.
    left: usize,
    document: Option<Value>,
}

struct Open {
    /// The number of its anchor; 0 for none.
    anchor: usize,
    content: Content,
    /// Number of values in it, and the depth of their nesting.
    values: usize,
    depth: usize,
}

enum Content {
    List(Vec<Value>),
    /// An object, with the key whose value comes next.
    Object(Map<String, Value>, Option<Key>),
}

enum Key {
    Name(String),
    /// [`MERGE_KEY`].
    Merge,
}

/// A complete value.
#[derive(Clone)]
struct Done {
    value: Value,
    /// Number of values of which it consists, including itself, and the depth of their nesting.
    values: usize,
    depth: usize,
}

// === impl Reader ===

impl Reader {
    fn open(&mut self, anchor: usize, content: Content) -> Result<(), String> {
        self.charge(1, 1)?;
        self.open.push(Open {
            anchor,
            content,
            values: 1,
            depth: 0,
        });
        Ok(())
    }

    fn close(&mut self) -> Result<(), String> {
        let Some(Open {
            anchor,
            content,
            values,
            depth,
        }) = self.open.pop()
        else {
            return Err("it ends more than it began".to_owned());
        };
        let value = match content {
            Content::List(items) => Value::Array(items),
            Content::Object(_, Some(Key::Name(key))) => {
                return Err(format!("key {key:?} has no value"));
            }
            Content::Object(_, Some(Key::Merge)) => {
                return Err(format!("key {MERGE_KEY:?} has no value"));
            }
            Content::Object(object, None) => Value::Object(object),
        };
        self.insert(
            anchor,
            Done {
                value,
                values,
                depth: depth + 1,
            },
        )
    }

    fn scalar(&mut self, value: Value, anchor: usize) -> Result<(), String> {
        self.charge(1, 1)?;
        self.insert(
            anchor,
            Done {
                value,
                values: 1,
                depth: 1,
            },
        )
    }

    /// Takes a merge key, if a key comes next.
    fn merge(&mut self) -> bool {
        match self.open.last_mut().map(|open| &mut open.content) {
            Some(Content::Object(_, key @ None)) => {
                *key = Some(Key::Merge);
                true
            }
            Some(Content::Object(_, Some(_)) | Content::List(_)) | None => false,
        }
    }

    fn alias(&mut self, anchor: usize) -> Result<(), String> {
        // An anchor that refers to itself is not complete yet.
        let done = self
            .anchors
            .get(&anchor)
            .cloned()
            .ok_or("it has a value that is none")?;
        // An alias counts with all its values: a few nested ones expand to billions.
        self.charge(done.values, done.depth)?;
        self.insert(0, done)
    }

    /// Counts values of this depth below the open ones; fails beyond the limits.
    fn charge(&mut self, values: usize, depth: usize) -> Result<(), String> {
        let left = self
            .left
            .checked_sub(values)
            .filter(|_| self.open.len() + depth <= MAX_DEPTH);
        self.left = left.ok_or("it is too large")?;
        Ok(())
    }

    /// Adds a value to the innermost open list or object, or makes it the document.
    fn insert(&mut self, anchor: usize, done: Done) -> Result<(), String> {
        if anchor > 0 {
            self.anchors.insert(anchor, done.clone());
        }
        let Done {
            value,
            values,
            depth,
        } = done;
        let Some(open) = self.open.last_mut() else {
            self.document = Some(value);
            return Ok(());
        };
        (open.values, open.depth) = (open.values + values, open.depth.max(depth));
        match &mut open.content {
            Content::List(items) => items.push(value),
            Content::Object(object, key) => match key.take() {
                None => match value {
                    Value::String(text) => *key = Some(Key::Name(text)),
                    simple @ (Value::Bool(_) | Value::Number(_)) => {
                        *key = Some(Key::Name(simple.to_string()));
                    }
                    other @ (Value::Null | Value::Array(_) | Value::Object(_)) => {
                        return Err(format!("{other} is no key"));
                    }
                },
                Some(Key::Name(key)) => put(object, key, value)?,
                Some(Key::Merge) => merge(object, value)?,
            },
        }
        Ok(())
    }
}

fn put(object: &mut Map<String, Value>, key: String, value: Value) -> Result<(), String> {
    if object.contains_key(&key) {
        return Err(format!("key {key:?} is there twice"));
    }
    object.insert(key, value);
    Ok(())
}

/// Adds the entries of the value of a merge key. As in the reference implementation, none may be there already.
fn merge(object: &mut Map<String, Value>, value: Value) -> Result<(), String> {
    let parts = match value {
        Value::Array(parts) => parts,
        one @ (Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Object(_)) => vec![one],
    };
    for part in parts {
        let Value::Object(entries) = part else {
            return Err(format!("the value of {MERGE_KEY:?} is no object"));
        };
        for (key, value) in entries {
            put(object, key, value)?;
        }
    }
    Ok(())
}

/// The value of a scalar.
fn scalar(text: String, style: TScalarStyle, tag: Option<&Tag>) -> Result<Value, String> {
    match tag.map(|tag| (tag.handle.as_str(), tag.suffix.as_str())) {
        None if style == TScalarStyle::Plain => Ok(plain(&text)),
        None | Some((CORE_TAG, "str")) => Ok(Value::String(text)),
        Some((CORE_TAG, "int" | "float" | "bool" | "null")) => Ok(plain(&text)),
        Some((handle, suffix)) => Err(format!("tag {handle}{suffix} is not supported")),
    }
}

/// The value of a text without quotes.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" | "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => {
            Value::Bool(true)
        }
        "false" | "False" | "FALSE" | "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => {
            Value::Bool(false)
        }
        text => number(text).unwrap_or_else(|| Value::String(text.to_owned())),
    }
}

/// The number that a text is. A whole number that is written with a point or an exponent is one without.
fn number(text: &str) -> Option<Value> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return None;
    }
    let digits = text.replace('_', "");
    if let Some(whole) = integer(&digits) {
        return Some(whole);
    }
    let is_decimal = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E');
    let number: f64 = digits
        .chars()
        .all(is_decimal)
        .then(|| digits.parse().ok())??;
    integer(&number.to_string()).or_else(|| Number::from_f64(number).map(Value::Number))
}

/// The integer that a text is: decimal, or with the prefix of another base, of which a zero alone is that of octal ones.
fn integer(text: &str) -> Option<Value> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let (base, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    if !digits.bytes().all(|digit| digit.is_ascii_alphanumeric()) {
        return None;
    }
    let number = i128::from_str_radix(&format!("{sign}{digits}"), base).ok()?;
    let positive = || u64::try_from(number).map(Value::from);
    i64::try_from(number)
        .map(Value::from)
        .or_else(|_| positive())
        .ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_aliases_expand_and_quoted_scalars_are_strings() {
        let text = "a: &x [1, true, ~, 1.5, '2', \"y\"]\nb: *x\nc: {d: &y e, f: *y}\n";
        let list = json!([1, true, null, 1.5, "2", "y"]);
        assert_eq!(
            read(text),
            Ok(json!({ "a": list, "b": list, "c": { "d": "e", "f": "e" } }))
        );
    }

    #[track_caller]
    fn refused(text: &str, why: &str) {
        let error = read(text).expect_err("it cannot be read");
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn yaml_without_json_equivalent_is_rejected() {
        refused("", "no document");
        refused("a: 1\n---\nb: 2\n", "several documents");
        refused("~: 2\n", "null is no key");
        refused("? [a]\n: b\n", "no key");
        refused("a: 1\na: 2\n", "\"a\" is there twice");
        refused("a: &x [*x]\n", "a value that is none");
        refused("a: !!binary x\n", "is not supported");
        refused("a: 1\n<<: {a: 2}\n", "\"a\" is there twice");
        refused("<<: {a: 1}\na: 2\n", "\"a\" is there twice");
        refused("<<: 7\n", "\"<<\" is no object");
        refused("<<: [{a: 1}, [b]]\n", "\"<<\" is no object");
    }

    #[test]
    fn entries_of_a_merge_key_belong_to_its_object() {
        for (text, expected) in [
            (
                "x: &x {a: 1}\nz:\n  b: 2\n  <<: *x\n",
                json!({ "x": { "a": 1 }, "z": { "a": 1, "b": 2 } }),
            ),
            ("<<: [{a: 1}, {b: 2}]\n", json!({ "a": 1, "b": 2 })),
            (
                "a: {<<: {b: {<<: {c: 1}}}}\n",
                json!({ "a": { "b": { "c": 1 } } }),
            ),
            ("<<: {}\na: <<\n", json!({ "a": "<<" })),
            ("'<<': {a: 1}\n", json!({ "<<": { "a": 1 } })),
            ("[<<]\n", json!(["<<"])),
        ] {
            assert_eq!(read(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn yaml_alias_expansion_is_bounded() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..30 {
            let reference = format!("*a{},", level - 1).repeat(9);
            text.push_str(&format!("a{level}: &a{level} [{reference}]\n"));
        }
        refused(&text, "too large");
    }

    #[test]
    fn yaml_nesting_depth_uses_no_stack() {
        refused(&"- ".repeat(100_000), "too large");
        refused(&"[".repeat(100_000), "");
        refused(&format!("{}x", "a:\n ".repeat(100_000)), "");
        let deepest = format!(
            "{}x{}",
            "[".repeat(MAX_DEPTH - 1),
            "]".repeat(MAX_DEPTH - 1)
        );
        assert!(read(&deepest).is_ok());
        refused(&format!("[{deepest}]"), "too large");
    }
}
