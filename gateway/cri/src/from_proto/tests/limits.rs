//! Limits and security contexts of containers.

use super::*;

#[test]
fn malformed_limits_are_rejected_by_field() {
    refuses_limit(
        |r| r.cpu_period = 999,
        "cpu_period: 999 µs is not between 1000 and 1000000",
    );
    refuses_limit(
        |r| r.cpu_period = -1,
        "cpu_period: -1 µs is not between 1000 and 1000000",
    );
    refuses_limit(
        |r| r.cpu_quota = 999,
        "cpu_quota: 999 µs is below 1000, the least the kernel takes",
    );
    refuses_limit(|r| r.cpu_shares = -2, "cpu_shares: -2 is negative");
    refuses_limit(
        |r| r.memory_limit_in_bytes = -2,
        "memory_limit_in_bytes: -2 is negative; -1 is for no limit",
    );
    refuses_limit(
        |r| (r.memory_limit_in_bytes, r.memory_swap_limit_in_bytes) = (10, 9),
        "memory_swap_limit_in_bytes: 9 is less than the memory limit of 10: it is the sum of memory and swap",
    );
    refuses_limit(
        |r| r.oom_score_adj = 1001,
        "oom_score_adj: 1001 is not between -1000 and 1000",
    );
    for list in ["a", "1-", "2-1", "1,,2", "+1", "-1"] {
        let message = format!("cpuset_cpus: {list:?} is not a list such as \"0-3,8\"");
        refuses_limit(|r| r.cpuset_cpus = list.into(), &message);
    }
    for size in ["2M", "MB", "0MB", "-1MB", "2mb", ""] {
        let limit = cri::HugepageLimit {
            page_size: size.into(),
            limit: 1,
        };
        let message =
            format!("hugepage_limits[0].page_size: {size:?} is not a size such as \"2MB\"");
        refuses_limit(|r| r.hugepage_limits = vec![limit], &message);
    }
    for file in ["memory/high", "memory", "../x.y", ""] {
        let message = format!(
            "unified[{file:?}]: it is not the name of a cgroup file, such as \"memory.high\""
        );
        refuses_limit(|r| r.unified = map(&[(file, "1")]), &message);
    }
}

#[test]
fn last_limit_for_a_size_of_huge_pages_counts_however_many_there_are() {
    let hugepages = |limits: Vec<(String, u64)>| {
        let limits = limits
            .into_iter()
            .map(|(page_size, limit)| cri::HugepageLimit { page_size, limit });
        update(cri::LinuxContainerResources {
            hugepage_limits: limits.collect(),
            ..Default::default()
        })
    };
    let known = |page_size: &str, limit_bytes| HugepageLimit {
        page_size: HugepageSize::new(page_size).unwrap(),
        limit_bytes,
    };
    for count in [20_000, 200_000] {
        let size = |number| if number % 2 == 0 { "2MB" } else { "1GB" };
        let limits = (0..count)
            .map(|number| (size(number).to_owned(), number))
            .collect();
        let expected = [known("1GB", count - 1), known("2MB", count - 2)];
        assert_eq!(
            hugepages(limits).expect("it is well formed").hugepages,
            expected
        );
    }
    let sizes = |count: u64| {
        (1..=count)
            .map(|number| (format!("{number}KB"), number))
            .collect()
    };
    assert_eq!(
        hugepages(sizes(64))
            .expect("it is well formed")
            .hugepages
            .len(),
        64
    );
    assert_eq!(
        hugepages(sizes(200_000))
            .expect_err("there are no such nodes")
            .report(),
        "linux.hugepage_limits[64]: the container has limits for 64 page sizes without it, and may have no more"
    );
}

#[test]
fn weights_are_clamped_to_the_cgroup_range() {
    let shares = |cpu_shares| {
        let limits = cri::LinuxContainerResources {
            cpu_shares,
            ..Default::default()
        };
        update(limits)
            .expect("it is well formed")
            .cpu_shares
            .map(CpuShares::get)
    };
    assert_eq!(
        (shares(0), shares(1), shares(2), shares(1 << 40)),
        (None, Some(2), Some(2), Some(262_144))
    );
}

#[test]
fn update_contains_only_changed_limits() {
    let nothing = update(cri::LinuxContainerResources::default()).expect("it is well formed");
    assert_eq!(nothing, Resources::default());
    let limits = cri::LinuxContainerResources {
        cpu_quota: -5,
        memory_limit_in_bytes: -1,
        ..Default::default()
    };
    let expected = Resources {
        cpu_quota_us: Some(CpuQuota::UNLIMITED),
        memory_limit_bytes: Some(MemoryLimit::UNLIMITED),
        ..Resources::default()
    };
    assert_eq!(update(limits).expect("it is well formed"), expected);
    let error = update(cri::LinuxContainerResources {
        cpu_period: 1,
        ..Default::default()
    });
    assert!(
        error
            .expect_err("it is too short")
            .report()
            .starts_with("linux.cpu_period: ")
    );
}

