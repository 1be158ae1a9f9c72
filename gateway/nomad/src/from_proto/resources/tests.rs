//! Tests of limits and of cgroup placement.

use switchyard_core::ErrorKind;

use super::*;
use crate::configs::{config, session, task};
use crate::from_proto::plan;
use crate::plugin_config::PluginConfig;
use crate::session::{Processors, Session};

/// A request with this memory (MiB, and its maximum) and these MHz.
fn request(mb: i64, max: i64, mhz: i64) -> nomad::TaskConfig {
    let allocated = nomad::AllocatedTaskResources {
        cpu: Some(nomad::AllocatedCpuResources { cpu_shares: mhz }),
        memory: Some(nomad::AllocatedMemoryResources {
            memory_mb: mb,
            memory_max_mb: max,
        }),
        networks: Vec::new(),
    };
    let resources = nomad::Resources {
        allocated_resources: Some(allocated),
        ..nomad::Resources::default()
    };
    nomad::TaskConfig {
        resources: Some(resources),
        ..task([])
    }
}

fn limited(task: &nomad::TaskConfig, session: &Session) -> Resources {
    plan(task, session).unwrap().task.resources
}

#[test]
fn memory_is_a_limit_or_a_reservation_with_memory_max() {
    let mib = |mb: i64| MemoryLimit::new(mb << 20).ok();
    let of = |mb, max, hard: i64| {
        let mut task = request(mb, max, 0);
        task.msgpack_driver_config = config([("memory_hard_limit", hard.into())]);
        let limits = limited(&task, &session(PluginConfig::default()));
        (limits.memory_limit_bytes, limits.memory_reservation_bytes)
    };
    assert_eq!(of(256, 0, 0), (mib(256), None));
    assert_eq!(of(256, 512, 0), (mib(512), mib(256)));
    assert_eq!(of(256, -1, 0), (None, mib(256)), "no limit at all");
    assert_eq!(of(256, -1, 512), (None, mib(256)));
    assert_eq!(of(256, 0, 1024), (mib(1024), mib(256)));
    assert_eq!(
        of(256, 512, 300),
        (mib(512), mib(256)),
        "the larger one counts"
    );
    assert_eq!(
        of(256, 128, 0),
        (mib(128), mib(128)),
        "no reservation is over the limit"
    );
    assert_eq!(of(0, 0, 0), (None, None));
}

#[test]
fn hard_limit_of_memory_is_not_below_the_reservation() {
    let of = |mb, max, hard: i64| {
        let mut task = request(mb, max, 0);
        task.msgpack_driver_config = config([("memory_hard_limit", hard.into())]);
        plan(&task, &session(PluginConfig::default()))
            .map(drop)
            .map_err(|error| (error.kind(), error.report()))
    };
    for (mb, max, hard) in [
        (256, 0, 256),
        (256, 0, 257),
        (256, 512, 128),
        (256, -1, 1),
        (0, 0, 1),
    ] {
        assert_eq!(of(mb, max, hard), Ok(()), "{mb} {max} {hard}");
    }
    for (mb, max, hard) in [(256, 0, 255), (256, 200, 128), (2, 0, 1)] {
        let why = format!(
            "memory_hard_limit: {hard} MiB is less than the memory of the task's resources, {mb} MiB: give it as much or more"
        );
        assert_eq!(
            of(mb, max, hard),
            Err((ErrorKind::InvalidArgument, why)),
            "{mb} {max} {hard}"
        );
    }
}

#[test]
fn memory_defaults_to_the_linux_resources() {
    let linux = nomad::LinuxResources {
        memory_limit_bytes: 5 << 20,
        cpu_shares: 200,
        ..nomad::LinuxResources::default()
    };
    let resources = nomad::Resources {
        linux_resources: Some(linux),
        ..nomad::Resources::default()
    };
    let task = nomad::TaskConfig {
        resources: Some(resources),
        ..task([])
    };
    let limits = limited(&task, &session(PluginConfig::default()));
    assert_eq!(
        (limits.memory_limit_bytes, limits.cpu_shares),
        (
            MemoryLimit::new(5 << 20).ok(),
            Some(CpuShares::clamped(200))
        )
    );
}

