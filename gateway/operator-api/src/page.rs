//! The answer of `POST /v1/page`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A link that opens the status page once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageLinkView {
    /// The link, by the address that the node itself reaches.
    pub url: String,
    /// For how long it can be opened, in seconds.
    pub valid_seconds: u64,
    /// True if the page is served on loopback alone.
    pub is_loopback: bool,
}

impl fmt::Debug for PageLinkView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            url: _,
            valid_seconds,
            is_loopback,
        } = self;
        f.debug_struct("PageLinkView")
            .field("valid_seconds", valid_seconds)
            .field("is_loopback", is_loopback)
            .finish_non_exhaustive()
    }
}
