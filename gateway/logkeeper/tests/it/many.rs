//! Two hundred containers: how much memory their keeper needs, and that it sleeps while they write nothing.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use crate::kill::{Victim, await_hello};
use crate::support::Site;

/// Number of containers.
const CONTAINERS: usize = 200;

/// Number of lines of 128 bytes that each prints to its standard output: a mebibyte.
const LINES: u64 = 8192;

/// By how much the keeper's memory may grow for all of them, in KiB: 40 for each, and the shared buffers.
const GROWTH: u64 = 10 * 1024;

/// Maximum size of an idle spool, in bytes: its last page, and one that is not completely logged.
const SPOOL: u64 = 2 * 4096;

/// A number in `/proc/<pid>/status`.
fn status(pid: u32, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .unwrap();
    value.split_whitespace().next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn two_hundred_idle_containers_use_little_memory_and_no_cpu() {
    let site = Site::new();
    let victim = Victim::start(&site);
    await_hello(&site).await;
    let before = status(victim.pid(), "VmHWM");
    let mut outputs = Vec::new();
    for number in 0..CONTAINERS {
        let spec = site.spec(&format!("c{number}"));
        outputs.push(site.output(&spec));
        site.client.open(&spec).await.unwrap();
    }
    let line = format!("{}\n", "x".repeat(127));
    let text = line.repeat(usize::try_from(LINES).unwrap());
    // Some write at once, so that the keeper has to switch between them.
    for group in outputs.chunks_mut(8) {
        std::thread::scope(|scope| {
            for output in group {
                let text = &text;
                scope.spawn(move || output.stdout.write_all(text.as_bytes()).unwrap());
            }
        });
    }
    for number in 0..CONTAINERS {
        site.await_lines(&format!("c{number}"), LINES).await;
    }
    let growth = status(victim.pid(), "VmHWM") - before;
    assert!(growth <= GROWTH, "the keeper has grown by {growth} KiB");
    for entry in fs::read_dir(&site.config.state_dir).unwrap() {
        let entry = entry.unwrap();
        let held = entry.metadata().unwrap().blocks() * 512;
        assert!(
            held <= SPOOL,
            "{} holds {held} bytes",
            entry.path().display()
        );
    }
    // Without requests and output nothing may wake the keeper. At first it may still be about to sleep.
    let woken = || status(victim.pid(), "voluntary_ctxt_switches");
    let mut last = woken();
    let mut quiet = 0;
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = woken();
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
        if quiet == 10 {
            return;
        }
    }
    panic!("a keeper with nothing to do is woken again and again");
}
