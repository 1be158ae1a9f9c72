//! A node is killed right after each step of its join and of its leave.

use std::path::Path;
use std::process::Output;

use switchyard_crash_points::{CrashPoint, KILL_FILE, Operation};
use switchyard_proto::docker::swarmkit::v1::node_spec::Availability;
use switchyard_swarm::Store;
use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::agent::{TestAgent, join_worker, state};
use switchyard_tests::swarm::node::facts;

use super::wait_until_ready;

/// Runs the node's program in the swarm, killed at a step that is reached for the nth time.
fn node(cluster: &SwarmCluster, words: &[&str], kill: Option<(CrashPoint, u32)>) -> Output {
    let mut command = cluster.inside(Path::new(env!("CARGO_BIN_EXE_swarm-node")));
    command.args(words);
    if let Some((step, nth)) = kill {
        let file = cluster.dir().join("kill");
        std::fs::write(&file, format!("{step:?}:{nth}\n")).expect("the directory is ours");
        command.env(KILL_FILE, file);
    }
    command.output().expect("it was built with this test")
}

#[test]
fn join_that_is_killed_at_any_step_is_continued_with_the_same_node() {
    let cluster = SwarmCluster::new();
    let token = cluster.dir().join("token");
    std::fs::write(&token, cluster.token("worker")).expect("the directory is ours");
    let token = token.display().to_string();
    // Drafts: of the join, the managers, the roots and the certificate. The first comes before the id is stored.
    let drafts = (2..=4).map(|nth| (CrashPoint::SwarmFileDrafted, nth));
    let steps = Operation::JoinSwarm
        .crash_points()
        .iter()
        .filter(|step| **step != CrashPoint::SwarmFileDrafted);
    let kills: Vec<(CrashPoint, u32)> = steps.map(|step| (*step, 1)).chain(drafts).collect();
    for (number, kill) in kills.into_iter().enumerate() {
        let dir = state(&cluster, &format!("n{number}"));
        let words = [
            "join",
            dir.to_str().expect("it is ASCII"),
            &cluster.address(0),
            &token,
        ];
        let killed = node(&cluster, &words, Some(kill));
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&killed.status),
            Some(9),
            "{kill:?}: {killed:?}"
        );
        let [first] = &cluster.workers()[..] else {
            panic!("{kill:?}: {:?}", cluster.workers())
        };
        let id = first
            .split(' ')
            .next()
            .expect("a line has words")
            .to_owned();
        if Store::new(dir.clone())
            .load(std::time::SystemTime::now())
            .expect("it can be read")
            .is_none()
        {
            let joined = node(&cluster, &words, None);
            assert!(joined.status.success(), "{kill:?}: {joined:?}");
        }
        let agent = TestAgent::start(&cluster, &dir, facts("worker"));
        wait_until_ready(&cluster, &agent);
        assert_eq!(agent.report().node, id, "{kill:?}");
        assert!(!dir.join("join.json").exists(), "{kill:?}");
        drop(agent);
        cluster.docker(&["node", "rm", "--force", &id]);
    }
}

#[test]
fn kill_before_the_node_is_stored_leaves_an_unused_node_object() {
    let cluster = SwarmCluster::new();
    let token = cluster.dir().join("token");
    std::fs::write(&token, cluster.token("worker")).expect("the directory is ours");
    let dir = state(&cluster, "n");
    let words = [
        "join",
        dir.to_str().expect("it is ASCII"),
        &cluster.address(0),
        token.to_str().expect("it is ASCII"),
    ];
    node(&cluster, &words, Some((CrashPoint::SwarmFileDrafted, 1)));
    let joined = node(&cluster, &words, None);
    assert!(joined.status.success(), "{joined:?}");
    assert_eq!(cluster.workers().len(), 2, "{:?}", cluster.workers());
}

#[test]
fn leave_that_is_killed_at_any_step_is_completed_by_the_next_one() {
    let cluster = SwarmCluster::new();
    let dir = state(&cluster, "n");
    for step in [
        CrashPoint::JoinRequestForgotten,
        CrashPoint::NodeCertificateRemoved,
    ] {
        let identity = join_worker(&cluster, &dir, Availability::Drain);
        let words = ["leave", dir.to_str().expect("it is ASCII")];
        let killed = node(&cluster, &words, Some((step, 1)));
        assert!(!killed.status.success(), "{step:?}: {killed:?}");
        assert!(dir.exists(), "{step:?}");
        let left = node(&cluster, &words, None);
        assert!(left.status.success() && !dir.exists(), "{step:?}: {left:?}");
        cluster.docker(&["node", "rm", "--force", identity.node()]);
    }
}
