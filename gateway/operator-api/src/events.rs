//! Events, as `/v1/events` shows them.

use serde::{Deserialize, Serialize};

/// Something that happened on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventView {
    /// Its number in this run of the daemon, from 1.
    pub number: u64,
    /// Time of the event, as RFC 3339.
    pub at: String,
    /// The owner of the object, or of the refused request.
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
    /// The exit code, or the reason of a refusal.
    #[serde(default)]
    pub detail: String,
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
    /// True if the client named an event of an earlier run, whose events are gone.
    pub is_restarted: bool,
    /// The events, in order.
    pub events: Vec<EventView>,
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
        let mut later = golden;
        later["events"][0]["of_a_later_version"] = Value::from(1);
        assert_eq!(serde_json::from_value::<EventPage>(later).unwrap(), read);
    }
}
