//! A file system that hangs stalls the logs that are on it, and nothing else.

use std::fs;
use std::time::Duration;

use switchyard_logkeeper::format::Stream;
use switchyard_logkeeper::protocol::{FaultKind, Finished};
use switchyard_logkeeper::{Client, Error, LogSpec};

use crate::fuse::Fuse;
use crate::kill::{Victim, await_hello};
use crate::support::{Output, PATIENCE, Site, log, texts};

/// Number of containers with their logs on the file system that hangs.
const HUNG: usize = 100;

/// By how much the keeper's memory may grow while they hang, in KiB.
const GROWTH: u64 = 4 * 1024;

/// A node with two file systems for logs.
struct Disks {
    fuse: Fuse,
    site: Site,
}

impl Disks {
    fn new() -> Self {
        let site = Site::new();
        let fuse = Fuse::mount(site.dir.path().join("hung"));
        Self { fuse, site }
    }

    /// A container whose log is on the file system that can hang.
    fn spec(&self, id: &str) -> LogSpec {
        let log = Some(self.site.dir.path().join(format!("hung/{id}/0.log")));
        LogSpec {
            log,
            ..self.site.spec(id)
        }
    }

    /// Waits until the keeper reports this many file systems as hanging.
    async fn await_stalled(&self, count: u64) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while self.site.client.stats().await.unwrap().stalled != count {
            assert!(
                tokio::time::Instant::now() < deadline,
                "{count} file systems never counted as hanging"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The content of a log on the file system that can hang.
    fn lines(&self, id: &str) -> Vec<String> {
        let text = String::from_utf8(self.fuse.contents()[&format!("{id}/0.log")].clone()).unwrap();
        text.lines().map(|line| line[31..].to_owned()).collect()
    }
}

fn of_status(pid: u32, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .unwrap();
    value.split_whitespace().next().unwrap().parse().unwrap()
}

/// The threads that write logs. One for short calls comes and goes.
fn log_threads(pid: u32) -> usize {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let names = threads.flatten().filter_map(|thread| {
        // It may have ended.
        fs::read_to_string(thread.path().join("comm")).ok()
    });
    names.filter(|name| name.trim_end() == "logs").count()
}

#[track_caller]
fn assert_busy<T: std::fmt::Debug>(result: Result<T, Error>) {
    let error = result.unwrap_err();
    let fault = error.fault().unwrap_or_else(|| panic!("{error}"));
    assert_eq!(fault.kind, FaultKind::Busy, "{fault}");
    assert!(
        fault
            .message
            .contains("waits for the file system of its log, mounted on "),
        "{fault}"
    );
}

#[tokio::test]
async fn hung_file_system_stalls_only_its_own_logs() {
    let disks = Disks::new();
    let site = &disks.site;
    let client = &disks.site.client;
    let victim = Victim::start(site);
    await_hello(site).await;
    let mut hung: Vec<(String, Output)> = Vec::new();
    for number in 0..HUNG {
        let spec = disks.spec(&format!("h{number}"));
        hung.push((spec.id.clone(), site.output(&spec)));
        client.open(&spec).await.unwrap();
    }
    let good = site.spec("good");
    let mut output = site.output(&good);
    client.open(&good).await.unwrap();
    for (id, output) in &mut hung {
        output.out("before\n");
        site.await_lines(id, 1).await;
    }
    output.out("before\n");
    site.await_lines("good", 1).await;
    let threads = log_threads(victim.pid());
    let memory = of_status(victim.pid(), "VmRSS");

    disks.fuse.hang();
    for (_, output) in &mut hung {
        output.out("meanwhile\n".repeat(100));
    }
    disks.await_stalled(1).await;
    let stats = client.stats().await.unwrap();
    assert_eq!(
        (stats.stalled_containers, stats.stalls),
        (HUNG as u64, 1),
        "{stats:?}"
    );
    assert!(stats.stall_age_ms >= 2000, "{stats:?}");
    assert_other_logs_are_served(site, &good, &mut output).await;
    let late = disks.spec("late");
    let mut of_late = site.output(&late);
    assert_calls_are_refused(client, &hung, &late).await;
    let other = LogSpec {
        max_line: 100,
        ..late.clone()
    };
    assert_eq!(
        client.open(&other).await.unwrap_err().fault().unwrap().kind,
        FaultKind::Conflict
    );
    assert_eq!(client.list().await.unwrap().len(), HUNG + 2);
    assert_eq!(
        log_threads(victim.pid()),
        threads,
        "threads came with containers that hang"
    );
    let grown = of_status(victim.pid(), "VmRSS").saturating_sub(memory);
    assert!(grown <= GROWTH, "the keeper has grown by {grown} KiB");

    disks.fuse.resume();
    assert_no_line_is_lost(&disks, &hung).await;
    // It was opened when the file system answered again.
    of_late.out("late\n");
    client.open(&late).await.unwrap();
    assert_eq!(
        client.finish("late", Duration::ZERO).await.unwrap().lines,
        1
    );
    assert_eq!(disks.lines("late"), ["stdout F late"]);
    disks.await_stalled(0).await;
    let stats = client.stats().await.unwrap();
    assert_eq!(
        (stats.stalled_containers, stats.stall_age_ms, stats.stalls),
        (0, 0, 1),
        "{stats:?}"
    );
    drop(victim);
}

async fn assert_no_line_is_lost(disks: &Disks, hung: &[(String, Output)]) {
    for (id, _) in hung {
        disks.site.await_lines(id, 101).await;
        let finished = disks.site.client.finish(id, Duration::ZERO).await.unwrap();
        assert_eq!((finished.lines, finished.dropped_lines), (101, 0), "{id}");
        let lines = disks.lines(id);
        assert_eq!(lines[0], "stdout F before");
        assert!(
            lines[1..].iter().all(|line| line == "stdout F meanwhile") && lines.len() == 101,
            "{lines:?}"
        );
    }
}

/// A call that would have to wait is refused at once; otherwise such calls would hold up all others.
async fn assert_calls_are_refused(client: &Client, hung: &[(String, Output)], late: &LogSpec) {
    for _ in 0..2 {
        assert_busy(client.open(late).await);
    }
    for (id, _) in hung {
        assert_busy(client.reopen(id).await);
        assert_busy(client.attach(id, Stream::Stdout).await);
    }
}

async fn assert_other_logs_are_served(site: &Site, good: &LogSpec, output: &mut Output) {
    for number in 2..50 {
        output.out("meanwhile\n");
        site.await_lines("good", number).await;
    }
    fs::rename(log(good), log(good).with_extension("old")).unwrap();
    site.client.reopen("good").await.unwrap();
    drop(site.client.attach("good", Stream::Stdout).await.unwrap());
    let another = site.spec("another");
    let mut of_another = site.output(&another);
    site.client.open(&another).await.unwrap();
    of_another.out("line\n");
    assert_eq!(
        site.client
            .finish("another", Duration::ZERO)
            .await
            .unwrap()
            .lines,
        1
    );
}

#[tokio::test]
async fn log_hung_at_shutdown_is_continued_by_the_next_logkeeper() {
    let disks = Disks::new();
    let site = &disks.site;
    let client = &disks.site.client;
    let first = Victim::start(site);
    await_hello(site).await;
    let hung = disks.spec("hung");
    let good = site.spec("good");
    let mut of_hung = site.output(&hung);
    let mut of_good = site.output(&good);
    client.open(&hung).await.unwrap();
    client.open(&good).await.unwrap();
    of_hung.out("one\n");
    site.await_lines("hung", 1).await;
    disks.fuse.hang();
    of_hung.out("two\n");
    disks.await_stalled(1).await;
    client.shutdown().await.unwrap();
    // The old process cannot end while one of its threads is in a call that does not return. The next one
    // serves nevertheless, once the old one has released the lock of the directory and the socket.
    let mut next = Victim::start(site);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !client
        .hello()
        .await
        .is_ok_and(|welcome| welcome.pid == next.pid())
    {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the next keeper does not serve"
        );
        if next.has_ended() {
            next = Victim::start(site);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    of_good.out("good\n");
    site.await_lines("good", 1).await;
    assert_busy(client.reopen("hung").await);
    of_hung.out("three\n");
    disks.fuse.resume();
    site.await_lines("hung", 3).await;
    assert_eq!(
        client.finish("hung", Duration::ZERO).await.unwrap().lines,
        3
    );
    assert_eq!(
        disks.lines("hung"),
        ["stdout F one", "stdout F two", "stdout F three"]
    );
    assert_eq!(
        client.finish("good", Duration::ZERO).await.unwrap().lines,
        1
    );
    assert_eq!(texts(log(&good)), ["stdout F good"]);
    drop((first, next));
}

/// A container whose log was renamed, as the kubelet does before a reopen, on a file system that hangs since.
async fn renamed_and_hung(disks: &Disks, id: &str) -> Output {
    let site = &disks.site;
    let spec = disks.spec(id);
    let mut output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    output.out("one\n");
    site.await_lines(id, 1).await;
    fs::rename(log(&spec), log(&spec).with_extension("rotated")).unwrap();
    disks.fuse.hang();
    output
}

/// Waits until the keeper has handled all commands that were queued for a container, and gives its log its name back,
/// as the kubelet does after a reopen that failed. What is printed then is in that log.
async fn assert_logs_on_after_a_failed_reopen(
    disks: &Disks,
    id: &str,
    mut output: Output,
    lines: &[&str],
) {
    let site = &disks.site;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while let Err(error) = site.client.attach(id, Stream::Stdout).await {
        assert!(tokio::time::Instant::now() < deadline, "{error}");
    }
    let log = log(&disks.spec(id)).to_path_buf();
    fs::rename(log.with_extension("rotated"), &log).unwrap();
    output.out("last\n");
    let lines: Vec<_> = lines
        .iter()
        .chain(&["last"])
        .map(|line| format!("stdout F {line}"))
        .collect();
    site.await_lines(id, lines.len() as u64).await;
    assert_eq!(disks.lines(id), lines);
}

#[tokio::test]
async fn reopen_that_was_refused_is_not_carried_out_later() {
    let disks = Disks::new();
    let victim = Victim::start(&disks.site);
    await_hello(&disks.site).await;
    let mut output = renamed_and_hung(&disks, "c1").await;
    output.out("two\n");
    disks.await_stalled(1).await;
    assert_busy(disks.site.client.reopen("c1").await);
    disks.fuse.resume();
    disks.site.await_lines("c1", 2).await;
    assert_logs_on_after_a_failed_reopen(&disks, "c1", output, &["one", "two"]).await;
    drop(victim);
}

#[tokio::test]
async fn reopen_whose_caller_has_gone_is_not_carried_out_later() {
    let disks = Disks::new();
    let victim = Victim::start(&disks.site);
    await_hello(&disks.site).await;
    let output = renamed_and_hung(&disks, "c1").await;
    // The file system does not count as hanging yet, so this waits in the call that opens the new log.
    let impatient = Client::with_limit(&disks.site.config.socket, Duration::from_millis(200));
    assert!(matches!(
        impatient.reopen("c1").await,
        Err(Error::Deadline { .. })
    ));
    // With the second answer, the keeper has seen that the caller's connection was closed before the first request.
    for _ in 0..2 {
        disks.site.client.list().await.unwrap();
    }
    disks.fuse.resume();
    assert_logs_on_after_a_failed_reopen(&disks, "c1", output, &["one"]).await;
    drop(victim);
}

/// The files in the keeper's state directory.
fn state(site: &Site) -> Vec<String> {
    let entries = fs::read_dir(&site.config.state_dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Returns whether a process has a file open whose path ends so.
fn has_open(pid: u32, end: &str) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    files.flatten().any(|file| {
        fs::read_link(file.path()).is_ok_and(|path| path.to_str().unwrap().ends_with(end))
    })
}

/// Waits until a process has closed all files whose paths end so.
async fn await_closed(pid: u32, ends: &[&str]) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while ends.iter().any(|end| has_open(pid, end)) {
        assert!(tokio::time::Instant::now() < deadline, "{ends:?} stay open");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn container_whose_log_hangs_is_given_up_and_nothing_of_it_stays() {
    let disks = Disks::new();
    let site = &disks.site;
    let client = &site.client;
    let victim = Victim::start(site);
    await_hello(site).await;
    let [spec, late] = ["c1", "late"].map(|id| disks.spec(id));
    let mut output = site.output(&spec);
    let _of_late = site.output(&late);
    client.open(&spec).await.unwrap();
    output.out("one\n");
    site.await_lines("c1", 1).await;
    let answering = client.abandon("c1").await.unwrap_err();
    assert!(answering.to_string().contains("finish it"), "{answering}");
    disks.fuse.hang();
    output.out("two\nthr");
    disks.await_stalled(1).await;
    output.out("ee\nfour");
    assert_busy(client.open(&late).await);
    for id in ["c1", "late"] {
        assert_busy(client.finish(id, Duration::ZERO).await);
    }
    // What was not logged, as far as is known: the line that is being written, and what came after it.
    let given_up = client.abandon("c1").await.unwrap();
    assert_eq!(
        (
            given_up.lines,
            given_up.dropped_lines,
            given_up.dropped_bytes
        ),
        (1, 3, 12)
    );
    for id in ["c1", "late", "unknown"] {
        assert_eq!(client.abandon(id).await.unwrap(), Finished::default());
    }
    assert!(client.list().await.unwrap().is_empty() && !client.keeps("c1").await.unwrap());
    let stats = client.stats().await.unwrap();
    assert_eq!(
        (stats.containers, stats.stalled_containers, stats.finished),
        (0, 0, 2),
        "{stats:?}"
    );
    assert_eq!(
        (stats.totals.lines, stats.totals.dropped_lines),
        (1, 3),
        "{stats:?}"
    );
    assert_eq!(state(site), ["lock"]);
    let reused = client.open(&spec).await.unwrap_err();
    assert!(
        reused
            .fault()
            .is_some_and(|fault| fault.kind == FaultKind::Busy),
        "{reused}"
    );

    disks.fuse.resume();
    await_closed(victim.pid(), &["c1.out", "late.out"]).await;
    assert_eq!(state(site), ["lock"]);
    assert_eq!(disks.lines("c1"), ["stdout F one", "stdout F two"]);
    // The task ends a moment after it has closed its files.
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while let Err(error) = client.open(&spec).await {
        assert!(tokio::time::Instant::now() < deadline, "{error}");
    }
    output.out("new\n");
    site.await_lines("c1", 1).await;
    assert_eq!(client.finish("c1", Duration::ZERO).await.unwrap().lines, 1);
    drop(victim);
}

#[tokio::test]
async fn container_that_is_given_up_while_it_is_opened_leaves_no_file() {
    let disks = Disks::new();
    let site = &disks.site;
    let victim = Victim::start(site);
    await_hello(site).await;
    let spec = disks.spec("c1");
    let mut output = site.output(&spec);
    output.out("lost\n");
    disks.fuse.hang_at_creation();
    assert_busy(site.client.open(&spec).await);
    let given_up = site.client.abandon("c1").await.unwrap();
    assert_eq!((given_up.dropped_lines, given_up.dropped_bytes), (1, 4));
    assert!(
        has_open(victim.pid(), "c1.out"),
        "it hangs at another place"
    );
    disks.fuse.resume();
    await_closed(victim.pid(), &["c1.out"]).await;
    assert_eq!(state(site), ["lock"]);
    drop(victim);
}
