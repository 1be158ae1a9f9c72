//! The `WWW-Authenticate` header of RFC 7235.

/// A longer header is not read. Real ones have a few hundred bytes.
const MAX_HEADER: usize = 16 << 10;
/// The most challenges that are parsed, and the most parameters: more than any server sends.
const MAX_CHALLENGES: usize = 16;
const MAX_PARAMETERS: usize = 32;

/// One challenge of the header. A header may contain several, and a response several headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthChallenge {
    /// The scheme in lower case: `bearer`, `basic`, ….
    pub scheme: String,
    /// Its parameters in order, names in lower case.
    pub parameters: Vec<(String, String)>,
}

impl AuthChallenge {
    /// Parses a header's value as far as it makes sense; garbage yields fewer challenges, never an error,
    /// because a challenge that is not understood cannot be answered anyway. At most 16 challenges with 32
    /// parameters each are taken, and none of a header above 16 KiB.
    #[must_use]
    pub fn parse(header: &str) -> Vec<Self> {
        let mut challenges: Vec<Self> = Vec::new();
        let mut rest = if header.len() > MAX_HEADER {
            ""
        } else {
            header
        };
        loop {
            rest = rest.trim_start_matches([' ', '\t', ',']);
            let end = rest.find(|c| !is_token_char(c)).unwrap_or(rest.len());
            let (name, tail) = rest.split_at(end);
            if name.is_empty() {
                // Skips one character that cannot be here.
                let mut chars = rest.chars();
                if chars.next().is_none() {
                    return challenges;
                }
                rest = chars.as_str();
                continue;
            }
            let name = name.to_ascii_lowercase();
            match tail.trim_start_matches([' ', '\t']).strip_prefix('=') {
                Some(value) => {
                    let (value, tail) = parse_value(value.trim_start_matches([' ', '\t']));
                    if let Some(challenge) = challenges.last_mut()
                        && challenge.parameters.len() < MAX_PARAMETERS
                    {
                        challenge.parameters.push((name, value));
                    }
                    rest = tail;
                }
                None if challenges.len() == MAX_CHALLENGES => return challenges,
                None => {
                    challenges.push(Self {
                        scheme: name,
                        parameters: Vec::new(),
                    });
                    rest = tail;
                }
            }
        }
    }

    /// The value of a parameter.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }
}

/// A quoted string or a token, and what follows it.
fn parse_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        // More is accepted than a token, because realms are sent without quotes.
        let end = text.find([' ', '\t', ',']).unwrap_or(text.len());
        let (value, rest) = text.split_at(end);
        return (value.to_owned(), rest);
    };
    let mut value = String::new();
    let mut chars = quoted.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => value.extend(chars.next()),
            other => value.push(other),
        }
    }
    (value, chars.as_str())
}

fn is_token_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bearer_challenge_has_realm_service_and_scope() {
        let parsed = AuthChallenge::parse(
            r#"Bearer realm="https://auth.example/token",service="registry, \"x\"",scope="repository:a/b:pull,push""#,
        );
        let [challenge] = parsed.as_slice() else {
            panic!("{parsed:?}")
        };
        assert_eq!(challenge.scheme, "bearer");
        assert_eq!(
            challenge.parameter("realm"),
            Some("https://auth.example/token")
        );
        assert_eq!(challenge.parameter("service"), Some(r#"registry, "x""#));
        assert_eq!(
            challenge.parameter("scope"),
            Some("repository:a/b:pull,push")
        );
        assert_eq!(challenge.parameter("error"), None);
    }

    #[test]
    fn several_challenges_may_share_a_header() {
        let parsed = AuthChallenge::parse(
            r#"Negotiate, BEARER Realm = https://x/y , service=z, Basic realm="a b""#,
        );
        let schemes: Vec<_> = parsed
            .iter()
            .map(|challenge| challenge.scheme.as_str())
            .collect();
        assert_eq!(schemes, ["negotiate", "bearer", "basic"]);
        assert_eq!(parsed[1].parameter("realm"), Some("https://x/y"));
        assert_eq!(parsed[1].parameter("service"), Some("z"));
        assert_eq!(parsed[2].parameter("realm"), Some("a b"));
    }

    #[test]
    fn unfinished_headers_yield_their_complete_parts() {
        assert_eq!(
            AuthChallenge::parse(r#"Bearer realm="abc"#)[0].parameter("realm"),
            Some("abc")
        );
        assert_eq!(
            AuthChallenge::parse(r#"Bearer realm="abc\"#)[0].parameter("realm"),
            Some("abc")
        );
        assert_eq!(
            AuthChallenge::parse("Bearer realm=")[0].parameter("realm"),
            Some("")
        );
        assert!(AuthChallenge::parse(" ,=\"").is_empty());
    }

    #[test]
    fn endless_headers_yield_a_bounded_number() {
        let many = AuthChallenge::parse(&"Basic a=b, ".repeat(1000));
        assert_eq!((many.len(), many[15].parameters.len()), (MAX_CHALLENGES, 1));
        let wide = AuthChallenge::parse(&format!("Bearer {}", "a=b,".repeat(1000)));
        assert_eq!((wide.len(), wide[0].parameters.len()), (1, MAX_PARAMETERS));
        assert!(
            AuthChallenge::parse(&format!("Bearer realm={}", "x".repeat(MAX_HEADER))).is_empty()
        );
    }

    proptest! {
        #[test]
        fn garbage_never_panics(header: String) {
            let _ = AuthChallenge::parse(&header);
        }

        #[test]
        fn near_garbage_never_panics(header in "[Ba \\\\\"=,\u{e9}\t]{0,30}") {
            let _ = AuthChallenge::parse(&header);
        }

        #[test]
        fn quoted_values_survive(value in "[ -~]{0,20}") {
            let quoted = value.replace('\\', r"\\").replace('"', r#"\""#);
            let parsed = AuthChallenge::parse(&format!("Bearer a=\"{quoted}\", b=c"));
            prop_assert_eq!(parsed[0].parameter("a"), Some(value.as_str()));
            prop_assert_eq!(parsed[0].parameter("b"), Some("c"));
        }
    }
}
