//! How the processes of containers are: seen by ourselves where that can be, else asked of their shims, all at once.
//!
//! A main process that runs is seen without anybody's help. Only of one that has ended, or that is none of this node's, must its shim be
//! asked. A shim may be silent: it hangs, or is making another process. However many are, they hold requests up once, together.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use switchyard_cgroup::{Group, Reader};
use switchyard_core::Result;

use super::decide::ProcessState;
use crate::backend::Inner;
use crate::error::is_unanswered;
use crate::fs::blocking;
use crate::health::Contact;
use crate::task::ProcessHandle;

/// When no shim has answered for this long, those that have not are silent: what is not known to have ended counts as running.
const QUIET_PERIOD: Duration = Duration::from_millis(120);

/// However many shims answer one after the other: no longer than this.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// A container whose process has to be known.
#[derive(Debug, Clone)]
pub(super) struct ProcessQuery {
    pub(super) id: String,
    /// What the cgroup of its processes bears.
    pub(super) cgroup_marker: String,
    /// Its main process, as far as that is on file.
    pub(super) pid: Option<u32>,
    /// Where its processes are, if the main process is not on file and there is but one of them.
    pub(super) group: Option<Group>,
    /// Its runtime makes processes of this node, which can be seen.
    pub(super) visible: bool,
}

/// How the processes of some containers are.
#[derive(Debug, Default)]
pub(super) struct ProcessStates {
    by_id: HashMap<String, ProcessState>,
    /// How many shims were asked.
    pub(super) queried: usize,
    /// How many of those did not answer.
    pub(super) unresponsive: usize,
}

impl ProcessStates {
    /// How the process of a container is; nobody has asked about one without a process.
    pub(super) fn of(&self, id: &str) -> ProcessState {
        self.by_id.get(id).copied().unwrap_or(ProcessState::None)
    }
}

impl Inner {
    /// How the processes of these containers are.
    ///
    /// # Errors
    /// `Unavailable` if containerd went away meanwhile.
    pub(super) async fn query_processes(&self, questions: Vec<ProcessQuery>) -> Result<ProcessStates> {
        let cgroups = self.cgroups.clone();
        let (by_id, open) = blocking(move || Ok(find_running(questions, &cgroups))).await?;
        let mut processes = ProcessStates { by_id, queried: open.len(), unresponsive: 0 };
        let asked =
            open.iter().map(|question| async move { (&question.id, self.process_state(&question.id).await) });
        let mut answers = gather_until_quiet(asked, QUIET_PERIOD, MAX_WAIT).await;
        for question in &open {
            let process = match answers.remove(&question.id) {
                Some(Ok(process)) => process,
                // It may also be the shim that containerd has no answer of.
                Some(Err(error)) if is_unanswered(&error) && !self.containerd_answers().await => {
                    return Err(error);
                }
                Some(Err(error)) => {
                    tracing::warn!(
                        id = question.id,
                        error = error.report(),
                        "how a process is cannot be known now"
                    );
                    ProcessState::Unanswered { pid: question.pid.unwrap_or(0) }
                }
                None => {
                    tracing::warn!(id = question.id, "a shim does not answer");
                    ProcessState::Unanswered { pid: question.pid.unwrap_or(0) }
                }
            };
            processes.unresponsive += usize::from(matches!(process, ProcessState::Unanswered { .. }));
            processes.by_id.insert(question.id.clone(), process);
        }
        Ok(processes)
    }
}

impl Inner {
    /// Whether containerd answers just now, whatever is known of it.
    async fn containerd_answers(&self) -> bool {
        matches!(self.health.query_now(&self.client).await, Contact::Up { .. })
    }
}

/// Those that are seen to run, and the questions that stay open.
fn find_running(
    questions: Vec<ProcessQuery>,
    cgroups: &Reader,
) -> (HashMap<String, ProcessState>, Vec<ProcessQuery>) {
    let mut seen = HashMap::new();
    let mut open = Vec::new();
    for question in questions {
        match running_pid(&question, cgroups) {
            Some(pid) => drop(seen.insert(question.id, ProcessState::Running { pid })),
            None => open.push(question),
        }
    }
    (seen, open)
}

/// The main process of a container, if it is seen to run.
fn running_pid(question: &ProcessQuery, cgroups: &Reader) -> Option<u32> {
    let runs =
        |pid: &u32| ProcessHandle::open(*pid, &question.cgroup_marker).is_some_and(|process| process.runs());
    if !question.visible {
        return None;
    }
    match (question.pid, &question.group) {
        (Some(pid), _) => Some(pid).filter(runs),
        // What cannot be read is asked for.
        (None, Some(group)) => cgroups.procs(group).ok().flatten()?.into_iter().find(runs),
        (None, None) => None,
    }
}

/// Runs all of these at once, until each has ended, none has ended for `quiet`, or `longest` is over; gives those that have ended.
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
    // What has ended by then counts all the same.
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
        // The clock of the test stands still but for what is waited for, which it counts in whole milliseconds.
        assert!(took.abs_diff(expected) <= Duration::from_millis(1), "{took:?}, not {expected:?}");
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
            gather_until_quiet((0..3).map(|key| shim(key, Some(Duration::ZERO))), QUIET_PERIOD, SECOND)
                .await
                .len(),
            3
        );
        check(begin.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_answer_are_waited_for_but_not_for_ever() {
        let begin = Instant::now();
        let slow = (1..1000).map(|key| shim(key, u32::try_from(key).ok().map(|nth| QUIET_PERIOD / 2 * nth)));
        let done = gather_until_quiet(slow, QUIET_PERIOD, SECOND).await;
        check(begin.elapsed(), SECOND);
        let expected = usize::try_from(SECOND.as_millis() / (QUIET_PERIOD / 2).as_millis()).unwrap();
        assert!(done.len().abs_diff(expected) <= 1, "{} of {expected}", done.len());
    }
}
