//! The state of the membership, for `switchyard swarm status`, metrics and health.

use std::time::SystemTime;

/// The state of the membership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentReport {
    /// The id of the cluster.
    pub cluster: String,
    /// The id of the node.
    pub node: String,
    /// Start of the certificate's validity.
    pub certificate_begins: SystemTime,
    /// End of the certificate's validity.
    pub certificate_ends: SystemTime,
    /// The manager of the session that is open; `None` if there is none.
    pub manager: Option<String>,
    /// Since when there is that session, or none.
    pub since: SystemTime,
    /// Sessions opened since the agent began.
    pub sessions: u64,
    /// Sessions that have failed or could not be opened since then.
    pub failures: u64,
    /// The error of the last session; `None` after one was opened.
    pub session_error: Option<String>,
    /// The error of the last renewal of the certificate; `None` after one that succeeded.
    pub renewal_error: Option<String>,
    /// True if the cluster has promoted the node to a manager, which it cannot be.
    pub is_promoted: bool,
    /// True if another process seems to use the same identity.
    pub is_duplicate: bool,
}

impl AgentReport {
    /// Returns the problems that need an operator, each with its remedy.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.is_promoted {
            problems.push(format!(
                "this node, {node}, was promoted to a manager, and stays a worker, because only workers are supported; \
                 its certificate cannot be renewed any more: run `docker node rm --force {node}` on a manager and \
                 `switchyard swarm leave` here, and join again with a worker token",
                node = self.node
            ));
        }
        if self.is_duplicate {
            problems.push(format!(
                "another machine or process is the same node, {node}, probably a clone of this machine: both lose their \
                 tasks in turn; run `switchyard swarm leave` on one of them, and join again",
                node = self.node
            ));
        }
        problems.extend(
            self.renewal_error
                .iter()
                .map(|error| format!("the certificate cannot be renewed: {error}")),
        );
        problems.extend(self.session_error.clone());
        problems
    }
}

/// The report of a member with which all is well.
#[cfg(test)]
pub(crate) fn sample() -> AgentReport {
    AgentReport {
        cluster: "c".to_owned(),
        node: "n".to_owned(),
        certificate_begins: SystemTime::UNIX_EPOCH,
        certificate_ends: SystemTime::UNIX_EPOCH,
        since: SystemTime::UNIX_EPOCH,
        manager: Some("m:2377".to_owned()),
        sessions: 1,
        failures: 0,
        session_error: None,
        renewal_error: None,
        is_promoted: false,
        is_duplicate: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_says_what_to_do() {
        let well = sample();
        assert!(well.problems().is_empty());
        let promoted = AgentReport {
            is_promoted: true,
            ..well.clone()
        };
        assert!(
            promoted.problems()[0].contains("docker node rm --force n"),
            "{:?}",
            promoted.problems()
        );
        let duplicate = AgentReport {
            is_duplicate: true,
            session_error: Some("gone".to_owned()),
            ..well
        };
        let problems = duplicate.problems();
        assert!(
            problems[0].contains("switchyard swarm leave") && problems[1] == "gone",
            "{problems:?}"
        );
    }
}
