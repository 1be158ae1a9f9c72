//! Tests of networks of allocations that are not requested any more: removed with the tasks in them, or by
//! themselves.

use std::path::Path;

use switchyard_fake::Method;
use switchyard_linux::process::ProcessId;

use super::*;
use crate::plugin_config::{DanglingConfig, GcConfig};
use crate::reconcile::{CLEARING_LIMIT, CONCURRENT};
use crate::session::CALLER_KEY;

/// Two more sweeps.
const LOOKS: Duration = Duration::from_secs(20);

/// A process of the agent that was started after this process.
fn life(number: i32) -> String {
    ProcessId {
        pid: number,
        started: u64::MAX,
    }
    .to_string()
}

/// A call by this process of the agent, in this session.
fn by<T>(session: &str, number: i32, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request
        .metadata_mut()
        .insert(SESSION_KEY, session.parse().expect("it is ASCII"));
    request
        .metadata_mut()
        .insert(CALLER_KEY, life(number).parse().expect("it is ASCII"));
    request
}

/// A configuration with frequent sweeps and no grace period.
fn hasty_config() -> PluginConfig {
    let period = Duration::ZERO;
    let creation_grace = Duration::ZERO;
    let dangling = DanglingConfig {
        period,
        creation_grace,
        ..Default::default()
    };
    PluginConfig {
        gc: GcConfig {
            dangling,
            ..Default::default()
        },
        ..Default::default()
    }
}

async fn hasty() -> DriverFixture {
    let fixture = fixture_with(hasty_config()).await;
    let driver = fixture.driver.clone();
    tokio::spawn(async move { driver.run_background().await });
    fixture
}

impl DriverFixture {
    async fn create_network(&self, session: &str, number: i32, alloc: &str) -> bool {
        let message = nomad::CreateNetworkRequest {
            alloc_id: alloc.into(),
            hostname: String::new(),
        };
        let made = self
            .driver
            .create_network(by(session, number, message))
            .await
            .expect("it can be made");
        made.into_inner().created
    }

    /// Starts a task of this allocation by this process of the agent, which identifies the agent.
    async fn start_in(&self, session: &str, number: i32, alloc: &str) {
        self.start_below(self.dir.path(), session, number, alloc)
            .await;
    }

    /// The same by an agent with another allocation directory.
    async fn start_elsewhere(&self, session: &str, number: i32, alloc: &str) {
        self.start_below(&self.dir.path().join("elsewhere"), session, number, alloc)
            .await;
    }

    async fn start_below(&self, allocs: &Path, session: &str, number: i32, alloc: &str) {
        let mut task = self.request("00000001", &["serve"]);
        task.alloc_dir = allocs.join(alloc).display().to_string();
        (task.id, task.alloc_id) = (format!("{alloc}/web/00000001"), alloc.to_owned());
        for part in ["alloc/logs", "web/local", "web/secrets"] {
            std::fs::create_dir_all(allocs.join(alloc).join(part)).expect("there is room");
        }
        let message = nomad::StartTaskRequest { task: Some(task) };
        self.driver
            .start_task(by(session, number, message))
            .await
            .expect("it starts");
    }

    /// The existing sandboxes, by name.
    async fn left(&self) -> Vec<String> {
        tokio::time::sleep(LOOKS).await;
        let sandboxes = self
            .driver
            .scope()
            .sandboxes()
            .list()
            .expect("they are known");
        let mut names: Vec<String> = sandboxes
            .iter()
            .map(|sandbox| sandbox.meta.name.clone())
            .collect();
        names.sort();
        names
    }
}

