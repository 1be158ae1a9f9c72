//! Tests of whole plans: of a task without options, of the process, and that a plan is a function of its
//! request.

use super::*;

const FULL: &str = "f3a1b2c4-0000-4000-8000-123456789abc";

/// The directory of the allocation [`FULL`].
const ALLOC_DIR: &str = "/var/nomad/alloc/f3a1b2c4";

fn host(path: &str, missing: MissingSource) -> MountSource {
    MountSource::Host {
        path: path.into(),
        missing,
    }
}

fn plain(destination: &str, source: MountSource) -> Mount {
    Mount {
        destination: destination.into(),
        source,
        readonly: false,
        recursive_readonly: false,
        propagation: Propagation::Private,
        id_mapped: false,
        selinux_relabel: Relabel::Keep,
        options: Vec::new(),
    }
}

#[test]
fn minimal_task_is_confined_on_the_bridge_with_task_directories() {
    let plan = planned([]);
    let Plan {
        image,
        sandbox,
        task,
        ports,
        confined: within,
        keys: _,
        sibling,
        warnings,
    } = plan;
    assert_eq!((ports, warnings, sibling), (Vec::new(), Vec::new(), None));
    let wish = ImageRequest {
        reference: "busybox:1".to_owned(),
        load: None,
        always: false,
        timeout: std::time::Duration::from_secs(300),
        activity_timeout: std::time::Duration::from_secs(120),
        credentials: None,
        soft_fail: false,
    };
    assert_eq!(image, wish);
    assert_sandbox_is_on_the_bridge(&sandbox);
    assert_eq!(sandbox.meta.name, task.meta.name);
    assert_eq!(
        (task.command, task.args, task.cwd, task.user),
        (vec![], vec![], None, UserSpec::default())
    );
    assert_eq!(
        (task.pid, task.init, task.cgroup, task.cgroup_namespace),
        (PidMode::Private, false, None, None)
    );
    assert_task_has_its_directories(&task.mounts, &within);
    let fifo = |end: &str| PathBuf::from(format!("{ALLOC_DIR}/alloc/logs/.web.{end}.fifo"));
    let output = Output::Fifos {
        stdout: fifo("stdout"),
        stderr: fifo("stderr"),
    };
    assert_eq!(
        task.stdio,
        Stdio {
            stdin: Stdin::Closed,
            tty: false,
            output
        }
    );
    assert_eq!(
        task.meta.labels,
        BTreeMap::from([("com.hashicorp.nomad.alloc_id".to_owned(), FULL.to_owned())])
    );
}

fn assert_task_has_its_directories(mounts: &[Mount], confined: &[ConfinedMount]) {
    let expected = [
        plain(
            "/alloc",
            host(&format!("{ALLOC_DIR}/alloc"), MissingSource::Fail),
        ),
        plain(
            "/local",
            host(&format!("{ALLOC_DIR}/web/local"), MissingSource::Fail),
        ),
        plain(
            "/secrets",
            host(&format!("{ALLOC_DIR}/web/secrets"), MissingSource::Fail),
        ),
        Mount {
            readonly: true,
            ..plain(
                "/alloc/logs",
                host(&format!("{ALLOC_DIR}/alloc/logs"), MissingSource::CreateDir),
            )
        },
    ];
    assert_eq!(mounts, expected);
    assert_eq!(
        confined,
        [0, 1, 2, 3].map(|mount| ConfinedMount {
            mount,
            root: ALLOC_DIR.into(),
            field: "task.alloc_dir".to_owned()
        })
    );
}

fn assert_sandbox_is_on_the_bridge(sandbox: &SandboxSpec) {
    assert_eq!(
        (sandbox.hostname.as_str(), sandbox.handler.as_str()),
        ("f3a1b2c40000", "")
    );
    assert_eq!(
        sandbox.network,
        SandboxNetwork::Pod(PodNetwork {
            link: Link::Bridge,
            ..PodNetwork::default()
        })
    );
    assert_eq!(
        (sandbox.ipc, sandbox.uts, sandbox.pid),
        (IpcMode::Shared, UtsMode::Network, SandboxPid::PerTask)
    );
    assert_eq!(
        (&sandbox.dns, &sandbox.extra_hosts, sandbox.privileged),
        (&None, &Vec::new(), false)
    );
    assert_eq!(sandbox.shm_size_bytes, 64 << 20);
    let kept: Vec<_> = sandbox.sysctls.keys().map(String::as_str).collect();
    assert_eq!(
        kept,
        [
            "net.ipv4.ip_unprivileged_port_start",
            "net.ipv4.ping_group_range"
        ]
    );
}

