//! Log requests of managers: the selection of tasks, streams and lines. It is pure.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use switchyard_logkeeper::format::Stream;
use switchyard_logkeeper::reader::LogQuery;
use switchyard_proto::docker::swarmkit::v1 as swarm;

use crate::executor::TaskLog;

/// The longest id. Those of managers have 25 characters.
const ID_MAX: usize = 128;

/// The most ids by which tasks are selected.
const SELECTORS_MAX: usize = 10_000;

/// The content of a manager's message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SubscriptionChange {
    /// Logs are wanted.
    Opened(LogRequest),
    /// Nobody wants the logs of this subscription any more.
    Closed(String),
}

/// Logs that are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogRequest {
    /// The subscription.
    pub(super) id: String,
    /// The part of the logs to read; `None` if only unknown streams were named.
    pub(super) query: Option<LogQuery>,
    selection: Selection,
}

/// The selected tasks: those that match any of these.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Selection {
    services: BTreeSet<String>,
    tasks: BTreeSet<String>,
    /// True if this node, and with it all of its tasks, is selected.
    is_whole_node: bool,
}

/// The reason why a message is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidSubscription {
    /// It cannot be answered.
    #[error("its id has {0} bytes, or characters that are in no id")]
    Id(usize),
    /// It is answered without logs.
    #[error("{reason}")]
    Unsupported {
        /// The subscription.
        id: String,
        /// The defect.
        reason: String,
    },
}

// === impl SubscriptionChange ===

impl SubscriptionChange {
    /// Interprets a message to this node.
    ///
    /// # Errors
    /// [`InvalidSubscription`].
    pub(super) fn from_proto(
        message: swarm::SubscriptionMessage,
        node: &str,
    ) -> Result<Self, InvalidSubscription> {
        let swarm::SubscriptionMessage {
            id,
            selector,
            options,
            close,
        } = message;
        if !is_id(&id) {
            return Err(InvalidSubscription::Id(id.len()));
        }
        if close {
            return Ok(Self::Closed(id));
        }
        let swarm::LogSelector {
            service_ids,
            node_ids,
            task_ids,
        } = selector.unwrap_or_default();
        let asked = service_ids.len() + node_ids.len() + task_ids.len();
        if asked > SELECTORS_MAX {
            let reason = format!("it selects tasks by {asked} ids, of at most {SELECTORS_MAX}");
            return Err(InvalidSubscription::Unsupported { id, reason });
        }
        let swarm::LogSubscriptionOptions {
            streams,
            follow,
            tail,
            since,
        } = options.unwrap_or_default();
        if tail > 0 {
            let reason =
                format!("options.tail is {tail}: lines from the beginning are not supported");
            return Err(InvalidSubscription::Unsupported { id, reason });
        }
        // -1 is for no line, -2 for one, and so on; 0 for all.
        let tail = (tail < 0).then(|| (tail + 1).unsigned_abs());
        let since = since.map(time);
        let query = match selected(&streams) {
            [false, false] => None,
            [true, true] => Some(LogQuery {
                tail,
                since,
                stream: None,
                follow,
            }),
            [true, false] => Some(LogQuery {
                tail,
                since,
                stream: Some(Stream::Stdout),
                follow,
            }),
            [false, true] => Some(LogQuery {
                tail,
                since,
                stream: Some(Stream::Stderr),
                follow,
            }),
        };
        let ids = |ids: Vec<String>| ids.into_iter().filter(|id| is_id(id)).collect();
        let selection = Selection {
            services: ids(service_ids),
            tasks: ids(task_ids),
            is_whole_node: node_ids.iter().any(|id| id == node),
        };
        Ok(Self::Opened(LogRequest {
            id,
            query,
            selection,
        }))
    }
}

// === impl LogRequest ===

impl LogRequest {
    /// One that is answered without logs.
    pub(super) fn nothing(id: String) -> Self {
        let selection = Selection {
            services: BTreeSet::new(),
            tasks: BTreeSet::new(),
            is_whole_node: false,
        };
        Self {
            id,
            query: None,
            selection,
        }
    }

    /// Returns whether the log of this task is selected.
    pub(super) fn selects(&self, log: &TaskLog) -> bool {
        let Selection {
            services,
            tasks,
            is_whole_node,
        } = &self.selection;
        *is_whole_node || services.contains(&log.service_id) || tasks.contains(&log.task_id)
    }
}

/// Returns which of stdout and stderr are selected: both, if none is named.
fn selected(streams: &[i32]) -> [bool; 2] {
    let names = |stream: swarm::LogStream| streams.is_empty() || streams.contains(&stream.into());
    [
        names(swarm::LogStream::Stdout),
        names(swarm::LogStream::Stderr),
    ]
}

/// A time of a manager. One that no clock shows is the nearest that one can.
fn time(timestamp: prost_types::Timestamp) -> SystemTime {
    let prost_types::Timestamp { seconds, nanos } = timestamp;
    let Ok(seconds) = u64::try_from(seconds) else {
        return UNIX_EPOCH;
    };
    // A time beyond every log line selects the same lines as any later one.
    let seconds = seconds.min(u64::from(u32::MAX) * 100);
    let nanos = u32::try_from(nanos).unwrap_or_default().min(999_999_999);
    UNIX_EPOCH + Duration::new(seconds, nanos)
}

