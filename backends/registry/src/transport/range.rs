//! The bytes of some content that are requested.

/// The bytes to request, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RangeRequest {
    /// The first byte.
    pub(crate) from: u64,
    /// The end, exclusive; `None` for all that follow.
    pub(crate) to: Option<u64>,
    /// True if the request gets a connection that no other uses meanwhile, also if the server speaks HTTP/2.
    pub(crate) own_connection: bool,
}

impl RangeRequest {
    /// The value of the header `Range`; `None` for all bytes.
    pub(super) fn header(self) -> Option<String> {
        match (self.from, self.to) {
            (0, None) => None,
            (from, None) => Some(format!("bytes={from}-")),
            (from, Some(to)) => Some(format!("bytes={from}-{}", to.saturating_sub(1))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_names_the_last_byte() {
        let header = |from, to| {
            let range = RangeRequest {
                from,
                to,
                own_connection: false,
            };
            range.header()
        };
        assert_eq!(header(0, None), None);
        assert_eq!(header(5, None).as_deref(), Some("bytes=5-"));
        assert_eq!(header(0, Some(4)).as_deref(), Some("bytes=0-3"));
        assert_eq!(header(4, Some(8)).as_deref(), Some("bytes=4-7"));
    }
}
