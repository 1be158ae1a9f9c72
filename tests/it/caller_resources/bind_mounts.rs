//! Mount sources whose path a task can change: the file that was checked is mounted, whatever replaces it
//! meanwhile.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use switchyard_contract::Fixture as _;
use switchyard_core::ErrorKind;
use switchyard_core::backend::Withdrawal;
use switchyard_core::id::TaskId;
use switchyard_core::spec::{Mount, MountSource, Propagation, Signal, TaskSpec};

use super::CallerFixture;

/// Mounts `path` below `root` at `/data`.
fn beneath(root: &Path, path: &str, propagation: Propagation) -> impl FnOnce(&mut TaskSpec) {
    let source = MountSource::Beneath {
        root: root.to_owned(),
        path: path.into(),
    };
    let mount = Mount {
        propagation,
        ..Mount::new("/data", source)
    };
    move |spec| spec.mounts = vec![mount]
}

fn run(program: &str, words: &[&str]) {
    let done = Command::new(program)
        .args(words)
        .status()
        .expect("it starts");
    assert!(done.success(), "{program} {words:?}: {done}");
}

/// An allocation with a directory and a file, and a directory outside of it that the task must not reach.
fn alloc(caller: &CallerFixture) -> (PathBuf, PathBuf) {
    let alloc = caller.fifo_dir.path().join("alloc");
    let outside = caller.fifo_dir.path().join("outside");
    for (dir, text) in [
        (alloc.join("local/dir"), "ours"),
        (outside.join("dir"), "theirs"),
    ] {
        fs::create_dir_all(&dir).expect("it can be made");
        fs::write(dir.join("file"), text).expect("it can be written");
    }
    (alloc, outside)
}

async fn kill(caller: &CallerFixture, task: TaskId) {
    caller
        .backend
        .signal_task(task, Signal::KILL)
        .await
        .expect("it can be killed");
    caller.end(task).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn symlink_placed_in_a_mount_path_is_not_followed() {
    let caller = CallerFixture::new().await;
    let sandbox = caller.plain().await;
    let (alloc, outside) = alloc(&caller);
    for (path, shown) in [
        ("local/dir", "/data/file"),
        ("local/dir/file", "/data"),
        ("", "/data/local/dir/file"),
    ] {
        let task = caller
            .task(
                sandbox,
                "exec sleep 1000",
                beneath(&alloc, path, Propagation::Private),
            )
            .await;
        assert_eq!(
            caller.shell_output(task, &format!("cat {shown}")).await,
            "ours",
            "{path}"
        );
        kill(&caller, task).await;
        caller
            .backend
            .remove_task(task)
            .await
            .expect("it can be removed");
    }
    // After the creation, which has checked the path, and before the start.
    for (place, target) in [("local", &outside), ("local/dir", &outside.join("dir"))] {
        let mut spec = caller.fixture.task_spec("task", &["sleep", "1000"]);
        beneath(&alloc, "local/dir", Propagation::Private)(&mut spec);
        let id = TaskId::random();
        caller
            .backend
            .create_task(id, sandbox, &spec)
            .await
            .expect("nothing is wrong yet");
        fs::rename(alloc.join(place), alloc.join("moved")).expect("it can be moved");
        symlink(target, alloc.join(place)).expect("a link can be put there");
        let refused = caller
            .backend
            .start_task(id, &Withdrawal::default())
            .await
            .expect_err("it is another");
        assert_eq!(
            refused.kind(),
            ErrorKind::InvalidArgument,
            "{}",
            refused.report()
        );
        assert!(
            refused
                .report()
                .contains("was replaced by one after it had been checked"),
            "{}",
            refused.report()
        );
        caller
            .backend
            .remove_task(id)
            .await
            .expect("it can be removed");
        fs::remove_file(alloc.join(place)).expect("it is the link");
        fs::rename(alloc.join("moved"), alloc.join(place)).expect("it can be moved back");
    }
    // The backend does not follow symbolic links that exist from the beginning, nor paths that lead out.
    symlink("dir", alloc.join("local/link")).expect("a link can be put there");
    for path in ["local/link", "../outside", "local/none"] {
        let refused = caller
            .try_task(sandbox, "true", beneath(&alloc, path, Propagation::Private))
            .await;
        assert_eq!(
            refused.expect_err("it is refused").kind(),
            ErrorKind::InvalidArgument,
            "{path}"
        );
    }
    caller.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn later_mounts_propagate_as_configured_and_stay_on_the_host() {
    let caller = CallerFixture::new().await;
    let sandbox = caller.plain().await;
    let (alloc, _) = alloc(&caller);
    let disk = alloc.join("disk");
    fs::create_dir(&disk).expect("it can be made");
    let place = disk.to_str().expect("the path is ASCII");
    run("mount", &["-t", "tmpfs", "tmpfs", place]);
    run("mount", &["--make-shared", place]);
    for dir in ["before", "later", "inner"] {
        fs::create_dir(disk.join(dir)).expect("it can be made");
    }
    run(
        "mount",
        &["-t", "tmpfs", "tmpfs", &format!("{place}/before")],
    );
    fs::write(disk.join("before/file"), "").expect("it can be written");
    let mut tasks = Vec::new();
    for propagation in [
        Propagation::Private,
        Propagation::HostToTask,
        Propagation::Bidirectional,
    ] {
        let task = caller
            .task(sandbox, "exec sleep 1000", |spec| {
                beneath(&alloc, "disk", propagation)(spec);
                spec.security.capabilities.add.push("SYS_ADMIN".to_owned());
                spec.security.apparmor = Some(switchyard_core::spec::AppArmorProfile::Unconfined);
                spec.security.seccomp = switchyard_core::spec::SeccompProfile::Unconfined;
            })
            .await;
        assert_eq!(
            caller.shell_output(task, "ls /data/before").await,
            "file",
            "{propagation:?}"
        );
        assert!(
            disk.join("before/file").exists(),
            "{propagation:?}: what is put in place for a runtime takes nothing along"
        );
        tasks.push((task, propagation));
    }
    run(
        "mount",
        &["-t", "tmpfs", "tmpfs", &format!("{place}/later")],
    );
    fs::write(disk.join("later/file"), "").expect("it can be written");
    for (task, propagation) in &tasks {
        let expected = if *propagation == Propagation::Private {
            ""
        } else {
            "file"
        };
        assert_eq!(
            caller.shell_output(*task, "ls /data/later").await,
            expected,
            "{propagation:?}"
        );
        caller
            .shell_output(
                *task,
                "mount -t tmpfs tmpfs /data/inner && touch /data/inner/file",
            )
            .await;
        assert_eq!(
            disk.join("inner/file").exists(),
            *propagation == Propagation::Bidirectional
        );
        caller.shell_output(*task, "umount /data/inner").await;
    }
    for (task, _) in tasks {
        kill(&caller, task).await;
    }
    for below in ["later", "before", ""] {
        run("umount", &[&format!("{place}/{below}")]);
    }
    caller.close().await;
}
