//! The life of a container's log: open, write, reopen, finish, recovery.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use nix::sys::stat::Mode;
use switchyard_logkeeper::protocol::{FaultKind, Finished};
use switchyard_logkeeper::{Error, FifoHold};

use crate::disk_full::SmallDisk;
use crate::support::{PATIENCE, Site, log, parse, texts};

#[tokio::test]
async fn output_of_both_streams_is_logged() {
    let site = Site::new();
    let keeper = site.start().await;
    let spec = site.spec("c1");
    let mut output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    output.out("one\r\n\n\0\n");
    site.await_lines("c1", 3).await;
    output.err("two\n");
    let finished = site.client.finish("c1", Duration::ZERO).await.unwrap();
    assert_eq!(
        finished,
        Finished {
            lines: 4,
            bytes: 7,
            dropped_lines: 0,
            dropped_bytes: 0
        }
    );
    assert_eq!(
        texts(log(&spec)),
        ["stdout F one", "stdout F ", "stdout F \0", "stderr F two"]
    );
    let mode = fs::metadata(log(&spec)).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777 & !0o640, 0, "{mode:o}");
    assert!(
        fs::read_dir(&site.config.state_dir).unwrap().count() <= 1,
        "only the lock is left"
    );
    assert_eq!(site.client.list().await.unwrap(), []);
    keeper.stop().await;
}

#[tokio::test]
async fn open_is_idempotent_and_rejects_other_parameters() {
    let site = Site::new();
    let keeper = site.start().await;
    let mut spec = site.spec("c1");
    let mut output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    output.out("one\n");
    site.await_lines("c1", 1).await;
    site.client.open(&spec).await.unwrap();
    spec.max_line = 10;
    let error = site.client.open(&spec).await.unwrap_err();
    assert_eq!(error.fault().unwrap().kind, FaultKind::Conflict);
    output.out("two\n");
    site.client.finish("c1", Duration::ZERO).await.unwrap();
    assert_eq!(texts(log(&spec)), ["stdout F one", "stdout F two"]);
    keeper.stop().await;
}

#[tokio::test]
async fn log_at_the_path_of_a_fifo_or_directory_is_refused_by_name() {
    let site = Site::new();
    let keeper = site.start().await;
    let spec = site.spec("c1");
    let mut output = site.output(&spec);
    let path = log(&spec);
    let refused = |result: Result<(), Error>, what: &str| {
        let error = result.unwrap_err();
        let fault = error.fault().unwrap();
        let expected = format!("log {} cannot be written: it is {what}", path.display());
        assert!(fault.message.contains(&expected), "{fault}");
        assert_eq!(fault.kind, FaultKind::InvalidArgument);
    };
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    nix::unistd::mkfifo(path, Mode::S_IRWXU).unwrap();
    refused(site.client.open(&spec).await, "a FIFO");
    fs::remove_file(path).unwrap();
    site.client.open(&spec).await.unwrap();
    output.out("one\n");
    site.await_lines("c1", 1).await;
    let rotated = path.with_extension("log.1");
    fs::rename(path, &rotated).unwrap();
    fs::create_dir(path).unwrap();
    refused(site.client.reopen("c1").await, "a directory");
    output.out("two\n");
    site.client.finish("c1", Duration::ZERO).await.unwrap();
    assert_eq!(texts(&rotated), ["stdout F one", "stdout F two"]);
    keeper.stop().await;
}

#[tokio::test]
async fn finish_is_idempotent_and_unknown_ids_are_not_found() {
    let site = Site::new();
    let keeper = site.start().await;
    let spec = site.spec("c1");
    let _output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    for _ in 0..2 {
        assert_eq!(
            site.client.finish("c1", Duration::ZERO).await.unwrap(),
            Finished::default()
        );
    }
    assert_eq!(
        site.client.finish("../etc", Duration::ZERO).await.unwrap(),
        Finished::default()
    );
    keeper.stop().await;
}

#[tokio::test]
async fn finish_waits_for_writers_to_close_on_request() {
    let site = Site::new();
    let keeper = site.start().await;
    let spec = site.spec("c1");
    let mut output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    let finish = site.client.finish("c1", PATIENCE);
    tokio::pin!(finish);
    // Written while the finish is in progress, as by a shim that has not copied everything yet.
    loop {
        tokio::select! {
            done = &mut finish => panic!("finished with writers: {done:?}"),
            entries = site.client.list() => if entries.unwrap().first().is_some_and(|e| e.finishing) { break },
        }
    }
    output.out("late\n");
    output.err("later");
    drop(output);
    assert_eq!(finish.await.unwrap().lines, 2);
    let mut lines = texts(log(&spec));
    lines.sort();
    assert_eq!(lines, ["stderr P later", "stdout F late"]);
    keeper.stop().await;
}

