//! The frame of all pages.

use switchyard_operator_api::VERSION;

/// The shortest and the longest time between two loads of a page, in seconds.
const REFRESH_MIN: u64 = 5;
const REFRESH_MAX: u64 = 3600;

/// Interval, in seconds, at which a page reloads itself if its link for that was followed.
const REFRESH: u64 = 10;

/// The frame around the content of a page.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) title: String,
    /// The name of the node; empty where strangers could read it.
    pub(super) node: String,
    pub(super) version: &'static str,
    /// True for a page of a session.
    pub(super) is_open: bool,
    /// After how many seconds a browser loads the page again.
    pub(super) refresh: Option<u64>,
    /// The address of this page without and with that.
    pub(super) still_href: String,
    pub(super) refresh_href: String,
}

/// The address of a page: its path, and a query that is well-formed.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    pub(crate) path: String,
    pub(crate) query: Vec<(&'static str, String)>,
    pub(crate) refresh: Option<u64>,
}

// === impl Frame ===

impl Frame {
    /// Returns the frame of a page that needs no session.
    pub(super) fn outside(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            node: String::new(),
            version: VERSION,
            is_open: false,
            refresh: None,
            still_href: String::new(),
            refresh_href: String::new(),
        }
    }

    /// The frame of a page that is shown in a session.
    pub(super) fn inside(title: String, node: String, address: &Address) -> Self {
        Self {
            title,
            node,
            version: VERSION,
            is_open: true,
            refresh: address
                .refresh
                .map(|seconds| seconds.clamp(REFRESH_MIN, REFRESH_MAX)),
            still_href: address.with(None),
            refresh_href: address.with(Some(REFRESH)),
        }
    }
}

// === impl Address ===

impl Address {
    /// This address with another time between two loads.
    fn with(&self, refresh: Option<u64>) -> String {
        let refresh = refresh.map(|seconds| ("refresh", seconds.to_string()));
        self.with_query(self.query.iter().cloned().chain(refresh))
    }

    /// The address with these values in place of those of the query; the time between two loads stays.
    pub(crate) fn replaced(&self, query: Vec<(&'static str, String)>) -> String {
        let refresh = self.refresh.map(|seconds| ("refresh", seconds.to_string()));
        self.with_query(query.into_iter().chain(refresh))
    }

    fn with_query(&self, pairs: impl Iterator<Item = (&'static str, String)>) -> String {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(pairs);
        let query = query.finish();
        if query.is_empty() {
            self.path.clone()
        } else {
            format!("{}?{query}", self.path)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refresh_is_bounded_and_kept_by_links() {
        let query = vec![("owner", "nomad".to_owned())];
        let address = Address {
            path: "/".to_owned(),
            query,
            refresh: Some(1),
        };
        let frame = Frame::inside("t".to_owned(), "n".to_owned(), &address);
        assert_eq!(frame.refresh, Some(5));
        assert_eq!(frame.still_href, "/?owner=nomad");
        assert_eq!(frame.refresh_href, "/?owner=nomad&refresh=10");
        assert_eq!(address.replaced(Vec::new()), "/?refresh=1");
        let still = Address {
            refresh: None,
            ..address
        };
        assert_eq!(still.replaced(Vec::new()), "/");
    }
}