#[test]
fn reserved_compute_is_in_millicores_and_bytes() {
    let of = |task: &nomad::TaskConfig, cores, total_mhz| {
        let session = Session {
            processors: Processors { cores, total_mhz },
            ..session(PluginConfig::default())
        };
        plan(task, &session).unwrap().task.compute
    };
    let claim = |cpu_milli, mib: u64, exclusive_cpus| ComputeClaim {
        reserved: Reserved {
            cpu_milli,
            memory_bytes: mib << 20,
        },
        exclusive_cpus,
    };
    assert_eq!(of(&request(256, 512, 500), 4, 8000), claim(250, 256, false));
    assert_eq!(
        of(&request(256, -1, 500), 0, 0),
        claim(0, 256, false),
        "the agent has not said"
    );
    assert_eq!(of(&request(-1, 0, -1), 4, 8000), claim(0, 0, false));
    let most = of(&request(i64::MAX, 0, i64::MAX), u32::MAX, 1).reserved;
    assert_eq!(most.memory_bytes, u64::try_from(i64::MAX).unwrap());
    let mut own = request(256, 0, 4000);
    own.resources.get_or_insert_default().linux_resources = Some(nomad::LinuxResources {
        cpuset_cpus: "2,3".to_owned(),
        ..nomad::LinuxResources::default()
    });
    assert_eq!(of(&own, 4, 8000), claim(2000, 256, true));
    assert_eq!(of(&task([]), 4, 8000), claim(0, 0, false));
}

#[test]
fn cpu_shares_are_mhz_clamped_to_the_kernel_range() {
    let of = |mhz, total_mhz| {
        let session = Session {
            processors: Processors {
                cores: 4,
                total_mhz,
            },
            ..session(PluginConfig::default())
        };
        limited(&request(1, 0, mhz), &session)
            .cpu_shares
            .map(CpuShares::get)
    };
    assert_eq!(of(0, 8000), None);
    assert_eq!(of(1, 8000), Some(2));
    assert_eq!(of(500, 8000), Some(500));
    assert_eq!(of(524_288, 524_288), Some(262_144));
    assert_eq!(of(1000, 524_288), Some(500));
    assert_eq!(of(1_000_000, 8000), Some(262_144));
}

#[test]
fn cpu_hard_limit_is_the_tasks_share_of_all_cores() {
    let of = |ticks: f64, mhz: i64, period: i64| {
        let mut task = request(1, 0, mhz);
        let linux = nomad::LinuxResources {
            percent_ticks: ticks,
            ..nomad::LinuxResources::default()
        };
        task.resources.get_or_insert_default().linux_resources = Some(linux);
        task.msgpack_driver_config = config([
            ("cpu_hard_limit", true.into()),
            ("cpu_cfs_period", period.into()),
        ]);
        let limits = limited(&task, &session(PluginConfig::default()));
        (
            limits.cpu_quota_us.and_then(CpuQuota::get),
            limits.cpu_period_us.map(CpuPeriod::get),
        )
    };
    // A quarter of four cores is one core.
    assert_eq!(of(0.25, 0, 0), (Some(100_000), Some(100_000)));
    assert_eq!(of(0.25, 0, 50_000), (Some(50_000), Some(50_000)));
    assert_eq!(
        of(0.0, 2000, 0),
        (Some(100_000), Some(100_000)),
        "without the agent's figure it is reckoned here"
    );
    assert_eq!(
        of(0.0001, 0, 0),
        (Some(1_000), Some(100_000)),
        "the kernel takes no less"
    );
    assert_eq!(of(f64::NAN, 2000, 0), (Some(100_000), Some(100_000)));
    let soft = limited(&request(1, 0, 500), &session(PluginConfig::default()));
    assert_eq!((soft.cpu_quota_us, soft.cpu_period_us), (None, None));
}

