//! Tests of a worker's view of a removal, after which it receives no other message.

use super::*;

const ENDED: [State; 4] = [
    State::Complete,
    State::Shutdown,
    State::Failed,
    State::Rejected,
];

/// An ended task has nothing else to do, so that a removal that it does not see leaves it for ever.
#[tokio::test]
async fn removal_of_an_ended_task_is_seen_whether_it_comes_before_or_after_a_look() {
    for state in ENDED {
        for desired in [State::Running, State::Shutdown] {
            let (sender, mut wanted) = watch::channel(DesiredState {
                state: desired,
                removed: false,
            });
            let look =
                |wanted: &mut watch::Receiver<DesiredState>| wanted.borrow_and_update().next(state);
            let removal = DesiredState {
                state: State::Remove,
                removed: true,
            };
            let mut before = sender.subscribe();
            assert_eq!(look(&mut wanted), Some(Next::Idle), "{state:?} {desired:?}");
            sender.send_replace(removal);
            drop(sender);
            assert_eq!(look(&mut before), None, "{state:?} {desired:?}");
            wanted
                .changed()
                .await
                .expect("it sees the removal, although the sender is gone");
            assert_eq!(look(&mut wanted), None, "{state:?} {desired:?}");
        }
    }
}

#[test]
fn removal_comes_before_everything_else() {
    let removed = DesiredState {
        state: State::Remove,
        removed: true,
    };
    for state in [
        State::Assigned,
        State::Preparing,
        State::Ready,
        State::Running,
    ]
    .into_iter()
    .chain(ENDED)
    {
        assert_eq!(removed.next(state), None);
    }
}
