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

use super::decide::Process;
use crate::backend::Inner;
use crate::error::is_unanswered;
use crate::health::Contact;
use crate::task::MainProcess;
use crate::text::blocking;

/// When no shim has answered for this long, those that have not are silent: what is not known to have ended counts as running.
const QUIET: Duration = Duration::from_millis(120);

/// However many shims answer one after the other: no longer than this.
const LONGEST: Duration = Duration::from_secs(2);

/// A container whose process has to be known.
#[derive(Debug, Clone)]
pub(super) struct Question {
    pub(super) id: String,
    /// What the cgroup of its processes bears.
    pub(super) mark: String,
    /// Its main process, as far as that is on file.
    pub(super) pid: Option<u32>,
    /// Where its processes are, if the main process is not on file and there is but one of them.
    pub(super) group: Option<Group>,
    /// Its runtime makes processes of this node, which can be seen.
    pub(super) visible: bool,
}

/// How the processes of some containers are.
#[derive(Debug, Default)]
pub(super) struct Processes {
    by_id: HashMap<String, Process>,
    /// How many shims were asked.
    pub(super) asked: usize,
    /// How many of those did not answer.
    pub(super) silent: usize,
}

impl Processes {
    /// How the process of a container is; nobody has asked about one without a process.
    pub(super) fn of(&self, id: &str) -> Process {
        self.by_id.get(id).copied().unwrap_or(Process::None)
    }
}

impl Inner {
    /// How the processes of these containers are.
    ///
    /// # Errors
    /// `Unavailable` if containerd went away meanwhile.
    pub(super) async fn processes(&self, questions: Vec<Question>) -> Result<Processes> {
        let cgroups = self.cgroups.clone();
        let (by_id, open) = blocking(move || Ok(look(questions, &cgroups))).await?;
        let mut processes = Processes { by_id, asked: open.len(), silent: 0 };
        let asked =
            open.iter().map(|question| async move { (&question.id, self.process_now(&question.id).await) });
        let mut answers = gather(asked, QUIET, LONGEST).await;
        for question in &open {
            let process = match answers.remove(&question.id) {
                Some(Ok(process)) => process,
                // It may also be the shim that containerd has no answer of.
                Some(Err(error)) if is_unanswered(&error) && !self.answers().await => return Err(error),
                Some(Err(error)) => {
                    tracing::warn!(
                        id = question.id,
                        error = error.report(),
                        "how a process is cannot be known now"
                    );
                    Process::Unanswered { pid: question.pid.unwrap_or(0) }
                }
                None => {
                    tracing::warn!(id = question.id, "a shim does not answer");
                    Process::Unanswered { pid: question.pid.unwrap_or(0) }
                }
            };
            processes.silent += usize::from(matches!(process, Process::Unanswered { .. }));
            processes.by_id.insert(question.id.clone(), process);
        }
        Ok(processes)
    }
}

impl Inner {
    /// Whether containerd answers just now, whatever is known of it.
    async fn answers(&self) -> bool {
        matches!(self.health.ask(&self.client).await, Contact::Up { .. })
    }
}

/// Those that are seen to run, and the questions that stay open.
fn look(questions: Vec<Question>, cgroups: &Reader) -> (HashMap<String, Process>, Vec<Question>) {
    let mut seen = HashMap::new();
    let mut open = Vec::new();
    for question in questions {
        match running(&question, cgroups) {
            Some(pid) => drop(seen.insert(question.id, Process::Running { pid })),
            None => open.push(question),
        }
    }
    (seen, open)
}

/// The main process of a container, if it is seen to run.
fn running(question: &Question, cgroups: &Reader) -> Option<u32> {
    let runs = |pid: &u32| MainProcess::hold(*pid, &question.mark).is_some_and(|process| process.runs());
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
async fn gather<K: Eq + Hash, T>(
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
        let work = (0..1010).map(|key| shim(key, (key < 10).then_some(QUIET / 10)));
        let done = gather(work, QUIET, SECOND).await;
        let mut keys: Vec<_> = done.into_keys().collect();
        keys.sort_unstable();
        assert_eq!(keys, (0..10).collect::<Vec<_>>());
        check(begin.elapsed(), QUIET / 10 + QUIET);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_waited_for_when_all_have_answered() {
        let begin = Instant::now();
        assert_eq!(gather((0..3).map(|key| shim(key, Some(Duration::ZERO))), QUIET, SECOND).await.len(), 3);
        check(begin.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_answer_are_waited_for_but_not_for_ever() {
        let begin = Instant::now();
        let slow = (1..1000).map(|key| shim(key, u32::try_from(key).ok().map(|nth| QUIET / 2 * nth)));
        let done = gather(slow, QUIET, SECOND).await;
        check(begin.elapsed(), SECOND);
        let expected = usize::try_from(SECOND.as_millis() / (QUIET / 2).as_millis()).unwrap();
        assert!(done.len().abs_diff(expected) <= 1, "{} of {expected}", done.len());
    }
}
