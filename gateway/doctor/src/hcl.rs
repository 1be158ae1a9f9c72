//! A tolerant reader of HCL, the language of Nomad's configuration: blocks and assignments with their paths.
//!
//! It evaluates nothing, and reports no error: what it does not understand is skipped. Depth, count and length
//! are bounded.

/// The deepest nesting that is followed.
const DEPTH_MAX: usize = 64;

/// The most blocks and assignments that are kept.
const ITEMS_MAX: usize = 10_000;

/// A block or an assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    /// The names of the blocks around it with their labels, and its own.
    pub(super) path: Vec<String>,
    /// The strings, numbers and words of an assignment; `None` for a block.
    pub(super) values: Option<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Lexeme {
    /// A word or a number.
    Word(String),
    /// A string.
    Text(String),
    Sign(char),
    NewLine,
}

/// The blocks and assignments of a file, in their order.
pub(super) fn items(text: &str) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    // For each open brace, how many names its block has.
    let mut depths: Vec<usize> = Vec::new();
    let mut path: Vec<String> = Vec::new();
    let mut header: Vec<String> = Vec::new();
    let mut lexemes = lexemes(text).into_iter().peekable();
    while let Some(lexeme) = lexemes.next() {
        if items.len() >= ITEMS_MAX || depths.len() >= DEPTH_MAX {
            break;
        }
        match lexeme {
            Lexeme::Word(name) | Lexeme::Text(name) => header.push(name),
            Lexeme::NewLine => header.clear(),
            Lexeme::Sign('}') => {
                let names = depths.pop().unwrap_or(0);
                path.truncate(path.len().saturating_sub(names));
                header.clear();
            }
            // `name {` and `name = {` are read alike.
            Lexeme::Sign('{') => {
                depths.push(header.len());
                path.append(&mut header);
                items.push(Item {
                    path: path.clone(),
                    values: None,
                });
            }
            Lexeme::Sign('=' | ':') if lexemes.peek() != Some(&Lexeme::Sign('{')) => {
                let values = values(&mut lexemes);
                let mut path = path.clone();
                path.append(&mut header);
                items.push(Item {
                    path,
                    values: Some(values),
                });
            }
            Lexeme::Sign(_) => {}
        }
    }
    items
}

/// The values up to the end of the line, or of the list.
fn values(lexemes: &mut std::iter::Peekable<std::vec::IntoIter<Lexeme>>) -> Vec<String> {
    let mut values = Vec::new();
    let mut lists = 0_usize;
    while let Some(lexeme) = lexemes.peek() {
        match lexeme {
            Lexeme::Sign('[' | '(') => lists += 1,
            Lexeme::Sign(']' | ')') => lists = lists.saturating_sub(1),
            Lexeme::Sign('{' | '}') if lists == 0 => return values,
            // A comma separates assignments of a JSON object.
            Lexeme::NewLine | Lexeme::Sign(',') if lists == 0 => return values,
            Lexeme::Word(value) | Lexeme::Text(value) => values.push(value.clone()),
            Lexeme::Sign(_) | Lexeme::NewLine => {}
        }
        lexemes.next();
    }
    values
}

fn lexemes(text: &str) -> Vec<Lexeme> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if rest.starts_with("/*") {
            rest = rest.find("*/").map_or("", |end| &rest[end + 2..]);
        } else if first == '#' || rest.starts_with("//") {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
        } else if rest.starts_with("<<") {
            rest = after_heredoc(rest);
            found.push(Lexeme::NewLine);
        } else if first == '"' {
            let (text, after) = string(&rest[1..]);
            found.push(Lexeme::Text(text));
            rest = after;
        } else if is_word(first) {
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            found.push(Lexeme::Word(rest[..end].to_owned()));
            rest = &rest[end..];
        } else {
            match first {
                '\n' => found.push(Lexeme::NewLine),
                first if first.is_whitespace() => {}
                first => found.push(Lexeme::Sign(first)),
            }
            rest = &rest[first.len_utf8()..];
        }
    }
    found
}

/// The text of a string, after its first quote, and what follows it.
fn string(rest: &str) -> (String, &str) {
    let mut text = String::new();
    let mut chars = rest.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (text, &rest[at + 1..]),
            '\\' => text.extend(chars.next().map(|(_, escaped)| escaped)),
            c => text.push(c),
        }
    }
    (text, "")
}

/// The text after a heredoc: `<<EOF`, several lines and `EOF`.
fn after_heredoc(rest: &str) -> &str {
    let Some((head, mut body)) = rest.split_once('\n') else {
        return "";
    };
    let mark = head.trim_start_matches(['<', '-']).trim();
    while let Some((line, after)) = body.split_once('\n') {
        body = after;
        if line.trim() == mark {
            return body;
        }
    }
    ""
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<String> {
        let line = |item: &Item| match &item.values {
            None => item.path.join("."),
            Some(values) => format!("{}={}", item.path.join("."), values.join(",")),
        };
        items(text).iter().map(line).collect()
    }

    #[test]
    fn blocks_and_assignments_have_their_paths() {
        let text = "data_dir = \"/opt/nomad\" # why\nclient {\n  enabled = true\n  options = { \"driver.denylist\" = \"docker\" }\n}\n\
                    /* plugin \"old\" {} */\nplugin \"switchyard\" {\n  args = [\"--socket\",\n \"/a\"]\n  config {}\n}\nplugin \"x\" {}\n";
        let expected = [
            "data_dir=/opt/nomad",
            "client",
            "client.enabled=true",
            "client.options",
            "client.options.driver.denylist=docker",
            "plugin.switchyard",
            "plugin.switchyard.args=--socket,/a",
            "plugin.switchyard.config",
            "plugin.x",
        ];
        assert_eq!(shown(text), expected);
    }

    #[test]
    fn json_is_read_too() {
        let text =
            r#"{ "plugin_dir": "/p", "plugin": { "switchyard": { "args": ["a", "b"] } }, "x": 1 }"#;
        let expected = [
            "",
            "plugin_dir=/p",
            "plugin",
            "plugin.switchyard",
            "plugin.switchyard.args=a,b",
            "x=1",
        ];
        assert_eq!(shown(text), expected);
    }

    #[test]
    fn long_texts_are_skipped() {
        assert_eq!(shown("a = <<EOF\nb = 1\nEOF\nc = 2\n"), ["a=", "c=2"]);
        assert_eq!(shown("a = <<EOF\nb = 1\n"), ["a="]);
    }

    #[test]
    fn any_text_is_read_within_bounds() {
        assert_eq!(items(&"a {".repeat(100_000)).len(), DEPTH_MAX);
        assert_eq!(items(&"a = 1\n".repeat(100_000)).len(), ITEMS_MAX);
        assert!(items(&"}".repeat(100_000)).is_empty() && items("\"\\").is_empty());
        proptest::proptest!(|(text in "[a-z{}=\"\n\\\\<#/*,\\[\\]ü ]{0,200}")| {
            items(&text);
        });
    }
}
