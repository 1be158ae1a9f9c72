//! A host of plugins that does what a Nomad agent does with ours, step by step, and checks every answer as an agent depends on it.
//!
//! [`plugin::Plugin`] is one started executable, [`agent::Agent`] what an agent makes of it: the launches at its start, the one instance
//! that it keeps, and what it does when that ends. [`task::Setup`] is what an agent prepares before it starts a task.

pub mod agent;
pub mod cgroup;
pub mod config;
pub mod driver;
pub mod place;
pub mod plugin;
pub mod runner;
pub mod task;

mod pump;

pub use agent::Agent;
pub use driver::Driver;
pub use place::Place;
pub use plugin::Plugin;
pub use runner::Runner;
pub use task::Setup;
