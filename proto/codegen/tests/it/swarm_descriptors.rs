//! The `.proto` files of SwarmKit have every RPC of an agent, and the numbers that are easy to get wrong.

use std::collections::BTreeSet;

use prost_reflect::{DescriptorPool, MessageDescriptor};

use super::pool;

/// An RPC: whether the client, and whether the server streams.
type Rpc = (&'static str, bool, bool);

/// The RPCs of each service.
const SERVICES: &[(&str, &[Rpc])] = &[
    ("CA", &[("GetRootCACertificate", false, false)]),
    (
        "NodeCA",
        &[
            ("IssueNodeCertificate", false, false),
            ("NodeCertificateStatus", false, false),
        ],
    ),
    (
        "Dispatcher",
        &[
            ("Session", false, true),
            ("Heartbeat", false, false),
            ("UpdateTaskStatus", false, false),
            ("UpdateVolumeStatus", false, false),
            ("Tasks", false, true),
            ("Assignments", false, true),
        ],
    ),
    (
        "LogBroker",
        &[
            ("ListenSubscriptions", false, true),
            ("PublishLogs", true, false),
        ],
    ),
];

/// Messages of SwarmKit whose numbers are not in the order of their meaning, or have gaps.
const SWARM_TRAPS: &[(&str, &[(&str, u32)])] = &[
    ("SessionRequest", &[("description", 1), ("session_id", 2)]),
    (
        "SessionMessage",
        &[
            ("session_id", 1),
            ("node", 2),
            ("managers", 3),
            ("network_bootstrap_keys", 4),
            ("RootCA", 5),
        ],
    ),
    (
        "UpdateTaskStatusRequest",
        &[("session_id", 1), ("updates", 3)],
    ),
    (
        "UpdateVolumeStatusRequest",
        &[("session_id", 1), ("updates", 2)],
    ),
    (
        "AssignmentsMessage",
        &[
            ("type", 1),
            ("applies_to", 2),
            ("results_in", 3),
            ("changes", 4),
        ],
    ),
    (
        "Assignment",
        &[("task", 1), ("secret", 2), ("config", 3), ("volume", 4)],
    ),
    (
        "Node",
        &[
            ("id", 1),
            ("meta", 2),
            ("spec", 3),
            ("description", 4),
            ("status", 5),
            ("manager_status", 6),
            ("attachment", 7),
            ("certificate", 8),
            ("role", 9),
            ("attachments", 10),
            ("VXLANUDPPort", 11),
        ],
    ),
    (
        "TaskSpec",
        &[
            ("container", 1),
            ("resources", 2),
            ("restart", 4),
            ("placement", 5),
            ("log_driver", 6),
            ("networks", 7),
            ("attachment", 8),
            ("force_update", 9),
            ("generic", 10),
            ("resource_references", 11),
        ],
    ),
    (
        "TaskStatus",
        &[
            ("timestamp", 1),
            ("state", 2),
            ("message", 3),
            ("err", 4),
            ("container", 5),
            ("port_status", 6),
            ("applied_by", 7),
            ("applied_at", 8),
        ],
    ),
    (
        "NodeDescription",
        &[
            ("hostname", 1),
            ("platform", 2),
            ("resources", 3),
            ("engine", 4),
            ("tls_info", 5),
            ("fips", 6),
            ("csi_info", 7),
        ],
    ),
    ("ContainerSpec.PullOptions", &[("registry_auth", 64)]),
    ("IPAMOptions", &[("driver", 1), ("configs", 3)]),
    ("Annotations", &[("name", 1), ("labels", 2), ("indices", 4)]),
    (
        "Certificate",
        &[
            ("role", 1),
            ("csr", 2),
            ("status", 3),
            ("certificate", 4),
            ("cn", 5),
        ],
    ),
    (
        "IssueNodeCertificateRequest",
        &[("role", 1), ("csr", 2), ("token", 3), ("availability", 4)],
    ),
    (
        "LogMessage",
        &[
            ("context", 1),
            ("timestamp", 2),
            ("stream", 3),
            ("data", 4),
            ("attrs", 5),
        ],
    ),
];

/// The states of a task in SwarmKit, by their names.
const TASK_STATES: [(&str, i32); 14] = [
    ("NEW", 0),
    ("PENDING", 64),
    ("ASSIGNED", 192),
    ("ACCEPTED", 256),
    ("PREPARING", 320),
    ("READY", 384),
    ("STARTING", 448),
    ("RUNNING", 512),
    ("COMPLETE", 576),
    ("SHUTDOWN", 640),
    ("FAILED", 704),
    ("REJECTED", 768),
    ("REMOVE", 800),
    ("ORPHANED", 832),
];

#[track_caller]
fn message(pool: &DescriptorPool, name: &str) -> MessageDescriptor {
    pool.get_message_by_name(name)
        .unwrap_or_else(|| panic!("{name} is missing"))
}

#[test]
fn swarm_agents_have_every_rpc() {
    let pool = pool();
    for (service, methods) in SERVICES {
        let name = format!("docker.swarmkit.v1.{service}");
        let service = pool.get_service_by_name(&name).expect("the service exists");
        let found: BTreeSet<(String, bool, bool)> = service
            .methods()
            .map(|method| {
                (
                    method.name().to_owned(),
                    method.is_client_streaming(),
                    method.is_server_streaming(),
                )
            })
            .collect();
        let expected: BTreeSet<(String, bool, bool)> = methods
            .iter()
            .map(|(method, client, server)| ((*method).to_owned(), *client, *server))
            .collect();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn swarm_messages_have_upstream_field_numbers() {
    let pool = pool();
    for (name, fields) in SWARM_TRAPS {
        let message = message(&pool, &format!("docker.swarmkit.v1.{name}"));
        let found: BTreeSet<(String, u32)> = message
            .fields()
            .map(|field| (field.name().to_owned(), field.number()))
            .collect();
        let expected: BTreeSet<(String, u32)> = fields
            .iter()
            .map(|(field, number)| ((*field).to_owned(), *number))
            .collect();
        assert_eq!(found, expected, "fields of {name}");
    }
    let states = pool
        .get_enum_by_name("docker.swarmkit.v1.TaskState")
        .expect("the states exist");
    let found: Vec<(String, i32)> = states
        .values()
        .map(|value| (value.name().to_owned(), value.number()))
        .collect();
    let expected: Vec<(String, i32)> = TASK_STATES
        .iter()
        .map(|(name, number)| ((*name).to_owned(), *number))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn container_spec_of_a_swarm_has_the_numbers_1_to_30() {
    let spec = message(&pool(), "docker.swarmkit.v1.ContainerSpec");
    let numbers: BTreeSet<u32> = spec.fields().map(|field| field.number()).collect();
    assert_eq!(numbers, (1..=30).collect());
}
