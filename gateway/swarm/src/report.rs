//! How the membership is, for `switchyard swarm status`, metrics and health.

use std::time::SystemTime;

/// How the membership is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentReport {
    /// The id of the cluster.
    pub cluster: String,
    /// The id of the node.
    pub node: String,
    /// When the certificate was issued.
    pub certificate_begins: SystemTime,
    /// When it ends.
    pub certificate_ends: SystemTime,
    /// The manager of the session that is open; `None` if there is none.
    pub manager: Option<String>,
    /// Since when there is that session, or none.
    pub since: SystemTime,
    /// How many sessions were opened since the agent began.
    pub sessions: u64,
    /// How many sessions have failed, or could not be opened, since then.
    pub failures: u64,
    /// Why the last session ended or could not be opened; `None` after one was opened.
    pub session_error: Option<String>,
    /// Why the last renewal of the certificate failed; `None` after one that did not.
    pub renewal_error: Option<String>,
    /// Whether the cluster wants the node to be a manager, which it cannot be.
    pub is_promoted: bool,
    /// Whether another process seems to be the same node.
    pub is_duplicate: bool,
}

impl AgentReport {
    /// What an operator has to mend, each with what to do; empty if nothing.
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
            self.renewal_error.iter().map(|error| format!("the certificate cannot be renewed: {error}")),
        );
        problems.extend(self.session_error.clone());
        problems
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::AgentReport;

    #[test]
    fn each_problem_says_what_to_do() {
        let well = AgentReport {
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
        };
        assert!(well.problems().is_empty());
        let promoted = AgentReport { is_promoted: true, ..well.clone() };
        assert!(promoted.problems()[0].contains("docker node rm --force n"), "{:?}", promoted.problems());
        let duplicate = AgentReport { is_duplicate: true, session_error: Some("gone".to_owned()), ..well };
        let problems = duplicate.problems();
        assert!(problems[0].contains("switchyard swarm leave") && problems[1] == "gone", "{problems:?}");
    }
}
