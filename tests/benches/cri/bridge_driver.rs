//! Drivers that attach our tasks of Nomad and Swarm to the gateway's own bridge.

use clap::ValueEnum;
use switchyard_containerd::config::BridgeDriverChoice;

use crate::row::Goal;

/// A driver of the gateway's own bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BridgeDriver {
    /// CNI plugins.
    Cni,
    /// The daemon itself.
    Native,
}

// === impl BridgeDriver ===

impl BridgeDriver {
    /// Its name in the configuration, and in rows.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cni => "cni",
            Self::Native => "native",
        }
    }

    /// The settings of a daemon that has it.
    pub(crate) fn settings(self) -> String {
        format!("[network.bridge]\ndriver = \"{}\"\n", self.name())
    }

    /// The same for a backend in this process.
    pub(crate) const fn choice(self) -> BridgeDriverChoice {
        match self {
            Self::Cni => BridgeDriverChoice::Cni,
            Self::Native => BridgeDriverChoice::Native,
        }
    }

    /// The goal of a start on the bridge, beside a bare one with plugins: `with_plugins` where our side runs them too.
    pub(crate) const fn goal(self, with_plugins: f64) -> Goal {
        match self {
            Self::Cni => Goal::RatioAtMost(with_plugins),
            Self::Native => Goal::RatioAtMost(0.5),
        }
    }
}