#[tokio::test]
async fn finish_ends_at_its_deadline_with_open_writers() {
    let site = Site::new();
    let keeper = site.start().await;
    let spec = site.spec("c1");
    let mut output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    output.out("one\ntwo");
    assert_eq!(
        site.client
            .finish("c1", Duration::from_millis(20))
            .await
            .unwrap()
            .lines,
        2
    );
    assert_eq!(texts(log(&spec)), ["stdout F one", "stdout P two"]);
    keeper.stop().await;
}

#[tokio::test]
async fn renamed_log_does_not_grow_after_reopen() {
    let site = Site::new();
    let keeper = site.start().await;
    let spec = site.spec("c1");
    let mut output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    output.out("one\nhel");
    site.await_lines("c1", 1).await;
    let old = log(&spec).with_extension("log.old");
    fs::rename(log(&spec), &old).unwrap();
    output.out("d\n");
    site.await_lines("c1", 2).await;
    assert_eq!(
        texts(&old).len(),
        2,
        "until it is reopened the renamed file is written"
    );
    site.client.reopen("c1").await.unwrap();
    assert_eq!(texts(log(&spec)).len(), 0, "the new file is there at once");
    output.out("three\n");
    site.client.finish("c1", Duration::ZERO).await.unwrap();
    assert_eq!(texts(&old), ["stdout F one", "stdout F held"]);
    assert_eq!(texts(log(&spec)), ["stdout F three"]);
    let error = site.client.reopen("c1").await.unwrap_err();
    assert_eq!(error.fault().unwrap().kind, FaultKind::NotFound);
    keeper.stop().await;
}

#[tokio::test]
async fn deleted_log_does_not_block_the_container() {
    let site = Site::new();
    let keeper = site.start().await;
    let spec = site.spec("c1");
    let mut output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    fs::remove_dir_all(log(&spec).parent().unwrap()).unwrap();
    output.out("into the deleted file\n");
    site.await_lines("c1", 1).await;
    site.client.reopen("c1").await.unwrap();
    output.out("two\n");
    site.client.finish("c1", Duration::ZERO).await.unwrap();
    assert_eq!(texts(log(&spec)), ["stdout F two"]);
    keeper.stop().await;
}

#[tokio::test]
async fn concurrent_streams_never_tear_lines() {
    const LINES: usize = 20_000;
    let site = Site::new();
    let keeper = site.start().await;
    let spec = site.spec("c1");
    let output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    let writers = [("stdout", output.stdout), ("stderr", output.stderr)].map(|(name, mut fifo)| {
        tokio::task::spawn_blocking(move || {
            for number in 0..LINES {
                // Each line takes two writes, so that reads end within lines.
                let front = format!("{name} ");
                let rest = format!("{number} {}\n", "x".repeat(number % 200));
                std::io::Write::write_all(&mut fifo, front.as_bytes()).unwrap();
                std::io::Write::write_all(&mut fifo, rest.as_bytes()).unwrap();
            }
        })
    });
    for writer in writers {
        tokio::time::timeout(PATIENCE, writer)
            .await
            .unwrap()
            .unwrap();
    }
    assert_eq!(
        site.client.finish("c1", PATIENCE).await.unwrap().lines,
        2 * LINES as u64
    );
    let mut next = [0, 0];
    for line in parse(log(&spec)) {
        let count = &mut next[usize::from(line.stream == "stderr")];
        let expected = format!("{} {count} {}", line.stream, "x".repeat(*count % 200));
        assert_eq!(String::from_utf8(line.content).unwrap(), expected);
        *count += 1;
    }
    assert_eq!(next, [LINES, LINES]);
    keeper.stop().await;
}

#[tokio::test]
async fn long_line_is_chunked_and_held_tail_does_not_block_the_writer() {
    let site = Site::new();
    let keeper = site.start().await;
    let spec = site.spec("c1");
    let mut output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    output.out("first\nheld ");
    site.await_lines("c1", 1).await;
    // More than any FIFO holds, in one write, after an unfinished line: the writer fills the FIFO and sleeps
    // within the call.
    let long = vec![b'y'; 3 * 1024 * 1024];
    let mut fifo = output.stdout;
    let writer =
        tokio::task::spawn_blocking(move || std::io::Write::write_all(&mut fifo, &long).unwrap());
    tokio::time::timeout(PATIENCE, writer)
        .await
        .expect("the writer sleeps for good")
        .unwrap();
    drop(output.stderr);
    site.client.finish("c1", PATIENCE).await.unwrap();
    let lines = parse(log(&spec));
    assert!(lines[1..].iter().all(|line| line.tag == "P"));
    assert!(
        lines[1..lines.len() - 1]
            .iter()
            .all(|line| line.content.len() == 16384)
    );
    assert_eq!(
        lines[1..]
            .iter()
            .map(|line| line.content.len())
            .sum::<usize>(),
        5 + 3 * 1024 * 1024
    );
    keeper.stop().await;
}

