//! Replaces secrets in text that is shown or passed on: tokens, passwords, keys.
//!
//! It goes by the words around a value, so it also replaces some values that are no secrets. What it does not
//! recognise stays; so nothing that may hold secrets as such (environments, credentials) is passed through it
//! in the first place.

/// Replacement of a secret.
pub(crate) const REDACTED: &str = "[redacted]";

/// Parts of names whose values are secrets.
const SECRET_WORDS: [&str; 14] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "apikey",
    "api_key",
    "api-key",
    "access_key",
    "access-key",
    "accesskey",
    "private_key",
    "credential",
    "signature",
];

/// Whole names whose values are secrets.
const SECRET_NAMES: [&str; 4] = ["auth", "sig", "pwd", "x-registry-auth"];

/// Ends of names whose values are paths.
const PATH_ENDINGS: [&str; 5] = ["file", "path", "dir", "files", "directory"];

/// The text with its secrets replaced.
#[must_use]
pub fn redact(text: &str) -> String {
    let mut redactor = Redactor::default();
    text.split_inclusive('\n')
        .map(|line| redactor.line(line))
        .collect()
}

/// Replaces secrets line by line; it knows whether a line is within a private key.
#[derive(Debug, Default)]
struct Redactor {
    is_in_key: bool,
}

impl Redactor {
    fn line(&mut self, line: &str) -> String {
        let is_key = |mark: &str| line.contains(mark) && line.contains("PRIVATE KEY");
        let ending = if line.ends_with('\n') { "\n" } else { "" };
        // A key may be on one line, as in JSON.
        if is_key("-----BEGIN ") {
            self.is_in_key = !line.contains("-----END ");
            return format!("{REDACTED}{ending}");
        }
        if self.is_in_key {
            self.is_in_key = !line.contains("-----END ");
            return format!("{REDACTED}{ending}");
        }
        redact_line(line)
    }
}

fn redact_line(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if word.is_empty() {
            if let Some(after) = user_info(rest) {
                out.push_str(&format!("://{REDACTED}"));
                rest = after;
                continue;
            }
            let mut chars = rest.chars();
            out.extend(chars.next());
            rest = chars.as_str();
            continue;
        }
        rest = value_after(word, after, &mut out);
    }
    out
}

/// Appends a word, with what follows it replaced if that is a secret; returns what is left.
fn value_after<'a>(word: &str, after: &'a str, out: &mut String) -> &'a str {
    let lower = word.to_ascii_lowercase();
    let name = lower.trim_start_matches('-');
    if name.starts_with("swmtkn-") {
        out.push_str(REDACTED);
        return after;
    }
    // The beginning of every JSON web token.
    if name.starts_with("eyj") && name.len() > 16 && after.starts_with('.') {
        out.push_str(REDACTED);
        return after.trim_start_matches(|c: char| is_word(c) || c == '.');
    }
    out.push_str(word);
    let is_scheme = name == "bearer" || name == "basic";
    let is_flag = lower.starts_with("--") && is_secret_name(name);
    if is_scheme || is_flag {
        let value = after.trim_start_matches([' ', '\t']);
        let is_apart = value.len() < after.len() && !value.starts_with('-');
        let is_end = |c: char| c.is_whitespace() || "\"'\\,;)}".contains(c);
        let end = if is_apart {
            value.find(is_end).unwrap_or(value.len())
        } else {
            0
        };
        if end >= if is_flag { 1 } else { 8 } {
            out.push(' ');
            out.push_str(REDACTED);
            return &value[end..];
        }
    }
    if is_secret_name(name) || name == "authorization" || name == "proxy-authorization" {
        return assigned(name.ends_with("authorization"), after, out);
    }
    after
}

/// Replaces the value that is assigned by `=` or `:`, if there is one.
fn assigned<'a>(takes_blanks: bool, after: &'a str, out: &mut String) -> &'a str {
    let quotes = ['"', '\'', '\\'];
    let sign = after
        .trim_start_matches(quotes)
        .trim_start_matches([' ', '\t']);
    let Some(value) = sign.strip_prefix(['=', ':']) else {
        return after;
    };
    let value = value.trim_start_matches([' ', '\t', '>']);
    let bare = value.trim_start_matches(quotes);
    let is_quoted = bare.len() < value.len();
    // In JSON a value without quotes is a number, a list or the like.
    if sign.starts_with(':') && after.starts_with(quotes) && !is_quoted {
        return after;
    }
    let is_end = |c: char| match c {
        '"' | '\'' | '\\' | '\n' | '\r' => true,
        _ if is_quoted || takes_blanks => false,
        _ => c.is_whitespace() || matches!(c, ',' | ';' | '&' | ')' | ']' | '}'),
    };
    let end = bare.find(is_end).unwrap_or(bare.len());
    if end == 0 {
        return after;
    }
    out.push_str(&after[..after.len() - bare.len()]);
    out.push_str(REDACTED);
    &bare[end..]
}

