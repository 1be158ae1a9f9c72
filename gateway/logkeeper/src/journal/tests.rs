//! Each test stops after one step of a batch, as a kill there would, and recovers the files.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use tempfile::TempDir;

use super::*;
use crate::state_dir::StateDir;

struct Setup {
    dir: TempDir,
    paths: EntryPaths,
    spec: LogSpec,
    fifos: [File; 2],
    windows: Arc<WindowBudget>,
    scratch: Scratch,
}

/// The log of a container that has one.
fn log(spec: &LogSpec) -> &Path {
    spec.log.as_deref().unwrap()
}

impl Setup {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let fifos = ["out", "err"].map(|name| {
            let path = dir.path().join(name);
            nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
            let flags = OFlag::O_NONBLOCK.bits();
            OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(flags)
                .open(path)
                .unwrap()
        });
        let spec = LogSpec {
            id: "c1".into(),
            stdout: Some(dir.path().join("out")),
            stderr: Some(dir.path().join("err")),
            log: Some(dir.path().join("logs/c1.log")),
            tty: false,
            max_line: 16,
        };
        let paths = StateDir::open(dir.path()).unwrap().0.paths("c1");
        let windows = WindowBudget::of(dir.path());
        Self {
            dir,
            paths,
            spec,
            fifos,
            windows,
            scratch: Scratch::new(),
        }
    }

    fn create(&self) -> Journal {
        Journal::create(&self.paths, &self.spec, &self.windows).unwrap()
    }

    fn recover(&mut self) -> Journal {
        Journal::recover(&self.paths, &self.spec, &self.windows, &mut self.scratch).unwrap()
    }

    fn write(&mut self, stream: Stream, text: &str) {
        self.fifos[stream.index()]
            .write_all(text.as_bytes())
            .unwrap();
    }

    /// Receives until nothing is left.
    fn receive(&mut self, journal: &mut Journal, stream: Stream) {
        let fifo = &self.fifos[stream.index()];
        while journal.receive(stream, fifo, &mut self.scratch).unwrap() != Received::Empty {}
    }

    /// The log without timestamps.
    fn log(&self) -> String {
        Self::read(log(&self.spec))
    }

    fn read(path: &Path) -> String {
        let text = fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| format!("{}\n", &line[STAMP..]))
            .collect()
    }
}

const STAMP: usize = crate::clock::STAMP_LEN + 1;

#[test]
fn unfinished_line_is_logged_partial_at_eof() {
    let mut setup = Setup::new();
    let mut journal = setup.create();
    setup.write(Stream::Stdout, "one\r\n\ntw");
    setup.write(Stream::Stderr, "err\n");
    setup.receive(&mut journal, Stream::Stdout);
    setup.receive(&mut journal, Stream::Stderr);
    assert_eq!(setup.log(), "stdout F one\nstdout F \nstderr F err\n");
    journal.finish(&mut setup.scratch);
    assert_eq!(
        setup.log(),
        "stdout F one\nstdout F \nstderr F err\nstdout P tw\n"
    );
    let counters = Counters {
        lines: 4,
        bytes: 8,
        dropped_lines: 0,
        dropped_bytes: 0,
    };
    assert_eq!(journal.counters(), counters);
}

#[test]
fn killed_after_moving_to_the_spool_logs_it_at_recovery() {
    let mut setup = Setup::new();
    let mut journal = setup.create();
    setup.write(Stream::Stdout, "one\ntwo\nthr");
    let spool = journal.spools[0].as_mut().unwrap();
    spool.receive(&setup.fifos[0], BATCH).unwrap();
    drop(journal);
    let mut journal = setup.recover();
    assert_eq!(setup.log(), "stdout F one\nstdout F two\n");
    setup.write(Stream::Stdout, "ee\n");
    setup.receive(&mut journal, Stream::Stdout);
    assert_eq!(setup.log(), "stdout F one\nstdout F two\nstdout F three\n");
}

#[track_caller]
fn check_killed_between_log_and_record(cut: usize, rename: bool) {
    let mut setup = Setup::new();
    let mut journal = setup.create();
    setup.write(Stream::Stdout, "same\n");
    setup.receive(&mut journal, Stream::Stdout);
    let before = fs::metadata(log(&setup.spec)).unwrap().len();
    let record = fs::read(&setup.paths.position).unwrap();
    // The lines are equal, so that the content does not show which ones were written.
    setup.write(Stream::Stdout, "same\nsame\n");
    setup.receive(&mut journal, Stream::Stdout);
    drop(journal);
    fs::write(&setup.paths.position, record).unwrap();
    let file = OpenOptions::new()
        .write(true)
        .open(log(&setup.spec))
        .unwrap();
    let full = file.metadata().unwrap().len();
    file.set_len(full - cut as u64).unwrap();
    assert!(full - cut as u64 > before, "the batch was begun");
    let old = setup.dir.path().join("logs/c1.log.1");
    if rename {
        fs::rename(log(&setup.spec), &old).unwrap();
    }
    let journal = setup.recover();
    if rename {
        assert_eq!(Setup::read(&old), "stdout F same\n");
        assert_eq!(setup.log(), "stdout F same\nstdout F same\n");
    } else {
        assert_eq!(setup.log(), "stdout F same\nstdout F same\nstdout F same\n");
    }
    assert_eq!(journal.counters().lines, 3);
}

