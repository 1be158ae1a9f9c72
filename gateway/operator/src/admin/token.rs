//! The bearer token of the metrics listener: read from a file, and compared with what requests present.
//!
//! The token is in no log line, error or `Debug` text, and the time of a comparison does not depend on how
//! much of a wrong token is right.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use nix::unistd::geteuid;
use parking_lot::RwLock;
use subtle::ConstantTimeEq;
use switchyard_node_files::{ReadError, RegularFile};

/// The shortest token: 16 characters of base64 are 96 bits.
const SHORTEST: usize = 16;

/// The longest token, and thus the most of a file that is read, apart from white space around it.
const LONGEST: usize = 1024;

/// Maximum white space around the token in a file, in bytes.
const MARGIN: usize = 16;

/// The mode bits that the file may not have: only its owner may write it, and others have no access.
const FORBIDDEN: u32 = 0o027;

/// Reason why a file has no usable token. No text contains a part of it.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the bearer token in {}", path.display())]
pub struct TokenError {
    /// The file.
    pub path: PathBuf,
    /// The reason.
    #[source]
    pub reason: TokenFault,
}

/// A fault of a token file or of the token in it.
#[derive(Debug, thiserror::Error)]
pub enum TokenFault {
    /// It cannot be opened or read.
    #[error("it cannot be read")]
    Unreadable(#[source] io::Error),
    /// It is a directory, a FIFO or the like.
    #[error("it is no regular file but {found}")]
    NotAFile {
        /// Type of the file, with an article.
        found: &'static str,
    },
    /// Users who may read it would know the token, and those who may write it could choose it.
    #[error(
        "its mode is {mode:04o}, and others must not read it nor its group write it: chmod 0600 it"
    )]
    Mode {
        /// Its permission bits.
        mode: u32,
    },
    /// Its owner could choose the token.
    #[error("it belongs to uid {uid}: chown it to root")]
    Owner {
        /// Its owner.
        uid: u32,
    },
    /// It contains no token, or one that is easily guessed.
    #[error(
        "the token has {length} characters, and needs at least {SHORTEST}: `openssl rand -hex 32` makes one"
    )]
    Short {
        /// The length of the token.
        length: usize,
    },
    /// It contains more than a token.
    #[error("the token has more than {LONGEST} characters")]
    Long,
    /// No HTTP header can carry it.
    #[error("the token is not one word of letters, digits and `-._~+/=`")]
    Characters,
}

/// A token that was read.
#[derive(Clone)]
pub struct Token(Box<[u8]>);

/// The token that requests must present, which can be replaced. Clones share it.
#[derive(Debug, Clone)]
pub struct BearerToken(Arc<RwLock<Token>>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(withheld)")
    }
}

// === impl TokenFault ===

impl From<ReadError> for TokenFault {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::NotRegular { found } => Self::NotAFile { found },
            ReadError::TooLarge { .. } => Self::Long,
            ReadError::Io(_) | ReadError::NotText | ReadError::TooMany { .. } => {
                Self::Unreadable(error.into())
            }
        }
    }
}

// === impl BearerToken ===

impl BearerToken {
    /// Demands a token.
    #[must_use]
    pub fn new(first: Token) -> Self {
        Self(Arc::new(RwLock::new(first)))
    }

    /// Demands another token from now on, of open connections too.
    pub fn replace(&self, new: Token) {
        *self.0.write() = new;
    }

    /// Returns whether a request presents the token, in its only `Authorization` header.
    #[must_use]
    pub fn is_presented(&self, headers: &HeaderMap) -> bool {
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let (Some(only), None) = (given.next(), given.next()) else {
            return false;
        };
        let Some((scheme, rest)) = only.as_bytes().split_at_checked("Bearer ".len()) else {
            return false;
        };
        scheme.eq_ignore_ascii_case(b"Bearer ")
            && bool::from(rest.trim_ascii_start().ct_eq(&self.0.read().0))
    }
}

// === impl Token ===

impl Token {
    /// Reads a token from a file. Blocks on the file system, but not on a FIFO.
    ///
    /// # Errors
    /// The file is not safe from others, or has no usable token.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let fail = |reason| TokenError {
            path: path.to_owned(),
            reason,
        };
        let file = RegularFile::open(path).map_err(|error| fail(error.into()))?;
        let metadata = file.metadata();
        check_access(metadata.mode(), metadata.uid(), geteuid().as_raw()).map_err(fail)?;
        let most = u64::try_from(LONGEST + MARGIN).expect("it is small");
        let bytes = file.read(most).map_err(|error| fail(error.into()))?;
        Self::parse(&bytes).map_err(fail)
    }

    /// The token in the content of a file.
    fn parse(bytes: &[u8]) -> Result<Self, TokenFault> {
        let token = bytes.trim_ascii();
        if token.len() < SHORTEST {
            return Err(TokenFault::Short {
                length: token.len(),
            });
        }
        if token.len() > LONGEST {
            return Err(TokenFault::Long);
        }
        if !token
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte))
        {
            return Err(TokenFault::Characters);
        }
        Ok(Self(token.into()))
    }
}

