//! The versions of the CNI specification that this crate supports.

use std::fmt;

/// A version of the CNI specification, ordered by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SpecVersion {
    /// 0.3.0: plugin chains.
    V0_3_0,
    /// 0.3.1: the same as 0.3.0 on the wire.
    V0_3_1,
    /// 0.4.0: CHECK, and `prevResult` for DEL.
    V0_4_0,
    /// 1.0.0: results without the `version` of an address.
    V1_0_0,
    /// 1.1.0: GC and STATUS.
    V1_1_0,
}

impl SpecVersion {
    /// Every version, oldest first.
    pub const ALL: [Self; 5] = [
        Self::V0_3_0,
        Self::V0_3_1,
        Self::V0_4_0,
        Self::V1_0_0,
        Self::V1_1_0,
    ];

    /// The version as configurations and results write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// Parses a version; `None` for one that this crate does not support.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|version| version.as_str() == text)
    }

    /// Returns whether CHECK exists, and DEL is given the result of ADD.
    #[must_use]
    pub fn has_check(self) -> bool {
        self >= Self::V0_4_0
    }

    /// Returns whether STATUS and GC exist.
    #[must_use]
    pub fn has_status(self) -> bool {
        self >= Self::V1_1_0
    }

    /// Returns whether addresses in results carry their IP version.
    pub(crate) fn marks_ip_version(self) -> bool {
        self < Self::V1_0_0
    }
}

impl fmt::Display for SpecVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
