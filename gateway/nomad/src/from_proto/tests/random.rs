//! Plans of random options: the same request has the same plan.

use super::*;

/// Options with values that may or may not be valid.
fn options() -> impl Strategy<Value = Vec<(String, Value)>> {
    let keys = proptest::sample::select(vec![
        "command",
        "args",
        "volumes",
        "mounts",
        "devices",
        "network_mode",
        "ports",
        "port_map",
        "labels",
        "cap_add",
        "cap_drop",
        "privileged",
        "security_opt",
        "pid_mode",
        "ipc_mode",
        "extra_hosts",
        "dns_servers",
        "ulimit",
        "sysctl",
        "shm_size",
        "pids_limit",
        "tmpfs",
        "storage_opt",
        "hostname",
        "mac_address",
        "group_add",
    ]);
    let text = prop_oneof![
        Just("host"),
        Just("none"),
        Just("a:/b"),
        Just("/x:/y:ro"),
        Just("all"),
        Just("net_raw"),
        Just("1.2.3.4"),
        Just("a:1.2.3.4"),
        Just("no-new-privileges"),
        Just("10m"),
        Just("/run:size=1m"),
        Just("02:42:ac:11:00:02"),
    ]
    .prop_map(Value::from);
    let leaf = prop_oneof![4 => text, 1 => "\\PC{0,8}".prop_map(Value::from), 1 => any::<i64>().prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from), 1 => Just(Value::Nil)];
    let value = leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            proptest::collection::vec(
                (
                    "[a-z_]{1,10}|target|source|type|host_path|nofile|size",
                    inner
                ),
                0..4
            )
            .prop_map(|pairs| Value::Map(
                pairs
                    .into_iter()
                    .map(|(key, value)| (key.into(), value))
                    .collect()
            )),
        ]
    });
    proptest::collection::vec((keys.prop_map(str::to_owned), value), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn plan_is_independent_of_key_order(options in options(), allowed in any::<bool>()) {
        let mut options = options;
        options.sort_by(|one, other| one.0.cmp(&other.0));
        options.dedup_by(|one, other| one.0 == other.0);
        let request = |options: &[(String, Value)]| {
            let mut pairs: Vec<(Value, Value)> =
                options.iter().map(|(key, value)| (key.as_str().into(), value.clone())).collect();
            pairs.push(("image".into(), "busybox:1".into()));
            pairs.push(("unknown".into(), 1.into()));
            nomad::TaskConfig { msgpack_driver_config: crate::configs::bytes(&Value::Map(pairs)), ..task([]) }
        };
        let session = session(if allowed { generous() } else { PluginConfig::default() });
        let one = plan(&request(&options), &session);
        options.reverse();
        let other = plan(&request(&options), &session);
        match (one, other) {
            (Ok(one), Ok(other)) => prop_assert_eq!(one, other),
            (Err(one), Err(other)) => {
                prop_assert_eq!(one.to_string(), other.to_string());
                prop_assert!(matches!(one.kind(), ErrorKind::InvalidArgument | ErrorKind::Unimplemented), "{:?}", one);
            }
            (one, other) => prop_assert!(false, "{:?} {:?}", one, other),
        }
    }

    #[test]
    fn strict_agent_mounts_stay_within_the_allocation(sources in proptest::collection::vec("[a-z./]{1,16}", 1..4)) {
        let volumes: Vec<String> =
            sources.iter().enumerate().map(|(index, source)| format!("{source}:/at/{index}")).collect();
        let volumes: Vec<&str> = volumes.iter().map(String::as_str).collect();
        if let Ok(plan) = plan(&task([("volumes", texts(&volumes))]), &session(PluginConfig::default())) {
            for (index, mount) in plan.task.mounts.iter().enumerate() {
                let MountSource::Host { path, .. } = &mount.source else { panic!("{mount:?} is not of the host") };
                prop_assert!(path.starts_with("/var/nomad/alloc/f3a1b2c4/"), "{}", path.display());
                prop_assert!(plan.confined.iter().any(|within| within.mount == index), "{}", path.display());
            }
        }
    }
}
