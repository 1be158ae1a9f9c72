//! SELinux labels, and the grammar of their parts.
//!
//! A label is used in a mount option, an argument of OCI runtimes and a line of `/proc/self/attr`. So no part
//! may contain a character with a meaning in one of these: a quote would end the mount option
//! `context="..."`, and the rest would be parsed as further options.

use std::fmt;

use crate::{Error, Result};

/// Longest user, role or type, in bytes; those of real policies are far shorter.
const NAME_LIMIT: usize = 255;
/// Longest level, in bytes. A level with every other category below 1024 is shorter.
const LEVEL_LIMIT: usize = 4096;

/// An SELinux label; an empty part takes the policy's default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SelinuxLabel {
    /// User.
    pub user: String,
    /// Role.
    pub role: String,
    /// Type.
    pub type_: String,
    /// Level.
    pub level: String,
}

impl SelinuxLabel {
    /// Checks all parts that are not empty.
    ///
    /// # Errors
    /// `InvalidArgument`, naming `field` and the part, if a part is malformed.
    pub fn check(&self, field: impl fmt::Display) -> Result<()> {
        let Self {
            user,
            role,
            type_,
            level,
        } = self;
        let parts = [
            (SelinuxPart::User, user),
            (SelinuxPart::Role, role),
            (SelinuxPart::Type, type_),
            (SelinuxPart::Level, level),
        ];
        let given = parts.into_iter().filter(|(_, text)| !text.is_empty());
        given
            .into_iter()
            .try_for_each(|(part, text)| part.check(format_args!("{field}.{part}"), text))
    }
}

/// A part of a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelinuxPart {
    /// The user, for example `system_u`.
    User,
    /// The role, for example `system_r`.
    Role,
    /// The type, for example `container_t`.
    Type,
    /// The level or range of levels, for example `s0:c1,c2` or `s0-s15:c0.c1023`.
    Level,
}

impl SelinuxPart {
    /// Checks the syntax of this part of a label, but not whether the node's policy defines it.
    ///
    /// # Errors
    /// `InvalidArgument`, naming `field`.
    pub fn check(self, field: impl fmt::Display, text: &str) -> Result<()> {
        let (limit, fits) = match self {
            Self::User | Self::Role | Self::Type => (NAME_LIMIT, is_name(text)),
            Self::Level => (LEVEL_LIMIT, is_range(text)),
        };
        if text.len() > limit {
            let why = format!(
                "it has {} bytes, and an SELinux {self} {limit} at most",
                text.len()
            );
            return Err(Error::invalid(field, why));
        }
        if fits {
            Ok(())
        } else {
            Err(Error::invalid(
                field,
                format!("{text:?} cannot be an SELinux {self}"),
            ))
        }
    }
}

impl fmt::Display for SelinuxPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "user",
            Self::Role => "role",
            Self::Type => "type",
            Self::Level => "level",
        })
    }
}

/// The name of a user, role or type: letters, digits, `_`, `-` and `.`, beginning with a letter, a digit or
/// `_`.
fn is_name(text: &str) -> bool {
    let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    begins
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

/// A level, or two levels separated by `-`.
fn is_range(text: &str) -> bool {
    let (low, high) = text
        .split_once('-')
        .map_or((text, None), |(low, high)| (low, Some(high)));
    is_level(low) && high.is_none_or(is_level)
}

/// A sensitivity, optionally followed by `:` and its categories.
fn is_level(text: &str) -> bool {
    let (sensitivity, categories) = text
        .split_once(':')
        .map_or((text, None), |(one, two)| (one, Some(two)));
    is_word(sensitivity) && categories.is_none_or(|list| list.split(',').all(is_categories))
}

/// A category, or the first and last category of a range, separated by `.`.
fn is_categories(text: &str) -> bool {
    let (first, last) = text
        .split_once('.')
        .map_or((text, None), |(first, last)| (first, Some(last)));
    is_word(first) && last.is_none_or(is_word)
}

/// The name of a sensitivity or category: a letter, then letters, digits and `_`.
fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [SelinuxPart; 4] = [
        SelinuxPart::User,
        SelinuxPart::Role,
        SelinuxPart::Type,
        SelinuxPart::Level,
    ];

    /// A level in the syntax of real policies.
    fn level() -> impl Strategy<Value = String> {
        "s[0-9]{1,2}(:c[0-9]{1,4}([.]c[0-9]{1,4})?(,c[0-9]{1,4}([.]c[0-9]{1,4})?){0,20})?"
    }

    proptest! {
        #[test]
        fn accepted_labels_have_no_mount_option_or_argument_characters(text in "[ -~\\t\\n\\x00\"'\\\\,=:s0c1.-]{0,40}") {
            let passes = |part: SelinuxPart| part.check("x", &text).is_ok();
            let is_harmless = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ',' | ':');
            for part in ALL.into_iter().filter(|part| passes(*part)) {
                prop_assert!(text.chars().all(is_harmless), "{part}: {text:?}");
                prop_assert!(part == SelinuxPart::Level || !text.contains([',', ':']), "{part}: {text:?}");
            }
        }

        #[test]
        fn non_ascii_labels_are_rejected(text in "\\PC{0,20}") {
            for part in ALL {
                prop_assert!(part.check("x", &text).is_err() || text.is_ascii(), "{part}: {text:?}");
            }
        }

        #[test]
        fn valid_levels_and_ranges_are_accepted(low in level(), high in level()) {
            prop_assert!(SelinuxPart::Level.check("x", &low).is_ok());
            let range = format!("{low}-{high}");
            prop_assert!(SelinuxPart::Level.check("x", &range).is_ok());
        }

        #[test]
        fn valid_policy_names_are_accepted(name in "[a-z_][a-z0-9_]{0,30}([.][a-z0-9_-]{1,10})?") {
            for part in [SelinuxPart::User, SelinuxPart::Role, SelinuxPart::Type] {
                prop_assert!(part.check("x", &name).is_ok(), "{part}: {name:?}");
            }
        }
    }

    #[test]
    fn level_with_a_quote_or_of_page_length_is_rejected() {
        let level = |level: &str| SelinuxLabel {
            level: level.to_owned(),
            ..SelinuxLabel::default()
        };
        let refused = level("s0\",lowerdir=/,x=\"").check("selinux").unwrap_err();
        assert!(
            refused.to_string().starts_with("selinux.level: \"s0"),
            "{refused}"
        );
        let refused = level(&format!("s0:{}", "c1,".repeat(2000)))
            .check("selinux")
            .unwrap_err();
        assert!(
            refused.to_string().contains("6003 bytes") && refused.to_string().contains("4096"),
            "{refused}"
        );
        for bad in [
            "",
            "s0:",
            "s0,c1",
            "s0:c1,",
            "-",
            "s0-",
            "s0-s1-s2",
            "s0:c1.c2.c3",
            "0",
            "s0:1",
            "s0:c1:c2",
        ] {
            assert!(SelinuxPart::Level.check("x", bad).is_err(), "{bad:?}");
        }
        assert!(
            level("").check("selinux").is_ok(),
            "a part that is not given is the policy's default"
        );
    }
}
