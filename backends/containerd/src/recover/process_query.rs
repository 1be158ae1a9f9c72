//! The state of the main processes of containers at start-up: read from the node where that is possible, and
//! otherwise queried from their shims, all at the same time.
//!
//! A running main process is found in `/proc`. Only for one that has exited, or that is not a process of this
//! node, its shim is queried. A shim may not respond, because it hangs or is creating another process.
//! However many shims do not respond, they delay requests only once, together.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use switchyard_cgroup::{Group, Reader};
use switchyard_core::Result;

use crate::base::error::is_unanswered;
use crate::base::fs::blocking;
use crate::client::contact::Contact;
use crate::client::process_state::ProcessState;
use crate::recover::Recovery;
use crate::task::ProcessHandle;

/// After no shim has answered for this long, the remaining ones count as unresponsive, and their processes as
/// running.
const QUIET_PERIOD: Duration = Duration::from_millis(120);

/// Limit for all queries together, however many shims answer one after the other.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// A query for the main process of a container.
#[derive(Debug, Clone)]
pub(super) struct ProcessQuery {
    pub(super) id: String,
    /// Text that the path of its processes' cgroup contains.
    pub(super) cgroup_marker: String,
    /// The pid of its main process, if that is recorded.
    pub(super) pid: Option<u32>,
    /// The cgroup of the main process, if that is its only process and its pid is not recorded.
    pub(super) group: Option<Group>,
    /// Its main process is a process of this node, and not, for example, one inside a virtual machine.
    pub(super) visible: bool,
}

// === impl ProcessQuery ===

impl ProcessQuery {
    /// A query that the shim answers, since nothing else is known of the container.
    pub(super) fn of_shim(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            cgroup_marker: String::new(),
            pid: None,
            group: None,
            visible: false,
        }
    }
}

/// The states of the main processes of containers.
#[derive(Debug, Default)]
pub(super) struct ProcessStates {
    by_id: HashMap<String, ProcessState>,
    /// Number of shims that were queried.
    pub(super) queried: usize,
    /// Number of those that did not answer.
    pub(super) unresponsive: usize,
}

impl ProcessStates {
    /// The state of a container's process; [`ProcessState::None`] if there was no query for it.
    pub(super) fn of(&self, id: &str) -> ProcessState {
        self.by_id.get(id).copied().unwrap_or(ProcessState::None)
    }
}

impl Recovery {
    /// Answers these queries.
    ///
    /// # Errors
    /// If containerd itself stops answering meanwhile.
    pub(super) async fn query_processes(
        &self,
        queries: Vec<ProcessQuery>,
    ) -> Result<ProcessStates> {
        let cgroups = self.cgroups.reader.clone();
        let (by_id, open) = blocking(move || Ok(find_running(queries, &cgroups))).await?;
        let mut processes = ProcessStates {
            by_id,
            queried: open.len(),
            unresponsive: 0,
        };
        let calls = open
            .iter()
            .map(|query| async move { (&query.id, self.client.process_state(&query.id).await) });
        let mut answers = gather_until_quiet(calls, QUIET_PERIOD, MAX_WAIT).await;
        for query in &open {
            let process = match answers.remove(&query.id) {
                Some(Ok(process)) => process,
                // If containerd answers another call, it was the shim that did not answer this one.
                Some(Err(error)) if is_unanswered(&error) && !self.containerd_answers().await => {
                    return Err(error);
                }
                Some(Err(error)) => {
                    tracing::warn!(
                        object = query.id,
                        error = error.report(),
                        "cannot query the state of a process: treating it as running"
                    );
                    ProcessState::Unanswered {
                        pid: query.pid.unwrap_or(0),
                    }
                }
                None => {
                    tracing::warn!(
                        object = query.id,
                        "a shim does not answer the query for its process: treating the process as running"
                    );
                    ProcessState::Unanswered {
                        pid: query.pid.unwrap_or(0),
                    }
                }
            };
            processes.unresponsive +=
                usize::from(matches!(process, ProcessState::Unanswered { .. }));
            processes.by_id.insert(query.id.clone(), process);
        }
        Ok(processes)
    }
}

