//! The status of the daemon, as `/statusz` answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use switchyard_core::backend::Advisory;
use switchyard_core::table::Counts;

use crate::config::ConfigView;
use crate::programs::ProgramView;

/// The content of `/statusz` and `switchyard status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The build's version.
    pub version: String,
    /// The build's source revision.
    pub revision: String,
    /// The daemon's process id; on the unix socket only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Start of the daemon, as RFC 3339.
    pub started_at: String,
    /// True if all needed parts work.
    pub ready: bool,
    /// The parts.
    pub parts: Vec<PartView>,
    /// Sandboxes by owner and state.
    pub sandboxes: Vec<CountView>,
    /// Tasks by owner and state.
    pub tasks: Vec<CountView>,
    /// The number of images; `None` if they cannot be counted now.
    pub images: Option<u64>,
    /// Programs whose versions have known vulnerabilities, for information; only version numbers are
    /// compared.
    #[serde(default)]
    pub advisories: Vec<AdvisoryView>,
    /// The state of the configuration; on the unix socket only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<ConfigView>,
    /// Driver plugins of Nomad agents that have a session; `None` if Nomad is not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nomad_launchers: Option<u64>,
    /// Objects in a condition that the daemon cannot end, by its kind; on the unix socket only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<TroubleView>,
    /// Limits of the node that containers share, with their use; on the unix socket only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitView>,
    /// Features that the kernel and the node offer to the daemon; on the unix socket only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<FeatureView>,
    /// The backend's facts, as `crictl info` shows them; on the unix socket only.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub facts: BTreeMap<String, String>,
    /// The processes with their programs; on the unix socket only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<ProgramView>,
}

/// Known vulnerabilities of a program, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdvisoryView {
    /// The name of the program.
    pub program: String,
    /// Its version, as the program reports it.
    pub version: String,
    /// The names of the vulnerabilities.
    pub ids: Vec<String>,
}

impl From<Advisory> for AdvisoryView {
    fn from(
        Advisory {
            program,
            version,
            ids,
        }: Advisory,
    ) -> Self {
        Self {
            program,
            version,
            ids,
        }
    }
}

/// Objects in a condition that the daemon cannot end, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TroubleView {
    /// The kind of the condition, as in the metric `switchyard_troubles`; also `unended_task`, `full_pipe` and `failing_operations`, of
    /// which there are metrics of their own.
    pub kind: String,
    /// Number of objects.
    pub count: usize,
    /// The first of them: ids with their names, paths, names of images, or kinds of operations; some with what holds them up.
    pub objects: Vec<String>,
}

impl TroubleView {
    /// The objects as text; the rest is counted.
    #[must_use]
    pub fn listed(&self) -> String {
        let named = self.objects.join(", ");
        match self.count.checked_sub(self.objects.len()) {
            Some(more @ 1..) => format!("{named}, and {more} more"),
            Some(0) | None => named,
        }
    }
}

/// A limit of the node with its use, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitView {
    /// Its name, as in the metric `switchyard_node_limit_used_ratio`.
    pub name: String,
    /// The number in use.
    pub used: u64,
    /// The most that may be in use.
    pub most: u64,
}

impl LimitView {
    /// A limit with its use.
    #[must_use]
    pub fn new(name: &str, used: u64, most: u64) -> Self {
        Self {
            name: name.to_owned(),
            used,
            most,
        }
    }

    /// The part in use, in percent.
    #[must_use]
    pub fn percent(&self) -> u64 {
        match self.most {
            0 => 100,
            most => self.used.saturating_mul(100) / most,
        }
    }
}

/// Something that the kernel or the node offers to the daemon, or does not, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureView {
    /// Its name, as in the metric `switchyard_host_feature`.
    pub name: String,
    /// The reason why it cannot be used, and what is left out without it; `None` if it can be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// A part, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartView {
    /// Its name, one word.
    pub name: String,
    /// True if it works.
    pub up: bool,
    /// True if the node is not ready without it.
    pub needed: bool,
    /// Its description, or why it does not work; on the unix socket only.
    pub detail: String,
}

/// Number of objects of an owner in one state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountView {
    /// The owner.
    pub owner: String,
    /// The state.
    pub state: String,
    /// Number of objects.
    pub count: u64,
}

/// The counts as a list, ordered by owner and state.
#[must_use]
pub fn count_views(counts: &Counts) -> Vec<CountView> {
    counts
        .iter()
        .map(|((owner, state), count)| CountView {
            owner: owner.to_string(),
            state: (*state).into(),
            count: *count,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::config::Effect;

    #[test]
    fn answer_of_the_first_version_is_read_and_written() {
        let golden: Value = serde_json::from_str(include_str!("golden/status.json")).unwrap();
        let read: StatusReport = serde_json::from_value(golden.clone()).unwrap();
        assert_eq!(
            (read.pid, read.ready, read.images),
            (Some(4711), false, None)
        );
        let broken = read.parts.iter().find(|part| !part.up);
        let broken = broken.expect("a part does not work");
        assert_eq!((broken.name.as_str(), broken.needed), ("swarm", false));
        assert_eq!((read.sandboxes[0].count, read.tasks[0].count), (2, 3));
        assert_eq!(read.advisories[0].ids, ["CVE-2024-21626"]);
        let config = read.config.as_ref().expect("it is on the unix socket");
        assert_eq!(config.pending[0].effect, Effect::EmptyNode);
        assert!(config.refused.is_some() && config.ignored.len() == 1);
        let program = &read.programs[0];
        assert!(program.replaced && program.has_former_configuration());
        assert_eq!(serde_json::to_value(&read).unwrap(), golden);
        let mut later = golden.clone();
        later["parts"][0]["of_a_later_version"] = Value::from(1);
        assert_eq!(serde_json::from_value::<StatusReport>(later).unwrap(), read);
        let mut troubled = golden;
        troubled["troubles"] = json!([{"kind": "silent_shim", "count": 3, "objects": ["a", "b"]}]);
        troubled["features"] =
            json!([{"name": "openat2"}, {"name": "apparmor", "fault": "it is off"}]);
        let read: StatusReport = serde_json::from_value(troubled.clone()).unwrap();
        assert_eq!(read.troubles[0].listed(), "a, b, and 1 more");
        assert_eq!(
            (&read.features[0].fault, read.features[1].fault.as_deref()),
            (&None, Some("it is off"))
        );
        assert_eq!(serde_json::to_value(&read).unwrap(), troubled);
    }

    #[test]
    fn answer_without_what_the_unix_socket_alone_has_is_read_and_written() {
        let mut public: Value = serde_json::from_str(include_str!("golden/status.json")).unwrap();
        let fields = public.as_object_mut().unwrap();
        for withheld in ["pid", "config", "programs"] {
            fields.remove(withheld).unwrap();
        }
        let read: StatusReport = serde_json::from_value(public.clone()).unwrap();
        assert!(read.pid.is_none() && read.config.is_none() && read.programs.is_empty());
        assert_eq!(serde_json::to_value(&read).unwrap(), public);
    }
}
