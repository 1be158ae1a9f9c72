//! Checks of a container that has exited, and of its log.

use std::fs;
use std::net::IpAddr;
use std::time::Instant;

use switchyard_proto::cri::v1 as cri;
use tonic::{Code, Status};

use super::super::expected_state::ObjectState;
use super::super::log;
use super::super::outcome::Excuse;
use super::*;
use crate::host::eventually;

impl ChaosClient<'_> {
    pub(super) fn expect_gone(&self, id: &str, answer: Option<Result<(), Status>>) {
        match answer {
            Some(Err(status)) if status.code() == Code::NotFound => {}
            None => {}
            other => self.report_violation(format_args!(
                "{id} was removed, and its status is {other:?}"
            )),
        }
    }

    /// The address of a new pod.
    pub(super) fn address(&self, id: &str) -> Option<IpAddr> {
        let status = self
            .calls
            .call_expecting_ok("PodSandboxStatus", id, || self.cri.pod_status(id))?;
        let address = status.network.unwrap_or_default().ip.parse().ok();
        if address.is_none() && !self.is_shim_killed(id) {
            self.report_violation(format_args!("pod {id} has no address"));
        }
        address
    }

    /// Checks that a pod has its address, which nobody else has, and that its port leads there and nowhere else, whoever was killed meanwhile
    /// and whoever has attached it.
    pub(super) fn check_network(&self, at: usize) {
        let pod = &self.pods[at];
        let Some(address) = pod.address.filter(|_| !pod.stopped) else {
            return;
        };
        let bridge = self.node.root().bridge();
        let mut holders = Vec::new();
        let mut targets = Vec::new();
        let is_right = eventually(NETWORK_LIMIT, || {
            holders = bridge.holders(address);
            targets = bridge.targets(pod.port);
            holders == [pod.id.as_str()] && targets == [address]
        });
        if !is_right && !self.is_shim_killed(&pod.id) {
            let ClientPod { id, port, .. } = pod;
            self.report_violation(format_args!(
                "pod {id} has {address}: the address is held by {holders:?}, and port {port} leads to {targets:?}"
            ));
        }
    }

    /// Checks the exit code and the log of a container whose exit was seen.
    pub(super) fn check_end(&mut self, at: usize, which: usize, status: &cri::ContainerStatus) {
        let container = &mut self.pods[at].containers[which];
        let code = status.exit_code;
        let reported = container.ending_since.is_some();
        let right = match code {
            OWN_CODE => container.exits_by_itself,
            SIGTERM_HANDLED_CODE => !container.exits_by_itself && reported,
            KILLED_CODE | SIGTERM_UNHANDLED_CODE => reported,
            _ => false,
        };
        container.ending_since.get_or_insert_with(Instant::now);
        let id = container.id.clone();
        if let Some(before) = container.code
            && before != code
        {
            self.report_container_violation(
                at,
                which,
                format_args!("the exit code of {id} was {before} and is {code}"),
            );
        } else if !right && !self.is_shim_killed(&id) {
            self.report_container_violation(
                at,
                which,
                format_args!("{id} ended with {code}: {status:?}"),
            );
        }
        self.record_end(at, which, code);
        self.check_log(at, which);
    }

    pub(super) fn record_end(&mut self, at: usize, which: usize, code: i32) {
        let container = &mut self.pods[at].containers[which];
        container.code = Some(code);
        self.calls
            .expected
            .set_state(&container.id, ObjectState::Ended(code));
    }

    /// Checks that no line of the log is missing, doubled or torn, and, once the container has exited, that
    /// the log is complete.
    pub(super) fn check_log(&self, at: usize, which: usize) {
        let container = &self.pods[at].containers[which];
        let path = self.log_path(at, which);
        let mut seen = Ok(false);
        let begun = Instant::now();
        let _ = eventually(END_VISIBLE_LIMIT, || {
            let text = fs::read_to_string(&path).unwrap_or_default();
            seen = log::read(&text).map(|read| is_complete(container, &read));
            // A kill that excuses an incomplete log may be recorded while this waits.
            seen != Ok(false)
                || begun.elapsed() > EXCUSED_LOG_LIMIT && self.log_excuse(container).is_some()
        });
        let path = path.display();
        match (seen, self.log_excuse(container)) {
            (Ok(true), _) => {}
            (Ok(false), Some(excuse)) => {
                self.calls
                    .recorder
                    .outcome()
                    .early_logs
                    .entry(excuse)
                    .or_default()
                    .insert(container.id.clone());
            }
            (Ok(false), None) => {
                self.report_container_violation(
                    at,
                    which,
                    format_args!("the log {path} lacks its end: {container:?}"),
                );
            }
            (Err(fault), _) => {
                self.report_container_violation(at, which, format_args!("the log {path}: {fault}"))
            }
        }
    }

    /// The reason that excuses an incomplete log of the container, if there is one.
    pub(super) fn log_excuse(&self, container: &ClientContainer) -> Option<Excuse> {
        if self.is_shim_killed(&container.id) {
            return Some(Excuse::Shim);
        }
        let both = container
            .ending_since
            .is_some_and(|since| self.calls.expected.both_killed(since));
        both.then_some(Excuse::DaemonAndLogkeeper)
    }
}

/// Returns whether a log has all lines that its container wrote. A container that was killed writes no final
/// line.
fn is_complete(container: &ClientContainer, read: &log::LogProgress) -> bool {
    match container.code {
        Some(OWN_CODE) => read.last == LINES,
        Some(SIGTERM_HANDLED_CODE) => read
            .end
            .is_some_and(|end| end == read.last + 1 || end == read.last),
        _ => true,
    }
}
