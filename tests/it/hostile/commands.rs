//! Commands in containers, with hostile output.

use std::thread;

use switchyard_tests::node::TestNode;
use tonic::Code;

const LIMITS: &str = "[exec]\nmax_output_bytes = 8388608\nmax_per_container = 3\n";

#[test]
fn exec_output_and_exec_count_limits_are_rejected_by_key() {
    let node = TestNode::start_with(LIMITS, |_| {});
    let pod = node.pod("commands");
    let wait =
        "until [ $(cat /dev/shm/begun | wc -l) = 3 ]; do sleep 0.1; done; echo full; sleep 1000";
    let id = pod.start_shell("main", &format!("touch /dev/shm/begun; {wait}"));
    let cri = node.cri();
    let status = cri
        .exec(&id, &["head", "-c", "3000000", "/dev/zero"], 20)
        .expect_err("it is more than there may be");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(
        status.message().contains("2097152") && status.message().contains("exec.max_output_bytes"),
        "{status}"
    );
    // The buffer of the refused output has been released, so outputs that fit succeed.
    for _ in 0..3 {
        let answer = cri
            .exec(&id, &["head", "-c", "1500000", "/dev/zero"], 20)
            .expect("it fits");
        assert_eq!(answer.stdout.len(), 1_500_000);
    }
    let id = &id;
    thread::scope(|scope| {
        let sleep = ["sh", "-c", "echo >>/dev/shm/begun; sleep 3"];
        let sleeps: Vec<_> = (0..3)
            .map(|_| scope.spawn(move || cri.exec(id, &sleep, 20)))
            .collect();
        pod.wait_log("main", |lines| !lines.is_empty());
        let status = cri.exec(id, &["true"], 20).expect_err("three run");
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert!(
            status.message().contains("exec.max_per_container"),
            "{status}"
        );
        for sleep in sleeps {
            assert_eq!(
                sleep
                    .join()
                    .expect("it is answered")
                    .expect("it runs")
                    .exit_code,
                0
            );
        }
    });
    assert_eq!(
        cri.exec(id, &["true"], 20)
            .expect("there is room again")
            .exit_code,
        0
    );
}
