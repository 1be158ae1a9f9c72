//! Drivers that attach the pods of a run to their bridge.

use std::fmt;

use clap::ValueEnum;

/// The drivers of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Drivers {
    /// The daemon itself
    Native,
    /// CNI plugins
    Cni,
    /// Each with every other start of the daemon, so that it ends what plugins have begun, and the other way round
    #[default]
    Both,
}

impl Drivers {
    /// The value of `network.bridge.driver` for a start of the daemon, of which the first one has the number 0.
    pub(super) fn at_start(self, number: u32) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Cni => "cni",
            Self::Both if number.is_multiple_of(2) => "native",
            Self::Both => "cni",
        }
    }
}

impl fmt::Display for Drivers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Cni => "cni",
            Self::Both => "both",
        })
    }
}
