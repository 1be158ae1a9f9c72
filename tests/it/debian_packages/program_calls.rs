//! Finds the programs that scripts and sources call, by their text.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Words that may stand before a command.
const BEFORE: [&str; 13] = [
    "!", "{", "do", "elif", "else", "env", "exec", "if", "then", "time", "timeout", "until",
    "while",
];

/// Builtins of the shell that are programs as well.
const BUILTINS: [&str; 1] = ["kill"];

/// The programs that a script may call: the words where commands stand. Some of them are builtins of the
/// shell.
pub(super) fn of_script(text: &str) -> BTreeSet<String> {
    let text = without_documents(text);
    let functions: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.split_once("()").map(|(name, _)| name.trim()))
        .collect();
    let mut found = BTreeSet::new();
    for code in commands(&text) {
        for command in code.split(['\n', ';', '|', '&', '{', '}']) {
            for word in command
                .split_whitespace()
                .filter(|word| !word.contains('='))
            {
                if is_name(word) && !functions.contains(word) && !BUILTINS.contains(&word) {
                    found.insert(word.to_owned());
                }
                // timeout's first argument is a number.
                if !BEFORE.contains(&word)
                    && !word.starts_with(|first: char| first.is_ascii_digit())
                {
                    break;
                }
            }
        }
    }
    found
}

/// State of a lexer of scripts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LexState {
    /// Among commands: of the script, of a subshell, of a substitution.
    Code,
    /// Between double quotes, where only substitutions count.
    Text,
}

/// The code of a script, that of each subshell and substitution by itself. For them, and for what is quoted,
/// there is a `_` instead.
fn commands(script: &str) -> Vec<String> {
    let mut stack = vec![(LexState::Code, String::new())];
    let mut done = Vec::new();
    let mut chars = script.chars().peekable();
    let mut last = ' ';
    while let Some(char) = chars.next() {
        let depth = stack.len();
        let (place, code) = stack
            .last_mut()
            .expect("the script itself is never taken away");
        match (char, *place) {
            ('\\', _) => {
                chars.next();
                code.push('_');
            }
            ('$', _) if chars.peek() == Some(&'(') => {
                chars.next();
                stack.push((LexState::Code, String::new()));
            }
            ('"', LexState::Code) => stack.push((LexState::Text, String::new())),
            ('\'', LexState::Code) => {
                chars
                    .by_ref()
                    .take_while(|char| *char != '\'')
                    .for_each(drop);
                code.push('_');
            }
            ('#', LexState::Code) if last.is_whitespace() => {
                chars
                    .by_ref()
                    .take_while(|char| *char != '\n')
                    .for_each(drop);
                code.push('\n');
            }
            ('(', LexState::Code) => stack.push((LexState::Code, String::new())),
            ('"', LexState::Text) | (')', LexState::Code) if depth > 1 => {
                let (_, code) = stack.pop().expect("it is not the last");
                done.push(code);
                stack.last_mut().expect("it was not the last").1.push('_');
            }
            // The end of a pattern of `case`.
            (')', LexState::Code) => code.push('\n'),
            (_, LexState::Text) => {}
            (char, LexState::Code) => code.push(char),
        }
        last = char;
    }
    done.extend(stack.into_iter().map(|(_, code)| code));
    done
}

fn is_name(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_lowercase())
        && word
            .chars()
            .all(|char| char.is_ascii_alphanumeric() || "-_.+".contains(char))
}

/// Leaves out comments, and what a command gets as its input by `<<`.
fn without_documents(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim_start().starts_with('#') {
            continue;
        }
        kept.push_str(line);
        kept.push('\n');
        let Some((_, after)) = line.split_once("<<") else {
            continue;
        };
        let end: String = after
            .trim_start_matches(['-', '\''])
            .chars()
            .take_while(char::is_ascii_uppercase)
            .collect();
        if !end.is_empty() {
            lines
                .by_ref()
                .take_while(|line| line.trim() != end)
                .for_each(drop);
        }
    }
    kept
}

/// The texts that follow this opening, up to their closing quote.
pub(super) fn literals<'a>(text: &'a str, opening: &str) -> Vec<&'a str> {
    text.split(opening)
        .skip(1)
        .filter_map(|rest| Some(rest.split_once('"')?.0))
        .collect()
}

/// The programs that a source file requires by `prereq`, with the packages that it names for them.
pub(super) fn required(text: &str) -> Vec<(&str, &str)> {
    let calls = text.split("require(\"").skip(1);
    calls
        .filter_map(|rest| {
            rest.split_once("\", \"")
                .and_then(|(program, rest)| Some((program, rest.split_once("\")")?.0)))
        })
        .collect()
}

/// The Rust files below a directory.
pub(super) fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)
        .expect("a directory of the repository can be read")
        .flatten()
    {
        let path = entry.path();
        let kind = entry.file_type().expect("it was just listed");
        if kind.is_dir() && entry.file_name() != "target" {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
    found
}

#[test]
fn command_calls_are_found() {
    let script = "# comment calls nothing\nif ! first --flag; then\n    X=1 second \"$(third a | fourth)\"\nfi\n\
        mine() { fifth; }\nmine\ncat <<END >file\nno command\nEND\nawk 'not | these' && timeout 10 sixth\n\
        say \"somebody's text; or $(seventh \"a | b\") this\" # nothing\ncase x in y) eighth ;; esac\nkill 1\n";
    let found: Vec<String> = of_script(script).into_iter().collect();
    for name in [
        "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "cat", "awk",
        "timeout",
    ] {
        assert!(
            found.contains(&name.to_owned()),
            "{name} is not in {found:?}"
        );
    }
    for name in [
        "comment", "no", "these", "mine", "not", "or", "b", "this", "nothing", "kill",
    ] {
        assert!(!found.contains(&name.to_owned()), "{name} is in {found:?}");
    }
}

#[test]
fn required_program_calls_are_found_with_their_packages() {
    let text = "let a = require(\"cc\", \"gcc libc6-dev\");\nprereq::require(\"ip\", \"iproute2\")";
    assert_eq!(
        required(text),
        [("cc", "gcc libc6-dev"), ("ip", "iproute2")]
    );
}