#[tokio::test(start_paused = true)]
async fn network_not_requested_by_restarted_agent_is_removed() {
    let fixture = hasty().await;
    assert!(fixture.create_network(SESSION, 1, "a").await);
    assert!(fixture.create_network(SESSION, 1, "b").await);
    fixture.start_in(SESSION, 1, "other").await;
    let all = ["network/a", "network/b", "other/web/00000001"];
    assert_eq!(
        fixture.left().await,
        all,
        "the agent waits before it starts the next task there"
    );

    // The agent was killed, and reattaches; of the first allocation only the directory exists.
    std::fs::create_dir_all(fixture.dir.path().join("a")).expect("there is room");
    assert!(!fixture.create_network(SESSION, 2, "b").await);
    assert_eq!(
        fixture.left().await,
        all,
        "which agent it is has not been shown"
    );
    // It also asks for tasks that ended long ago.
    let config = nomad::TaskConfig {
        id: "a/web/00000001".into(),
        alloc_id: "a".into(),
        ..fixture.request("", &["x"])
    };
    let config = nomad::TaskConfig {
        alloc_dir: config.alloc_dir.replace(ALLOC, "a"),
        ..config
    };
    let handle = Some(nomad::TaskHandle {
        version: 1,
        config: Some(config),
        ..Default::default()
    });
    let message = nomad::RecoverTaskRequest {
        task_id: String::new(),
        handle,
    };
    let gone = fixture
        .driver
        .recover_task(by(SESSION, 2, message))
        .await
        .expect_err("nobody started it");
    assert_eq!(gone.code(), Code::NotFound);
    assert_eq!(fixture.left().await, ["network/b", "other/web/00000001"]);
}

#[tokio::test(start_paused = true)]
async fn task_is_referenced_until_destroy_succeeds() {
    let fixture = hasty().await;
    fixture.start_in(SESSION, 1, "a").await;
    let destroy = |force| nomad::DestroyTaskRequest {
        task_id: "a/web/00000001".into(),
        force,
    };
    let refused = fixture
        .driver
        .destroy_task(by(SESSION, 1, destroy(false)))
        .await
        .expect_err("it runs");
    assert!(
        refused.message().contains("must call StopTask"),
        "{refused}"
    );
    let nobodys = fixture
        .driver
        .destroy_task(by("another", 1, destroy(true)))
        .await
        .expect_err("whose is it?");
    assert!(nobodys.message().contains("no open session"), "{nobodys}");
    assert_eq!(fixture.left().await, ["a/web/00000001"]);

    fixture
        .fake
        .fail_next(Method::RemoveSandbox, Error::internal("it is stuck"));
    fixture
        .driver
        .destroy_task(by(SESSION, 1, destroy(true)))
        .await
        .expect_err("the runtime fails");
    assert_eq!(
        fixture.left().await,
        [""; 0],
        "the agent does not ask again"
    );
}

