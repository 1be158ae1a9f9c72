//! Divides a template into texts and actions, and an action into tokens.

use super::TemplateError;

/// A part of a template between delimiters or outside of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece<'t> {
    /// Text that is copied.
    Text(&'t [u8]),
    /// The inside of `{{…}}`, without trim markers, and where it begins.
    Action { at: usize, inside: &'t [u8] },
}

/// A token of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token<'t> {
    /// A word: a keyword, a function, `true`.
    Word(&'t [u8]),
    /// `.a.b`: the names; none for `.` alone. `attached` says that it follows `)` without a space.
    Path {
        names: Vec<&'t [u8]>,
        attached: bool,
    },
    /// A string, without its quotes and escapes.
    Text(Vec<u8>),
    /// `(`.
    Open,
    /// `)`.
    Close,
    /// `|`.
    Pipe,
}

const OPEN: &[u8] = b"{{";
const CLOSE: &[u8] = b"}}";

/// The pieces of a template, in order.
pub(super) fn pieces(template: &[u8]) -> Result<Vec<Piece<'_>>, TemplateError> {
    let mut pieces = Vec::new();
    let mut at = 0;
    // Whether the action before ended in a trim marker.
    let mut trims = false;
    loop {
        let rest = &template[at..];
        let open = find(rest, OPEN);
        let mut text = &rest[..open.unwrap_or(rest.len())];
        if trims {
            text = text.trim_ascii_start();
        }
        let Some(open) = open else {
            pieces.push(Piece::Text(text));
            return Ok(pieces);
        };
        let mut begin = at + open + OPEN.len();
        // A marker is a dash with a space, so that a number may be negative.
        if template[begin..].starts_with(b"-") && is_space(template.get(begin + 1)) {
            begin += 1;
            text = text.trim_ascii_end();
        }
        pieces.push(Piece::Text(text));
        let end = end_of_action(template, begin)?;
        let mut inside = &template[begin..end];
        trims = inside.ends_with(b"-")
            && is_space(inside.len().checked_sub(2).and_then(|at| inside.get(at)));
        if trims {
            inside = &inside[..inside.len() - 1];
        }
        pieces.push(Piece::Action { at: begin, inside });
        at = end + CLOSE.len();
    }
}

/// Finds the end of the action that begins here: the first `}}` outside of strings and comments.
fn end_of_action(template: &[u8], begin: usize) -> Result<usize, TemplateError> {
    let unclosed = |what| Err(TemplateError::new(begin, what));
    if template[begin..].trim_ascii_start().starts_with(b"/*") {
        let Some(end) = find(&template[begin..], b"*/") else {
            return unclosed("a comment is not closed");
        };
        let end = begin + end + 2;
        let rest = template[end..].trim_ascii_start();
        let rest = rest.strip_prefix(b"-").unwrap_or(rest);
        if !rest.starts_with(CLOSE) {
            return unclosed("a comment is not alone in its action");
        }
        return Ok(template.len() - rest.len());
    }
    let mut at = begin;
    while let Some(byte) = template.get(at) {
        match byte {
            b'}' if template[at..].starts_with(CLOSE) => return Ok(at),
            b'"' | b'`' => match end_of_string(template, at) {
                Some(end) => at = end,
                None => return Err(TemplateError::new(at, "a string is not closed")),
            },
            _ => at += 1,
        }
    }
    unclosed("an action is not closed")
}

/// The place after the string that begins here.
fn end_of_string(bytes: &[u8], begin: usize) -> Option<usize> {
    let quote = bytes[begin];
    let mut at = begin + 1;
    loop {
        match *bytes.get(at)? {
            byte if byte == quote => return Some(at + 1),
            b'\\' if quote == b'"' => at += 2,
            b'\n' if quote == b'"' => return None,
            _ => at += 1,
        }
    }
}

