//! A host of plugins that does what a Nomad agent does with ours, step by step, and checks every answer as an agent depends on it.
//!
//! [`plugin::Plugin`] is one started executable, [`agent::Agent`] what an agent makes of it: the launches at its start, the one instance
//! that it keeps, and what it does when that ends. [`task::Setup`] is what an agent prepares before it starts a task.

pub mod agent;
pub mod agent_paths;
pub mod cgroup;
pub mod config;
pub mod driver;
pub mod plugin;
pub mod runner;
pub mod task;

mod pipe_reader;

pub use agent::Agent;
pub use agent_paths::AgentPaths;
pub use driver::BlockingDriver;
pub use plugin::PluginProcess;
pub use runner::TaskRunner;
pub use task::TaskSetup;
