//! The `.proto` files have every RPC of the followed version, and the numbers that are easy to get wrong.

use std::collections::{BTreeMap, BTreeSet};

use prost_reflect::{DescriptorPool, MessageDescriptor};

use super::pool;
use tables::{COUNTS, IMAGE_STREAMS, IMAGE_UNARY, RUNTIME_STREAMS, RUNTIME_UNARY, TRAPS};

mod tables;

#[track_caller]
fn message(pool: &DescriptorPool, name: &str) -> MessageDescriptor {
    pool.get_message_by_name(name)
        .unwrap_or_else(|| panic!("{name} is missing"))
}

#[track_caller]
fn check_service(name: &str, unary: &[&str], streams: &[&str]) {
    let pool = pool();
    let service = pool.get_service_by_name(name).expect("the service exists");
    let found: BTreeMap<String, bool> = service
        .methods()
        .map(|method| {
            assert!(
                !method.is_client_streaming(),
                "{} takes a stream",
                method.name()
            );
            (method.name().to_owned(), method.is_server_streaming())
        })
        .collect();
    let expected: BTreeMap<String, bool> = unary
        .iter()
        .map(|name| ((*name).to_owned(), false))
        .chain(streams.iter().map(|name| ((*name).to_owned(), true)))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn runtime_service_has_every_rpc() {
    check_service(
        "runtime.v1.RuntimeService",
        &RUNTIME_UNARY,
        &RUNTIME_STREAMS,
    );
}

#[test]
fn image_service_has_every_rpc() {
    check_service("runtime.v1.ImageService", &IMAGE_UNARY, &IMAGE_STREAMS);
}

#[test]
fn device_plugins_and_kubelets_have_every_rpc() {
    let unary = [
        "GetDevicePluginOptions",
        "GetPreferredAllocation",
        "Allocate",
        "PreStartContainer",
    ];
    check_service("v1beta1.DevicePlugin", &unary, &["ListAndWatch"]);
    check_service("v1beta1.Registration", &["Register"], &[]);
    check_service(
        "pluginregistration.Registration",
        &["GetInfo", "NotifyRegistrationStatus"],
        &[],
    );
    check_service("v1.PodResourcesLister", &["List"], &[]);
}

#[test]
fn rpcs_take_and_return_the_messages_named_after_them() {
    for service in pool()
        .services()
        .filter(|service| service.package_name() == "runtime.v1")
    {
        for method in service.methods() {
            let (input, output) = match method.name() {
                "GetContainerEvents" => (
                    "GetEventsRequest".to_owned(),
                    "ContainerEventResponse".to_owned(),
                ),
                name => (format!("{name}Request"), format!("{name}Response")),
            };
            assert_eq!(method.input().name(), input);
            assert_eq!(method.output().name(), output);
        }
    }
}

#[test]
fn error_prone_messages_have_upstream_field_numbers() {
    let pool = pool();
    for (name, fields) in TRAPS {
        let found: Vec<(String, u32)> = message(&pool, name)
            .fields()
            .map(|field| (field.name().to_owned(), field.number()))
            .collect();
        let found: BTreeSet<(&str, u32)> = found
            .iter()
            .map(|(name, number)| (name.as_str(), *number))
            .collect();
        assert_eq!(found, fields.iter().copied().collect(), "fields of {name}");
    }
}

#[test]
fn cri_is_complete() {
    let pool = pool();
    let cri = |package: &str| package == "runtime.v1";
    let messages: Vec<MessageDescriptor> = pool
        .all_messages()
        .filter(|m| cri(m.package_name()) && !m.is_map_entry())
        .collect();
    let fields: usize = messages
        .iter()
        .map(|message| message.fields().count())
        .sum();
    let enums: Vec<_> = pool.all_enums().filter(|e| cri(e.package_name())).collect();
    let values: usize = enums.iter().map(|found| found.values().count()).sum();
    assert_eq!((messages.len(), fields, enums.len(), values), COUNTS);
}

#[test]
fn optional_numbers_are_wrapper_messages_of_the_package() {
    let pool = pool();
    for (name, kind) in [
        ("runtime.v1.Int64Value", prost_reflect::Kind::Int64),
        ("runtime.v1.UInt64Value", prost_reflect::Kind::Uint64),
    ] {
        let value = message(&pool, name).get_field(1).expect("field 1 exists");
        assert_eq!((value.name(), value.kind()), ("value", kind));
    }
    let cri = pool.files().filter(|file| file.name().starts_with("cri/"));
    let imports = cri.filter(|file| file.dependencies().count() > 0);
    assert_eq!(
        imports
            .map(|file| file.name().to_owned())
            .collect::<Vec<_>>(),
        ["cri/v1alpha2/api.proto"]
    );
}

#[test]
fn v1alpha2_is_v1_with_additions_from_100_on() {
    let pool = pool();
    let messages = pool
        .all_messages()
        .filter(|message| message.package_name() == "runtime.v1alpha2" && !message.is_map_entry());
    let mut shared = 0;
    for message in messages {
        let Some(v1) = pool.get_message_by_name(&format!("runtime.v1.{}", message.name())) else {
            continue;
        };
        shared += 1;
        for field in message.fields() {
            let same = v1.get_field(field.number());
            assert_eq!(
                same.is_none(),
                field.number() >= 100,
                "{}",
                field.full_name()
            );
            let facts = |field: &prost_reflect::FieldDescriptor| {
                let kind = field.kind();
                let message = kind.as_message().filter(|message| !message.is_map_entry());
                let inner =
                    message.map_or_else(|| field.is_map().to_string(), |m| m.name().to_owned());
                (field.name().to_owned(), field.cardinality(), inner)
            };
            if let Some(same) = same {
                assert_eq!(facts(&field), facts(&same), "{}", field.full_name());
            }
        }
    }
    assert_eq!(shared, 16);
    let calls = |name: &str| {
        let service = pool.get_service_by_name(name).expect("the service exists");
        service
            .methods()
            .map(|method| method.name().to_owned())
            .collect::<BTreeSet<_>>()
    };
    for (service, count) in [("RuntimeService", 25), ("ImageService", 5)] {
        let old = calls(&format!("runtime.v1alpha2.{service}"));
        let new = calls(&format!("runtime.v1.{service}"));
        assert_eq!(old.len(), count);
        assert!(
            old.difference(&new).all(|call| call == "StartPodSandbox"),
            "{old:?}"
        );
    }
    assert_eq!(
        calls("runtime.v1alpha2.VolumeService"),
        BTreeSet::from(["RemoveVolume".to_owned()])
    );
}
