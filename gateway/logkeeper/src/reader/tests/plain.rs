//! Plain text in numbered files.

use std::os::unix::fs::symlink;

use super::*;

struct PlainLog(TempDir, ReadWaiter);

impl PlainLog {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("alloc/logs")).unwrap();
        Self(dir, ReadWaiter::default())
    }

    fn file(&self, number: u64) -> PathBuf {
        self.0
            .path()
            .join(format!("alloc/logs/web.stdout.{number}"))
    }

    fn append(&self, number: u64, text: &str) {
        let file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.file(number));
        file.unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn open(&self, query: &LogQuery) -> Result<LogReader, ReadError> {
        let root = self.0.path().to_owned();
        let location = LogLocation::Plain {
            root,
            dir: "alloc/logs".into(),
            name: "web".into(),
        };
        LogReader::open(&location, query, &self.1.interest())
    }
}

#[test]
fn files_are_read_in_the_order_of_their_numbers() {
    let log = PlainLog::new();
    log.append(9, "a\nb\n");
    log.append(10, "c\nun");
    log.append(11, "finished\nlast");
    fs::write(log.0.path().join("alloc/logs/web.stderr.0"), "wrong\n").unwrap();
    fs::write(
        log.0.path().join("alloc/logs/website.stdout.0"),
        "another task\n",
    )
    .unwrap();
    fs::write(log.file(8).with_extension("08"), "no number\n").unwrap();
    assert_eq!(
        drain(&mut log.open(&LogQuery::default()).unwrap()),
        ["a", "b", "c", "unfinished", "last"]
    );
    assert_eq!(
        drain(&mut log.open(&tail(2)).unwrap()),
        ["finished", "last"]
    );
    assert_eq!(
        drain(&mut log.open(&tail(3)).unwrap()),
        ["unfinished", "last"],
        "a line ends in the next file"
    );
    assert_eq!(drain(&mut log.open(&tail(0)).unwrap()), numbers(0..0));
    assert_eq!(drain(&mut log.open(&tail(9)).unwrap()).len(), 5);
    let mut stderr = log
        .open(&LogQuery {
            stream: Some(Stream::Stderr),
            ..LogQuery::default()
        })
        .unwrap();
    let piece = stderr.next_piece().unwrap().unwrap();
    assert_eq!(
        (piece.stream, piece.text, piece.time),
        (Stream::Stderr, &b"wrong"[..], None)
    );
}

#[test]
fn follower_reads_on_in_the_next_file() {
    let log = PlainLog::new();
    log.append(0, "a\n");
    let mut reader = log.open(&follow()).unwrap();
    assert_eq!(drain(&mut reader), ["a"]);
    log.append(0, "b\n");
    log.append(1, "c\n");
    assert_eq!(drain(&mut reader), ["b", "c"]);
    log.append(1, "par");
    assert_eq!(drain(&mut reader), ["par"], "a prompt is shown at once");
    log.append(1, "tial\n");
    assert_eq!(drain(&mut reader), ["tial"]);
    // The agent keeps few files: this one's successor is gone already.
    fs::remove_file(log.file(1)).unwrap();
    log.append(4, "d\n");
    assert_eq!(drain(&mut reader), ["d"]);
}

#[test]
fn log_without_files_can_only_be_followed() {
    let log = PlainLog::new();
    assert!(matches!(
        log.open(&LogQuery::default()),
        Err(ReadError::Absent(_))
    ));
    let mut reader = log.open(&follow()).unwrap();
    assert_eq!(drain(&mut reader), numbers(0..0));
    log.append(0, "a\n");
    assert_eq!(drain(&mut reader), ["a"]);
}

#[test]
fn plain_text_has_no_times_to_search() {
    let log = PlainLog::new();
    log.append(0, "a\n");
    let since = LogQuery {
        since: Some(SystemTime::now()),
        ..LogQuery::default()
    };
    assert!(matches!(log.open(&since), Err(ReadError::NoTimes(_))));
}

#[test]
fn links_that_a_task_makes_are_not_followed() {
    let log = PlainLog::new();
    symlink("/etc/passwd", log.file(0)).unwrap();
    assert!(matches!(
        log.open(&LogQuery::default()),
        Err(ReadError::Link(_))
    ));
    fs::remove_dir_all(log.0.path().join("alloc/logs")).unwrap();
    symlink("/etc", log.0.path().join("alloc/logs")).unwrap();
    assert!(matches!(
        log.open(&LogQuery::default()),
        Err(ReadError::Link(_))
    ));
}
