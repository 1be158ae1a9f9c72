//! Formats and messages of the first version, which every later one reads, writes and sends alike: during an
//! upgrade or downgrade, the daemon and the logkeeper are of different versions.
//!
//! The files in `golden` are not changed. A version that stores or says something new adds files of its own.

use std::fs;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::position::{Position, PositionFile};
use crate::protocol::{
    Attached, Counters, DescriptorEntry, Descriptors, Done, FaultKind, Finished, LogFileSystem,
    LogSpec, Page, Reply, Request, Stats, Taken, Welcome, WriteBucket, WriteTimes,
};
use crate::state_dir::StateDir;
use crate::wire;

/// The requests that the logkeeper of the first version understands. A request with one more field, or a new
/// one, must not be sent to it: see [`crate::protocol`].
#[test]
fn requests_are_those_of_the_first_version() {
    for line in include_str!("golden/requests-1.jsonl").lines() {
        let request: Request = wire::decode(line.as_bytes()).unwrap();
        let text = wire::encode(&request).unwrap();
        assert_eq!(String::from_utf8(text).unwrap().trim_end(), line);
    }
}

/// Reads a reply of the first version; also with a field that only a later version knows.
#[track_caller]
fn read<T: DeserializeOwned + PartialEq + std::fmt::Debug>(line: usize) -> T {
    let text = include_str!("golden/replies-1.jsonl")
        .lines()
        .nth(line)
        .unwrap();
    let Reply::Ok(body) = serde_json::from_str::<Reply<T>>(text).unwrap() else {
        panic!("{text}")
    };
    let mut later: Value = serde_json::from_str(text).unwrap();
    later["ok"]["of_a_later_version"] = Value::from([1, 2].as_slice());
    assert_eq!(
        serde_json::from_value::<Reply<T>>(later).unwrap(),
        Reply::Ok(body)
    );
    let Reply::Ok(body) = serde_json::from_str(text).unwrap() else {
        panic!("{text}")
    };
    body
}

#[test]
fn replies_of_the_first_version_and_of_later_ones_are_read() {
    let counters = Counters {
        lines: 1,
        bytes: 2,
        dropped_lines: 3,
        dropped_bytes: 4,
    };
    assert_eq!(
        read::<Welcome>(0),
        Welcome {
            version: 1,
            pid: 7,
            build: String::new(),
            descriptors: 0
        }
    );
    assert_eq!(read::<Done>(1), Done {});
    assert_eq!(read::<Attached>(2), Attached { from: 9 });
    assert_eq!(read::<Finished>(3), Finished::from(counters));
    let page = read::<Page>(4);
    assert_eq!(
        (page.entries[0].counters, page.entries[0].finishing),
        (counters, true)
    );
    let stats = Stats {
        containers: 1,
        recovered: 2,
        finished: 3,
        totals: counters,
        ..Stats::default()
    };
    assert_eq!(read::<Stats>(5), stats);
    let fault = include_str!("golden/replies-1.jsonl")
        .lines()
        .nth(6)
        .unwrap();
    let Reply::<Done>::Error(fault) = serde_json::from_str(fault).unwrap() else {
        panic!("{fault}")
    };
    assert_eq!(fault.kind, FaultKind::NotFound);
    let later = r#"{"error":{"kind":"of_a_later_version","message":"x"}}"#;
    let Reply::<Done>::Error(fault) = serde_json::from_str(later).unwrap() else {
        panic!("{later}")
    };
    assert_eq!(fault.kind, FaultKind::Other);
}

