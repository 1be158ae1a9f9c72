//! Answers in any order, of other requests, repeated and missing.

use nix::errno::Errno;
use proptest::prelude::*;

use super::super::uapi::{NLM_F_CAPPED, RTM_GETLINK, RTM_NEWLINK};
use super::*;

const FIRST: u32 = 40;

fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(16 + body.len()).unwrap();
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend([kind, flags].map(u16::to_ne_bytes).concat());
    bytes.extend([sequence, 0].map(u32::to_ne_bytes).concat());
    bytes.extend(body);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn acknowledgement_of(sequence: u32, code: i32) -> Vec<u8> {
    let body = [&code.to_ne_bytes()[..], &[0; 16]].concat();
    message(NLMSG_ERROR, NLM_F_CAPPED, sequence, &body)
}

fn acknowledged(count: usize) -> Vec<Request> {
    let one = |index| Request::new(RTM_NEWLINK, 0, &[0; 16], format!("do {index}")).acknowledged();
    (0..count).map(one).collect()
}

fn refusal(exchange: Exchange<'_>) -> (String, Errno) {
    match exchange.finish() {
        Err(NetlinkError::Refused { doing, source, .. }) => (doing, source),
        other => panic!("{other:?}"),
    }
}

#[test]
fn first_refusal_is_reported_when_all_are_answered() {
    let requests = acknowledged(3);
    let mut exchange = Exchange::new(&requests, FIRST);
    exchange.take(&acknowledgement_of(FIRST + 2, -1)).unwrap();
    exchange.take(&acknowledgement_of(FIRST, 0)).unwrap();
    assert!(!exchange.is_complete());
    assert_eq!(exchange.doing(), "do 1");
    exchange.take(&acknowledgement_of(FIRST + 1, -17)).unwrap();
    assert!(exchange.is_complete());
    assert_eq!(refusal(exchange), ("do 1".to_owned(), Errno::EEXIST));
}

#[test]
fn refusal_that_says_that_it_is_so_already_is_success() {
    let requests: Vec<_> = acknowledged(2)
        .into_iter()
        .map(|request| request.done_by(&[Errno::ENODEV, Errno::ENOENT]))
        .collect();
    let mut exchange = Exchange::new(&requests, FIRST);
    exchange.take(&acknowledgement_of(FIRST, -19)).unwrap();
    exchange.take(&acknowledgement_of(FIRST + 1, -2)).unwrap();
    assert!(exchange.is_complete());
    assert!(exchange.finish().unwrap().iter().all(Vec::is_empty));
}

#[test]
fn request_without_an_acknowledgement_is_answered_only_when_it_is_refused() {
    let mut requests = acknowledged(1);
    requests.insert(
        0,
        Request::new(RTM_NEWLINK, 0, &[0; 16], "begin".to_owned()),
    );
    let mut exchange = Exchange::new(&requests, FIRST);
    exchange.take(&acknowledgement_of(FIRST + 1, 0)).unwrap();
    assert!(exchange.is_complete());

    let mut exchange = Exchange::new(&requests, FIRST);
    exchange.take(&acknowledgement_of(FIRST, -85)).unwrap();
    assert!(
        exchange.is_complete(),
        "the other one is perhaps not answered"
    );
    assert_eq!(refusal(exchange), ("begin".to_owned(), Errno::ERESTART));
}

#[test]
fn answers_of_others_and_events_change_nothing() {
    let requests = acknowledged(1);
    let mut exchange = Exchange::new(&requests, FIRST);
    for sequence in [0, FIRST - 1, FIRST + 1, u32::MAX] {
        exchange.take(&acknowledgement_of(sequence, -1)).unwrap();
        let event = message(RTM_NEWLINK, 0, sequence, &[0; 16]);
        exchange.take(&event).unwrap();
    }
    assert!(!exchange.is_complete());
    exchange.take(&acknowledgement_of(FIRST, 0)).unwrap();
    assert!(exchange.finish().unwrap().iter().all(Vec::is_empty));
}

