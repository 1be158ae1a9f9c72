//! A pod of a test, with its containers and their logs.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use switchyard_proto::cri::v1 as cri;
use tonic::Status;

use super::TestNode;
use crate::host::{eventually, random_name};

/// Limit for a log to contain the printed text.
const LOG_LIMIT: Duration = Duration::from_secs(20);

/// A pod that is stopped and removed when it is dropped; then nothing that carries its id may be left.
#[derive(Debug)]
pub struct TestPod<'n> {
    node: &'n TestNode,
    id: String,
    config: cri::PodSandboxConfig,
}

impl<'n> TestPod<'n> {
    /// Takes over a pod that exists already.
    #[must_use]
    pub const fn adopt(node: &'n TestNode, id: String, config: cri::PodSandboxConfig) -> Self {
        Self { node, id, config }
    }

    /// The node that it is on.
    #[must_use]
    pub const fn node(&self) -> &'n TestNode {
        self.node
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its configuration.
    #[must_use]
    pub const fn config(&self) -> &cri::PodSandboxConfig {
        &self.config
    }

    /// Its status.
    ///
    /// # Panics
    /// When it has none.
    #[track_caller]
    #[must_use]
    pub fn status(&self) -> cri::PodSandboxStatus {
        self.node
            .cri
            .pod_status(&self.id)
            .expect("the pod exists, so it has a status")
    }

    /// Its first address.
    ///
    /// # Panics
    /// When it has none.
    #[track_caller]
    #[must_use]
    pub fn ip(&self) -> String {
        let ip = self.status().network.unwrap_or_default().ip;
        assert!(!ip.is_empty(), "pod {} has no address", self.id);
        ip
    }

    /// Creates a container; the result of the call.
    ///
    /// # Errors
    /// The status of the call.
    pub fn try_create(&self, config: &cri::ContainerConfig) -> Result<String, Status> {
        self.node.cri.create(&self.id, config, &self.config)
    }

    /// Creates a container; its id.
    ///
    /// # Panics
    /// When it is refused.
    #[track_caller]
    #[must_use]
    pub fn create(&self, config: &cri::ContainerConfig) -> String {
        self.try_create(config).unwrap_or_else(|status| {
            panic!("CreateContainer: {status}\n{}", self.node.daemon().tail())
        })
    }

    /// Creates and starts a container; its id.
    ///
    /// # Panics
    /// When either is refused.
    #[track_caller]
    #[must_use]
    pub fn start(&self, config: &cri::ContainerConfig) -> String {
        let id = self.create(config);
        self.node.cri.start(&id).unwrap_or_else(|status| {
            panic!("StartContainer: {status}\n{}", self.node.daemon().tail())
        });
        id
    }

    /// Creates and starts a container that runs `sh -c script`; its id.
    ///
    /// # Panics
    /// When either is refused.
    #[track_caller]
    #[must_use]
    pub fn start_shell(&self, name: &str, script: &str) -> String {
        self.start(&self.node.container(name, &["sh", "-c", script]))
    }

    /// As [`TestPod::start_shell`], changed by `change`.
    ///
    /// # Panics
    /// When either is refused.
    #[track_caller]
    #[must_use]
    pub fn start_shell_with(
        &self,
        name: &str,
        script: &str,
        change: impl FnOnce(&mut cri::ContainerConfig),
    ) -> String {
        let mut config = self.node.container(name, &["sh", "-c", script]);
        change(&mut config);
        self.start(&config)
    }

    /// Runs `sh -c script` in a new container until it exits; its output, without log format. Fails when the
    /// script does.
    ///
    /// # Panics
    /// When it is refused, or does not end with 0.
    #[track_caller]
    #[must_use]
    pub fn run_shell(
        &self,
        script: &str,
        change: impl FnOnce(&mut cri::ContainerConfig),
    ) -> String {
        let name = random_name();
        let id = self.start_shell_with(&name, script, change);
        let status = self.node.cri.wait_exit(&id);
        let text = self.log_text(&name);
        assert!(
            status.exit_code == 0,
            "{script:?} ended with {}: {text}",
            status.exit_code
        );
        text
    }

    /// The path of a container's log.
    #[must_use]
    pub fn log_path(&self, name: &str) -> PathBuf {
        PathBuf::from(&self.config.log_directory).join(format!("{name}.log"))
    }

    /// The lines of a container's log, in their format.
    #[must_use]
    pub fn log(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.log_path(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until the log fulfils `condition`; its lines then.
    ///
    /// # Panics
    /// When it does not within twenty seconds.
    #[track_caller]
    pub fn wait_log(
        &self,
        name: &str,
        mut condition: impl FnMut(&[String]) -> bool,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        let held = eventually(LOG_LIMIT, || {
            lines = self.log(name);
            condition(&lines)
        });
        assert!(
            held,
            "the log {name} has not come to it after {LOG_LIMIT:?}: {lines:#?}"
        );
        lines
    }

    /// The output of a container so far: log lines without timestamp, stream and tag.
    #[must_use]
    pub fn log_text(&self, name: &str) -> String {
        let lines: Vec<_> = self
            .log(name)
            .iter()
            .map(|line| log_content(line).to_owned())
            .collect();
        lines.join("\n")
    }
}

impl Drop for TestPod<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.node.failed.store(true, Ordering::SeqCst);
            // The failure has been reported already; the node may still serve other tests.
            let _ = self.node.cri.stop_pod(&self.id);
            let _ = self.node.cri.remove_pod(&self.id);
            return;
        }
        let containers = self
            .node
            .cri
            .containers()
            .expect("containers can be listed");
        let mut ids: Vec<&str> = containers
            .iter()
            .filter(|container| container.pod_sandbox_id == self.id)
            .map(|container| container.id.as_str())
            .collect();
        ids.push(&self.id);
        self.node
            .cri
            .stop_pod(&self.id)
            .expect("a pod can be stopped");
        self.node
            .cri
            .remove_pod(&self.id)
            .expect("a stopped pod can be removed");
        self.node.assert_gone(&ids);
    }
}

/// The text of a log line, without timestamp, stream and tag.
#[must_use]
pub fn log_content(line: &str) -> &str {
    line.splitn(4, ' ').nth(3).unwrap_or_default()
}
