//! The integration tests of Switchyard, one binary.

mod architecture;
mod contract;
mod cri;
mod daemon;
mod images;
mod support_works;
mod undo;
