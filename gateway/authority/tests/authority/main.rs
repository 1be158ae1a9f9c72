//! The filter in front of a real `h2` server, and compared with an independent HPACK implementation.

#![expect(
    clippy::unwrap_used,
    reason = "a failed unwrap is a failed test, also in the functions that tests share"
)]

mod server;
mod streams;

use proptest::prelude::*;
use switchyard_authority::fuzzing::{check, check_any_bytes, filtered};

use server::{served, served_without_filter};
use streams::{Client, Name, Request, Value};

const SOCKET: &str = "run%2Fswitchyard%2Fcri.sock";

fn request(authority: &str) -> Request {
    Request {
        authority: authority.as_bytes().to_vec(),
        ..Request::default()
    }
}

fn stream(requests: &[Request]) -> Vec<u8> {
    let mut client = Client::default();
    requests.iter().for_each(|request| client.send(request));
    client.sent
}

#[tokio::test]
async fn h2_alone_rejects_path_authorities() {
    let sent = stream(&[
        request(SOCKET),
        request(SOCKET),
        request("/run/switchyard/cri.sock"),
        request("host"),
    ]);
    assert_eq!(served_without_filter(&sent).await, ["host"]);
    let named = "run-2Fswitchyard-2Fcri.sock";
    assert_eq!(
        served(&sent).await,
        [named, named, "-run-switchyard-cri.sock", "host"]
    );
}

#[tokio::test]
async fn each_way_to_write_a_name_and_a_value_is_rewritten() {
    for name in [
        Name::Literal,
        Name::HuffmanLiteral,
        Name::Static,
        Name::Dynamic,
    ] {
        for value in [Value::Plain, Value::Huffman] {
            for indexing in 0..3 {
                let one = Request {
                    name,
                    value,
                    indexing,
                    ..request(SOCKET)
                };
                let other = Request {
                    authority: b"\xff\x00 a:b@c/\xc3\xa4".to_vec(),
                    ..one.clone()
                };
                let sent = stream(&[one.clone(), other.clone(), one, other]);
                let first = "run-2Fswitchyard-2Fcri.sock";
                let second = "---a-b-c---";
                assert_eq!(
                    served(&sent).await,
                    [first, second, first, second],
                    "{name:?} {value:?} {indexing}"
                );
                check(&sent, 1);
            }
        }
    }
}

#[tokio::test]
async fn indexed_authority_is_the_rewritten_one() {
    let first = Request {
        indexing: 1,
        ..request(SOCKET)
    };
    let again = Request {
        name: Name::Whole,
        ..first.clone()
    };
    let sent = stream(&[first, again.clone(), again]);
    assert_eq!(served(&sent).await, ["run-2Fswitchyard-2Fcri.sock"; 3]);
}

#[tokio::test]
async fn padding_priority_and_continuation_are_supported() {
    let plain = Request {
        extra: vec![(b"x-long".to_vec(), vec![b'v'; 300], 4)],
        ..request(SOCKET)
    };
    for (padding, priority, split) in [
        (Some(9), false, 0),
        (None, true, 0),
        (Some(0), true, 40),
        (Some(255), true, 50),
        (None, false, 64),
    ] {
        let sent = stream(&[
            Request {
                padding,
                priority,
                split,
                ..plain.clone()
            },
            request("b/c"),
        ]);
        assert_eq!(
            served(&sent).await,
            ["run-2Fswitchyard-2Fcri.sock", "b-c"],
            "{padding:?} {priority} {split}"
        );
        check(&sent, 3);
    }
}

#[tokio::test]
async fn longer_rewritten_block_is_split_into_continuations() {
    // The symbol '0' takes 5 bits: 15,000 of them and a percent sign fit into one frame, but uncoded,
    // together with the rest, they do not.
    let authority = format!("%{}", "0".repeat(15_000));
    let extra = vec![(b"x-pad".to_vec(), vec![b'p'; 1_300], 0)];
    let one = Request {
        value: Value::Huffman,
        extra,
        authority: authority.into_bytes(),
        ..Request::default()
    };
    let sent = stream(&[one, request("b/c")]);
    let behind = filtered(&sent, 1_000);
    assert!(behind.len() > sent.len() + 5_000);
    check(&sent, 100);
    let served = served(&sent).await;
    // `h2` refuses so long a list with 431, and continues.
    assert_eq!(served.last().unwrap(), "b-c");
}

