//! The integration tests of Switchyard, one binary.

mod architecture;
mod contract;
mod support_works;
mod undo;
