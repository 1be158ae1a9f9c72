//! The recipes of docs/fleet.md as they are written there: `upgrade-node` on a real node, whose daemon is replaced while a
//! program in the place of apt-get waits; the roll-out and the way back with a program in the place of ssh.

use std::fs;
use std::process::Output;
use std::time::Duration;

use switchyard_tests::daemon::binary;
use switchyard_tests::documents::commands;
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;
use switchyard_tests::prereq;
use switchyard_tests::scratch::Scratch;
use switchyard_tests::stub_programs::StubPrograms;

use super::unreadable::{LaterVersion, RECORD, start_unready};

const FLEET: &str = include_str!("../../../docs/fleet.md");

/// Limit for a script to come to its next step on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The version that is installed.
const VERSION: &str = "0.9-1";

/// Writes down its arguments. An installation lasts until the test has replaced the daemon.
const APT_GET: &str = r#"echo "apt-get $*" >>"$STUBS/calls"
[ "$1" = install ] || exit 0
: >"$STUBS/begun"
tries=600
while [ ! -e "$STUBS/replaced" ] && [ "$tries" -gt 0 ]; do
    sleep 0.1
    tries=$((tries - 1))
done
[ -e "$STUBS/replaced" ]
"#;

/// Runs on this machine what is meant for a node.
const SSH: &str = "NODE=$1; export NODE; shift; exec \"$@\"\n";

/// Runs a command as whoever calls it, with the variables before it.
const SUDO: &str = "exec env \"$@\"\n";

/// Writes down that it is run. On the node `bad` it fails; nodes whose names begin with `beside` are ready when xargs has been
/// informed of that, which is when the process whose child failed exists no more.
const UPGRADE: &str = r#"echo "$NODE gets $1" >>"$STUBS/calls"
tries=600
case $NODE in
    bad)
        echo "$PPID" >"$STUBS/failed"
        exit 1
        ;;
    beside*)
        while [ "$tries" -gt 0 ]; do
            failed=$(cat "$STUBS/failed" 2>/dev/null) || failed=
            if [ "$failed" ] && [ ! -e "/proc/$failed" ]; then
                exit 0
            fi
            /bin/sleep 0.1
            tries=$((tries - 1))
        done
        ;;
esac
"#;

/// `upgrade-node` for one node.
struct NodeUpgrade {
    stubs: StubPrograms,
    script: String,
}

// === impl NodeUpgrade ===

impl NodeUpgrade {
    fn of(node: &TestNode) -> Self {
        // Each by itself: so the check of the list of packages finds them.
        let _ = prereq::require("jq", "jq");
        let _ = prereq::require("curl", "curl");
        let _ = prereq::require("awk", "mawk");
        let socket = node.root().run().join("admin.sock");
        let socket = socket.to_str().expect("the path is ASCII");
        let switchyard = format!("exec {} \"$@\" --socket {socket}\n", binary().display());
        let script = commands(FLEET, "switchyard status --wait");
        assert_eq!(script.matches("/run/switchyard/admin.sock").count(), 1);
        Self {
            stubs: StubPrograms::new(
                node.root().path().join("upgrade"),
                &[("apt-get", APT_GET), ("switchyard", &switchyard)],
            ),
            script: script.replace("/run/switchyard/admin.sock", socket),
        }
    }

    /// The same with a limit that a node which is never ready need not use up.
    fn impatient(&self) -> String {
        assert_eq!(self.script.matches("ready=60s").count(), 1);
        self.script.replace("ready=60s", "ready=2s")
    }

