//! Tests of the table: which streams are opened, where bytes go, and that windows are respected once the
//! client uses them.

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_oneof, proptest};

use super::{OpenError, Overflow, Room, Table, Target};

fn table() -> Table<u32> {
    let mut table = Table::new(3);
    table.open(1, 1).unwrap();
    table
}

#[test]
fn stream_ids_are_odd_and_increase() {
    let mut table = table();
    assert_eq!(table.open(1, 0), Err(OpenError::Protocol));
    assert_eq!(table.open(2, 0), Err(OpenError::Protocol));
    assert_eq!(table.open(0, 0), Err(OpenError::Protocol));
    assert_eq!(table.open(7, 7), Ok(()));
    assert_eq!(table.open(5, 0), Err(OpenError::Protocol));
    assert_eq!(table.last(), 7);
}

#[test]
fn open_streams_are_limited() {
    let mut table = table();
    table.open(3, 3).unwrap();
    table.open(5, 5).unwrap();
    assert_eq!(table.open(7, 7), Err(OpenError::Limit));
    assert!(table.reset(3));
    assert_eq!(table.open(9, 9), Ok(()));
}

#[test]
fn stream_is_removed_after_both_half_closes() {
    let mut table = table();
    assert_eq!(table.target(1), Target::Queue(1));
    assert_eq!(table.received_end(1), Some(1));
    assert_eq!(table.received_end(1), None);
    assert_eq!(table.target(1), Target::Nowhere);
    assert_eq!(table.reserve(1, 10), Room::Bytes(10));
    assert!(table.send_end(1));
    assert_eq!(table.reserve(1, 10), Room::Gone);
    assert!(!table.send_end(1));
    assert!(!table.reset(1));
    assert_eq!(table.target(1), Target::Nowhere);
    assert_eq!(table.target(3), Target::Unknown);
    assert_eq!(table.target(2), Target::Unknown);
}

#[test]
fn peer_without_window_updates_is_not_flow_controlled() {
    let mut table = table();
    for _ in 0..10_000 {
        assert_eq!(table.reserve(1, 1 << 20), Room::Bytes(1 << 20));
    }
}

#[test]
fn flow_control_starts_with_the_first_window_update() {
    let mut table = table();
    assert_eq!(table.reserve(1, 100_000), Room::Bytes(100_000));
    table.open_window(1, 10_000).unwrap();
    assert_eq!(
        table.reserve(1, 1),
        Room::Wait,
        "100,000 were sent, and 75,536 may be"
    );
    table.open_window(1, 30_000).unwrap();
    assert_eq!(table.reserve(1, 100_000), Room::Bytes(5_536));
    assert_eq!(table.reserve(1, 1), Room::Wait);
    table.open_window(0, 1).unwrap();
    table.open_window(1, 100_000).unwrap();
    assert_eq!(
        table.reserve(1, 1),
        Room::Wait,
        "the connection's window counts as well"
    );
    table.open_window(0, 50_000).unwrap();
    assert_eq!(table.reserve(1, 100_000), Room::Bytes(10_001));
}

#[test]
fn initial_window_change_applies_to_open_streams() {
    let mut table = table();
    assert_eq!(table.reserve(1, 1000), Room::Bytes(1000));
    table.set_initial_window(1500).unwrap();
    assert_eq!(table.reserve(1, 1000), Room::Bytes(500));
    assert_eq!(table.reserve(1, 1000), Room::Wait);
    table.open(3, 3).unwrap();
    assert_eq!(table.reserve(3, 5000), Room::Bytes(1500));
}

#[test]
fn window_overflow_is_rejected() {
    let mut table = table();
    assert_eq!(table.open_window(1, 0x7fff_ffff), Err(Overflow));
    assert_eq!(table.open_window(0, 0x7fff_ffff), Err(Overflow));
    assert_eq!(
        table.open_window(99, 0x7fff_ffff),
        Ok(()),
        "no sender is there to be notified"
    );
    let mut table = self::table();
    table.open_window(1, 1).unwrap();
    assert_eq!(table.set_initial_window(0x7fff_ffff), Err(Overflow));
}

#[derive(Clone, Debug)]
enum Step {
    Open(u32),
    Reserve(u32, usize),
    Window(u32, u32),
    Initial(u32),
    ReceivedEnd(u32),
    SendEnd(u32),
    Reset(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let id = || prop_oneof![0..8_u32, any::<u32>()];
    let size = || {
        prop_oneof![
            0..100_000_u32,
            any::<u32>().prop_map(|size| size & 0x7fff_ffff),
            Just(0x7fff_ffff)
        ]
    };
    prop_oneof![
        id().prop_map(Step::Open),
        (id(), 0..1_000_000_usize).prop_map(|(id, want)| Step::Reserve(id, want)),
        (id(), size()).prop_map(|(id, delta)| Step::Window(id, delta)),
        size().prop_map(Step::Initial),
        id().prop_map(Step::ReceivedEnd),
        id().prop_map(Step::SendEnd),
        id().prop_map(Step::Reset),
    ]
}

proptest! {
    #[test]
    fn any_frames_keep_the_table_small_and_windows_valid(steps in vec(step(), 0..200)) {
        let mut table = Table::new(3);
        for step in steps {
            match step {
                Step::Open(id) => drop(table.open(id, id)),
                Step::Reserve(id, want) => {
                    let room = table.reserve(id, want);
                    if let Room::Bytes(length) = room {
                        prop_assert!(length <= want);
                        prop_assert!(length > 0 || want == 0);
                        let window = table.streams[&id].window;
                        prop_assert!(!table.streams_controlled || window >= 0 || length == 0);
                    }
                }
                Step::Window(id, delta) => drop(table.open_window(id, delta)),
                Step::Initial(window) => drop(table.set_initial_window(window)),
                Step::ReceivedEnd(id) => drop(table.received_end(id)),
                Step::SendEnd(id) => drop(table.send_end(id)),
                Step::Reset(id) => drop(table.reset(id)),
            }
            prop_assert!(table.streams.len() <= 3);
        }
    }
}
