//! The reports of frontends, devices and the node's part in a swarm for operators.

mod devices;
mod frontends;
pub mod plugins;
pub mod swarm;

pub(crate) use devices::DeviceReport;
pub(crate) use frontends::{CriReport, NomadReport, Serving};
