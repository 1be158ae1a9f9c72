//! A plugin host that does with our plugins what a Nomad agent does, step by step, and checks in every answer
//! what an agent relies on.
//!
//! [`plugin::PluginProcess`] is one started executable. [`agent::Agent`] is an agent: it launches plugins
//! when it starts, keeps one instance, and restarts that when it exits. [`task::TaskSetup`] is what an agent
//! prepares before it starts a task.

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
