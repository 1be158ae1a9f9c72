//! Tests of the frame codec: golden bytes, input that is split anywhere, and arbitrary bytes.

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_assert_eq, prop_oneof, proptest};

use super::{Decoder, Event, FrameError, MAX_CONTROL, Status};
use crate::fuzzing::frames_in as any_bytes;
use crate::spdy::header::{Deflater, HeaderError};

/// All events of these bytes, decoded in pieces of `cut` bytes; the parts of data frames are joined.
fn decode(bytes: &[u8], cut: usize) -> Result<Vec<Event>, FrameError> {
    let mut decoder = Decoder::new();
    let mut buffer = BytesMut::new();
    let mut events = Vec::new();
    for piece in bytes.chunks(cut) {
        buffer.extend_from_slice(piece);
        while let Some(event) = decoder.next(&mut buffer)? {
            match (events.last_mut(), event) {
                (
                    Some(Event::Data {
                        stream: last,
                        bytes: before,
                        end: false,
                    }),
                    Event::Data { stream, bytes, end },
                ) if *last == stream => {
                    let joined = Bytes::from([&before[..], &bytes].concat());
                    *events.last_mut().unwrap() = Event::Data {
                        stream,
                        bytes: joined,
                        end,
                    };
                }
                (_, event) => events.push(event),
            }
        }
    }
    Ok(events)
}

#[track_caller]
fn check(bytes: &[u8], expected: Event) {
    assert_eq!(decode(bytes, usize::MAX), Ok(vec![expected]));
}

#[track_caller]
fn fails(bytes: &[u8], expected: FrameError) {
    assert_eq!(decode(bytes, usize::MAX), Err(expected));
}

#[test]
fn frames_decode_per_specification() {
    check(
        &[0, 0, 0, 5, 1, 0, 0, 2, b'h', b'i'],
        Event::Data {
            stream: 5,
            bytes: Bytes::from_static(b"hi"),
            end: true,
        },
    );
    check(
        &[0, 0, 0, 5, 0, 0, 0, 0],
        Event::Data {
            stream: 5,
            bytes: Bytes::new(),
            end: false,
        },
    );
    check(
        &[0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 5],
        Event::Reset {
            stream: 1,
            status: Status::Cancel as u32,
        },
    );
    let settings = [
        0x80, 3, 0, 4, 0, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 7, 0, 1, 0, 0,
    ];
    check(
        &settings,
        Event::Settings {
            initial_window: Some(65536),
        },
    );
    check(
        &[0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 9],
        Event::Ping { id: 9 },
    );
    check(
        &[0x80, 3, 0, 7, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0],
        Event::GoAway { status: 0 },
    );
    check(
        &[
            0x80, 3, 0, 9, 0, 0, 0, 8, 0x80, 0, 0, 1, 0xff, 0xff, 0xff, 0xff,
        ],
        Event::Window {
            stream: 1,
            delta: 0x7fff_ffff,
        },
    );
    check(&[0x80, 3, 0, 77, 0, 0, 0, 1, 0], Event::Ignored);
}

#[test]
fn frames_encode_per_specification() {
    assert_eq!(super::data(5, 0x01_02_03, true), [0, 0, 0, 5, 1, 1, 2, 3]);
    assert_eq!(
        super::reset(1, Status::Refused)[..],
        [0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 3]
    );
    assert_eq!(super::ping(9)[..], [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 9]);
    assert_eq!(
        super::go_away(3, true)[..],
        [0x80, 3, 0, 7, 0, 0, 0, 8, 0, 0, 0, 3, 0, 0, 0, 1]
    );
    assert_eq!(
        super::window(1, 65536)[..],
        [0x80, 3, 0, 9, 0, 0, 0, 8, 0, 0, 0, 1, 0, 1, 0, 0]
    );
    let reply = super::reply(1, &mut Deflater::new());
    assert_eq!(reply[..5], [0x80, 3, 0, 2, 0]);
    assert_eq!(usize::from(reply[7]) + 8, reply.len());
}