fn is_id(id: &str) -> bool {
    (1..=ID_MAX).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Decodes bytes as a message of a manager.
///
/// # Panics
/// If a property does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn check(bytes: &[u8]) {
    let Ok(message) = <swarm::SubscriptionMessage as prost::Message>::decode(bytes) else {
        return;
    };
    match SubscriptionChange::from_proto(message, "node1") {
        Ok(SubscriptionChange::Opened(LogRequest {
            id,
            query,
            selection: _,
        })) => {
            assert!(is_id(&id));
            assert!(query.is_none_or(|query| query.since.is_none_or(|since| since >= UNIX_EPOCH)));
        }
        Ok(SubscriptionChange::Closed(id)) => assert!(is_id(&id)),
        Err(error) => assert!(error.to_string().len() < 300),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(options: swarm::LogSubscriptionOptions) -> swarm::SubscriptionMessage {
        let selector = swarm::LogSelector {
            service_ids: vec!["service1".into()],
            ..Default::default()
        };
        swarm::SubscriptionMessage {
            id: "sub1".into(),
            selector: Some(selector),
            options: Some(options),
            close: false,
        }
    }

    #[track_caller]
    fn request(message: swarm::SubscriptionMessage) -> LogRequest {
        match SubscriptionChange::from_proto(message, "node1") {
            Ok(SubscriptionChange::Opened(request)) => request,
            other => panic!("{other:?}"),
        }
    }

    fn query(options: swarm::LogSubscriptionOptions) -> LogQuery {
        request(message(options)).query.unwrap()
    }

    #[test]
    fn negative_tail_is_a_number_of_last_lines() {
        let tail = |tail| {
            query(swarm::LogSubscriptionOptions {
                tail,
                ..Default::default()
            })
            .tail
        };
        assert_eq!(
            [tail(0), tail(-1), tail(-2), tail(-101)],
            [None, Some(0), Some(1), Some(100)]
        );
        assert_eq!(tail(i64::MIN), Some(i64::MAX.unsigned_abs()));
        let first = message(swarm::LogSubscriptionOptions {
            tail: 1,
            ..Default::default()
        });
        let error = SubscriptionChange::from_proto(first, "node1").unwrap_err();
        assert!(
            matches!(&error, InvalidSubscription::Unsupported { id, .. } if id == "sub1"),
            "{error:?}"
        );
    }

    #[test]
    fn streams_are_all_unless_some_are_named() {
        let stream = |streams: &[i32]| {
            let options = swarm::LogSubscriptionOptions {
                streams: streams.to_vec(),
                ..Default::default()
            };
            request(message(options)).query.map(|query| query.stream)
        };
        assert_eq!(
            [stream(&[]), stream(&[1, 2]), stream(&[2, 1, 2, 7])],
            [Some(None); 3]
        );
        assert_eq!(
            [stream(&[1, 0]), stream(&[2])],
            [Some(Some(Stream::Stdout)), Some(Some(Stream::Stderr))]
        );
        assert_eq!([stream(&[0]), stream(&[-5, i32::MAX])], [None; 2]);
    }

    #[test]
    fn time_is_within_what_logs_can_have() {
        let since = |seconds, nanos| {
            let since = Some(prost_types::Timestamp { seconds, nanos });
            let since = query(swarm::LogSubscriptionOptions {
                since,
                ..Default::default()
            })
            .since
            .unwrap();
            since.duration_since(UNIX_EPOCH).unwrap()
        };
        assert_eq!(since(5, 7), Duration::new(5, 7));
        assert_eq!(since(5, -7), Duration::from_secs(5));
        assert_eq!(
            [since(-1, 0), since(i64::MIN, i32::MIN)],
            [Duration::ZERO; 2]
        );
        assert!(since(i64::MAX, i32::MAX) > Duration::from_secs(1 << 38));
    }

    #[test]
    fn tasks_are_selected_by_service_node_or_id() {
        let log = TaskLog {
            service_id: "service1".into(),
            task_id: "task1".into(),
            file: None,
            has_ended: false,
        };
        let selects = |service: &str, node: &str, task: &str| {
            let ids = |id: &str| vec!["other".to_owned(), id.to_owned()];
            let selector = swarm::LogSelector {
                service_ids: ids(service),
                node_ids: ids(node),
                task_ids: ids(task),
            };
            let asked = swarm::SubscriptionMessage {
                selector: Some(selector),
                ..message(swarm::LogSubscriptionOptions::default())
            };
            request(asked).selects(&log)
        };
        assert!(
            selects("service1", "", "") && selects("", "node1", "") && selects("", "", "task1")
        );
        assert!(!selects("", "", "") && !selects("task1", "node2", "service1"));
        // A task without a service is not selected by an id that is empty.
        let alone = TaskLog {
            service_id: String::new(),
            ..log
        };
        let asked = message(swarm::LogSubscriptionOptions::default());
        let selector = Some(swarm::LogSelector {
            service_ids: vec![String::new()],
            ..Default::default()
        });
        assert!(!request(swarm::SubscriptionMessage { selector, ..asked }).selects(&alone));
    }

    #[test]
    fn malformed_messages_are_refused() {
        let options = swarm::LogSubscriptionOptions::default;
        for id in ["", "a b", "a\n", "ä", &"x".repeat(129)] {
            let wrong = swarm::SubscriptionMessage {
                id: id.to_owned(),
                ..message(options())
            };
            let refused = SubscriptionChange::from_proto(wrong, "node1");
            assert_eq!(refused, Err(InvalidSubscription::Id(id.len())), "{id}");
        }
        let selector = Some(swarm::LogSelector {
            task_ids: vec![String::new(); 10_001],
            ..Default::default()
        });
        let wrong = swarm::SubscriptionMessage {
            selector,
            ..message(options())
        };
        assert!(SubscriptionChange::from_proto(wrong, "node1").is_err());
        let closed = swarm::SubscriptionMessage {
            close: true,
            ..message(options())
        };
        let closed = SubscriptionChange::from_proto(closed, "node1");
        assert_eq!(closed, Ok(SubscriptionChange::Closed("sub1".into())));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_bounded_request_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            check(&bytes);
        }
    }
}
