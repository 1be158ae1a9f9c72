//! Tasks of services on a real containerd: what their containers see, over a restart of the daemon, and what is
//! left of them.

use std::collections::BTreeMap;
use std::fs;

use swarm::TaskState;
use switchyard_contract::Fixture;
use switchyard_core::id::Owner;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_swarm::{Change, Executor};
use switchyard_tests::backend_fixture::BackendFixture;
use switchyard_tests::swarm::node::{LIMIT, SwarmNode, assigned, task};

fn volume(source: &str, target: &str, subpath: &str) -> swarm::Mount {
    swarm::Mount {
        r#type: swarm::mount::Type::Volume.into(),
        source: source.into(),
        target: target.into(),
        volume_options: Some(swarm::mount::VolumeOptions {
            subpath: subpath.into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn container_has_its_secrets_configs_and_variables() {
    let world = tokio::task::block_in_place(BackendFixture::new);
    let node = SwarmNode::over(&world).await;
    let script = "cat /run/secrets/db; stat -c ' %a %u:%g' /run/secrets/db; cat /site.conf; echo $SLOT; \
                  touch /run/secrets/db || echo protected; hostname; \
                  env | grep ^HOSTNAME= || echo unset; echo end; exec sleep 1000";
    let asked = task(&world, "t1", script, |container| {
        let file = swarm::FileTarget {
            name: "db".into(),
            uid: "1000".into(),
            gid: "7".into(),
            mode: 0o440,
        };
        container.secrets = vec![swarm::SecretReference {
            secret_id: "s1".into(),
            secret_name: "password".into(),
            target: Some(swarm::secret_reference::Target::File(file)),
        }];
        let file = swarm::FileTarget {
            name: "site.conf".into(),
            mode: 0o444,
            ..Default::default()
        };
        container.configs = vec![swarm::ConfigReference {
            config_id: "c1".into(),
            config_name: "site".into(),
            target: Some(swarm::config_reference::Target::File(file)),
        }];
        // The second, without a value, removes the variable that each task has.
        container.env = vec!["SLOT=slot-{{.Task.Slot}}".into(), "HOSTNAME".into()];
        container.hostname = "{{.Service.Name}}-{{.Task.Slot}}".into();
    });
    let secret = swarm::Secret {
        id: "s1".into(),
        spec: Some(swarm::SecretSpec {
            data: b"hunter2".to_vec(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let config = swarm::Config {
        id: "c1".into(),
        spec: Some(swarm::ConfigSpec {
            data: b"on {{.Node.Hostname}}\n".to_vec(),
            templating: Some(swarm::Driver {
                name: "golang".into(),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let list = vec![
        Change::Secret(secret.into()),
        Change::Config(config.into()),
        assigned(asked),
    ];
    node.apply(true, list).await;
    node.reported("t1", TaskState::Running).await;
    let log = node.log(&world, "t1", " end").await;
    for text in [
        "hunter2 440 1000:7",
        "on host-1",
        "slot-3",
        "protected",
        "web-3",
        "unset",
    ] {
        assert!(log.contains(text), "{text:?} is not in {log:?}");
    }
    let files = world.root().run().join("swarm/files");
    assert_eq!(fs::read_dir(&files).unwrap().count(), 1);
    node.apply(false, vec![Change::TaskGone("t1".into())]).await;
    tokio::time::timeout(LIMIT, node.executor.idle())
        .await
        .unwrap();
    assert_eq!(fs::read_dir(&files).unwrap().count(), 0);
    node.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn volume_is_shared_below_a_path_and_an_anonymous_one_goes() {
    let world = tokio::task::block_in_place(BackendFixture::new);
    let node = SwarmNode::over(&world).await;
    let first = task(
        &world,
        "t1",
        "mkdir -p /all/db/x && echo one >/all/db/x/f; echo kept >/own/f",
        |container| {
            container.mounts = vec![volume("data", "/all", ""), volume("", "/own", "")];
        },
    );
    node.apply(false, vec![assigned(first)]).await;
    node.reported("t1", TaskState::Complete).await;
    let second = task(
        &world,
        "t2",
        "cat /part/f; ls /part; echo end; exec sleep 1000",
        |container| {
            container.mounts = vec![volume("data", "/part", "db/x")];
        },
    );
    node.apply(false, vec![assigned(second)]).await;
    node.reported("t2", TaskState::Running).await;
    let log = node.log(&world, "t2", " end").await;
    assert!(log.contains(" one\n"), "{log:?}");
    // A path that is not there.
    let third = task(&world, "t3", "true", |container| {
        container.mounts = vec![volume("data", "/part", "nothing")];
    });
    node.apply(false, vec![assigned(third)]).await;
    let status = node.reported("t3", TaskState::Failed).await;
    assert!(status.err.contains("data/nothing"), "{}", status.err);
    let volumes = world.root().state().join("volumes/swarm");
    assert_eq!(fs::read_dir(&volumes).unwrap().count(), 2);
    tokio::time::timeout(LIMIT, node.executor.remove_all())
        .await
        .unwrap()
        .unwrap();
    let left: Vec<_> = fs::read_dir(&volumes)
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(left, ["data"]);
    node.gateway
        .scope(Owner::Swarm)
        .volumes()
        .remove("data".to_owned())
        .await
        .unwrap();
    node.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_outlive_the_daemon_and_an_exit_meanwhile_is_reported() {
    let world = tokio::task::block_in_place(BackendFixture::new);
    let node = SwarmNode::over(&world).await;
    let scripts = BTreeMap::from([
        ("t1", "exec sleep 1000"),
        (
            "t2",
            "while [ ! -e /gate/open ]; do sleep 0.1; done; exit 3",
        ),
    ]);
    let gate = world.root().run().join("gate");
    fs::create_dir(&gate).unwrap();
    let all = |state: TaskState| -> Vec<Change> {
        let one = |(id, script): (&&str, &&str)| {
            let mut asked = task(&world, id, script, |container| {
                container.mounts = vec![swarm::Mount {
                    source: gate.display().to_string(),
                    target: "/gate".into(),
                    ..Default::default()
                }];
            });
            asked.status = Some(swarm::TaskStatus {
                state: state.into(),
                ..Default::default()
            });
            assigned(asked)
        };
        scripts.iter().map(one).collect()
    };
    node.apply(true, all(TaskState::Assigned)).await;
    let pid = |status: &swarm::TaskStatus| match &status.runtime_status {
        Some(swarm::task_status::RuntimeStatus::Container(container)) => container.pid,
        None => panic!("it has no container: {status:?}"),
    };
    let first = pid(&node.reported("t1", TaskState::Running).await);
    node.reported("t2", TaskState::Running).await;
    node.gateway.shut_down(LIMIT).await.unwrap();
    drop(node);
    fs::write(gate.join("open"), "").unwrap();
    world.reopen().await;
    let node = SwarmNode::over(&world).await;
    node.apply(true, all(TaskState::Running)).await;
    let status = node.reported("t2", TaskState::Failed).await;
    assert_eq!(status.err, "task: non-zero exit (3)");
    assert_eq!(node.reports.latest("t1"), None, "nothing has changed");
    let task = node
        .gateway
        .scope(Owner::Swarm)
        .tasks()
        .named("t1")
        .unwrap()
        .unwrap();
    assert_eq!(
        task.state.pid().and_then(|pid| i32::try_from(pid).ok()),
        Some(first)
    );
    node.end().await;
}
