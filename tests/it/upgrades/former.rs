//! The former version, this one, and the former one again, under running pods, allocations and services.
//!
//! Each test begins with the former program and replaces it twice, as a package manager does. What the former one writes,
//! this one reads, and the other way round.

mod allocations;
mod commands;
mod launchers;
mod logkeepers;
mod network_defaults;
mod pods;
mod services;

use std::path::{Path, PathBuf};
use std::time::Duration;

use switchyard_tests::daemon::binary;
use switchyard_tests::node::TestNode;
use switchyard_tests::versions;

/// Limit for an answer on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Name of the time at which a test looks at what runs before it replaces the program.
const BEFORE: &str = "before the upgrade";

/// The programs that follow the former one, and when a test looks at what runs then.
fn following() -> [(PathBuf, &'static str); 2] {
    [
        (binary(), "after the upgrade"),
        (versions::former(), "after the rollback"),
    ]
}

/// Replaces the program of a node, and restarts its daemon.
#[track_caller]
fn install(node: &TestNode, program: &Path) {
    node.root().put_program(program);
    node.daemon().restart();
}
