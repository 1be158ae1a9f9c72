//! Reads the logs of one subscription, and passes them on to the stream of a manager.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use switchyard_logkeeper::reader::LogQuery;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::request::LogRequest;
use super::task_reader::{Chunk, MessageLabels, OpenedLog, TaskReader};
use crate::executor::{Executor, TaskLog};

/// Rate limit for one log in bytes per second, as that of docker's agents: managers buffer in memory what
/// their clients do not read.
const RATE: u64 = 10 << 20;

/// Interval at which a follower looks for new tasks and for ended ones.
const LOOK_PAUSE: Duration = Duration::from_millis(500);

/// The shortest and the longest pause before a follower looks for new output.
const PAUSES: [Duration; 2] = [Duration::from_millis(25), Duration::from_millis(250)];

/// Limit for a manager to read a message.
const SEND_LIMIT: Duration = Duration::from_secs(60);

/// Docker's message for a task whose log driver is `none`.
const NOT_KEPT: &str = "configured logging driver does not support reading";

/// The other end reads no more: the call is over, or it hangs.
#[derive(Debug)]
pub(super) struct NotRead;

/// The logs of one subscription.
pub(super) struct Publisher {
    pub(super) node: Arc<str>,
    pub(super) executor: Arc<dyn Executor>,
    /// The places for logs that are followed at the same time, of all subscriptions.
    pub(super) places: Arc<Semaphore>,
    pub(super) request: LogRequest,
    pub(super) messages: mpsc::Sender<swarm::PublishLogsMessage>,
}

/// A log that is read.
struct OpenLog {
    reader: TaskReader,
    labels: MessageLabels,
    /// Time at which its next part may be published.
    due: Instant,
}

/// A log that is followed.
struct FollowedLog {
    open: OpenLog,
    is_complete: bool,
    _place: OwnedSemaphorePermit,
}

/// The state of a task in a follower.
enum Followed {
    Log(Box<FollowedLog>),
    /// Its log was read to its end, or cannot be read.
    Done,
}

// === impl Publisher ===

impl Publisher {
    /// Publishes the requested logs and then their end. A follower continues until it is dropped.
    ///
    /// # Errors
    /// The manager reads no more.
    pub(super) async fn run(self) -> Result<(), NotRead> {
        match self.request.query {
            Some(query) if query.follow => self.follow(query).await?,
            Some(query) => self.read(query).await?,
            None => {}
        }
        self.close().await
    }

    /// Passes on that it is over.
    ///
    /// # Errors
    /// The manager reads no more.
    pub(super) async fn close(&self) -> Result<(), NotRead> {
        self.publish(Vec::new(), true).await
    }

    /// The logs that are wanted and there now.
    fn logs(&self) -> Vec<TaskLog> {
        let mut logs = self.executor.logs();
        logs.retain(|log| self.request.selects(log));
        logs
    }

    /// Reads one log after the other.
    async fn read(&self, query: LogQuery) -> Result<(), NotRead> {
        for log in self.logs() {
            let labels = MessageLabels::new(&log, &self.node, &query);
            let is_complete = log.has_ended && self.executor.is_log_complete(&log).await;
            let Some(OpenedLog::Reader(mut reader)) = self.open(&log, query, &labels).await? else {
                continue;
            };
            if is_complete {
                reader.end();
            }
            let mut next = Some(OpenLog {
                reader,
                labels,
                due: Instant::now(),
            });
            while let Some(open) = next {
                next = match self.pass_on(open).await? {
                    Some((open, true)) => Some(open),
                    Some((_, false)) | None => None,
                };
            }
        }
        Ok(())
    }

