//! Tests of what a view shows, withholds and leaves out.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_core::Error;
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::image::ImageId;
use switchyard_core::object::{ResolvedUser, SandboxDetails, TaskDetails};
use switchyard_core::spec::{CgroupFile, ComputeClaim, HostPorts, MemoryLimit, Signal};

use super::*;

const SECRET: &str = "hunter2";

fn meta(name: &str) -> Arc<Meta> {
    let labels = BTreeMap::from([("app".to_owned(), SECRET.to_owned())]);
    let created_at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    Arc::new(Meta {
        owner: Owner::Nomad,
        name: name.to_owned(),
        labels,
        created_at,
        record: Vec::new(),
    })
}

fn sandbox() -> Sandbox {
    Sandbox {
        id: SandboxId::from_bytes([1; 32]),
        meta: meta("sandbox"),
        handler: "crun".into(),
        details: SandboxDetails {
            ips: vec!["10.0.0.2".parse().unwrap()],
            netns: Some("/run/netns/a".into()),
            host_ports: HostPorts::default(),
            ..SandboxDetails::default()
        },
        state: SandboxState::Unknown {
            reason: "its process has ended".into(),
        },
    }
}

fn task() -> Task {
    Task {
        id: TaskId::from_bytes([2; 32]),
        sandbox: SandboxId::from_bytes([1; 32]),
        meta: meta("task"),
        details: TaskDetails {
            image_id: ImageId::new("sha256:12"),
            image_ref: "busybox@sha256:34".into(),
            image_volumes: Vec::new(),
            volume_images: Vec::new(),
            user: ResolvedUser {
                uid: 1000,
                gid: 1000,
                groups: vec![1000],
            },
            stop_signal: Signal::KILL,
            resources: Resources {
                memory_limit_bytes: Some(MemoryLimit::new(64 << 20).unwrap()),
                unified: BTreeMap::from([(
                    CgroupFile::new("memory.high").unwrap(),
                    "1".to_owned(),
                )]),
                ..Resources::default()
            },
            throttles: Vec::new(),
            log_path: Some(PathBuf::from("/var/log/0.log")),
            project: None,
            leases: Vec::new(),
            compute: ComputeClaim::default(),
            warnings: Vec::new(),
        },
        state: TaskState::Exited {
            started_at: None,
            exit: Exit::start_failed(SystemTime::UNIX_EPOCH, "no such program"),
        },
    }
}

fn inspection(spec: &Value) -> switchyard_core::Result<Inspection> {
    Ok(Inspection {
        runtime_type: "io.containerd.runc.v2".into(),
        runtime_spec: spec.to_string(),
        ..Inspection::default()
    })
}

