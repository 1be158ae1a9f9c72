//! Files that a container has made to mislead or exhaust a reader.

use std::os::unix::fs::symlink;
use std::time::Instant;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;

#[track_caller]
fn refused(log: &TestLog, expected: &str) {
    let error = LogReader::open(&log.location(), &tail(1), &log.waiter.interest()).unwrap_err();
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn only_regular_files_beneath_the_directory_are_opened() {
    let log = TestLog::new();
    let secret = log.dir.path().join("secret");
    fs::write(&secret, "2026-11-26T00:17:09.669794202Z stdout F secret\n").unwrap();
    fs::remove_file(log.path()).unwrap();
    for target in [
        secret.as_path(),
        Path::new("../secret"),
        Path::new("/proc/self/fd/0"),
        Path::new("absent"),
    ] {
        symlink(target, log.path()).unwrap();
        refused(&log, "leads through a symbolic link");
        fs::remove_file(log.path()).unwrap();
    }
    mkfifo(&log.path(), Mode::S_IRWXU).unwrap();
    refused(&log, "is not a regular file");
    fs::remove_file(log.path()).unwrap();
    fs::create_dir(log.path()).unwrap();
    refused(&log, "is not a regular file");
    // The directory itself may be a link.
    fs::rename(log.dir.path().join("main"), log.dir.path().join("other")).unwrap();
    symlink("other", log.dir.path().join("main")).unwrap();
    refused(&log, "leads through a symbolic link");
}

#[test]
fn link_in_place_of_a_rotated_file_is_left_out_and_told() {
    let mut log = TestLog::new();
    symlink("/etc/passwd", log.rotated("20260101-000000")).unwrap();
    log.write_lines(numbers(0..3));
    let mut reader = log.open(&LogQuery::default());
    assert_eq!(drain(&mut reader), numbers(0..3));
    let omitted = reader.take_omitted();
    assert!(
        matches!(omitted.as_slice(), [ReadError::Link(_)]),
        "{omitted:?}"
    );
}

#[test]
fn link_in_place_of_a_followed_log_is_an_error() {
    let mut log = TestLog::new();
    log.write_lines(numbers(0..3));
    let mut reader = log.open(&follow());
    assert_eq!(drain(&mut reader), numbers(0..3));
    fs::remove_file(log.path()).unwrap();
    symlink("/etc/passwd", log.path()).unwrap();
    assert!(matches!(reader.next_piece(), Err(ReadError::Link(_))));
}

#[test]
fn path_that_leads_out_is_refused() {
    let log = TestLog::new();
    for path in ["../0.log", "main/../../0.log", "/etc/passwd", "", "main/.."] {
        let location = LogLocation::Cri {
            root: log.dir.path().to_owned(),
            path: path.into(),
        };
        assert!(
            matches!(
                LogReader::open(&location, &tail(1), &log.waiter.interest()),
                Err(ReadError::Path(_))
            ),
            "{path}"
        );
    }
    for name in ["", "../x", "a\0b"] {
        let location = LogLocation::Plain {
            root: log.dir.path().to_owned(),
            dir: "main".into(),
            name: name.into(),
        };
        assert!(
            matches!(
                LogReader::open(&location, &tail(1), &log.waiter.interest()),
                Err(ReadError::Path(_))
            ),
            "{name}"
        );
    }
}

#[test]
fn line_of_any_length_is_passed_on_in_bounded_pieces() {
    let log = TestLog::new();
    let mut content = b"2026-11-26T00:17:09.669794202Z stderr F ".to_vec();
    content.resize(5 << 20, 0);
    content.extend_from_slice(b"\n2026-11-26T00:17:10.669794202Z stderr F end\n");
    fs::write(log.path(), &content).unwrap();
    let mut reader = log.open(&LogQuery::default());
    let mut lines = Lines::default();
    let mut pieces = 0;
    while let Some(piece) = reader.next_piece().unwrap() {
        assert_eq!((piece.stream, piece.time.is_some()), (Stream::Stderr, true));
        lines.push(&piece);
        pieces += 1;
    }
    assert!(pieces > 10);
    let lens: Vec<_> = lines.0[1].iter().map(|(line, _)| line.len()).collect();
    assert_eq!(lens, [(5 << 20) - 40, 3]);
    assert_eq!(
        log.read(&LogQuery {
            stream: Some(Stream::Stdout),
            ..LogQuery::default()
        }),
        numbers(0..0)
    );
}

#[test]
fn file_that_claims_to_be_endless_costs_bounded_time() {
    let log = TestLog::new();
    let file = fs::File::create(log.path()).unwrap();
    file.set_len(1 << 40).unwrap();
    let begun = Instant::now();
    let since = LogQuery {
        since: Some(SystemTime::now()),
        ..LogQuery::default()
    };
    for query in [
        tail(10),
        since,
        LogQuery {
            follow: true,
            ..tail(10)
        },
    ] {
        let mut reader = log.open(&query);
        for _ in 0..10 {
            let piece = reader.next_piece().unwrap();
            assert!(piece.is_none_or(|piece| piece.is_malformed));
            if query.since.is_some() {
                break;
            }
        }
    }
    assert!(
        begun.elapsed() < Duration::from_secs(60),
        "{:?}",
        begun.elapsed()
    );
}