/// The tokens of an action that begins at `offset` of the template, each with its place there.
pub(super) fn tokens(
    inside: &[u8],
    offset: usize,
) -> Result<Vec<(usize, Token<'_>)>, TemplateError> {
    let mut tokens: Vec<(usize, Token<'_>)> = Vec::new();
    let mut at = 0;
    while let Some(&byte) = inside.get(at) {
        let place = offset + at;
        let (token, length) = match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {
                at += 1;
                continue;
            }
            b'(' => (Token::Open, 1),
            b')' => (Token::Close, 1),
            b'|' => (Token::Pipe, 1),
            b'"' | b'`' => {
                let end = end_of_string(inside, at)
                    .ok_or_else(|| TemplateError::new(place, "a string is not closed"))?;
                let quoted = &inside[at + 1..end - 1];
                let text = if byte == b'`' {
                    quoted.to_vec()
                } else {
                    unescape(quoted, place)?
                };
                (Token::Text(text), end - at)
            }
            b'$' if inside.get(at + 1) == Some(&b'.') => {
                let (names, length) = path(&inside[at + 1..], place)?;
                (
                    Token::Path {
                        names,
                        attached: false,
                    },
                    length + 1,
                )
            }
            b'$' if inside.get(at + 1).is_none_or(|next| !is_letter(*next)) => (
                Token::Path {
                    names: Vec::new(),
                    attached: false,
                },
                1,
            ),
            b'.' => {
                let attached = at > 0 && inside[at - 1] == b')';
                let (names, length) = path(&inside[at..], place)?;
                (Token::Path { names, attached }, length)
            }
            byte if is_letter(byte) => {
                let word = word(&inside[at..]);
                (Token::Word(word), word.len())
            }
            b'$' => return Err(TemplateError::new(place, "variables are not supported")),
            b'0'..=b'9' | b'-' | b'+' | b'\'' => {
                return Err(TemplateError::new(
                    place,
                    "numbers and characters are not supported",
                ));
            }
            byte => return Err(TemplateError::about(place, "unexpected character", &[byte])),
        };
        at += length;
        let ends_operand = matches!(token, Token::Word(_) | Token::Path { .. } | Token::Text(_));
        if ends_operand && !inside.get(at).is_none_or(|next| is_separator(*next)) {
            return Err(TemplateError::new(offset + at, "a space is missing"));
        }
        tokens.push((place, token));
    }
    Ok(tokens)
}

/// The names of `.a.b`, and its length.
fn path(bytes: &[u8], place: usize) -> Result<(Vec<&[u8]>, usize), TemplateError> {
    let mut names = Vec::new();
    let mut at = 0;
    while bytes.get(at) == Some(&b'.') {
        let name = word(&bytes[at + 1..]);
        if name.is_empty() {
            if at == 0 {
                return Ok((names, 1));
            }
            return Err(TemplateError::new(
                place + at,
                "the name of a field is missing",
            ));
        }
        names.push(name);
        at += 1 + name.len();
    }
    Ok((names, at))
}

fn word(bytes: &[u8]) -> &[u8] {
    let end = bytes
        .iter()
        .position(|byte| !is_letter(*byte) && !byte.is_ascii_digit());
    let word = &bytes[..end.unwrap_or(bytes.len())];
    if word.first().is_some_and(u8::is_ascii_digit) {
        &[]
    } else {
        word
    }
}

fn unescape(quoted: &[u8], place: usize) -> Result<Vec<u8>, TemplateError> {
    let mut text = Vec::with_capacity(quoted.len());
    let mut bytes = quoted.iter().copied();
    while let Some(byte) = bytes.next() {
        text.push(match byte {
            b'\\' => match bytes.next() {
                Some(b'n') => b'\n',
                Some(b't') => b'\t',
                Some(b'r') => b'\r',
                Some(byte @ (b'\\' | b'"')) => byte,
                Some(_) | None => {
                    let what = "only the escapes \\n, \\t, \\r, \\\\ and \\\" are supported";
                    return Err(TemplateError::new(place, what));
                }
            },
            byte => byte,
        });
    }
    Ok(text)
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

fn is_space(byte: Option<&u8>) -> bool {
    byte.is_some_and(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n'))
}

const fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

const fn is_separator(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | b'|' | b')' | b'(')
}
