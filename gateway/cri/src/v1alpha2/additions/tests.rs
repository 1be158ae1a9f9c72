//! Each addition is supported, or refused by its name.

use switchyard_core::ErrorKind;
use switchyard_proto::cri::v1 as cri;

use super::*;

/// Fields that can be requested for a new container, but not in an update.
const FIXED: [&str; 4] = [
    "disk_quota",
    "ulimits",
    "blkio_weight*",
    "memory_swappiness",
];

fn limited(change: impl FnOnce(&mut old::LinuxContainerResources)) -> old::LinuxContainerResources {
    let mut resources = old::LinuxContainerResources {
        cpu_shares: 512,
        ..Default::default()
    };
    change(&mut resources);
    resources
}

#[track_caller]
fn refused(change: impl FnOnce(&mut old::LinuxContainerResources), kind: ErrorKind, field: &str) {
    let resources = limited(change);
    let error = of_update(Some(&resources)).expect_err("it ought to be refused");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(
        error.to_string().starts_with(&format!("linux.{field}: ")),
        "{error}"
    );
    let linux = Some(old::LinuxContainerConfig {
        resources: Some(resources),
        ..Default::default()
    });
    let config = old::ContainerConfig {
        linux,
        ..Default::default()
    };
    let fixed = kind == ErrorKind::Unimplemented && FIXED.contains(&field);
    assert_eq!(of_container(Some(&config)).is_ok(), fixed, "{field}");
}

#[test]
fn unsupported_limit_is_rejected_by_name() {
    let cannot = ErrorKind::Unimplemented;
    let wrong = ErrorKind::InvalidArgument;
    let device = || old::ThrottleDevice {
        path: "/dev/sda".into(),
        rate: 1,
    };
    refused(
        |r| r.disk_quota = BTreeMap::from([("/".into(), "10g".into())]),
        cannot,
        "disk_quota",
    );
    refused(|r| r.blkio_weight = 500, cannot, "blkio_weight*");
    refused(|r| r.blkio_weight = 9, wrong, "blkio_weight");
    let weighed = |path: &str, weight| {
        vec![old::WeightDevice {
            path: path.into(),
            weight,
        }]
    };
    refused(
        |r| r.blkio_weight_device = weighed("sda", 10),
        wrong,
        "blkio_weight_device[0].path",
    );
    refused(
        |r| r.blkio_weight_device = weighed("/dev/sda", 1001),
        wrong,
        "blkio_weight_device[0].Weight",
    );
    let none = || old::ThrottleDevice {
        rate: 0,
        ..device()
    };
    refused(
        |r| r.blkio_device_write_bps = vec![none()],
        wrong,
        "blkio_device_write_bps[0].rate",
    );
    let relative = || old::ThrottleDevice {
        path: "sda".into(),
        ..device()
    };
    refused(
        |r| r.blkio_device_read_i_ops = vec![relative()],
        wrong,
        "blkio_device_read_IOps[0].path",
    );
    refused(|r| r.kernel_memory = 1 << 20, cannot, "kernel_memory");
    refused(
        |r| r.memory_swappiness = Some(cri::Int64Value { value: 0 }),
        cannot,
        "memory_swappiness",
    );
    refused(
        |r| r.memory_swappiness = Some(cri::Int64Value { value: 101 }),
        wrong,
        "memory_swappiness",
    );
    refused(|r| r.memory_reservation = -1, wrong, "memory_reservation");
    refused(|r| r.ulimits = vec![limit("core", 1, 1)], cannot, "ulimits");
}

#[test]
fn block_device_limits_can_be_updated() {
    let device = |rate| {
        vec![old::ThrottleDevice {
            path: "/dev/sda".into(),
            rate,
        }]
    };
    let resources =
        limited(|r| (r.blkio_device_read_bps, r.blkio_device_write_i_ops) = (device(1), device(2)));
    let mut update = TaskUpdate::default();
    of_update(Some(&resources))
        .expect("they are well formed")
        .change(&mut update);
    let limit = |what, rate| Throttle {
        device: "/dev/sda".into(),
        what,
        rate,
    };
    assert_eq!(
        update.throttles,
        [limit(Throttled::ReadBytes, 1), limit(Throttled::Writes, 2)]
    );
}

