//! Journals under random operations and random damage.

use super::*;

type Answer = std::pin::Pin<Box<dyn Future<Output = Result<()>>>>;

/// The calls that wait for the disk. Without its caller a put has no effect, and is not in the list; a removal has.
type WaitingCalls = Vec<(Call, Option<Answer>)>;

#[derive(Debug, Clone)]
enum Op {
    Put(u8),
    Remove(Vec<u8>),
    Restart,
    /// The writing of a record is interrupted.
    Tear(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        5 => (0..8_u8).prop_map(Op::Put),
        2 => proptest::collection::vec(0..8_u8, 0..4).prop_map(Op::Remove),
        1 => Just(Op::Restart),
        1 => (0..60_usize).prop_map(Op::Tear),
    ];
    proptest::collection::vec(op, 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn each_daemon_finds_the_leases_of_its_predecessors(ops in ops()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let state = state();
            let mut journal = Journal::new(state.path());
            let mut model = BTreeMap::new();
            for op in ops {
                match op {
                    Op::Put(number) => {
                        journal.put(&lease(number)).await.unwrap();
                        model.insert(number, lease(number));
                    }
                    Op::Remove(numbers) => {
                        let tokens: Vec<_> = numbers.iter().map(|number| token(*number)).collect();
                        journal.remove(&tokens).await.unwrap();
                        numbers.iter().for_each(|number| drop(model.remove(number)));
                    }
                    Op::Restart => {
                        journal = Journal::new(state.path());
                        let loaded = journal.load().await.unwrap();
                        prop_assert_eq!(loaded, model.values().cloned().collect::<Vec<_>>());
                    }
                    Op::Tear(bytes) => {
                        journal.load().await.unwrap();
                        let record = record::of_lease(&lease(77));
                        let torn = &record[..bytes.min(record.len() - 2)];
                        OpenOptions::new().append(true).open(file(&state)).unwrap().write_all(torn).unwrap();
                        journal = Journal::new(state.path());
                    }
                }
            }
            prop_assert_eq!(found(&state).await, model.values().cloned().collect::<Vec<_>>());
            Ok(())
        })?;
    }
}

/// Concurrent calls.
#[derive(Debug, Clone)]
enum Call {
    Put(u8),
    Remove(Vec<u8>),
    /// A caller goes away that has not been answered.
    GiveUp(usize),
    /// The disk answers, until all calls are answered.
    Answer,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        4 => (0..4_u8).prop_map(Call::Put),
        4 => proptest::collection::vec(0..4_u8, 1..3).prop_map(Call::Remove),
        1 => (0..8_usize).prop_map(Call::GiveUp),
        1 => Just(Call::Answer),
    ];
    proptest::collection::vec(call, 0..20)
}

/// Waits until all calls are answered, and applies them to the model in their order.
async fn answer(waiting: WaitingCalls, model: &mut BTreeMap<u8, StoredLease>) {
    for (call, _) in &waiting {
        match call {
            Call::Put(number) => drop(model.insert(*number, lease(*number))),
            Call::Remove(numbers) => numbers.iter().for_each(|number| drop(model.remove(number))),
            Call::GiveUp(_) | Call::Answer => {}
        }
    }
    for answer in
        futures::future::join_all(waiting.into_iter().filter_map(|(_, answer)| answer)).await
    {
        answer.unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn calls_at_once_have_the_effect_of_their_order(calls in calls()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let state = state();
            let journal = Arc::new(Journal::new(state.path()));
            let mut model = BTreeMap::new();
            let mut waiting = WaitingCalls::new();
            let mut turn = Some(Arc::clone(&journal.lock).acquire_owned().await.unwrap());
            for call in calls {
                let journal = Arc::clone(&journal);
                let mut called: Answer = match call.clone() {
                    Call::Put(number) => Box::pin(async move { journal.put(&lease(number)).await }),
                    Call::Remove(numbers) => {
                        let tokens: Vec<_> = numbers.iter().map(|number| token(*number)).collect();
                        Box::pin(async move { journal.remove(&tokens).await })
                    }
                    Call::GiveUp(at) => {
                        match waiting.get(at).map(|(call, _)| call.clone()) {
                            Some(Call::Put(_)) => drop(waiting.remove(at)),
                            Some(Call::Remove(_)) => waiting[at].1 = None,
                            Some(Call::GiveUp(_) | Call::Answer) | None => {}
                        }
                        continue;
                    }
                    Call::Answer => {
                        drop(turn.take());
                        answer(std::mem::take(&mut waiting), &mut model).await;
                        prop_assert_eq!(journal.load().await.unwrap(), model.values().cloned().collect::<Vec<_>>());
                        turn = Some(Arc::clone(&journal.lock).acquire_owned().await.unwrap());
                        continue;
                    }
                };
                prop_assert!(futures::poll!(&mut called).is_pending());
                waiting.push((call, Some(called)));
            }
            drop(turn.take());
            answer(waiting, &mut model).await;
            prop_assert_eq!(journal.load().await.unwrap(), model.values().cloned().collect::<Vec<_>>());
            prop_assert_eq!(found(&state).await, model.values().cloned().collect::<Vec<_>>());
            prop_assert!(journal.pending.lock().puts.is_empty());
            Ok(())
        })?;
    }
}