#[test]
fn process_options_are_applied() {
    let made = planned([
        ("image", "https://reg.test:5000/a/b".into()),
        ("entrypoint", texts(&["/bin/sh", "-c"])),
        ("command", "echo".into()),
        ("args", texts(&["a", "b"])),
        ("work_dir", "/srv/./x/../app".into()),
        ("init", true.into()),
        ("interactive", true.into()),
        ("tty", true.into()),
        ("group_add", texts(&["audio", "12"])),
        ("runtime", "kata".into()),
        (
            "labels",
            pairs(&[("team", "a"), ("com.hashicorp.nomad.alloc_id", "forged")]),
        ),
        ("force_pull", false.into()),
        ("image_pull_timeout", "7m".into()),
        (
            "auth",
            map([("username", "u".into()), ("password", "p".into())]),
        ),
        ("auth_soft_fail", true.into()),
    ]);
    let Plan {
        image,
        sandbox,
        task,
        ..
    } = made;
    assert_eq!(
        (image.reference.as_str(), image.always, image.soft_fail),
        ("reg.test:5000/a/b", true, true)
    );
    assert_eq!(
        (image.timeout.as_secs(), image.credentials.is_some()),
        (420, true)
    );
    assert_eq!(task.image, image.reference);
    assert_eq!(
        (task.command, task.args),
        (strings(&["/bin/sh", "-c"]), strings(&["echo", "a", "b"]))
    );
    assert_eq!(
        (task.cwd, task.init, task.user.named),
        (Some("/srv/app".into()), true, strings(&["audio", "12"]))
    );
    assert_eq!(
        (task.stdio.stdin, task.stdio.tty, sandbox.handler.as_str()),
        (Stdin::Open, true, "kata")
    );
    let labels: Vec<_> = task
        .meta
        .labels
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(
        labels,
        [("com.hashicorp.nomad.alloc_id", FULL), ("team", "a")]
    );
    let load = planned([
        ("image", "a".into()),
        ("load", "a.tar".into()),
        ("force_pull", true.into()),
    ])
    .image;
    assert_eq!(
        (load.load.as_deref(), load.always),
        (Some("a.tar"), false),
        "what is loaded is not pulled"
    );
}

#[test]
fn labels_of_a_job_are_bounded_in_number_and_size() {
    let labels = |count: usize, bytes: usize| {
        let all: Vec<_> = (0..count)
            .map(|number| (format!("l{number:05}"), "v".repeat(bytes)))
            .collect();
        let all: Vec<_> = all
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        plan(
            &task([("labels", pairs(&all))]),
            &session(PluginConfig::default()),
        )
    };
    labels(1024, 200).unwrap();
    for (count, bytes) in [(1025, 1), (300, 1000)] {
        let error = labels(count, bytes).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with(&format!("labels: there are {count} with")),
            "{error}"
        );
    }
}

#[test]
fn extra_labels_are_limited_by_the_operator() {
    let config = PluginConfig {
        extra_labels: strings(&["job_*", "namespace"]),
        ..PluginConfig::default()
    };
    let labels = planned_for(config, []).task.meta.labels;
    let names: Vec<_> = labels
        .keys()
        .map(|name| name.trim_start_matches("com.hashicorp.nomad."))
        .collect();
    assert_eq!(names, ["alloc_id", "job_id", "job_name", "namespace"]);
    assert_eq!(labels["com.hashicorp.nomad.job_name"], "shop");
}