#[test]
fn project_without_number_is_not_an_addition() {
    let none = old::ContainerConfig {
        quota_id: "0".into(),
        ..Default::default()
    };
    assert_eq!(
        of_container(Some(&none)).expect("nothing is asked for"),
        Additions::default()
    );
}

#[test]
fn named_mount_is_a_volume_unless_it_has_a_host_path() {
    let volume = |name: &str| old::Mount {
        name: name.into(),
        ..Default::default()
    };
    let of = |mount| {
        let mounts = vec![old::Mount::default(), mount];
        of_container(Some(&old::ContainerConfig {
            mounts,
            ..Default::default()
        }))
    };
    let named = of(volume("data")).expect("it is a name");
    let names = BTreeMap::from([(1, "data".to_owned())]);
    assert_eq!((&named.volumes, &named.names), (&names, &names));
    let called = of(old::Mount {
        host_path: "/srv".into(),
        ..volume("data")
    })
    .expect("the path counts");
    assert_eq!((called.volumes, called.names), (BTreeMap::new(), names));
    for (mount, field) in [
        (volume("../data"), "name"),
        (
            old::Mount {
                propagation: 1,
                ..volume("data")
            },
            "propagation",
        ),
    ] {
        let error = of(mount).expect_err("it ought to be refused");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(
            error
                .to_string()
                .starts_with(&format!("config.mounts[1].{field}: ")),
            "{error}"
        );
    }
}

#[test]
fn network_priority_must_fit_the_kernel_range() {
    for (asked, expected) in [(0, None), (1, Some(1)), (u32::MAX.into(), Some(u32::MAX))] {
        assert_eq!(net_priority(asked).expect("it is one"), expected);
    }
    for bad in [-1, i64::from(u32::MAX) + 1] {
        let error = net_priority(bad).expect_err("it is invalid");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(
            error.to_string().starts_with("config.net_priority: "),
            "{error}"
        );
    }
}

#[test]
fn v1_fields_are_not_additions() {
    assert_eq!(
        of_update(Some(&limited(|_| {}))).expect("it is v1"),
        Additions::default()
    );
    let additions =
        of_update(Some(&limited(|r| r.memory_reservation = 4096))).expect("it can be done");
    let asked = old::LinuxContainerResources {
        memory_reservation: 4096,
        ..Default::default()
    };
    assert_eq!(additions.asked, Some(asked));
    let mut resources = Resources::default();
    additions.limit(&mut resources);
    assert_eq!(
        resources.memory_reservation_bytes,
        MemoryLimit::new(4096).ok()
    );
}

fn limit(name: &str, hard: i64, soft: i64) -> old::Ulimit {
    old::Ulimit {
        name: name.into(),
        hard,
        soft,
    }
}

#[test]
fn rlimits_have_full_names() {
    let made = ulimits(
        &[limit("nofile", 200, 100), limit("RLIMIT_CORE", -1, 0)],
        "x",
    )
    .expect("they are fine");
    let expected = [("RLIMIT_NOFILE", 100, 200), ("RLIMIT_CORE", 0, u64::MAX)];
    assert_eq!(
        made,
        expected.map(|(name, soft, hard)| Rlimit {
            name: name.into(),
            soft,
            hard
        })
    );
    for (bad, field) in [
        (limit("", 1, 1), "x.ulimits[0].name: "),
        (limit("core", -2, 1), "x.ulimits[0].hard: "),
        (limit("core", 1, 2), "x.ulimits[0].soft: "),
    ] {
        let error = ulimits(&[bad], "x").expect_err("it is malformed");
        assert!(error.to_string().starts_with(field), "{error}");
    }
}
