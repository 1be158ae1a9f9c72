//! Tests of tasks that join the network of another task of their allocation.

use std::path::PathBuf;

use super::*;

impl DriverFixture {
    /// The request of a task of this name, which is `web` or `log`, with this network.
    fn on(&self, name: &str, start: &str, network_mode: &str) -> nomad::TaskConfig {
        let text = |text: &str| rmpv::Value::from(text);
        let config = rmpv::Value::Map(vec![
            (text("image"), text(BUSYBOX)),
            (text("command"), text("serve")),
            (text("network_mode"), text(network_mode)),
        ]);
        let mut request = self.request(start, &["serve"]);
        request.msgpack_driver_config.clear();
        rmpv::encode::write_value(&mut request.msgpack_driver_config, &config)
            .expect("a vector grows as it must");
        (request.name, request.id) = (name.to_owned(), format!("{ALLOC}/{name}/{start}"));
        for part in ["local", "secrets"] {
            let dir = self.dir.path().join(ALLOC).join(name).join(part);
            std::fs::create_dir_all(dir).expect("there is room");
        }
        request
    }

    fn netns(&self, request: &nomad::TaskConfig) -> Option<PathBuf> {
        let sandboxes = self.driver.shared.scope.sandboxes();
        let sandbox = sandboxes.named(&request.id).expect("it is recovered");
        sandbox.expect("it is there").details.netns.clone()
    }
}

#[tokio::test]
async fn task_joins_the_network_of_a_running_task_of_its_allocation() {
    let fixture = fixture().await;
    let web = fixture.on("web", "00000001", "bridge");
    let log = fixture.on("log", "00000002", "container:web");
    let early = fixture.start(&log).await.expect_err("web does not run");
    assert_eq!(early.code(), Code::FailedPrecondition);
    assert!(
        !early.details().is_empty() && early.message().contains("network_mode: task \"web\""),
        "an agent repeats it: {early}"
    );
    assert_eq!(fixture.fake.remaining_objects(), Vec::<String>::new());

    fixture.start(&web).await.expect("it starts");
    for (start, mode) in [
        ("00000003", "container:web".to_owned()),
        ("00000004", format!("container:web-{ALLOC}")),
    ] {
        let log = fixture.on("log", start, &mode);
        fixture.start(&log).await.expect("it starts");
        assert!(fixture.netns(&web).is_some());
        assert_eq!(fixture.netns(&log), fixture.netns(&web), "{mode}");
    }

    // A name that only begins as that of the task, and the task of another allocation, are others.
    let mut foreign = fixture.on("log", "00000005", "container:web");
    let other = "4b8d22bb-0000-4000-8000-0123456789ab";
    foreign.alloc_id = other.to_owned();
    foreign.id = format!("{other}/log/00000005");
    for request in [foreign, fixture.on("log", "00000006", "container:we")] {
        let refused = fixture.start(&request).await.expect_err("there is none");
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    }
}

#[tokio::test]
async fn network_of_the_host_is_not_joined_through_another_task() {
    let fixture = fixture().await;
    let web = fixture.on("web", "00000001", "host");
    fixture.start(&web).await.expect("it starts");
    let log = fixture.on("log", "00000002", "container:web");
    let refused = fixture.start(&log).await.expect_err("it is the host's");
    assert_eq!(refused.code(), Code::Unimplemented);
    assert!(
        refused.message().contains("network_mode \"host\""),
        "{refused}"
    );
    // One without any network has one that can be joined.
    let web = fixture.on("web", "00000003", "none");
    fixture.start(&web).await.expect("it starts");
    let log = fixture.on("log", "00000004", "container:web");
    fixture.start(&log).await.expect("it starts");
    assert_eq!(fixture.netns(&log), fixture.netns(&web));
}