#[test]
fn invalid_limits_are_rejected_by_name() {
    let refused = |task: &nomad::TaskConfig, session: &Session, text: &str| {
        let error = plan(task, session).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (ErrorKind::InvalidArgument, text)
        );
    };
    let plain = session(PluginConfig::default());
    let unknown = Session {
        processors: Processors::default(),
        ..plain.clone()
    };
    refused(
        &task([("cpu_hard_limit", true.into())]),
        &unknown,
        "cpu_hard_limit: the agent has not said how many processors the node has",
    );
    for period in [999, 1_000_001] {
        let text = format!("cpu_cfs_period: {period} µs is not between 1000 and 1000000");
        refused(&task([("cpu_cfs_period", period.into())]), &plain, &text);
    }
    refused(
        &task([("oom_score_adj", (-5).into())]),
        &plain,
        "oom_score_adj: a negative one needs allow_privileged in the plugin's configuration",
    );
    let limited = session(PluginConfig {
        pids_limit: PidsLimit::new(100).ok(),
        ..PluginConfig::default()
    });
    let text = "pids_limit: pids_limit cannot be greater than nomad plugin config pids_limit: 100";
    refused(&task([("pids_limit", 101.into())]), &limited, text);
}

#[test]
fn operator_limits_apply_without_task_limits() {
    let score = |score: i32| OomScoreAdj::new(score).unwrap();
    let most = |processes| PidsLimit::new(processes).ok();
    let config = PluginConfig {
        pids_limit: most(100),
        oom_score_adj: score(7),
        ..PluginConfig::default()
    };
    let limits = limited(&task([]), &session(config.clone()));
    assert_eq!(
        (limits.pids_limit, limits.oom_score_adj),
        (most(100), Some(score(7)))
    );
    let limits = limited(
        &task([("pids_limit", 50.into()), ("oom_score_adj", 9.into())]),
        &session(config),
    );
    assert_eq!(
        (limits.pids_limit, limits.oom_score_adj),
        (most(50), Some(score(9)))
    );
    let limits = limited(&task([]), &session(PluginConfig::default()));
    assert_eq!(
        limits.oom_score_adj,
        Some(score(0)),
        "else it would have that of its shim"
    );
    let privileged = PluginConfig {
        allow_privileged: true,
        ..PluginConfig::default()
    };
    let limits = limited(
        &task([("oom_score_adj", (-9).into()), ("pids_limit", (-1).into())]),
        &session(privileged),
    );
    assert_eq!(
        (limits.pids_limit, limits.oom_score_adj),
        (most(-1), Some(score(-9)))
    );
}

#[test]
fn negative_pids_limit_keeps_the_operators() {
    let config = PluginConfig {
        pids_limit: PidsLimit::new(100).ok(),
        ..PluginConfig::default()
    };
    for own in [-1, -2, i64::MIN] {
        let asked = || task([("pids_limit", own.into())]);
        let alone = limited(&asked(), &session(PluginConfig::default()));
        assert_eq!(alone.pids_limit, Some(PidsLimit::UNLIMITED), "{own}");
        let below_the_plugin = limited(&asked(), &session(config.clone()));
        assert_eq!(below_the_plugin.pids_limit, config.pids_limit, "{own}");
    }
}

#[test]
fn ulimits_parse_as_in_docker() {
    let read =
        |name: &str, text: &str| rlimits(&BTreeMap::from([(name.to_owned(), text.to_owned())]));
    let limit = |soft, hard| {
        vec![Rlimit {
            name: "RLIMIT_NOFILE".to_owned(),
            soft,
            hard,
        }]
    };
    assert_eq!(read("nofile", "1024:2048").unwrap(), limit(1024, 2048));
    assert_eq!(read("nofile", "1024").unwrap(), limit(1024, 1024));
    assert_eq!(read("nofile", "5:-1").unwrap(), limit(5, u64::MAX));
    for (name, text, why) in [
        (
            "nofile",
            "many",
            "\"many\" is neither a number nor -1 for no limit",
        ),
        (
            "nofile",
            "1:2:3",
            "\"2:3\" is neither a number nor -1 for no limit",
        ),
        (
            "nofile",
            "3:2",
            "the soft limit of \"3:2\" is over the hard one",
        ),
        (
            "nofile",
            "-1:2",
            "the soft limit of \"-1:2\" is over the hard one",
        ),
        ("nofile", "", "\"\" is neither a number nor -1 for no limit"),
    ] {
        assert_eq!(
            read(name, text).unwrap_err().to_string(),
            format!("ulimit.{name}: {why}")
        );
    }
    let unknown = read("files", "1").unwrap_err().to_string();
    assert!(
        unknown.starts_with("ulimit.files: there is no such limit; there are core, cpu"),
        "{unknown}"
    );
}

