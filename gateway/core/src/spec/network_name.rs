//! Names of networks.

use std::fmt;

use crate::error::{Error, Result};

/// The name of a CNI network: a letter or digit, then also dots, dashes and underscores; at most 128 bytes, since plugins
/// name files after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkName(String);

impl NetworkName {
    /// The longest name, in bytes.
    pub const MAX: usize = 128;

    /// Checks a name.
    ///
    /// # Errors
    /// `InvalidArgument`, naming `field`.
    pub fn parse(field: impl fmt::Display, text: &str) -> Result<Self> {
        if text.is_empty() || text.len() > Self::MAX {
            let why = format!(
                "it has {} bytes, and can have from 1 to {}",
                text.len(),
                Self::MAX
            );
            return Err(Error::invalid(field, why));
        }
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if !text.as_bytes()[0].is_ascii_alphanumeric() || !text.bytes().all(is_part) {
            let why =
                "it begins with a letter or digit, and has dots, dashes and underscores besides";
            return Err(Error::invalid(
                field,
                format!("{text:?} is no name of a network: {why}"),
            ));
        }
        Ok(Self(text.to_owned()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