#[test]
fn what_is_asked_for_is_between_the_acknowledgements() {
    let requests = acknowledged(2);
    let mut exchange = Exchange::new(&requests, FIRST);
    let datagram = [
        acknowledgement_of(FIRST, 0),
        message(RTM_NEWLINK, 0, FIRST + 1, b"link"),
        acknowledgement_of(FIRST + 1, 0),
    ];
    exchange.take(&datagram.concat()).unwrap();
    let answers = exchange.finish().unwrap();
    assert!(answers[0].is_empty());
    assert_eq!(answers[1].len(), 1);
    assert_eq!(answers[1][0].body, b"link");
}

#[test]
fn dump_ends_with_its_end_and_not_before() {
    let dump = Request::new(RTM_GETLINK, NLM_F_DUMP, &[0; 16], "list".to_owned());
    let requests = [dump];
    let mut exchange = Exchange::new(&requests, FIRST);
    for name in [b"one ", b"two "] {
        let part = message(RTM_NEWLINK, 2, FIRST, name);
        exchange.take(&part).unwrap();
        assert!(!exchange.is_complete());
    }
    let interrupted = message(RTM_NEWLINK, 2 | NLM_F_DUMP_INTR, FIRST, b"more");
    exchange.take(&interrupted).unwrap();
    let end = message(NLMSG_DONE, 2, FIRST, &0_i32.to_ne_bytes());
    exchange.take(&end).unwrap();
    assert!(exchange.is_complete() && exchange.is_interrupted);
    assert_eq!(exchange.finish().unwrap()[0].len(), 3);

    let mut exchange = Exchange::new(&requests, FIRST);
    let end = message(NLMSG_DONE, 2, FIRST, &(-12_i32).to_ne_bytes());
    exchange.take(&end).unwrap();
    assert_eq!(refusal(exchange), ("list".to_owned(), Errno::ENOMEM));
}

#[test]
fn answer_that_is_torn_short_or_lost_is_an_error() {
    let requests = acknowledged(1);
    let whole = acknowledgement_of(FIRST, 0);
    for (case, datagram) in [
        ("torn", whole[..20].to_vec()),
        ("a header alone", whole[..9].to_vec()),
        ("short", message(NLMSG_ERROR, 0, FIRST, &[0; 2])),
        ("lost", message(NLMSG_OVERRUN, 0, FIRST, &[])),
    ] {
        let mut exchange = Exchange::new(&requests, FIRST);
        assert!(exchange.take(&datagram).is_err(), "{case}");
        assert!(!exchange.is_complete(), "{case}");
    }
}

proptest! {
    /// Whatever is repeated and in whatever order: the outcome of each request is the first one that was said of it.
    #[test]
    fn outcome_is_what_was_first_said(said in prop::collection::vec((0_usize..4, prop::sample::select(vec![0, -1, -17])), 0..24)) {
        let requests = acknowledged(4);
        let mut exchange = Exchange::new(&requests, u32::MAX - 1);
        let mut model = [None; 4];
        for (index, code) in said {
            let sequence = (u32::MAX - 1).wrapping_add(u32::try_from(index).unwrap());
            exchange.take(&acknowledgement_of(sequence, code)).unwrap();
            model[index].get_or_insert(code);
        }
        prop_assert_eq!(exchange.is_complete(), model.iter().all(Option::is_some));
        let first = model.iter().position(|code| code.is_some_and(|code| code != 0));
        match exchange.finish() {
            Ok(answers) => {
                prop_assert_eq!(first, None);
                prop_assert_eq!(answers.len(), 4);
            }
            Err(error) => {
                let expected = first.and_then(|index| model[index]).map(|code: i32| Errno::from_raw(-code));
                prop_assert_eq!(error.refusal(), expected);
            }
        }
    }
}
