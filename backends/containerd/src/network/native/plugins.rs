//! The plugins that attach to bridges of the gateway where the daemon does not do without them.

use switchyard_core::{Error, Result};

use super::NativeBridges;
use crate::network::bridge;

impl NativeBridges {
    /// Checks that the node has the programs that plugins run for a bridge of the gateway.
    ///
    /// # Errors
    /// `Unavailable`, naming the network, and [explained](NativeBridges::explain).
    pub(in crate::network) fn check_programs(&self, network: &str) -> Result<()> {
        bridge::check_programs(network).map_err(|error| self.explain(network, error))
    }

    /// Adds to an error of plugins on a bridge of the gateway why the daemon does not do without them, if the kernel is to blame for that.
    pub(in crate::network) fn explain(&self, network: &str, error: Error) -> Error {
        match &self.fault {
            Some(fault) => error.context(format!(
                "CNI plugins attach to network {network}, since the kernel lacks what the driver \"native\" needs ({fault})"
            )),
            None => error,
        }
    }
}
