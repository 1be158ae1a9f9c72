//! Two instances on one containerd do not touch each other's objects, and one that has lost its name is none of them.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use switchyard_containerd::{Containerd, Settings};
use switchyard_contract::Fixture;
use switchyard_core::backend::{Backend, Withdrawal, unobserved};
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::image::{Credentials, PullRequest};
use switchyard_core::state::{SandboxState, TaskState};
use switchyard_tests::backend_fixture::BackendFixture;
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;

/// Time for a daemon to notice.
const LIMIT: Duration = Duration::from_secs(40);

#[tokio::test(flavor = "multi_thread")]
async fn second_gateway_neither_adopts_nor_removes_objects_of_the_first() {
    let world = tokio::task::block_in_place(BackendFixture::new);
    let first = world.backend();
    first
        .recover()
        .await
        .expect("a fresh world can be recovered");
    let request = PullRequest {
        reference: world.image(),
        credentials: Credentials::Anonymous,
        handler: String::new(),
        owner: Owner::Host,
    };
    first
        .images()
        .pull(&request)
        .await
        .expect("the image can be pulled");
    let sandbox = SandboxId::random();
    let task = TaskId::random();
    first
        .create_sandbox(sandbox, &world.sandbox_spec("pod"))
        .await
        .expect("a sandbox can be made");
    first
        .create_task(task, sandbox, &world.task_spec("task", &["sleep", "1000"]))
        .await
        .expect("so can a task");
    first
        .start_task(task, &Withdrawal::default())
        .await
        .expect("and started");

    let state = world.root().path().join("state2");
    let run = world.root().path().join("run2");
    fs::create_dir_all(&state).expect("the scratch directory can be written");
    fs::create_dir_all(&run).expect("the scratch directory can be written");
    let settings = Settings {
        state,
        run,
        ..world.settings().clone()
    };
    let second = Containerd::connect(settings, unobserved()).expect("it can be set up");
    let found = second.recover().await.expect("it recovers");
    assert!(
        found.sandboxes.is_empty() && found.tasks.is_empty(),
        "it has adopted {found:#?}"
    );
    assert_eq!(
        second
            .images()
            .list()
            .await
            .expect("images can be listed")
            .len(),
        1,
        "images have no owner"
    );
    drop(second);

    let again = world
        .reopen()
        .await
        .recover()
        .await
        .expect("the first recovers");
    assert_eq!(again.sandboxes.len(), 1);
    assert_eq!(again.sandboxes[0].state, SandboxState::Ready);
    assert!(
        matches!(again.tasks[0].state, TaskState::Running { .. }),
        "{:?}",
        again.tasks[0].state
    );
}

/// Damages or removes the file with the name.
type Loss = fn(&Path) -> io::Result<()>;

/// As after a power cut that has emptied the file, or with a state directory that was restored without it.
#[test]
fn gateway_that_has_lost_its_name_starts_nothing_until_it_gets_it_back() {
    let node = TestNode::start();
    let pod = node.pod("kept");
    let id = pod.start_shell("main", "exec sleep 1000");
    let file = node.root().state().join("instance");
    let name = fs::read_to_string(&file).expect("the gateway has a name");
    let socket = node.root().run().join("admin.sock");
    let config = node.root().config();
    // As an operator types it, who names no configuration: it is that of the daemon that answers. And with the file named.
    let losses: [(Loss, &str, &Path); 2] = [
        (|file| fs::write(file, ""), "--socket", &socket),
        (|file| fs::remove_file(file), "--config", &config),
    ];
    for (lose, option, place) in losses {
        node.daemon().kill9();
        lose(&file).expect("it can be lost");
        node.daemon().spawn();
        let told = format!("switchyard recover --instance {name}");
        assert!(
            eventually(LIMIT, || node.daemon().tail().contains(&told)),
            "{}",
            node.daemon().tail()
        );
        let (status, body) = node.daemon().get("/readyz?verbose");
        assert!(status == 503 && body.contains(&told), "{status} {body}");
        let cri = node.cri().with_timeout(Duration::from_secs(2));
        cri.containers()
            .expect_err("an empty list would have a kubelet start the pod again");
        assert!(fs::read_to_string(&file).is_ok_and(|text| text.is_empty()) || !file.exists());

        let recover = ["recover", "--instance", &name, option];
        let recovered = Command::new(node.daemon().program())
            .args(recover)
            .arg(place)
            .output();
        let recovered = recovered.expect("the program can be run");
        assert!(recovered.status.success(), "{recovered:?}");
        node.daemon().wait_ready();
        assert_eq!(
            node.cri().containers().expect("they can be listed").len(),
            1
        );
        assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
        assert_eq!(fs::read_to_string(&file).expect("it is there again"), name);
        // The log of the next start reports it again.
        fs::write(node.root().daemon_log(), "").expect("it can be emptied");
    }
}