fn spec() -> Value {
    json!({
        "process": {
            "args": ["sh", "-c", format!("echo {SECRET}")],
            "env": ["PATH=/bin", format!("TOKEN={SECRET}"), "EMPTY", "A=B=C"],
            "cwd": "/srv",
            "noNewPrivileges": true,
            "capabilities": { "bounding": ["CAP_KILL"] },
        },
        "root": { "readonly": true },
        "mounts": [
            { "destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["ro", "size=64k"] },
            {
                "destination": "/share", "type": "cifs", "source": "//host/share",
                "options": ["rw", format!("password={SECRET}")],
            },
        ],
        "linux": { "cgroupsPath": "/a/b", "devices": [{ "path": "/dev/acme0" }] },
    })
}

/// The view of the task with this spec.
fn view(
    inspection: &switchyard_core::Result<Inspection>,
    disclosure: Disclosure,
) -> InspectionView {
    let names = Names::new("shop/web").with("nomad_job", "shop");
    let annotations = BTreeMap::from([("last-applied".to_owned(), SECRET.to_owned())]);
    let sandbox = sandbox();
    let inspected = Inspected {
        sandbox: &sandbox,
        names: &names,
        inspection,
        annotations: &annotations,
        disclosure,
    };
    InspectionView::of_task(&inspected, &task())
}

#[test]
fn secrets_are_withheld_unless_they_are_asked_for() {
    let withheld = view(&inspection(&spec()), Disclosure::Names);
    assert!(
        !serde_json::to_string(&withheld).unwrap().contains(SECRET),
        "{withheld:?}"
    );
    let names: Vec<_> = withheld.environment.keys().map(String::as_str).collect();
    assert_eq!(names, ["A", "EMPTY", "PATH", "TOKEN"]);
    let command = withheld.command.as_ref().unwrap();
    assert_eq!(
        (command.program.as_str(), command.arguments, &command.values),
        ("sh", 2, &None)
    );
    assert_eq!(withheld.mounts[0].options, ["ro", "size=64k"]);
    assert_eq!(withheld.mounts[1].options, ["rw", "password=…"]);
    assert_eq!(withheld.labels["app"], None);
    assert_eq!(withheld.annotations["last-applied"], None);

    let whole = view(&inspection(&spec()), Disclosure::Secrets);
    assert_eq!(whole.environment["TOKEN"].as_deref(), Some(SECRET));
    assert_eq!(whole.environment["A"].as_deref(), Some("B=C"));
    assert_eq!(
        whole.command.unwrap().values.unwrap()[1],
        format!("echo {SECRET}")
    );
    assert_eq!(whole.mounts[1].options[1], format!("password={SECRET}"));
    assert_eq!(whole.labels["app"].as_deref(), Some(SECRET));
    assert_eq!(whole.annotations["last-applied"].as_deref(), Some(SECRET));
}

#[test]
fn task_has_what_the_table_and_the_runtime_know() {
    let found = view(&inspection(&spec()), Disclosure::Names);
    assert_eq!(
        (
            found.kind.as_str(),
            found.owner.as_str(),
            found.state.as_str()
        ),
        ("task", "nomad", "exited")
    );
    assert_eq!(
        found.reason.as_deref(),
        Some("never started: no such program")
    );
    assert_eq!(
        (found.exit_code, found.started_at.as_deref()),
        (Some(128), None)
    );
    assert_eq!(found.created_at, "2023-11-14T22:13:20.000Z");
    assert_eq!(found.sandbox, Some("01".repeat(32)));
    assert_eq!(
        found.resources["memory_limit_bytes"],
        (64 << 20).to_string()
    );
    assert_eq!(found.resources["memory.high"], "1");
    assert_eq!(found.network.ips, sandbox().details.ips);
    assert_eq!(
        (found.cgroup.as_deref(), found.log.as_deref()),
        (Some("/a/b"), Some("/var/log/0.log"))
    );
    assert_eq!(found.device_nodes, ["/dev/acme0"]);
    let security = found.security.unwrap();
    assert!(security.readonly_rootfs && security.no_new_privileges && !security.seccomp);
    assert_eq!(security.capabilities, ["CAP_KILL"]);
}

#[test]
fn runtime_that_does_not_answer_leaves_what_the_table_knows() {
    let found = view(
        &Err(Error::unavailable("containerd does not answer")),
        Disclosure::Names,
    );
    assert_eq!((found.id, found.command), ("02".repeat(32), None));
    assert!(
        found
            .unavailable
            .unwrap()
            .contains("containerd does not answer")
    );
    let broken = Ok(Inspection {
        runtime_spec: "{".into(),
        ..Inspection::default()
    });
    assert!(
        view(&broken, Disclosure::Names)
            .unavailable
            .unwrap()
            .contains("not JSON")
    );
}

#[test]
fn sandbox_has_its_tasks_and_why_it_does_not_work() {
    let names = Names::new("shop");
    let annotations = BTreeMap::new();
    let (sandbox, inspection) = (sandbox(), Ok(Inspection::default()));
    let inspected = Inspected {
        sandbox: &sandbox,
        names: &names,
        inspection: &inspection,
        annotations: &annotations,
        disclosure: Disclosure::Names,
    };
    let found = InspectionView::of_sandbox(&inspected, [("02".into(), "shop/web".into())].into());
    assert_eq!(
        (found.kind.as_str(), found.tasks["02"].as_str()),
        ("sandbox", "shop/web")
    );
    assert_eq!(found.reason.as_deref(), Some("its process has ended"));
    assert_eq!((found.command, found.unavailable), (None, None));
}

#[test]
fn answer_is_bounded_whatever_the_spec_contains() {
    let long = "x".repeat(100_000);
    let mounts: Vec<_> = (0..50_000)
        .map(|n| json!({ "destination": format!("/m{n}") }))
        .collect();
    let values = (0..400).map(|n| format!("V{n}={long}"));
    let names = (0..400).map(|n| format!("{long}{n}=1"));
    let variables: Vec<_> = values.chain(names).collect();
    for (disclosure, most) in [
        (Disclosure::Names, 4 << 20),
        (Disclosure::Secrets, 24 << 20),
    ] {
        let hostile = json!({
            "process": { "args": ["a", long.repeat(200)], "env": variables.clone() },
            "mounts": mounts.clone(),
            "linux": { "devices": [{ "path": long.repeat(100) }, { "path": 7 }, 8] },
        });
        let found = view(&inspection(&hostile), disclosure);
        let size = serde_json::to_vec(&found).unwrap().len();
        assert!(
            size < most && found.left_out > 0,
            "{size} bytes, {} left out",
            found.left_out
        );
        assert!(
            found.device_nodes.len() <= 2,
            "the path of a device is a text"
        );
    }
    // Whatever has another type than it should is left out, or empty.
    for odd in [
        json!(7),
        json!([]),
        json!({ "process": 1, "mounts": {}, "linux": [] }),
        json!(null),
    ] {
        let found = view(&inspection(&odd), Disclosure::Secrets);
        assert_eq!(
            (found.command, found.mounts, found.cgroup),
            (None, Vec::new(), None)
        );
    }
}