#[tokio::test]
async fn busy_container_does_not_starve_another() {
    let site = Site::new();
    let keeper = site.start().await;
    let busy = site.spec("busy");
    let calm = site.spec("calm");
    let noise = site.output(&busy);
    let mut output = site.output(&calm);
    site.client.open(&busy).await.unwrap();
    site.client.open(&calm).await.unwrap();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let mut fifo = noise.stdout;
    let writer = tokio::task::spawn_blocking(move || {
        let text = "noise\n".repeat(10_000);
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            std::io::Write::write_all(&mut fifo, text.as_bytes()).unwrap();
        }
    });
    for number in 1..=50 {
        output.out("calm\n");
        site.await_lines("calm", number).await;
    }
    assert!(site.lines_of("busy").await > 0);
    drop(stop);
    tokio::time::timeout(PATIENCE, writer)
        .await
        .unwrap()
        .unwrap();
    site.client.finish("busy", Duration::ZERO).await.unwrap();
    site.client.finish("calm", Duration::ZERO).await.unwrap();
    keeper.stop().await;
}

#[tokio::test]
async fn new_logkeeper_resumes_where_its_predecessor_stopped() {
    let site = Site::new();
    let keeper = site.start().await;
    let spec = site.spec("c1");
    let mut output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    output.out("one\nhe");
    site.await_lines("c1", 1).await;
    keeper.stop().await;
    output.out("ld\n");
    let keeper = site.start().await;
    site.client.open(&spec).await.unwrap();
    let stats = site.client.stats().await.unwrap();
    assert_eq!(stats.recovered, 1);
    assert!(
        stats.totals.lines <= 1,
        "the first line was counted by its predecessor: {stats:?}"
    );
    output.out("three\n");
    assert_eq!(
        site.client
            .finish("c1", Duration::ZERO)
            .await
            .unwrap()
            .lines,
        3
    );
    let totals = site.client.stats().await.unwrap().totals;
    assert_eq!(
        totals.lines, 2,
        "the counters of its predecessor are not its own"
    );
    assert_eq!(
        texts(log(&spec)),
        ["stdout F one", "stdout F held", "stdout F three"]
    );
    keeper.stop().await;
}

#[tokio::test]
async fn container_without_fifos_is_logged_to_eof_and_dropped() {
    let site = Site::new();
    let keeper = site.start().await;
    let spec = site.spec("c1");
    let mut output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    output.out("one\nheld");
    site.await_lines("c1", 1).await;
    keeper.stop().await;
    fs::remove_file(spec.stdout.as_ref().unwrap()).unwrap();
    fs::remove_file(spec.stderr.as_ref().unwrap()).unwrap();
    let keeper = site.start().await;
    assert_eq!(site.client.list().await.unwrap(), []);
    assert_eq!(texts(log(&spec)), ["stdout F one", "stdout P held"]);
    assert!(
        fs::read_dir(&site.config.state_dir).unwrap().count() <= 1,
        "only the lock is left"
    );
    keeper.stop().await;
}

#[tokio::test]
async fn fifo_hold_preserves_last_output_without_a_logkeeper() {
    let site = Site::new();
    let keeper = site.start().await;
    let spec = site.spec("c1");
    let mut output = site.output(&spec);
    let hold = FifoHold::open(&spec).unwrap();
    site.client.open(&spec).await.unwrap();
    keeper.stop().await;
    output.out("last words\n");
    drop(output);
    let keeper = site.start().await;
    // The hold does not count as a writer, so this returns as soon as all output is read.
    assert_eq!(site.client.finish("c1", PATIENCE).await.unwrap().lines, 1);
    drop(hold);
    assert_eq!(texts(log(&spec)), ["stdout F last words"]);
    keeper.stop().await;
}

#[tokio::test]
async fn file_system_that_is_mounted_later_is_known_to_the_next_log() {
    let site = Site::new();
    let keeper = site.start().await;
    let mut outputs = Vec::new();
    // They stay mounted: the kernel gives the device number of one that is gone to the next.
    let mut disks = Vec::new();
    for name in ["one", "two", "three"] {
        let plain = site.spec(&format!("before-{name}"));
        outputs.push(site.output(&plain));
        site.client.open(&plain).await.unwrap();

        let disk = SmallDisk::mount(site.dir.path().join(name), "size=1m");
        let mut spec = site.spec(name);
        spec.log = Some(disk.0.join("c/0.log"));
        outputs.push(site.output(&spec));
        site.client.open(&spec).await.unwrap();
        let file_systems = site.client.stats().await.unwrap().file_systems;
        let is_known = |point: &str| {
            file_systems
                .iter()
                .any(|known| known.mount_point.ends_with(point))
        };
        assert!(is_known(&format!("/{name}")), "{file_systems:?}");
        site.client.finish(name, Duration::ZERO).await.unwrap();
        disks.push(disk);
    }
    keeper.stop().await;
}