/// Checks that only root or the daemon's own user can write a file, and that others cannot read it.
const fn check_access(mode: u32, uid: u32, own: u32) -> Result<(), TokenFault> {
    if mode & FORBIDDEN != 0 {
        return Err(TokenFault::Mode {
            mode: mode & 0o7777,
        });
    }
    if uid != 0 && uid != own {
        return Err(TokenFault::Owner { uid });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use http::HeaderValue;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use proptest::prelude::*;

    use super::*;

    const SECRET: &str = "a-token-of-sixteen+characters/or==more";

    fn token() -> BearerToken {
        BearerToken::new(Token::parse(SECRET.as_bytes()).unwrap())
    }

    fn headers(values: &[&str]) -> HeaderMap {
        let values = values
            .iter()
            .map(|value| (AUTHORIZATION, HeaderValue::from_str(value).unwrap()));
        let mut headers = HeaderMap::new();
        for (name, value) in values {
            headers.append(name, value);
        }
        headers
    }

    /// The reason why a file with this content and mode is refused.
    fn refused(content: &str, mode: u32) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let error = Token::read(&path).unwrap_err();
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
        error.source().unwrap().to_string()
    }

    #[test]
    fn only_the_whole_token_in_the_only_header_is_accepted() {
        let token = token();
        for good in ["Bearer ", "bearer ", "BEARER  "] {
            assert!(
                token.is_presented(&headers(&[&format!("{good}{SECRET}")])),
                "{good}"
            );
        }
        let right = format!("Bearer {SECRET}");
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            SECRET,
            &format!("Basic {SECRET}"),
            &format!("Bearer{SECRET}"),
            &format!("Bearer {SECRET}x"),
            &format!("Bearer {}", &SECRET[1..]),
            &format!("Bearer {}", SECRET.to_uppercase()),
            &format!("Bearer {SECRET}, Bearer {SECRET}"),
        ] {
            assert!(!token.is_presented(&headers(&[wrong])), "{wrong}");
            assert!(!token.is_presented(&headers(&[&right, wrong])), "{wrong}");
        }
        assert!(!token.is_presented(&headers(&[])));
        token.replace(Token::parse(b"another-token-of-this-length").unwrap());
        assert!(!token.is_presented(&headers(&[&right])));
    }

    proptest! {
        #[test]
        fn header_with_another_byte_is_refused(at in 0..SECRET.len() + 7, byte in 0x20..0x7f_u8) {
            let right = format!("Bearer {SECRET}");
            let mut changed = right.clone().into_bytes();
            changed[at] = byte;
            let changed = String::from_utf8(changed).unwrap();
            let is_same = changed == right || at < 6 && changed.eq_ignore_ascii_case(&right);
            prop_assert_eq!(token().is_presented(&headers(&[&changed])), is_same, "{}", changed);
        }
    }

    #[test]
    fn file_with_a_safe_mode_and_one_line_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, format!("{SECRET}\r\n")).unwrap();
        for mode in [0o600, 0o400, 0o640] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(*Token::read(&path).unwrap().0, *SECRET.as_bytes());
        }
        assert!(check_access(0o600, 12, 12).is_ok() && check_access(0o600, 0, 12).is_ok());
        assert!(
            check_access(0o600, 13, 12)
                .unwrap_err()
                .to_string()
                .contains("uid 13")
        );
    }

    #[test]
    fn unsafe_or_unusable_file_is_refused_without_showing_the_token() {
        for (content, mode, why) in [
            (SECRET.to_owned(), 0o604, "its mode is 0604"),
            (SECRET.to_owned(), 0o660, "its mode is 0660"),
            (SECRET.to_owned(), 0o601, "its mode is 0601"),
            (String::new(), 0o600, "has 0 characters"),
            ("\n \n".to_owned(), 0o600, "has 0 characters"),
            (SECRET[..15].to_owned(), 0o600, "has 15 characters"),
            (format!("{SECRET}\n{SECRET}\n"), 0o600, "not one word"),
            ("tökens-of-any-language".to_owned(), 0o600, "not one word"),
            ("x".repeat(LONGEST + 1), 0o600, "more than 1024"),
            (
                format!("{SECRET}{}", " ".repeat(4096)),
                0o600,
                "more than 1024",
            ),
        ] {
            let reason = refused(&content, mode);
            assert!(
                reason.contains(why) && !reason.contains(&SECRET[..8]),
                "{reason}"
            );
        }
        let token = token();
        assert!(!format!("{token:?}").contains(&SECRET[..8]), "{token:?}");
    }

    #[test]
    fn directory_and_fifo_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        for path in [dir.path(), &fifo] {
            let error = Token::read(path).unwrap_err();
            assert!(
                matches!(error.reason, TokenFault::NotAFile { .. }),
                "{:?}",
                error.reason
            );
        }
        let absent = Token::read(&dir.path().join("absent")).unwrap_err();
        assert!(
            matches!(absent.reason, TokenFault::Unreadable(_)),
            "{:?}",
            absent.reason
        );
    }
}
