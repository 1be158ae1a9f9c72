//! The node against a manager that does what a test wants, also what no real manager does.

mod joins;
mod log_broker;
mod logs;
mod manager;
mod overlaps;
mod sessions;
mod starts;
