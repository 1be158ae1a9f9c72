//! A node that a former version began has its defaults of networks under this one, also after a rollback (ADR 117).

use std::fs;

use switchyard_tests::daemon::binary;
use switchyard_tests::node::{Containerd, TestNode};
use switchyard_tests::versions;

use super::super::Counter;
use super::{following, install};

#[test]
fn node_keeps_the_defaults_of_the_version_that_began_it() {
    let former = versions::former();
    let node = TestNode::start_version(&former, Containerd::Managed, |root| {
        fs::remove_file(root.network_defaults()).expect("the root has written it");
        String::new()
    });
    let record = node.root().network_defaults();
    let counter = Counter::start(&node, "counted");
    // Without a program of a former version the tested one has begun the node.
    let (driver, isolation) = if former == binary() {
        ("native", "bridge")
    } else {
        assert!(!record.exists(), "the former version has no such file");
        ("cni", "none")
    };
    let [(this, upgraded), (former, rolled_back)] = following();
    for (program, when) in [
        (&this, upgraded),
        (&former, rolled_back),
        (&this, "after the second upgrade"),
    ] {
        install(&node, program);
        counter.assert_runs(when);
        let text = fs::read_to_string(&record).expect("it is written at the upgrade, and stays");
        assert_eq!(
            text,
            format!("version = 1\ndriver = \"{driver}\"\n"),
            "{when}"
        );
        if *program == this {
            let dump = node.output(&["config", "dump", "--running"]);
            assert!(
                dump.contains(&format!("\nisolation = \"{isolation}\"\n")),
                "{when}: {dump}"
            );
        }
    }
    counter.end("at the end");
}
