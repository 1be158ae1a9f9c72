//! Events, as `/v1/events` shows the latest ones and `/v1/history` those on record.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The owner of events about the node: its daemon, containerd, logkeeper or clock.
pub const NODE_OWNER: &str = "node";

/// Something that happened on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventView {
    /// Its number in this run of the daemon, from 1; 0 of one on record.
    #[serde(default)]
    pub number: u64,
    /// Time of the event, as RFC 3339.
    pub at: String,
    /// The owner of the object, or of the refused request; [`NODE_OWNER`] if it is about none.
    pub owner: String,
    /// Kind of the event, for example `task_started` or `refused`.
    pub event: String,
    /// The id of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// The id of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The name of the object for people; empty if the event is about none.
    #[serde(default)]
    pub name: String,
    /// Details, as the exit code and its cause, or the reason of a refusal.
    #[serde(default)]
    pub detail: String,
    /// The names under which the orchestrator knows the object; only of an event on record.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub names: BTreeMap<String, String>,
    /// The exit, if the event is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Box<ExitView>>,
}

/// The exit of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitView {
    /// The exit code; 128 plus the signal if a signal ended it.
    pub code: i32,
    /// The cause in one word: `exited`, `oom_killed`, `stopped`, `unhealthy`, `withdrawn`, `start_failed` or `lost`.
    pub cause: String,
    /// The time for which it ran, in milliseconds; absent if it never ran, or that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ran_ms: Option<u64>,
    /// The operation that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// The id of that operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation_id: Option<String>,
    /// The listener that received the request for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listener: Option<String>,
    /// The user of the process that sent the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The process that sent the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// True if it ended while no daemon ran.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_found: bool,
}

/// Some events, and how to get those that follow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventPage {
    /// Names the run of the daemon: the numbers of events begin again with the next run.
    pub run: String,
    /// The number after which the next page begins.
    pub next: u64,
    /// Number of events before these that were lost, since the one that the client named.
    pub missed: u64,
    /// True if the client named an event of an earlier run. These are those of this run then.
    pub is_restarted: bool,
    /// The events, in order.
    pub events: Vec<EventView>,
}

/// Some of the events on record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryPage {
    /// The events, in the order in which they were recorded.
    pub events: Vec<EventView>,
    /// The place where the next page begins; absent from the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Number of records among those of this page that cannot be read.
    #[serde(default)]
    pub unreadable: u64,
    /// Number of events of this run of the daemon that could not be recorded.
    #[serde(default)]
    pub lost: u64,
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn answer_of_the_first_version_is_read_and_written() {
        let golden: Value = serde_json::from_str(include_str!("golden/events.json")).unwrap();
        let read: EventPage = serde_json::from_value(golden.clone()).unwrap();
        assert_eq!((read.next, read.missed, read.is_restarted), (42, 7, true));
        let [exited, refused] = read.events.as_slice() else {
            panic!("{read:?}")
        };
        assert_eq!(
            (exited.event.as_str(), exited.detail.as_str()),
            ("task_exited", "137")
        );
        assert!(exited.sandbox.is_some() && exited.task.is_some());
        assert_eq!((refused.number, refused.owner.as_str()), (42, "nomad"));
        assert!(refused.sandbox.is_none() && refused.task.is_none());
        assert_eq!(serde_json::to_value(&read).unwrap(), golden);
        assert!(exited.names.is_empty() && exited.exit.is_none());
        let mut later = golden;
        later["events"][0]["of_a_later_version"] = Value::from(1);
        assert_eq!(serde_json::from_value::<EventPage>(later).unwrap(), read);
    }
}
