//! Tests of what an agent is told of a task's network.

use std::sync::Arc;

use switchyard_core::id::{Owner, SandboxId};
use switchyard_core::object::SandboxDetails;
use switchyard_core::spec::Meta;
use switchyard_core::state::SandboxState;

use super::*;

fn sandbox(ips: &[&str]) -> Sandbox {
    let meta = Meta {
        owner: Owner::Nomad,
        name: "3a7c/web/0123abcd".into(),
        labels: BTreeMap::new(),
        created_at: SystemTime::now(),
        record: Vec::new(),
    };
    let ips = ips.iter().map(|ip| ip.parse().expect("it is an address"));
    Sandbox {
        id: SandboxId::from_bytes([1; 32]),
        meta: Arc::new(meta),
        handler: String::new(),
        details: SandboxDetails {
            ips: ips.collect(),
            ..SandboxDetails::default()
        },
        state: SandboxState::Ready,
    }
}

#[test]
fn agent_is_told_the_address_of_the_first_range() {
    let cases: [(&[&str], Option<&str>); 5] = [
        (&["172.26.80.2"], Some("172.26.80.2")),
        // A range of IPv6 that the bridge has by itself comes last.
        (&["172.26.80.2", "fd00:26:80::2"], Some("172.26.80.2")),
        (&["fd00:26:80::2"], Some("fd00:26:80::2")),
        // As the operator has it in `network.bridge.subnets`.
        (&["fd00:26:80::2", "172.26.80.2"], Some("fd00:26:80::2")),
        (&[], None),
    ];
    for (ips, told) in cases {
        let sandbox = sandbox(ips);
        let record = Record {
            ports: BTreeMap::from([("http".to_owned(), 80)]),
            own_network: true,
            ..Record::default()
        };
        let told_of = |record: &Record| network(record, Some(&sandbox));
        let found = told_of(&record);
        assert_eq!(found.as_ref().map(|one| one.addr.as_str()), told, "{ips:?}");
        if let Some(found) = found {
            assert_eq!(found.port_map, record.ports);
            // Services take the node's address unless they ask for the task's.
            assert!(!found.auto_advertise);
        }
        // Of a group's network the agent knows more itself.
        let of_group = Record {
            own_network: false,
            ..record
        };
        assert_eq!(told_of(&of_group), None);
    }
}
