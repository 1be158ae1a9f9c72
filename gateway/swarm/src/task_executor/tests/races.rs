//! Assignments that change while tasks are prepared, started, stopped and removed.

use super::*;

/// Numbers that look random, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(limit).unwrap()).unwrap()
    }
}

/// A manager's view of a task.
struct Known {
    number: usize,
    wanted: State,
    args: &'static [&'static str],
}

impl Known {
    fn task(&self, node: &TestNode) -> swarm::Task {
        let state = node
            .status(self.number)
            .map_or(State::Assigned, |status| State::from_wire(status.state));
        known(wanted(running(self.number, self.args), self.wanted), state)
    }
}

const COMMANDS: [&[&str]; 4] = [&["serve"], &["true"], &["exit", "2"], &["/no/such/program"]];

/// 1,000 changes of up to ten tasks, in no order. Every task starts once at most, and nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn thousand_changes_start_no_task_twice_and_leave_nothing() {
    let mut numbers = Numbers(0x5eed_5eed_5eed_5eed);
    let node = TestNode::new().await;
    let mut tasks: Vec<Known> = Vec::new();
    let mut made = 0;
    for round in 0..1_000 {
        let chosen = numbers.below(tasks.len().max(1));
        match numbers.below(8) {
            0..=2 if tasks.len() < 10 => {
                made += 1;
                let wanted = if numbers.below(4) == 0 {
                    State::Ready
                } else {
                    State::Running
                };
                let one = Known {
                    number: made,
                    wanted,
                    args: COMMANDS[numbers.below(COMMANDS.len())],
                };
                node.assign(one.task(&node)).await;
                tasks.push(one);
            }
            3 | 4 if !tasks.is_empty() => {
                let one = &mut tasks[chosen];
                let states = [State::Running, State::Shutdown, State::Remove];
                one.wanted = one.wanted.max(states[numbers.below(states.len())]);
                node.assign(one.task(&node)).await;
            }
            5 if !tasks.is_empty() => node.remove(tasks.swap_remove(chosen).number).await,
            6 => {
                if !tasks.is_empty() && numbers.below(2) == 0 {
                    tasks.swap_remove(chosen);
                }
                let all = tasks
                    .iter()
                    .map(|one| Change::Task(Arc::new(one.task(&node))))
                    .collect();
                node.apply(true, all).await;
            }
            _ => {
                // It may have ended already.
                if let Some(task) = node.fake.tasks().first() {
                    let _ = node.fake.exit(*task, 1);
                }
            }
        }
        for _ in 0..numbers.below(20) {
            tokio::task::yield_now().await;
        }
        if round % 100 == 99 {
            within(node.executor.remove_all()).await.unwrap();
            tasks.clear();
            node.is_empty().await;
        }
    }
    assert!(made > 200, "{made}");
    assert!(node.fake.count(Method::StartTask) <= made);
    // A name is one task's for ever.
    let created = node.fake.count(Method::CreateTask);
    assert!(created <= made, "{created} of {made}");
}

/// The daemon is killed at any moment, 100 times; the next one takes up what is there. On one thread: the fake
/// kills a daemon between two of its steps, never within an effect.
#[tokio::test]
async fn tasks_survive_daemons_that_are_killed_at_any_moment() {
    let mut numbers = Numbers(0x0dd_ba11);
    let mut node = TestNode::new().await;
    let mut tasks: Vec<(Known, State)> = Vec::new();
    for round in 1..=100 {
        let args = COMMANDS[numbers.below(2)];
        tasks.push((
            Known {
                number: round,
                wanted: State::Running,
                args,
            },
            State::Assigned,
        ));
        let all: Vec<_> = tasks
            .iter()
            .map(|(one, state)| {
                Change::Task(Arc::new(known(
                    wanted(running(one.number, one.args), one.wanted),
                    *state,
                )))
            })
            .collect();
        node.apply(true, all).await;
        for _ in 0..numbers.below(60) {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_micros(
            u64::try_from(numbers.below(2_000)).unwrap(),
        ))
        .await;
        // The manager gets what is reported until now.
        for (one, state) in &mut tasks {
            if let Some(status) = node.status(one.number) {
                assert_eq!(status.err, "", "task {} was {state:?}", one.number);
                *state = State::from_wire(status.state).max(*state);
            }
        }
        node = node.killed().await;
    }
    let all = tasks
        .iter()
        .map(|(one, state)| Change::Task(Arc::new(known(running(one.number, one.args), *state))));
    node.apply(true, all.collect()).await;
    for (one, state) in &tasks {
        let ended = if one.args == ["true"] {
            State::Complete
        } else {
            State::Running
        };
        if *state == ended {
            continue;
        }
        let reported = node.reported_later(one.number, ended);
        let reported = tokio::time::timeout(Duration::from_secs(30), reported).await;
        let now = node.status(one.number);
        assert!(
            reported.is_ok(),
            "task {} was {state:?}: {now:?}",
            one.number
        );
    }
    assert_eq!(node.fake.tasks().len(), tasks.len());
    within(node.executor.remove_all()).await.unwrap();
    node.is_empty().await;
}