#[test]
fn exclusive_cores_need_an_unshared_cgroup() {
    let of = |list: &str, group: &str| {
        processors(list.to_owned(), group).map_err(|error| error.to_string())
    };
    let own = "/sys/fs/cgroup/cpuset/nomad/reserve/a1.web";
    let share = "/sys/fs/cgroup/cpuset/nomad/share";
    assert_eq!(of("", share), Ok(None));
    for group in [
        own,
        "/sys/fs/cgroup/nomad.slice/share.slice/a1.web.scope",
        "",
    ] {
        assert_eq!(
            of("0-1,3", group),
            CpuList::new("0-1,3")
                .map(Some)
                .map_err(|error| error.to_string())
        );
    }
    let field = "task.resources.linux_resources.cpuset_cpus";
    assert_eq!(
        of("0", share),
        Err(format!(
            "{field}: {share:?} is the group of tasks that share theirs"
        ))
    );
    assert_eq!(
        of("one", own),
        Err(format!("{field}: \"one\" is not a list such as \"0-3,8\""))
    );
}

#[test]
fn task_uses_the_agents_cgroup() {
    let of = |path: &str| leaf_of(Path::new(path), "a1.web");
    let leaf = |path: &str, cpuset: Option<&str>| {
        Some(CgroupPlacement::Leaf {
            path: path.into(),
            cpuset: cpuset.map(PathBuf::from),
        })
    };
    assert_eq!(
        of("/sys/fs/cgroup/nomad.slice/share.slice/a1.web.scope"),
        leaf("/nomad.slice/share.slice/a1.web.scope", None)
    );
    assert_eq!(
        of("/sys/fs/cgroup/my.slice/reserve.slice/a1.web.scope"),
        leaf("/my.slice/reserve.slice/a1.web.scope", None)
    );
    assert_eq!(
        of("/sys/fs/cgroup/cpuset/nomad/share"),
        leaf("/nomad/a1.web", Some("/nomad/share"))
    );
    assert_eq!(
        of("/sys/fs/cgroup/cpuset/nomad/reserve/a1.web"),
        leaf("/nomad/a1.web", Some("/nomad/reserve/a1.web"))
    );
    assert_eq!(
        of("/sys/fs/cgroup/cpuset/my/own/share"),
        leaf("/my/own/a1.web", Some("/my/own/share"))
    );
    for other in [
        "/sys/fs/cgroup",
        "/sys/fs/cgroup/cpuset",
        "/sys/fs/cgroup/cpuset/nomad",
        "/sys/fs/cgroup/cpuset/nomad/reserve/other.web",
        "/sys/fs/cgroup/cpuset/nomad/other/a1.web",
        "/sys/fs/cgroup/nomad.slice/share.slice",
        "/tmp/share",
        "/etc/a1.web.scope",
    ] {
        assert_eq!(of(other), None, "{other}");
    }
}

#[test]
fn cgroup_of_a_task_with_a_long_name_is_a_directory_of_its_own() {
    let alloc = "f3a1b2c4-0000-4000-8000-123456789abc";
    let names = [
        "web".to_owned(),
        "n".repeat(218),
        "n".repeat(219),
        "n".repeat(255),
        format!("{}x", "n".repeat(254)),
        "ü".repeat(127),
        "n".repeat(1024),
    ];
    let mut found = std::collections::BTreeSet::new();
    for name in &names {
        let leaf = format!("{alloc}.{name}");
        let placement = leaf_of(Path::new("/sys/fs/cgroup/cpuset/nomad/share"), &leaf);
        let Some(CgroupPlacement::Leaf { path, .. }) = placement else {
            panic!("{name}: {placement:?}")
        };
        let own = path
            .strip_prefix("/nomad")
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        assert!(own.len() <= 255 && own.starts_with(alloc), "{own}");
        assert_eq!(own == leaf, leaf.len() <= 255, "{own}");
        assert!(found.insert(own), "{name} has that of another task");
    }
}