    /// Follows the logs of all tasks, also of those that come later.
    async fn follow(&self, mut query: LogQuery) -> Result<(), NotRead> {
        let mut followed = BTreeMap::new();
        let mut looked: Option<Instant> = None;
        let [shortest, longest] = PAUSES;
        let mut pause = shortest;
        loop {
            if looked.is_none_or(|looked| looked.elapsed() >= LOOK_PAUSE) {
                self.look(query, &mut followed).await?;
                looked = Some(Instant::now());
                // A task that comes later is followed from its first line on.
                query.tail = None;
            }
            let mut has_more = false;
            for log in followed.values_mut() {
                has_more |= self.go_on(log).await?;
            }
            if has_more {
                pause = shortest;
                continue;
            }
            // A stream that the manager has left is noticed by its caller.
            sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// Looks for new tasks, and for those that have ended.
    async fn look(
        &self,
        query: LogQuery,
        followed: &mut BTreeMap<String, Followed>,
    ) -> Result<(), NotRead> {
        let logs = self.logs();
        let ids: BTreeSet<&str> = logs.iter().map(|log| log.task_id.as_str()).collect();
        followed.retain(|task, known| {
            let is_there = ids.contains(task.as_str());
            match known {
                Followed::Done => is_there,
                Followed::Log(log) => {
                    // What was removed is read to its end.
                    log.is_complete |= !is_there;
                    true
                }
            }
        });
        for log in logs {
            match followed.get_mut(&log.task_id) {
                Some(Followed::Done) => {}
                Some(Followed::Log(known)) => {
                    if log.has_ended && !known.is_complete {
                        known.is_complete = self.executor.is_log_complete(&log).await;
                    }
                }
                None => {
                    if let Some(known) = self.take_up(&log, query).await? {
                        followed.insert(log.task_id, known);
                    }
                }
            }
        }
        Ok(())
    }

    /// Begins to follow a log; `None` if there is none yet.
    async fn take_up(&self, log: &TaskLog, query: LogQuery) -> Result<Option<Followed>, NotRead> {
        let labels = MessageLabels::new(log, &self.node, &query);
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            self.tell(
                log,
                &labels,
                "its log is not followed: too many logs are followed on this node",
            )
            .await?;
            return Ok(Some(Followed::Done));
        };
        let is_complete = log.has_ended && self.executor.is_log_complete(log).await;
        Ok(match self.open(log, query, &labels).await? {
            Some(OpenedLog::Reader(reader)) => {
                let open = OpenLog {
                    reader,
                    labels,
                    due: Instant::now(),
                };
                Some(Followed::Log(Box::new(FollowedLog {
                    open,
                    is_complete,
                    _place: place,
                })))
            }
            Some(OpenedLog::Absent) if !is_complete => None,
            Some(OpenedLog::Absent | OpenedLog::Failed(_)) | None => Some(Followed::Done),
        })
    }

    /// Passes on what there is of a followed log; whether that was anything.
    async fn go_on(&self, log: &mut Followed) -> Result<bool, NotRead> {
        let Followed::Log(mut known) = std::mem::replace(log, Followed::Done) else {
            return Ok(false);
        };
        if known.is_complete {
            known.open.reader.end();
        }
        let FollowedLog {
            open,
            is_complete,
            _place,
        } = *known;
        let Some((open, has_more)) = self.pass_on(open).await? else {
            return Ok(false);
        };
        if has_more || !is_complete {
            *log = Followed::Log(Box::new(FollowedLog {
                open,
                is_complete,
                _place,
            }));
        }
        Ok(has_more)
    }

    /// Opens a log; `None` if there is nothing to read, with a notice to the client.
    async fn open(
        &self,
        log: &TaskLog,
        query: LogQuery,
        labels: &MessageLabels,
    ) -> Result<Option<OpenedLog>, NotRead> {
        let Some(file) = log.file.clone() else {
            self.publish(labels.notice(NOT_KEPT).into_iter().collect(), false)
                .await?;
            return Ok(None);
        };
        let opened = TaskReader::open(file, query, labels.clone()).await;
        if let OpenedLog::Failed(error) = &opened {
            self.tell(log, labels, error).await?;
        }
        Ok(Some(opened))
    }

    /// Publishes the next part of a log, and returns whether there was one; `None` after a read error.
    async fn pass_on(&self, open: OpenLog) -> Result<Option<(OpenLog, bool)>, NotRead> {
        let OpenLog {
            reader,
            labels,
            due,
        } = open;
        sleep_until(due).await;
        let (reader, Chunk { messages, size }) = match reader.chunk().await {
            Ok(read) => read,
            Err(error) => {
                let text = error.report();
                tracing::warn!(
                    subscription = self.request.id,
                    error = text,
                    "a log of a service breaks off"
                );
                self.publish(labels.notice(&text).into_iter().collect(), false)
                    .await?;
                return Ok(None);
            }
        };
        let has_more = !messages.is_empty();
        if has_more {
            self.publish(messages, false).await?;
        }
        let due = Instant::now() + Duration::from_micros(size.saturating_mul(1_000_000) / RATE);
        Ok(Some((
            OpenLog {
                reader,
                labels,
                due,
            },
            has_more,
        )))
    }

    /// Reports to the client and in the node's log why the log of a task is not read.
    async fn tell(&self, log: &TaskLog, labels: &MessageLabels, why: &str) -> Result<(), NotRead> {
        tracing::warn!(
            swarm_task = log.task_id,
            error = why,
            "the log of a task cannot be read for a manager"
        );
        self.publish(labels.notice(why).into_iter().collect(), false)
            .await
    }

    async fn publish(&self, messages: Vec<swarm::LogMessage>, close: bool) -> Result<(), NotRead> {
        if messages.is_empty() && !close {
            return Ok(());
        }
        let message = swarm::PublishLogsMessage {
            subscription_id: self.request.id.clone(),
            messages,
            close,
        };
        match timeout(SEND_LIMIT, self.messages.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(NotRead),
        }
    }
}
