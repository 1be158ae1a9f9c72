//! The integration tests of Switchyard, one binary.

mod architecture;
mod breaks;
mod contract;
mod cri;
mod daemon;
mod fuzzing;
mod hostile;
mod images;
mod kills;
mod ledger;
mod lent;
mod neighbours;
mod nomad;
mod packages;
mod support_works;
mod undo;
