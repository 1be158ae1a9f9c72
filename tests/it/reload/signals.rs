//! SIGHUP, many times, while pods start and images are pulled.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use switchyard_tests::host::{SetOnDrop, eventually};
use switchyard_tests::node::TestNode;

use super::{hang_up, metric};
use crate::images::with_file;

/// Number of signals that are sent.
const SIGNALS: usize = 1000;

#[test]
fn a_thousand_hangups_with_good_and_bad_files_fail_no_request() {
    let node = TestNode::start();
    let file = node.root().config();
    let good = fs::read_to_string(&file).expect("it was written");
    let stopped = AtomicBool::new(false);
    let descriptors = || {
        let files = fs::read_dir(format!("/proc/{}/fd", node.daemon().pid())).expect("it runs");
        files.count()
    };
    let before = descriptors();
    let (pods, pulls) = thread::scope(|scope| {
        let end = SetOnDrop(&stopped);
        let pods = scope.spawn(|| {
            let mut count = 0;
            while !stopped.load(Ordering::Relaxed) {
                let pod = node.pod(&format!("load{count}"));
                assert_eq!(pod.run_shell("echo works", |_| {}), "works");
                count += 1;
            }
            count
        });
        let pulls = scope.spawn(|| {
            let mut count = 0;
            while !stopped.load(Ordering::Relaxed) {
                let name = format!("load/{count}:1");
                node.registry().push(&name, &with_file(&name).build());
                node.cri()
                    .pull(&node.registry().reference(&name), None)
                    .expect("it can be pulled");
                count += 1;
            }
            count
        });
        for number in 0..SIGNALS {
            let text = match number % 3 {
                0 => format!("{good}\n[exec]\nmax_per_container = {}\n", 100 + number),
                1 => format!("{good}\n[exec]\nmax_per_container = none\n"),
                _ => format!(
                    "{good}\n[images]\npinned = [\"example.org/{number}\"]\n[admin]\nlisten = 7\n"
                ),
            };
            // Replaced as an editor does it: a half-written file is refused too, but that is another case.
            let new = file.with_extension("new");
            fs::write(&new, text)
                .and_then(|()| fs::rename(&new, &file))
                .expect("it can be written");
            hang_up(&node);
            thread::sleep(Duration::from_millis(5));
        }
        drop(end);
        (
            pods.join().expect("no pod failed"),
            pulls.join().expect("no pull failed"),
        )
    });
    assert!(pods > 0 && pulls > 0, "{pods} pods, {pulls} pulls");
    fs::write(&file, format!("{good}\n[exec]\nmax_per_container = 3\n"))
        .expect("it can be written");
    hang_up(&node);
    let running = || node.output(&["config", "dump", "--running"]);
    assert!(
        eventually(Duration::from_secs(20), || running()
            .contains("max_per_container = 3\n")),
        "{}",
        running()
    );
    let counted = |result: &str| {
        metric(
            &node,
            &format!("switchyard_config_reloads_total{{result=\"{result}\"}}"),
        )
    };
    assert!(counted("applied") > 1.0 && counted("refused") > 1.0);
    let after = descriptors();
    assert!(
        after <= before + 30,
        "{before} files were open, and {after} are"
    );
    assert_eq!(node.daemon().get("/readyz").0, 200);
}
