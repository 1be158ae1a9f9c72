//! Progress of a command on standard error, if that is a terminal: what it has been waiting for.

use std::time::{Duration, Instant};

use switchyard_operator_api::OperationView;

use super::daemon::{Socket, ask_socket};
use crate::output::{can_show_progress, show_progress};

/// Time after which a wait is reported, and interval at which the text is renewed.
const INTERVAL: Duration = Duration::from_secs(1);

/// Time for the daemon to report its operations.
const QUERY_LIMIT: Duration = Duration::from_secs(1);

/// Does the work, and reports meanwhile that `what` is waited for. With a socket, it also reports the steps
/// of the daemon's latest operation of this kind.
pub(super) fn waiting<'a, T>(
    what: &'a str,
    operation: Option<(&'a Socket, &'a str)>,
    work: impl Future<Output = T> + 'a,
) -> impl Future<Output = T> + 'a {
    // The futures of calls are large.
    let mut work = Box::pin(work);
    async move {
        if !can_show_progress() {
            return work.await;
        }
        let began = Instant::now();
        let done = loop {
            tokio::select! {
                biased;
                done = &mut work => break done,
                () = show(what, operation, began) => {}
            }
        };
        if began.elapsed() >= INTERVAL {
            show_progress("");
        }
        done
    }
}

/// Reports after a moment what has been waited for since `began`.
async fn show(what: &str, operation: Option<(&Socket, &str)>, began: Instant) {
    tokio::time::sleep(INTERVAL).await;
    let steps = match operation {
        Some((socket, kind)) => steps(socket, kind).await,
        None => String::new(),
    };
    show_progress(&format!("{what}: {} s{steps}", began.elapsed().as_secs()));
}

/// The steps of the latest operation of a kind, to be added to a text; empty if they are not known.
async fn steps(socket: &Socket, kind: &str) -> String {
    let asked = tokio::time::timeout(
        QUERY_LIMIT,
        ask_socket::<Vec<OperationView>>(socket, "/v1/operations"),
    );
    // An error is ignored: this is for information only, and the work itself reports what is wrong.
    let Ok(Ok(operations)) = asked.await else {
        return String::new();
    };
    steps_of(&operations, kind)
}

fn steps_of(operations: &[OperationView], kind: &str) -> String {
    let latest = operations
        .iter()
        .rev()
        .find(|found| found.operation == kind);
    let steps = latest
        .map(|found| found.steps.as_slice())
        .unwrap_or_default();
    steps
        .iter()
        .map(|step| format!(", {} ({:.0} s)", step.step, step.seconds))
        .collect()
}

#[cfg(test)]
mod tests {
    use switchyard_operator_api::StepView;

    use super::*;

    fn operation(kind: &str, steps: &[&str]) -> OperationView {
        OperationView {
            number: 0,
            operation: kind.to_owned(),
            owner: String::new(),
            sandbox: None,
            task: None,
            subject: String::new(),
            caller: String::new(),
            began_at: String::new(),
            seconds: 3.0,
            steps: steps
                .iter()
                .map(|step| StepView {
                    step: (*step).to_owned(),
                    seconds: 2.4,
                })
                .collect(),
            pull: None,
            blockers: Vec::new(),
        }
    }

    #[test]
    fn steps_are_those_of_the_latest_operation_of_the_kind() {
        let all = [
            operation("restart_process", &["old"]),
            operation("restart_process", &["a", "b"]),
        ];
        assert_eq!(steps_of(&all, "restart_process"), ", a (2 s), b (2 s)");
        assert_eq!(steps_of(&all, "reload_config"), "");
    }

    #[tokio::test]
    async fn result_is_that_of_the_work() {
        assert_eq!(waiting("a test", None, async { 7 }).await, 7);
    }
}