/// The requests about stored descriptors, which are sent only to a logkeeper whose Welcome offers them, and its answers.
#[test]
fn messages_about_descriptors_are_those_of_their_first_version() {
    for line in include_str!("golden/requests-1-descriptors.jsonl").lines() {
        let request: Request = wire::decode(line.as_bytes()).unwrap();
        let text = wire::encode(&request).unwrap();
        assert_eq!(String::from_utf8(text).unwrap().trim_end(), line);
    }
    fn check<T>(line: &str, body: T)
    where
        T: DeserializeOwned + serde::Serialize + PartialEq + std::fmt::Debug,
    {
        let reply = Reply::Ok(body);
        assert_eq!(serde_json::from_str::<Reply<T>>(line).unwrap(), reply);
        assert_eq!(serde_json::to_string(&reply).unwrap(), line);
    }
    let replies: Vec<&str> = include_str!("golden/replies-1-descriptors.jsonl")
        .lines()
        .collect();
    let welcome = Welcome {
        version: 1,
        pid: 7,
        build: "0.1.0".into(),
        descriptors: 64,
    };
    check(replies[0], welcome);
    let note = "66305:131077".to_owned();
    check(replies[1], Taken { note: note.clone() });
    let entry = DescriptorEntry {
        name: "cri".into(),
        note,
        claimed: true,
    };
    let entries = vec![entry];
    check(replies[2], Descriptors { entries });
    assert_eq!(replies.len(), 3);
}

/// The file systems in the statistics, which later logkeepers send.
#[test]
fn file_systems_are_those_of_their_first_version() {
    let line = include_str!("golden/replies-1-file-systems.jsonl").trim_end();
    let Reply::Ok(stats) = serde_json::from_str::<Reply<Stats>>(line).unwrap() else {
        panic!("{line}")
    };
    let bucket = |within_ms, count| WriteBucket { within_ms, count };
    let known = LogFileSystem {
        mount_point: "/var/log".into(),
        containers: 2,
        full_pipes: 1,
        full_pipe_ids: Vec::new(),
        stall_age_ms: 2500,
        writes: WriteTimes {
            count: 3,
            total_us: 1_902_000,
            buckets: vec![bucket(1, 2), bucket(2000, 3)],
        },
    };
    let golden: Value = serde_json::from_str(line).unwrap();
    let written = serde_json::to_value(&known).unwrap();
    assert_eq!(golden["ok"]["file_systems"][0], written);
    assert_eq!(stats.file_systems, [known]);
}

#[test]
fn stored_files_of_the_first_version_are_read_and_written_alike() {
    let dir = tempfile::tempdir().unwrap();
    let entry = include_str!("golden/entry-1.json").trim_end();
    let record = include_bytes!("golden/position-1.bin");
    let (state, _lock) = StateDir::open(dir.path()).unwrap();
    fs::write(dir.path().join("c1.json"), entry).unwrap();
    let spec = LogSpec {
        id: "c1".into(),
        stdout: Some("/run/fifos/c1-stdout".into()),
        stderr: Some("/run/fifos/c1-stderr".into()),
        log: Some("/var/log/pods/c1.log".into()),
        tty: false,
        max_line: 16384,
    };
    assert_eq!(state.load().unwrap(), std::slice::from_ref(&spec));
    state.write(&spec).unwrap();
    assert_eq!(
        fs::read_to_string(dir.path().join("c1.json")).unwrap(),
        entry
    );
    let mut later: Value = serde_json::from_str(entry).unwrap();
    later["container"]["of_a_later_version"] = true.into();
    fs::write(dir.path().join("c1.json"), later.to_string()).unwrap();
    assert_eq!(state.load().unwrap(), std::slice::from_ref(&spec));
    let request = format!("{{\"op\":\"open\",{}", &later["container"].to_string()[1..]);
    assert!(wire::decode::<Request>(request.as_bytes()).is_err());

    let path = dir.path().join("c1.pos");
    fs::write(&path, record).unwrap();
    let (file, position) = PositionFile::open(&path).unwrap();
    let expected = Position {
        device: 66305,
        inode: 131_077,
        log_len: 4096,
        logged: [1000, 2000],
        lines: 40,
        bytes: 3000,
        dropped_lines: 3,
        dropped_bytes: 120,
        unreported_lines: 2,
        unreported_bytes: 80,
        errno: 28,
    };
    assert_eq!(position, Some(expected));
    file.store(&expected).unwrap();
    assert_eq!(fs::read(&path).unwrap(), record);
}
