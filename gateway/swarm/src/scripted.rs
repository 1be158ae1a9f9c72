//! The node against a manager that does what a test wants, also what no real manager does.

mod joins;
mod manager;
mod sessions;