    /// Runs a script, and `replace` while apt-get installs the version.
    #[track_caller]
    fn run(&self, script: &str, replace: impl FnOnce()) -> Output {
        let begun = self.stubs.dir().join("begun");
        let replaced = self.stubs.dir().join("replaced");
        for file in [&begun, &replaced] {
            // It is there from the run before, if there was one.
            let _ = fs::remove_file(file);
        }
        let mut command = self.stubs.shell(script, &[VERSION]);
        std::thread::scope(|scope| {
            let upgrade = scope.spawn(move || command.output().expect("every system has a shell"));
            let installs = eventually(LIMIT, || begun.exists() || upgrade.is_finished());
            if installs && begun.exists() {
                replace();
                fs::write(&replaced, "").expect("the directory can be written");
            }
            upgrade.join().expect("it does not panic")
        })
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// The line of `upgrade-node` with the counts.
fn last_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn upgrade_node_counts_what_was_taken_over_and_fails_if_anything_was_not() {
    let node = TestNode::start();
    let pod = node.pod("upgraded");
    let id = pod.start_shell("main", "exec sleep 31997");
    let upgrade = NodeUpgrade::of(&node);
    let good = upgrade.run(&upgrade.script, || node.daemon().restart());
    assert!(good.status.success(), "{}", said(&good));
    assert_eq!(
        last_line(&good),
        "1 tasks ran, 1 were taken over, 0 objects lost or unreadable"
    );
    let install = format!(
        "apt-get install --yes --allow-change-held-packages -o Dpkg::Options::=--force-confold switchyard={VERSION}"
    );
    let calls = ["apt-get update".to_owned(), install];
    assert_eq!(upgrade.stubs.calls(), calls);

    let mut later = LaterVersion::of(&node);
    let unreadable = upgrade.run(&upgrade.impatient(), || {
        node.daemon().kill9();
        later.write(pod.id(), RECORD);
        start_unready(&node);
    });
    let text = said(&unreadable);
    assert_eq!(unreadable.status.code(), Some(1), "{text}");
    for part in ["the node was not ready within 2s: ", "objects: "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Such a node is left as it is.
    let before = upgrade.stubs.calls();
    let refused = upgrade.run(&upgrade.script, || panic!("it is upgraded"));
    assert!(!refused.status.success(), "{}", said(&refused));
    assert_eq!(upgrade.stubs.calls(), before);

    node.daemon().kill9();
    later.restore();
    node.daemon().restart();
    let lost = upgrade.run(&upgrade.script, || {
        node.daemon().kill9();
        node.kill_unseen(&id, "sleep 31997");
        node.daemon().restart();
    });
    assert_eq!(lost.status.code(), Some(1), "{}", said(&lost));
    assert_eq!(
        last_line(&lost),
        "1 tasks ran, 0 were taken over, 1 objects lost or unreadable"
    );
    node.cri().remove(&id).expect("it can be removed");
    node.wait_gone(&id);
}

/// The fleet of the recipes: three batches. The second one has more nodes than are upgraded at the same time.
fn write_batches(stubs: &StubPrograms) {
    let beside: String = (0..30).map(|number| format!("beside{number}\n")).collect();
    stubs.write("one", "first\n");
    stubs.write("tenth", &format!("bad\n{beside}"));
    stubs.write("rest", "last\n");
}

/// The value of a variable that a recipe sets in its first line.
fn first_value<'r>(recipe: &'r str, name: &str) -> &'r str {
    let line = recipe.lines().next().unwrap_or_default();
    let value = line
        .strip_prefix(name)
        .and_then(|rest| rest.strip_prefix('='));
    value.unwrap_or_else(|| panic!("{recipe} does not begin with {name}"))
}

fn scratch_stubs(scratch: &Scratch, programs: &[(&str, &str)]) -> StubPrograms {
    StubPrograms::new(scratch.path().join("stubs"), programs)
}

#[test]
fn roll_out_stops_at_the_first_node_that_fails() {
    let scratch = Scratch::new();
    let stubs = scratch_stubs(
        &scratch,
        &[
            ("ssh", SSH),
            ("sudo", SUDO),
            ("sleep", "echo \"sleep $*\" >>\"$STUBS/calls\"\n"),
        ],
    );
    write_batches(&stubs);
    stubs.write("upgrade-node", UPGRADE);
    let recipe = commands(FLEET, "for batch in one tenth rest");
    let version = first_value(&recipe, "version");
    let output = stubs.shell(&recipe, &[]).output();
    let output = output.expect("every system has a shell");
    let calls = stubs.calls();
    let first = [format!("first gets {version}"), "sleep 1800".to_owned()];
    assert_eq!(calls.get(..2), Some(&first[..]), "{}", said(&output));
    let second = &calls[2..];
    assert!(second.contains(&format!("bad gets {version}")), "{calls:?}");
    assert!(
        second.len() <= 20 && !second.iter().any(|call| call.starts_with("sleep")),
        "{calls:?}"
    );
    let is_last = |call: &String| call.starts_with("last");
    assert!(!calls.iter().any(is_last), "{calls:?}");
}

#[test]
fn way_back_installs_the_former_version_on_the_nodes_of_the_batches_that_were_begun() {
    let scratch = Scratch::new();
    let stubs = scratch_stubs(
        &scratch,
        &[
            ("ssh", SSH),
            ("sudo", SUDO),
            (
                "apt-get",
                "echo \"$NODE: $DEBIAN_FRONTEND: apt-get $*\" >>\"$STUBS/calls\"\n",
            ),
            (
                "switchyard",
                "echo \"$NODE: switchyard $*\" >>\"$STUBS/calls\"\n",
            ),
        ],
    );
    stubs.write("one", "a\n");
    stubs.write("tenth", "b\nc\n");
    stubs.write("rest", "d\n");
    let recipe = commands(FLEET, "--allow-downgrades");
    let former = first_value(&recipe, "former");
    let output = stubs.shell(&recipe, &[]).output();
    let output = output.expect("every system has a shell");
    assert!(output.status.success(), "{}", said(&output));
    let install = format!(
        "noninteractive: apt-get install --yes --allow-downgrades --allow-change-held-packages \
         -o Dpkg::Options::=--force-confold switchyard={former}"
    );
    let mut calls = stubs.calls();
    let status = calls.split_off(3);
    calls.sort();
    assert_eq!(
        calls,
        ["a", "b", "c"].map(|name| format!("{name}: {install}"))
    );
    assert_eq!(
        status,
        ["a", "b", "c"].map(|name| format!("{name}: switchyard status"))
    );
}