#[test]
fn illegal_frames_end_the_connection() {
    fails(&[0, 0, 0, 0, 0, 0, 0, 0], FrameError::ZeroStream);
    fails(
        &[0x80, 2, 0, 6, 0, 0, 0, 4, 0, 0, 0, 9],
        FrameError::Version(2),
    );
    fails(
        &[0x80, 3, 0, 6, 0, 0, 0, 5, 0, 0, 0, 9, 9],
        FrameError::Length(6),
    );
    fails(
        &[0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 5],
        FrameError::ZeroStream,
    );
    fails(
        &[0x80, 3, 0, 1, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 0, 0],
        FrameError::Length(1),
    );
    fails(
        &[0x80, 3, 0, 4, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff],
        FrameError::Length(4),
    );
    fails(&[0x80, 3, 0, 1, 0, 0, 0, 2, 0, 0], FrameError::Length(1));
    let empty = [0x80, 3, 0, 1, 0, 0, 0, 10, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    fails(&empty, FrameError::Header(HeaderError::Dictionary));
}

#[test]
fn oversized_control_frame_is_rejected_from_its_header() {
    fails(
        &[0x80, 3, 0, 1, 0, 1, 0, 1],
        FrameError::TooLong(MAX_CONTROL + 1),
    );
    assert_eq!(decode(&[0x80, 3, 0, 1, 0, 1, 0, 0], 8), Ok(Vec::new()));
}

#[test]
fn data_frames_are_delivered_incrementally() {
    let mut decoder = Decoder::new();
    let mut buffer = BytesMut::from(&super::data(1, 1 << 20, true)[..]);
    assert_eq!(decoder.next(&mut buffer), Ok(None));
    for left in (0..1 << 20).step_by(1 << 16).rev() {
        buffer.extend_from_slice(&vec![7; 1 << 16]);
        let Ok(Some(Event::Data {
            stream: 1,
            bytes,
            end,
        })) = decoder.next(&mut buffer)
        else {
            panic!("no data")
        };
        assert_eq!((bytes.len(), end), (1 << 16, left == 0));
        assert!(buffer.is_empty());
    }
}

/// Valid frames, and their events.
fn sensible() -> impl Strategy<Value = Vec<Event>> {
    let id = || 1..0x7fff_ffff_u32;
    vec(
        prop_oneof![
            (
                id(),
                vec(("[a-z]{1,10}", "[ -~]{0,40}"), 0..4),
                any::<bool>()
            )
                .prop_map(|(stream, headers, end)| Event::Opened {
                    stream,
                    headers,
                    end
                }),
            (id(), vec(any::<u8>(), 1..2000)).prop_map(|(stream, bytes)| Event::Data {
                stream,
                bytes: bytes.into(),
                end: true
            }),
            id().prop_map(|stream| Event::Reset {
                stream,
                status: Status::Cancel as u32
            }),
            any::<u32>().prop_map(|id| Event::Ping { id }),
            (0..0x7fff_ffff_u32, 0..0x7fff_ffff_u32)
                .prop_map(|(stream, delta)| Event::Window { stream, delta }),
            (0..0x7fff_ffff_u32).prop_map(|window| Event::Settings {
                initial_window: Some(window)
            }),
        ],
        0..20,
    )
}

fn encode(events: &[Event]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut deflater = Deflater::new();
    for event in events {
        match event {
            Event::Opened {
                stream,
                headers,
                end,
            } => {
                let headers: Vec<_> = headers
                    .iter()
                    .map(|(name, value)| (name.as_str(), value.as_str()))
                    .collect();
                bytes.extend_from_slice(&super::open(*stream, &headers, *end, &mut deflater));
            }
            Event::Data {
                stream,
                bytes: data,
                end,
            } => {
                bytes.extend_from_slice(&super::data(*stream, data.len(), *end));
                bytes.extend_from_slice(data);
            }
            Event::Reset { stream, .. } => {
                bytes.extend_from_slice(&super::reset(*stream, Status::Cancel))
            }
            Event::Ping { id } => bytes.extend_from_slice(&super::ping(*id)),
            Event::Window { stream, delta } => {
                bytes.extend_from_slice(&super::window(*stream, *delta))
            }
            Event::Settings { initial_window } => {
                bytes.extend_from_slice(&super::initial_window(initial_window.unwrap()));
            }
            Event::Replied { .. } | Event::GoAway { .. } | Event::Ignored => {}
        }
    }
    bytes
}

proptest! {
    #[test]
    fn frames_round_trip_with_any_split(events in sensible(), cut in 1..200_usize) {
        prop_assert_eq!(decode(&encode(&events), cut).unwrap(), events);
    }

    #[test]
    fn arbitrary_bytes_never_panic_and_stay_within_bounds(bytes in vec(any::<u8>(), 0..2000), cut in 1..200_usize) {
        any_bytes(&bytes, cut);
    }

    #[test]
    fn mutated_frames_never_panic_and_stay_within_bounds(
        events in sensible(), spoils in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..5), cut in 1..200_usize
    ) {
        let mut bytes = encode(&events);
        for (at, spoil) in spoils {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] ^= spoil;
            }
        }
        any_bytes(&bytes, cut);
    }
}