#[tokio::test]
async fn hpack_table_is_tracked_when_filled_resized_and_cleared() {
    let mut requests = Vec::new();
    for round in 0..200 {
        let extra = vec![
            (
                format!("x-{round}").into_bytes(),
                vec![b'v'; round * 7 % 500],
                4 | 2,
            ),
            (b"x-same".to_vec(), format!("{round}").into_bytes(), 4),
        ];
        let name = if round % 3 == 0 {
            Name::Dynamic
        } else {
            Name::Literal
        };
        let resize = [None, None, Some(0), Some(4096), Some(300), None][round % 6];
        let authority = format!("{round}/s").into_bytes();
        requests.push(Request {
            authority,
            name,
            indexing: 1,
            extra,
            resize,
            ..Request::default()
        });
    }
    let sent = stream(&requests);
    check(&sent, 11);
    let expected: Vec<String> = (0..200).map(|round| format!("{round}-s")).collect();
    assert_eq!(served(&sent).await, expected);
}

#[test]
fn any_split_of_the_input_gives_the_same_output() {
    let padded = Request {
        padding: Some(3),
        priority: true,
        split: 5,
        value: Value::Huffman,
        ..request(SOCKET)
    };
    let sent = stream(&[
        padded,
        request("b/c"),
        Request {
            name: Name::Dynamic,
            ..request("d/e")
        },
    ]);
    let whole = filtered(&sent, sent.len());
    for cut in 1..sent.len() {
        assert_eq!(filtered(&sent, cut), whole, "portions of {cut}");
    }
}

#[test]
fn random_bytes_change_nothing_but_the_authority() {
    // A deterministic generator, so that a failure can be reproduced.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    let valid = stream(&[
        Request {
            padding: Some(3),
            split: 40,
            ..request(SOCKET)
        },
        Request {
            value: Value::Huffman,
            indexing: 1,
            ..request("b/c")
        },
        Request {
            name: Name::Whole,
            indexing: 1,
            ..request("b/c")
        },
    ]);
    for round in 0..4_000 {
        let mut bytes: Vec<u8> = if round % 2 == 0 {
            (0..next()).map(|_| next()).collect()
        } else {
            // Without the preface, which the check adds.
            valid[24..].to_vec()
        };
        for _ in 0..round % 5 {
            if let Some(place) = usize::from(next()).checked_rem(bytes.len()) {
                bytes[place] = next();
            }
        }
        check_any_bytes(&bytes, usize::from(next()));
    }
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let bytes = |len| prop::collection::vec(any::<u8>(), len);
    let authority = prop_oneof![
        3 => "[a-z/%:.@0-9-]{1,40}".prop_map(String::into_bytes),
        1 => bytes(1..20),
        1 => "[a-z]{1,10}".prop_map(String::into_bytes),
    ];
    let name = prop_oneof![
        Just(Name::Literal),
        Just(Name::HuffmanLiteral),
        Just(Name::Static),
        Just(Name::Dynamic),
        Just(Name::Whole)
    ];
    let value = prop_oneof![Just(Value::Plain), Just(Value::Huffman)];
    let extra = ("x-[a-z]{1,8}", "[ -~]{0,60}", 0_u8..16);
    let extra = prop::collection::vec(
        extra.prop_map(|(name, value, flags)| (name.into(), value.into(), flags)),
        0..4,
    );
    let framing = (
        prop::option::of(any::<u8>()),
        any::<bool>(),
        0..60_usize,
        prop::option::of(0..=4096_u32),
    );
    let request = (authority, name, value, 0..3_u8, extra, framing).prop_map(
        |(authority, name, value, indexing, extra, (padding, priority, split, resize))| Request {
            authority,
            name,
            value,
            indexing,
            extra,
            padding,
            priority,
            split,
            resize,
        },
    );
    prop::collection::vec(request, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn filter_changes_only_the_authority(requests in requests(), cut in 1..50_usize) {
        check(&stream(&requests), cut);
    }

    #[test]
    fn h2_serves_every_request_of_a_client_whose_first_authority_is_a_path(mut requests in requests()) {
        requests.insert(0, request(SOCKET));
        for request in &mut requests {
            // `h2` closes the connection after more than a few frames of a block, with or without the filter.
            request.split = if request.split < 30 { 0 } else { request.split * 4 };
        }
        let sent = stream(&requests);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        prop_assert_eq!(runtime.block_on(served(&sent)).len(), requests.len());
    }

    #[test]
    fn any_bytes_change_nothing_but_the_authority(bytes in prop::collection::vec(any::<u8>(), 0..400), cut in 0..20_usize) {
        check_any_bytes(&bytes, cut);
    }
}