#[test]
fn killed_after_writing_the_log_duplicates_nothing() {
    check_killed_between_log_and_record(0, false);
}

#[test]
fn killed_while_writing_the_log_tears_nothing() {
    check_killed_between_log_and_record(7, false);
}

#[test]
fn killed_after_writing_a_log_that_is_then_renamed_duplicates_nothing() {
    check_killed_between_log_and_record(0, true);
    check_killed_between_log_and_record(50, true);
}

#[test]
fn repeated_recovery_of_idle_files_changes_nothing() {
    let mut setup = Setup::new();
    let mut journal = setup.create();
    setup.write(Stream::Stdout, "one\ntw");
    setup.receive(&mut journal, Stream::Stdout);
    drop(journal);
    let before = fs::read(log(&setup.spec)).unwrap();
    for _ in 0..3 {
        drop(setup.recover());
        assert_eq!(fs::read(log(&setup.spec)).unwrap(), before);
    }
}

#[test]
fn damaged_record_discards_the_spool_and_continues() {
    let mut setup = Setup::new();
    let mut journal = setup.create();
    setup.write(Stream::Stdout, "one\n");
    setup.receive(&mut journal, Stream::Stdout);
    drop(journal);
    fs::write(&setup.paths.position, "damaged").unwrap();
    let mut journal = setup.recover();
    setup.write(Stream::Stdout, "two\n");
    setup.receive(&mut journal, Stream::Stdout);
    assert_eq!(setup.log(), "stdout F one\nstdout F two\n");
}

#[test]
fn logged_output_leaves_no_blocks_in_the_spool() {
    use std::os::unix::fs::MetadataExt;
    let mut setup = Setup::new();
    let mut journal = setup.create();
    for _ in 0..200 {
        setup.write(Stream::Stdout, &"0123456789abcde\n".repeat(256));
        setup.receive(&mut journal, Stream::Stdout);
    }
    setup.write(Stream::Stdout, "held");
    setup.receive(&mut journal, Stream::Stdout);
    let spool = fs::metadata(&setup.paths.spools[0]).unwrap();
    assert_eq!(spool.len(), 200 * 4096 + 4);
    assert!(
        spool.blocks() * 512 <= 4 * PAGE,
        "{} blocks",
        spool.blocks()
    );
    // The held-back bytes are still there.
    journal.finish(&mut setup.scratch);
    assert!(setup.log().ends_with("stdout P held\n"));
}

#[test]
fn batch_of_newlines_is_logged_completely() {
    let mut setup = Setup::new();
    let mut journal = setup.create();
    setup.write(Stream::Stdout, &"\n".repeat(60_000));
    setup.receive(&mut journal, Stream::Stdout);
    assert_eq!(journal.counters().lines, 60_000);
    let text = fs::read_to_string(log(&setup.spec)).unwrap();
    let mut times: Vec<_> = text.lines().map(|line| &line[..STAMP]).collect();
    assert!(times.is_sorted(), "times go up");
    times.dedup();
    assert_eq!(times.len(), 60_000, "no two lines have the same time");
}

#[test]
fn output_is_logged_without_its_spool_when_that_cannot_be_written() {
    let mut setup = Setup::new();
    let mut journal = setup.create();
    setup.write(Stream::Stdout, "he");
    setup.receive(&mut journal, Stream::Stdout);
    // A read-only descriptor simulates a full disk: splice fails and moves nothing.
    let end = journal.spools[0].as_ref().unwrap().logged();
    journal.spools[0] = Some(Spool::read_only(&setup.paths.spools[0], end));
    setup.write(Stream::Stdout, "ld\nnext\nunfinished");
    setup.receive(&mut journal, Stream::Stdout);
    assert_eq!(
        setup.log(),
        "stdout F held\nstdout F next\nstdout P unfinished\n"
    );
    // Attached clients have got the content of the spool, and the number of bytes that are missing.
    assert_eq!(
        journal.feeds[0].unshown(),
        "ld\nnext\nunfinished".len() as u64
    );
    assert_eq!(journal.counters().dropped_lines, 0);
}