/// If this begins with `://` and credentials: what follows them, from the `@`.
fn user_info(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("://")?;
    // Up to the next URL, so that no text is searched twice.
    let ahead = rest.find("://").map_or(rest, |next| &rest[..next]);
    let is_end = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>');
    let url = &ahead[..ahead.find(is_end).unwrap_or(ahead.len())];
    let at = url.rfind('@')?;
    let authority = url.find(['/', '?', '#']).unwrap_or(url.len());
    // A password may contain a slash that somebody forgot to escape; a port may not.
    let has_password = url[..authority]
        .split_once(':')
        .is_some_and(|(_, after)| !after.bytes().all(|byte| byte.is_ascii_digit()));
    (at < authority || has_password).then(|| &rest[at..])
}

fn is_secret_name(name: &str) -> bool {
    let is_path = PATH_ENDINGS.iter().any(|ending| name.ends_with(ending));
    !is_path
        && (SECRET_NAMES.contains(&name) || SECRET_WORDS.iter().any(|word| name.contains(word)))
}

const fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(redact(text), expected);
    }

    #[test]
    fn tokens_and_passwords_are_replaced() {
        check("join SWMTKN-1-abc-def now", "join [redacted] now");
        check(
            "Authorization: Bearer abcdefgh12345",
            "Authorization: [redacted]",
        );
        check(
            "header Bearer abcdefgh12345 sent",
            "header Bearer [redacted] sent",
        );
        check(
            "curl -H 'authorization: Basic dXNlcjpwYXNz' x",
            "curl -H 'authorization: [redacted]' x",
        );
        check(
            "GET https://user:pa55@example.com/v2/",
            "GET https://[redacted]@example.com/v2/",
        );
        check(
            "GET https://user:pa/55@example.com/v2/",
            "GET https://[redacted]@example.com/v2/",
        );
        check(
            "registry_token=abc user=x",
            "registry_token=[redacted] user=x",
        );
        check(
            r#"{"auth":"dXNlcg==","name":"x"}"#,
            r#"{"auth":"[redacted]","name":"x"}"#,
        );
        check(
            r#"msg="{\"password\":\"p w\"}""#,
            r#"msg="{\"password\":\"[redacted]\"}""#,
        );
        check(
            "https://h/v2?X-Amz-Signature=abc&n=1",
            "https://h/v2?X-Amz-Signature=[redacted]&n=1",
        );
        check(
            "run --password hunter2 --user x",
            "run --password [redacted] --user x",
        );
        check(
            "t eyJhbGciOiJIUzI1NiJ9.eyJzdWIi.c2ln end",
            "t [redacted] end",
        );
        check("DB_PASSWORD: 'a b'", "DB_PASSWORD: '[redacted]'");
    }

    #[test]
    fn private_keys_are_replaced_over_lines() {
        let text = "a\n-----BEGIN EC PRIVATE KEY-----\nMHc\n-----END EC PRIVATE KEY-----\nb\n";
        check(text, "a\n[redacted]\n[redacted]\n[redacted]\nb\n");
    }

    #[test]
    fn other_text_stays() {
        for text in [
            "metrics_bearer_token_file = \"/etc/switchyard/metrics.token\"",
            "pulled docker.io/library/busybox@sha256:abc",
            "GET https://example.com/v2/x@sha256:abc",
            "GET http://127.0.0.1:5000/v2/x@sha256:abc",
            "unix:///run/switchyard/cri.sock",
            "basic check of ünïcode: 5",
            "no token was given",
            "{\"tokens\":5,\"secret\":null}",
            "",
        ] {
            check(text, text);
        }
    }

    #[test]
    fn any_text_is_taken() {
        proptest::proptest!(|(text in ".{0,200}")| {
            let _ = redact(&text);
        });
        for hostile in [
            "://",
            "bearer.",
            "password\\\"",
            "--token ",
            "a:",
            "eyJ0",
            "authorization",
            "-----BEGIN ",
        ] {
            let text = hostile.repeat((4 << 20) / hostile.len());
            let began = std::time::Instant::now();
            let _ = redact(&text);
            assert!(
                began.elapsed() < std::time::Duration::from_secs(20),
                "{hostile}: {:?}",
                began.elapsed()
            );
        }
        check("password", "password");
        check("password=", "password=");
        check("://@", "://[redacted]@");
    }
}
