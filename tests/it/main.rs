//! The integration tests of Switchyard, one binary.

mod architecture;
mod breaks;
mod caller_resources;
mod contract;
mod cri;
mod daemon;
mod debian_packages;
mod doctor;
mod fuzzing;
mod history;
mod hostile;
mod images;
mod kills;
mod ledger;
mod logs;
mod metrics;
mod nomad;
mod objects;
mod prometheus;
mod reload;
mod secrets;
mod support_works;
mod swarm;
mod two_gateways;
mod undo;
mod upgrades;