#[test]
fn output_goes_to_agent_fifos_unless_collection_is_disabled() {
    let output =
        |task: &nomad::TaskConfig, config| plan(task, &session(config)).unwrap().task.stdio.output;
    let null = nomad::TaskConfig {
        stdout_path: "/dev/null".to_owned(),
        stderr_path: "/dev/null".to_owned(),
        ..task([])
    };
    assert_eq!(output(&null, PluginConfig::default()), Output::Discard);
    let none = task([("logging", map([("type", "none".into())]))]);
    assert_eq!(output(&none, PluginConfig::default()), Output::Discard);
    let uncollected = PluginConfig {
        disable_log_collection: true,
        ..PluginConfig::default()
    };
    assert_eq!(output(&task([]), uncollected), Output::Discard);
    let relative = nomad::TaskConfig {
        stdout_path: "out".to_owned(),
        ..task([])
    };
    let text = "task.stdout_path: \"out\" is not an absolute path";
    refused_task(
        &relative,
        PluginConfig::default(),
        ErrorKind::InvalidArgument,
        text,
    );
}

#[test]
fn user_comes_from_the_agent() {
    let with = |user: &str| nomad::TaskConfig {
        user: user.to_owned(),
        ..task([])
    };
    let made = plan(&with("www:33"), &session(PluginConfig::default())).unwrap();
    assert_eq!(
        made.task.user.user,
        Some(UserRef::Name("www:33".to_owned()))
    );
    let text = "task.user: \"a b\" is not a user's name";
    refused_task(
        &with("a b"),
        PluginConfig::default(),
        ErrorKind::InvalidArgument,
        text,
    );
    invalid(
        "group_add",
        texts(&["ok", "a:b"]),
        "group_add[1]: \"a:b\" is not a group's name or number",
    );
}

#[test]
fn environment_comes_from_the_agent_and_values_are_redacted() {
    let with = |name: &str, value: &str| {
        let env = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        nomad::TaskConfig { env, ..task([]) }
    };
    let made = plan(&with("A", "1"), &session(PluginConfig::default())).unwrap();
    assert_eq!(
        made.task.env,
        [EnvVar {
            name: "A".to_owned(),
            value: b"1".to_vec()
        }]
    );
    for (name, value, text) in [
        ("", "hunter2", "task.env: \"\" is not a variable's name"),
        (
            "A=B",
            "hunter2",
            "task.env: \"A=B\" is not a variable's name",
        ),
        ("A", "hunter2\0", "task.env[\"A\"]: it contains a NUL byte"),
    ] {
        refused_task(
            &with(name, value),
            PluginConfig::default(),
            ErrorKind::InvalidArgument,
            text,
        );
    }
}

#[test]
fn requests_without_a_task_are_rejected() {
    let refused = |task: nomad::TaskConfig, text: &str| {
        refused_task(
            &task,
            PluginConfig::default(),
            ErrorKind::InvalidArgument,
            text,
        );
    };
    refused(
        nomad::TaskConfig {
            id: String::new(),
            ..task([])
        },
        "task.id: it is missing",
    );
    refused(
        nomad::TaskConfig {
            alloc_dir: "alloc".to_owned(),
            ..task([])
        },
        "task.alloc_dir: \"alloc\" is not an absolute path",
    );
    for name in [".", "..", "a/b", "/a", "a/"] {
        let text = |field: &str| format!("{field}: {name:?} names no directory");
        refused(
            nomad::TaskConfig {
                name: name.to_owned(),
                ..task([])
            },
            &text("task.name"),
        );
        refused(
            nomad::TaskConfig {
                alloc_id: name.to_owned(),
                ..task([])
            },
            &text("task.alloc_id"),
        );
    }
    refused(
        nomad::TaskConfig {
            msgpack_driver_config: Vec::new(),
            ..task([])
        },
        "image: image name required",
    );
    invalid("image", "two words", "image: \"two words\" names no image");
    invalid(
        "load",
        "/etc/passwd",
        "load: \"/etc/passwd\" is not in the task's local directory",
    );
    invalid(
        "work_dir",
        "srv",
        "work_dir: \"srv\" is not an absolute path",
    );
    let label = "labels: \"switchyard.io/owner\" cannot be the name of a job's label";
    invalid("labels", pairs(&[("switchyard.io/owner", "x")]), label);
}
