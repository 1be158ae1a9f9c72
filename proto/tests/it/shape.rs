//! The memory that a message takes is known before it is decoded.

use prost::Message;
use swarm::assignment::Item;
use swarm::task_spec::Runtime;
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_proto::shape::{Oversized, STRUCTS_MAX, Shaped, structs_of};

/// A field with this content.
fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_varint(u64::from(number << 3 | 2), &mut bytes);
    prost::encoding::encode_varint(content.len() as u64, &mut bytes);
    bytes.extend_from_slice(content);
    bytes
}

#[track_caller]
fn refused<M: Shaped>(bytes: &[u8]) {
    assert!(bytes.len() <= 4 << 20, "{} bytes", bytes.len());
    assert_eq!(structs_of::<M>(bytes), Err(Oversized::Structs));
}

#[test]
fn very_many_empty_messages_are_refused_wherever_they_are() {
    let empties = |number, count: usize| field(number, &[]).repeat(count);
    refused::<swarm::AssignmentsMessage>(&empties(4, 2 << 20));
    // In the networks of a task in a change, its container's mounts, and the addresses of one network.
    let in_task = |task: &[u8]| field(4, &field(1, &field(1, task)));
    refused::<swarm::AssignmentsMessage>(&in_task(&empties(11, 1 << 20)));
    let in_container = |container: &[u8]| in_task(&field(3, &field(1, container)));
    refused::<swarm::AssignmentsMessage>(&in_container(&empties(8, 1 << 20)));
    refused::<swarm::SessionMessage>(&empties(3, 2_000_000));
    // Of a pod and its containers: mounts, devices and variables.
    for number in [6, 7, 8] {
        refused::<cri::CreateContainerRequest>(&field(2, &empties(number, 2_000_000)));
    }
    refused::<nomad::StartTaskRequest>(&field(1, &empties(8, 2_000_000)));
}

#[test]
fn texts_numbers_and_entries_of_maps_are_counted_too() {
    // Words of a command, one byte each.
    let words = field(3, b"x").repeat(1_300_000);
    assert!(structs_of::<cri::CreateContainerRequest>(&field(2, &words)).is_ok());
    let words = field(3, b"x").repeat(1_300_000 * 5 / 4);
    assert!(
        structs_of::<cri::CreateContainerRequest>(&field(2, &words))
            .is_ok_and(|size| size > 60 << 20)
    );
    let words = field(3, b"x").repeat(2_000_000);
    assert_eq!(
        structs_of::<cri::CreateContainerRequest>(&field(2, &words)),
        Err(Oversized::Structs)
    );
    let entries: Vec<u8> = (0_u32..800_000)
        .flat_map(|number| field(9, &field(1, &number.to_be_bytes())))
        .collect();
    assert_eq!(
        structs_of::<cri::CreateContainerRequest>(&field(2, &entries)),
        Err(Oversized::Structs)
    );
}

#[test]
fn structs_are_estimated_from_above_and_not_by_far() {
    fn check<T>(counted: Result<u64, Oversized>) {
        let size = size_of::<T>() as u64;
        let counted = counted.unwrap();
        assert!(
            (size..=3 * size).contains(&counted),
            "{}: {counted}, {size}",
            std::any::type_name::<T>()
        );
    }
    let of_container =
        |number| structs_of::<cri::CreateContainerRequest>(&field(2, &field(number, &[])));
    check::<cri::KeyValue>(of_container(6));
    check::<cri::Mount>(of_container(7));
    check::<cri::Device>(of_container(8));
    check::<swarm::AssignmentChange>(structs_of::<swarm::AssignmentsMessage>(&field(4, &[])));
    let of_task = |task: &[u8]| {
        let change = structs_of::<swarm::AssignmentsMessage>(&field(4, &[])).unwrap();
        structs_of::<swarm::AssignmentsMessage>(&field(4, &field(1, &field(1, task))))
            .map(|all| all - change)
    };
    check::<swarm::Task>(of_task(&[]));
    let task = of_task(&[]).unwrap();
    check::<swarm::NetworkAttachment>(of_task(&field(11, &[])).map(|all| all - task));
    check::<swarm::ContainerSpec>(of_task(&field(3, &field(1, &[]))).map(|all| all - task));
}

#[test]
fn what_managers_send_to_a_large_node_is_decoded() {
    let texts = |count: usize, of: &str| {
        (0..count)
            .map(|number| format!("{of}-{number}"))
            .collect::<Vec<_>>()
    };
    let container = swarm::ContainerSpec {
        image: "registry.example/team/service:1@sha256:0123456789abcdef".into(),
        env: texts(20, "NAME=value"),
        args: texts(5, "--flag"),
        labels: texts(5, "label")
            .into_iter()
            .map(|name| (name, "value".to_owned()))
            .collect(),
        mounts: vec![swarm::Mount::default(); 3],
        secrets: vec![swarm::SecretReference::default(); 2],
        ..Default::default()
    };
    let spec = swarm::TaskSpec {
        runtime: Some(Runtime::Container(Box::new(container))),
        ..Default::default()
    };
    let networks = vec![swarm::NetworkAttachment {
        addresses: texts(2, "10.0.0.1/24"),
        ..Default::default()
    }];
    let task = swarm::Task {
        id: "x".repeat(25),
        spec: Some(spec),
        networks,
        ..Default::default()
    };
    let change = |item| swarm::AssignmentChange {
        assignment: Some(swarm::Assignment { item: Some(item) }),
        action: 0,
    };
    let mut changes = vec![change(Item::Task(Box::new(task))); 5_000];
    let data = vec![7; 500 << 10];
    let config = swarm::ConfigSpec {
        data,
        ..Default::default()
    };
    let config = swarm::Config {
        id: "c".into(),
        spec: Some(config),
        ..Default::default()
    };
    changes.extend(vec![change(Item::Config(config)); 40]);
    let bytes = swarm::AssignmentsMessage {
        changes,
        ..Default::default()
    }
    .encode_to_vec();
    let size = structs_of::<swarm::AssignmentsMessage>(&bytes).unwrap();
    assert!(
        size < STRUCTS_MAX / 2,
        "{size} bytes of structs for a message of {}",
        bytes.len()
    );
}

#[test]
fn malformed_messages_are_counted_up_to_where_the_decoder_stops() {
    let mut bytes = field(4, &[]).repeat(1000);
    let whole = structs_of::<swarm::AssignmentsMessage>(&bytes).unwrap();
    for bad in [&[0x22, 5][..], &[0xff; 11], &[0x00], &[0x20, 1], &[0x26]] {
        let with = [bytes.as_slice(), bad].concat();
        assert_eq!(
            structs_of::<swarm::AssignmentsMessage>(&with),
            Ok(whole),
            "{bad:?}"
        );
        assert!(
            swarm::AssignmentsMessage::decode(with.as_slice()).is_err(),
            "{bad:?}"
        );
    }
    // An unknown field of a later version is passed over; a group is in none.
    bytes.extend(field(1000, b"later"));
    assert_eq!(structs_of::<swarm::AssignmentsMessage>(&bytes), Ok(whole));
    bytes.extend([0xc3, 0x3e, 0xc4, 0x3e]);
    assert_eq!(
        structs_of::<swarm::AssignmentsMessage>(&bytes),
        Err(Oversized::Group)
    );
    // Deeper than any message is.
    let mut deep = Vec::new();
    for _ in 0..10_000 {
        deep = field(1, &deep);
    }
    assert!(structs_of::<nomad::TaskConfigSchemaResponse>(&deep).is_ok());
}
