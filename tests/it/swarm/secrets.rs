//! The tmpfs for secrets and configs of services, on a real containerd.

use std::fs;
use std::path::Path;

use nix::mount::{MsFlags, mount, umount};
use swarm::TaskState;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_swarm::Change;
use switchyard_tests::backend_fixture::BackendFixture;
use switchyard_tests::host::mounts;
use switchyard_tests::swarm::node::{SwarmNode, assigned, task};

/// Number of tasks that start at once.
const TASKS: usize = 16;

/// Starts tasks with a secret at once, and looks at the mount that they share, and at what is left of it.
async fn tasks_share_one_mount(world: &BackendFixture) {
    let node = SwarmNode::over(world).await;
    let secret = swarm::Secret {
        id: "s1".into(),
        spec: Some(swarm::SecretSpec {
            data: b"hunter2".to_vec(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let ids: Vec<String> = (0..TASKS).map(|number| format!("t{number}")).collect();
    let tasks = ids.iter().map(|id| {
        assigned(task(
            world,
            id,
            "cat /run/secrets/db; echo ' end'; exec sleep 1000",
            |container| {
                let file = swarm::FileTarget {
                    name: "db".into(),
                    mode: 0o444,
                    ..Default::default()
                };
                container.secrets = vec![swarm::SecretReference {
                    secret_id: "s1".into(),
                    secret_name: "password".into(),
                    target: Some(swarm::secret_reference::Target::File(file)),
                }];
            },
        ))
    });
    node.apply(
        true,
        std::iter::once(Change::Secret(secret.into()))
            .chain(tasks)
            .collect(),
    )
    .await;
    for id in &ids {
        node.reported(id, TaskState::Running).await;
        let log = node.log(world, id, " end").await;
        assert!(log.contains("hunter2"), "{log:?}");
    }
    let files = world.root().run().join("swarm/files");
    let made = mounts::below(&files);
    assert!(
        matches!(&made[..], [one] if one.point == files && one.kind == "tmpfs"),
        "{made:?}"
    );
    assert_eq!(fs::read_dir(&files).expect("it is there").count(), TASKS);
    let table = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
    let place = format!(" {} ", files.display());
    let options = table
        .lines()
        .find(|line| line.contains(&place))
        .expect("it is mounted");
    assert!(
        options.contains("size=") && options.contains("nr_inodes=16384"),
        "{options}"
    );
    assert_eq!(
        options.contains("noswap"),
        kernel_has_noswap(world.root().path()),
        "{options}"
    );
    node.end().await;
    assert!(!files.exists() && mounts::below(&files).is_empty());
}

fn kernel_has_noswap(dir: &Path) -> bool {
    let place = dir.join("noswap");
    fs::create_dir_all(&place).expect("the directory is ours");
    let mounted = mount(
        Some("tmpfs"),
        &place,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("noswap"),
    )
    .is_ok();
    if mounted {
        umount(&place).expect("it is mounted");
    }
    mounted
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_tasks_that_start_at_once_share_one_tmpfs() {
    let world = tokio::task::block_in_place(BackendFixture::new);
    tasks_share_one_mount(&world).await;
}

/// As on most nodes, whose run directory is below `/run`.
#[tokio::test(flavor = "multi_thread")]
async fn tmpfs_for_secrets_has_bounds_of_its_own_where_the_run_directory_is_on_one() {
    let world = tokio::task::block_in_place(BackendFixture::new);
    world
        .root()
        .small_disk(&world.root().run().join("swarm"), "size=8m");
    tasks_share_one_mount(&world).await;
}