#[test]
fn malformed_security_context_is_rejected_by_field() {
    fn id(value: i64) -> Option<cri::Int64Value> {
        Some(cri::Int64Value { value })
    }
    let sandbox = SandboxId::from_bytes(SANDBOX);
    let refused = |change: fn(&mut cri::LinuxContainerSecurityContext), reason: &str| {
        refuses_context(change, ErrorKind::InvalidArgument, reason);
    };
    refused(
        |c| c.privileged = true,
        &format!(
            "privileged: failed to generate spec opts: no privileged container allowed in sandbox {sandbox}"
        ),
    );
    refused(
        |c| c.run_as_user = id(-1),
        "run_as_user: -1 is not between 0 and 4294967294",
    );
    refused(
        |c| c.run_as_group = id(1),
        "run_as_group: it needs run_as_user or run_as_username",
    );
    refused(
        |c| (c.run_as_user, c.run_as_username) = (id(1), "a".into()),
        "run_as_username: run_as_user is set as well: give one",
    );
    refused(
        |c| c.run_as_username = "a b".into(),
        "run_as_username: \"a b\" is not a user's name",
    );
    refused(
        |c| c.supplemental_groups = vec![1, 4_294_967_295],
        "supplemental_groups[1]: 4294967295 is not between 0 and 4294967294",
    );
    refused(
        |c| c.supplemental_groups_policy = 2,
        "supplemental_groups_policy: 2 is not one of its values",
    );
    refused(
        |c| {
            c.capabilities = Some(cri::Capability {
                drop_capabilities: strings(&["a b"]),
                ..Default::default()
            })
        },
        "capabilities.drop_capabilities[0]: \"a b\" is not the name of a capability",
    );
    refused(
        |c| c.seccomp_profile_path = "mine".into(),
        "seccomp_profile_path: \"mine\" names no profile",
    );
    refused(
        |c| {
            c.seccomp = Some(cri::SecurityProfile {
                profile_type: 2,
                localhost_ref: "p".into(),
            })
        },
        "seccomp.localhost_ref: \"p\" is not an absolute path",
    );
    refused(
        |c| {
            c.apparmor = Some(cri::SecurityProfile {
                profile_type: 2,
                localhost_ref: String::new(),
            })
        },
        "apparmor.localhost_ref: \"\" names no profile",
    );
    refused(
        |c| c.apparmor_profile = "x".into(),
        "apparmor_profile: \"x\" names no profile",
    );
    refused(
        |c| c.masked_paths = strings(&["proc"]),
        "masked_paths[0]: \"proc\" is not an absolute path",
    );
}

#[test]
fn unsupported_container_namespaces_are_rejected_by_field() {
    use ErrorKind::{InvalidArgument as Invalid, NotFound};
    let target = |id: &str| {
        Some(cri::NamespaceOption {
            pid: 3,
            target_id: id.into(),
            ..Default::default()
        })
    };
    refuses_context(
        |c| c.namespace_options = target(""),
        Invalid,
        "namespace_options.target_id: the mode TARGET needs it",
    );
    refuses_context(
        |c| c.namespace_options = target("gone"),
        NotFound,
        "namespace_options.target_id: task \"gone\" does not exist",
    );
    let userns = cri::NamespaceOption {
        userns_options: Some(volumes::users(1000)),
        ..Default::default()
    };
    refuses_context(
        |c| c.namespace_options = Some(userns),
        Invalid,
        "namespace_options.userns_options: they must be those of the pod",
    );
}

#[test]
fn privileged_container_is_accepted_in_a_privileged_sandbox() {
    let mut sandbox = pod();
    pod_context(&mut sandbox).privileged = true;
    let mut config = app();
    context(&mut config).privileged = true;
    let spec = container_in(&sandbox, config, &Config::default()).expect("it is allowed");
    assert!(spec.security.privileged);
}

#[test]
fn node_user_namespace_means_no_user_namespace() {
    let node = cri::UserNamespace {
        mode: cri::NamespaceMode::Node.into(),
        ..Default::default()
    };
    let mut config = app();
    context(&mut config).namespace_options = Some(cri::NamespaceOption {
        userns_options: Some(node),
        ..Default::default()
    });
    assert_eq!(
        container_of(config).expect("it is well formed").pid,
        PidMode::Private
    );
}
