//! Plugins of both versions beside daemons of both, as while an agent runs on whose plugin directory leads to another program than
//! the daemon's: after an installation that was refused, or with a program by hand.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use switchyard_tests::daemon::binary;
use switchyard_tests::node::{Containerd, TestNode};
use switchyard_tests::nomad::{Agent, AgentPaths, TaskRunner, TaskSetup};
use switchyard_tests::versions;

use super::super::assert_unbroken;
use super::{BEFORE, LIMIT, following, install};

/// Counts until a file appears in its directory, and then exits with 5.
const COUNT: &str =
    "n=0; while [ ! -e /local/end ]; do n=$((n+1)); echo $n; sleep 0.02; done; exit 5";

/// An agent whose plugins are of one version all the time, and its task.
struct StableAgent {
    place: AgentPaths,
    agent: Arc<Agent>,
    task: TaskSetup,
    runner: TaskRunner,
}

impl StableAgent {
    /// Starts an agent of this name, with plugins of this program, and a task of it.
    #[track_caller]
    fn start(node: &TestNode, name: &str, program: &Path) -> Self {
        let dir = node.root().path().join(name);
        std::fs::create_dir(&dir).expect("the root can be written");
        let place = AgentPaths {
            dir,
            program: program.to_owned(),
            ..AgentPaths::from(node.root())
        };
        let agent = Arc::new(Agent::start_with(&place, &["--name", name], &json!({})));
        let config = json!({
            "image": node.image(), "command": "sh", "args": ["-c", COUNT], "network_mode": "host",
        });
        let task = TaskSetup::new(&place, &agent, "counting", &config);
        let started = agent.driver().start(&task.config).expect("it starts");
        let runner = TaskRunner::start(&agent, started.handle.expect("it has a handle"));
        Self {
            place,
            agent,
            task,
            runner,
        }
    }

    /// Fails unless the task counts on, and the agent can do with it and with a new one what agents do.
    #[track_caller]
    fn assert_works(&self, node: &TestNode, when: &str) {
        let seen = self.task.stdout().len();
        self.task.wait_stdout(|text| text.len() > seen + 20);
        assert_unbroken(&self.task.stdout(), when);
        let driver = self.agent.driver();
        let answer = driver.exec(self.task.id(), &["echo", "reached"], LIMIT);
        assert_eq!(answer.expect("it runs").stdout, "reached\n", "{when}");
        let config = json!({ "image": node.image(), "command": "true", "network_mode": "host" });
        let mut short = TaskSetup::new(&self.place, &self.agent, "short", &config);
        driver.start(&short.config).expect("it starts");
        let ended = driver.wait(short.id(), LIMIT).expect("it ends");
        assert_eq!(ended.exit_code, 0, "{when}");
        driver.destroy(short.id(), true).expect("it can be removed");
        short.remove_cgroups();
    }

    /// Ends the task by itself: its plugin was started again once for each replacement of the daemon.
    #[track_caller]
    fn end(self, replacements: u32) {
        let Self {
            agent,
            mut task,
            runner,
            ..
        } = self;
        std::fs::write(task.task_dir().join("local/end"), "").expect("the root can be written");
        let ended = runner.join();
        assert_eq!((ended.result.exit_code, ended.recovered), (5, replacements));
        assert_unbroken(&task.stdout(), "at the end");
        let driver = agent.driver();
        driver.destroy(task.id(), true).expect("it can be removed");
        task.remove_cgroups();
    }
}

#[test]
fn plugins_of_each_version_are_served_by_the_daemons_of_both() {
    let node = TestNode::start_version(&versions::former(), Containerd::Managed, |_| String::new());
    let agents = [
        StableAgent::start(&node, "former", &versions::former()),
        StableAgent::start(&node, "present", &binary()),
    ];
    for agent in &agents {
        agent.assert_works(&node, BEFORE);
    }
    for ((program, when), times) in following().into_iter().zip(1..) {
        // Until then a plugin of the present version outlives its daemon.
        agents
            .iter()
            .for_each(|agent| agent.runner.wait_recovery_over());
        install(&node, &program);
        for agent in &agents {
            agent.runner.wait_recovered(times);
            agent.assert_works(&node, when);
        }
    }
    for agent in agents {
        agent.end(2);
    }
}