impl Recovery {
    /// Returns whether containerd answers now, by a new call.
    async fn containerd_answers(&self) -> bool {
        matches!(
            self.health.query_now(&self.client).await,
            Contact::Up { .. }
        )
    }
}

/// The processes that are seen to run, and the queries that remain open.
fn find_running(
    queries: Vec<ProcessQuery>,
    cgroups: &Reader,
) -> (HashMap<String, ProcessState>, Vec<ProcessQuery>) {
    let mut running = HashMap::new();
    let mut open = Vec::new();
    for query in queries {
        match running_pid(&query, cgroups) {
            Some(pid) => drop(running.insert(query.id, ProcessState::Running { pid })),
            None => open.push(query),
        }
    }
    (running, open)
}

/// The pid of a container's main process, if that is seen to run.
fn running_pid(query: &ProcessQuery, cgroups: &Reader) -> Option<u32> {
    let runs = |pid: &u32| {
        ProcessHandle::open(*pid, &query.cgroup_marker).is_some_and(|process| process.runs())
    };
    if !query.visible {
        return None;
    }
    match (query.pid, &query.group) {
        (Some(pid), _) => Some(pid).filter(runs),
        // If the cgroup cannot be read, the shim is queried.
        (None, Some(group)) => cgroups.procs(group).ok().flatten()?.into_iter().find(runs),
        (None, None) => None,
    }
}

/// Runs all of these futures at the same time, until all have completed, none has completed for `quiet`, or
/// `longest` is over. Returns the results of those that have completed.
async fn gather_until_quiet<K: Eq + Hash, T>(
    work: impl IntoIterator<Item = impl Future<Output = (K, T)>>,
    quiet: Duration,
    longest: Duration,
) -> HashMap<K, T> {
    let mut open: FuturesUnordered<_> = work.into_iter().collect();
    let mut done = HashMap::new();
    let all = async {
        while let Ok(Some((key, value))) = tokio::time::timeout(quiet, open.next()).await {
            done.insert(key, value);
        }
    };
    // After a timeout the results so far still count.
    let _ = tokio::time::timeout(longest, all).await;
    done
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures::future::{BoxFuture, FutureExt};
    use tokio::time::{Instant, sleep};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Answers after `after`, or never.
    fn shim(key: usize, after: Option<Duration>) -> BoxFuture<'static, (usize, ())> {
        async move {
            match after {
                Some(after) => sleep(after).await,
                None => pending().await,
            }
            (key, ())
        }
        .boxed()
    }

    #[track_caller]
    fn check(took: Duration, expected: Duration) {
        // The paused clock advances only by timers, in whole milliseconds.
        assert!(
            took.abs_diff(expected) <= Duration::from_millis(1),
            "{took:?}, not {expected:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_silent_shims_hold_up_the_others_once() {
        let begin = Instant::now();
        let work = (0..1010).map(|key| shim(key, (key < 10).then_some(QUIET_PERIOD / 10)));
        let done = gather_until_quiet(work, QUIET_PERIOD, SECOND).await;
        let mut keys: Vec<_> = done.into_keys().collect();
        keys.sort_unstable();
        assert_eq!(keys, (0..10).collect::<Vec<_>>());
        check(begin.elapsed(), QUIET_PERIOD / 10 + QUIET_PERIOD);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_waited_for_when_all_have_answered() {
        let begin = Instant::now();
        assert_eq!(
            gather_until_quiet(
                (0..3).map(|key| shim(key, Some(Duration::ZERO))),
                QUIET_PERIOD,
                SECOND
            )
            .await
            .len(),
            3
        );
        check(begin.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_answer_are_waited_for_but_not_for_ever() {
        let begin = Instant::now();
        let slow = (1..1000).map(|key| {
            shim(
                key,
                u32::try_from(key).ok().map(|nth| QUIET_PERIOD / 2 * nth),
            )
        });
        let done = gather_until_quiet(slow, QUIET_PERIOD, SECOND).await;
        check(begin.elapsed(), SECOND);
        let expected =
            usize::try_from(SECOND.as_millis() / (QUIET_PERIOD / 2).as_millis()).unwrap();
        assert!(
            done.len().abs_diff(expected) <= 1,
            "{} of {expected}",
            done.len()
        );
    }
}