#[tokio::test(start_paused = true)]
async fn task_referenced_before_its_removal_is_kept() {
    let fixture = fixture_with(hasty_config()).await;
    fixture.start_in(SESSION, 1, "a").await;
    let name = "a/web/00000001";
    let gc = GcConfig::default();
    assert!(
        !fixture
            .driver
            .remove_dangling(name, &gc)
            .await
            .expect("there is nothing to do")
    );
    assert_eq!(fixture.left().await, [name]);
    fixture.driver.references().forget(name);
    assert!(
        fixture
            .driver
            .remove_dangling(name, &gc)
            .await
            .expect("it can be removed")
    );
    assert_eq!(fixture.left().await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn network_is_removed_with_its_dangling_tasks() {
    let fixture = hasty().await;
    assert!(fixture.create_network(SESSION, 1, "a").await);
    fixture.start_in(SESSION, 1, "a").await;
    assert_eq!(fixture.left().await, ["a/web/00000001", "network/a"]);

    // The agent has lost its state, and starts a new plugin.
    let DriverFixture {
        fake,
        gateway,
        driver,
        sessions,
        open,
        dir,
    } = fixture;
    drop(open);
    let config = hasty_config();
    let open = sessions.open(Session {
        id: "next".into(),
        ..session(config)
    });
    let fixture = DriverFixture {
        fake,
        gateway,
        driver,
        sessions,
        open,
        dir,
    };
    assert!(fixture.create_network("next", 2, "b").await);
    fixture.start_in("next", 2, "b").await;
    assert_eq!(fixture.left().await, ["b/web/00000001", "network/b"]);
}

#[tokio::test(start_paused = true)]
async fn network_of_a_task_that_cannot_be_read_is_kept() {
    let fixture = fixture_with(hasty_config()).await;
    assert!(fixture.create_network(SESSION, 1, "a").await);
    fixture.start_in(SESSION, 1, "a").await;
    let unreadable = fixture.unreadable("a/web/00000001");
    fixture.fake.set_unreadable(unreadable.to_vec());
    let fixture = fixture.restarted_with(hasty_config()).await;
    let _tending = fixture.tended();
    // The agent was restarted too, and asks neither for the task nor for its network.
    fixture.start_in(SESSION, 2, "other").await;
    assert_eq!(fixture.left().await, ["network/a", "other/web/00000001"]);
}

#[tokio::test(start_paused = true)]
async fn network_without_agent_belongs_to_the_only_agent() {
    for is_alone in [true, false] {
        let fixture = hasty().await;
        assert!(fixture.create_network(SESSION, 1, "a").await);
        let _other = fixture.sessions.open(Session {
            id: "other".into(),
            ..session(PluginConfig::default())
        });
        if !is_alone {
            fixture.start_in("other", 3, "foreign").await;
        }
        fixture.start_elsewhere(SESSION, 2, "b").await;
        let left = fixture.left().await;
        assert_eq!(
            left.contains(&"network/a".to_owned()),
            !is_alone,
            "{left:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn network_is_removed_with_its_allocation_directory() {
    let fixture = hasty().await;
    fixture.start_elsewhere(SESSION, 1, "other").await;
    assert!(fixture.create_network(SESSION, 1, "a").await);
    let all = fixture.dir.path().join("elsewhere");
    let aside = fixture.dir.path().join("aside");
    std::fs::create_dir(all.join("a")).expect("there is room");
    let both = ["network/a", "other/web/00000001"];
    assert_eq!(
        fixture.left().await,
        both,
        "the agent waits before it starts a task there"
    );
    std::fs::remove_dir(all.join("a")).expect("it is empty");
    std::fs::rename(&all, &aside).expect("it can be moved");
    assert_eq!(
        fixture.left().await,
        both,
        "of no allocation there is a directory"
    );
    std::fs::rename(&aside, &all).expect("it can be moved back");
    assert_eq!(fixture.left().await, ["other/web/00000001"]);
}

/// The task of this allocation as this process of its agent, restarted, asks for it.
async fn recover(fixture: &DriverFixture, number: i32, alloc: &str) -> Result<(), Status> {
    let mut config = fixture.request("00000001", &["serve"]);
    config.alloc_dir = fixture.dir.path().join(alloc).display().to_string();
    (config.id, config.alloc_id) = (format!("{alloc}/web/00000001"), alloc.to_owned());
    let handle = Some(nomad::TaskHandle {
        version: 1,
        config: Some(config),
        ..Default::default()
    });
    let message = nomad::RecoverTaskRequest {
        task_id: String::new(),
        handle,
    };
    fixture
        .driver
        .recover_task(by(SESSION, number, message))
        .await
        .map(drop)
}

#[tokio::test(start_paused = true)]
async fn task_whose_removal_has_begun_cannot_be_recovered() {
    let fixture = fixture_with(hasty_config()).await;
    fixture.start_in(SESSION, 1, "a").await;
    let name = "a/web/00000001";
    fixture.driver.references().forget(name);
    let held = fixture.fake.hold(Method::SignalTask);
    let driver = fixture.driver.clone();
    let removal =
        tokio::spawn(async move { driver.remove_dangling(name, &GcConfig::default()).await });
    held.arrived(1).await;
    let refused = recover(&fixture, 1, "a")
        .await
        .expect_err("it is about to go");
    assert!(
        refused.message().starts_with("task not found for given id"),
        "{refused}"
    );
    drop(held);
    removal
        .await
        .expect("it does not panic")
        .expect("it can be removed");
    recover(&fixture, 1, "a").await.expect_err("it has gone");
}

#[tokio::test(start_paused = true)]
async fn task_whose_removal_outlasts_its_sweep_cannot_be_recovered() {
    let fixture = fixture_with(hasty_config()).await;
    fixture.start_in(SESSION, 1, "a").await;
    let name = "a/web/00000001";
    fixture.driver.references().forget(name);
    let held = fixture.fake.hold(Method::SignalTask);
    let gc = GcConfig::default();
    tokio::time::timeout(CLEARING_LIMIT, fixture.driver.remove_dangling(name, &gc))
        .await
        .expect_err("the kill hangs");
    let refused = recover(&fixture, 1, "a")
        .await
        .expect_err("it is about to go");
    assert_eq!(refused.code(), Code::NotFound);
    assert!(
        refused.message().starts_with("task not found for given id"),
        "{refused}"
    );
    drop(held);
    assert_eq!(fixture.left().await, [""; 0]);
    recover(&fixture, 1, "a").await.expect_err("it has gone");
}

#[tokio::test(start_paused = true)]
async fn network_of_a_task_that_is_recovered_while_its_sweep_waits_is_kept() {
    let fixture = hasty().await;
    assert!(fixture.create_network(SESSION, 1, "a").await);
    fixture.start_in(SESSION, 1, "a").await;
    let name = "a/web/00000001";
    // The restarted agent has asked neither for the task nor for the network when it is swept.
    fixture.start_in(SESSION, 2, "other").await;
    let turn = fixture
        .driver
        .shared
        .task_locks
        .lock(identity::task_key(name).to_owned())
        .await;
    fixture.driver.references().forget(name);
    tokio::time::sleep(LOOKS).await;
    recover(&fixture, 2, "a").await.expect("it runs");
    drop(turn);
    assert_eq!(
        fixture.left().await,
        [name, "network/a", "other/web/00000001"]
    );
}

#[tokio::test(start_paused = true)]
async fn network_whose_first_task_starts_while_its_sweep_waits_is_kept() {
    let fixture = hasty().await;
    let hung: Vec<String> = (0..CONCURRENT).map(|number| format!("a{number}")).collect();
    for alloc in &hung {
        fixture.start_in(SESSION, 1, alloc).await;
    }
    assert!(fixture.create_network(SESSION, 1, "b").await);
    let held = fixture.fake.hold(Method::SignalTask);
    for alloc in &hung {
        fixture
            .driver
            .references()
            .forget(&format!("{alloc}/web/00000001"));
    }
    held.arrived(CONCURRENT).await;
    // The restarted agent does not ask for the network until after the next sweeps.
    fixture.start_in(SESSION, 2, "other").await;
    tokio::time::sleep(LOOKS).await;
    fixture.start_in(SESSION, 2, "b").await;
    drop(held);
    assert_eq!(
        fixture.left().await,
        ["b/web/00000001", "network/b", "other/web/00000001"]
    );
}

#[tokio::test(start_paused = true)]
async fn hung_removal_does_not_hold_up_others() {
    let fixture = hasty().await;
    for alloc in ["a", "b"] {
        fixture.start_in(SESSION, 1, alloc).await;
    }
    let held = fixture.fake.hold(Method::SignalTask);
    fixture.driver.references().forget("a/web/00000001");
    held.arrived(1).await;
    // The kill of the first hangs. The second has ended, so that nothing has to be killed.
    fixture
        .fake
        .exit(fixture.task("b/web/00000001"), 0)
        .expect("it runs");
    fixture.driver.references().forget("b/web/00000001");
    assert_eq!(fixture.left().await, ["a/web/00000001"]);
    drop(held);
    assert_eq!(fixture.left().await, [""; 0]);
}
