//! The logkeeper's process, as the kernel shows it: each of its threads is confined.

use std::fs;
use std::time::Duration;

use crate::kill::{Victim, await_hello};
use crate::support::Site;

/// CAP_DAC_OVERRIDE and CAP_SYS_RESOURCE.
const KEPT: u64 = 1 << 1 | 1 << 24;

#[tokio::test]
async fn every_thread_has_no_new_privs_and_seccomp() {
    let site = Site::new();
    let victim = Victim::start(&site);
    await_hello(&site).await;
    // A thread that is started later is confined too.
    let spec = site.spec("c1");
    let mut output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    output.out("line\n");
    site.await_lines("c1", 1).await;
    let mut writers = 0;
    for task in fs::read_dir(format!("/proc/{}/task", victim.pid())).unwrap() {
        // A thread for short calls ends when it has nothing to do.
        let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else {
            continue;
        };
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"))
                .unwrap()
                .to_owned()
        };
        assert_eq!(
            (field("NoNewPrivs").as_str(), field("Seccomp").as_str()),
            ("1", "2"),
            "{status}"
        );
        if field("Name") != "logs" {
            continue;
        }
        writers += 1;
        for set in ["CapInh", "CapAmb"] {
            assert_eq!(u64::from_str_radix(&field(set), 16), Ok(0), "{status}");
        }
        for set in ["CapPrm", "CapEff", "CapBnd"] {
            let held = u64::from_str_radix(&field(set), 16).unwrap();
            assert_eq!(held & !KEPT, 0, "{status}");
        }
    }
    assert!(writers > 0);
    assert_eq!(
        site.client
            .finish("c1", Duration::ZERO)
            .await
            .unwrap()
            .lines,
        1
    );
}
