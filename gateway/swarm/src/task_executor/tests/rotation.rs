//! The rotation of logs. The fake writes none: a test does.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::log_rotation::LogRotator;

/// A node with a running task whose log has at most 10 bytes and three files.
async fn node_with_log() -> (TestNode, LogRotator, PathBuf) {
    let node = TestNode::new().await;
    assign_logged(&node, 1, &[("max-size", "10"), ("max-file", "3")]).await;
    let rotation = LogRotator::new(node.gateway.scope(Owner::Swarm));
    let log = log_of(&node, 1);
    (node, rotation, log)
}

/// Runs a task with these options of its log.
async fn assign_logged(node: &TestNode, number: usize, options: &[(&str, &str)]) {
    let mut task = running(number, &[]);
    let options = options
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    task.log_driver = Some(swarm::Driver {
        name: "json-file".into(),
        options: options.collect(),
    });
    node.assign(task).await;
    node.reported(number, State::Running).await;
    fs::create_dir_all(log_of(node, number).parent().unwrap()).unwrap();
}

fn log_of(node: &TestNode, number: usize) -> PathBuf {
    node.place
        .path()
        .join("logs")
        .join(task_id(number))
        .join("output.log")
}

/// The texts of the rotated files, the oldest one first.
fn rotated(log: &std::path::Path) -> Vec<String> {
    let mut paths: Vec<PathBuf> = log
        .parent()
        .unwrap()
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.retain(|path| path != log);
    paths.sort();
    paths
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect()
}

#[tokio::test]
async fn large_log_is_rotated_and_its_oldest_files_are_removed() {
    let (node, mut rotation, log) = node_with_log().await;
    fs::write(&log, "012345678").unwrap();
    rotation.pass().await;
    assert!(rotated(&log).is_empty() && node.fake.count(Method::ReopenLog) == 0);
    for round in 0..5 {
        fs::write(&log, format!("{round} 01234567")).unwrap();
        rotation.pass().await;
        assert!(!log.exists(), "the logkeeper creates it");
    }
    fs::write(&log, "").unwrap();
    rotation.pass().await;
    assert_eq!(
        (rotated(&log), node.fake.count(Method::ReopenLog)),
        (vec!["3 01234567".into(), "4 01234567".into()], 5)
    );
    node.remove(1).await;
    node.is_empty().await;
    assert!(!log.parent().unwrap().exists());
}

#[tokio::test]
async fn renamed_log_that_is_not_opened_anew_is_still_written_and_never_removed() {
    let (node, mut rotation, log) = node_with_log().await;
    for round in 0..3 {
        fs::write(&log, format!("{round} 01234567")).unwrap();
        for _ in 0..2 {
            node.fake.fail_next(
                Method::ReopenLog,
                Error::unavailable("the logkeeper is away"),
            );
            rotation.pass().await;
            // The newest one counts already: there are never more files than the log may have.
            assert_eq!(rotated(&log).len(), (round + 1).min(2));
        }
        rotation.pass().await;
        assert_eq!(rotated(&log).len(), (round + 1).min(2));
    }
    assert_eq!(rotated(&log), ["1 01234567", "2 01234567"]);
    // Nothing is done to the first one any more.
    fs::write(&log, "").unwrap();
    assign_logged(&node, 2, &[("max-size", "10"), ("max-file", "1")]).await;
    let log = log_of(&node, 2);
    fs::write(&log, "0123456789").unwrap();
    node.fake.fail_next(
        Method::ReopenLog,
        Error::unavailable("the logkeeper is away"),
    );
    rotation.pass().await;
    assert_eq!(rotated(&log), ["0123456789"]);
    rotation.pass().await;
    assert!(rotated(&log).is_empty());
}

/// A logkeeper that was late has created the new file, and writes to the renamed one.
#[tokio::test]
async fn log_that_could_not_be_opened_anew_is_so_once_more_though_its_new_file_is_there() {
    let (node, mut rotation, log) = node_with_log().await;
    fs::write(&log, "0123456789").unwrap();
    for attempts in 1..=2 {
        node.fake.fail_next(
            Method::ReopenLog,
            Error::unavailable("the file system of the log is late"),
        );
        rotation.pass().await;
        fs::write(&log, "").unwrap();
        assert_eq!(
            (rotated(&log).len(), node.fake.count(Method::ReopenLog)),
            (1, attempts)
        );
    }
    for _ in 0..3 {
        rotation.pass().await;
        assert_eq!(
            (rotated(&log).len(), node.fake.count(Method::ReopenLog)),
            (1, 3)
        );
    }
    assert!(log.exists());
}

/// A rotator does not know the logs that the rotator of the daemon before has left to be reopened.
#[tokio::test]
async fn empty_file_beside_rotated_ones_is_opened_anew_once_after_a_start() {
    let (node, mut before, log) = node_with_log().await;
    let reopens = || node.fake.count(Method::ReopenLog);
    let scope = || node.gateway.scope(Owner::Swarm);
    fs::write(&log, "").unwrap();
    before.pass().await;
    assert_eq!(reopens(), 0, "it was never renamed");
    fs::write(&log, "0123456789").unwrap();
    node.fake.fail_next(
        Method::ReopenLog,
        Error::unavailable("the file system of the log is late"),
    );
    before.pass().await;
    fs::write(&log, "").unwrap();
    let mut rotation = LogRotator::new(scope());
    node.fake.fail_next(
        Method::ReopenLog,
        Error::unavailable("the file system of the log is late"),
    );
    rotation.pass().await;
    assert_eq!(reopens(), 2);
    for _ in 0..2 {
        rotation.pass().await;
        assert_eq!(reopens(), 3);
    }
    fs::write(&log, "written").unwrap();
    LogRotator::new(scope()).pass().await;
    assert_eq!((rotated(&log).len(), reopens()), (1, 3), "it is in use");
}

/// A file that is renamed and not reopened grows without a bound.
#[tokio::test]
async fn oldest_file_goes_when_a_log_cannot_be_opened_anew_for_want_of_an_inode() {
    let (node, mut rotation, log) = node_with_log().await;
    for text in ["0 01234567", "1 01234567"] {
        fs::write(&log, text).unwrap();
        rotation.pass().await;
    }
    fs::write(&log, "2 01234567").unwrap();
    for left in [&["2 01234567"][..], &["2 01234567"]] {
        node.fake.fail_next(
            Method::ReopenLog,
            Error::exhausted("no space left on device"),
        );
        rotation.pass().await;
        assert_eq!(rotated(&log), left, "the file that is written stays");
    }
    rotation.pass().await;
    assert_eq!(rotated(&log), ["2 01234567"]);
}

#[tokio::test]
async fn log_of_one_file_and_one_without_limit_are_kept_so() {
    let (node, mut rotation, _) = node_with_log().await;
    assign_logged(&node, 2, &[("max-size", "10"), ("max-file", "1")]).await;
    assign_logged(&node, 3, &[("max-size", "-1")]).await;
    for number in 1..=3 {
        fs::write(log_of(&node, number), "0123456789").unwrap();
    }
    rotation.pass().await;
    assert!(rotated(&log_of(&node, 2)).is_empty() && !log_of(&node, 2).exists());
    assert!(log_of(&node, 3).exists());
}

#[tokio::test]
async fn log_of_an_ended_task_stays_as_it_is() {
    let (node, mut rotation, log) = node_with_log().await;
    fs::write(&log, "0123456789 and more").unwrap();
    node.assign(wanted(running(1, &[]), State::Shutdown)).await;
    node.reported(1, State::Shutdown).await;
    rotation.pass().await;
    assert!(log.exists() && rotated(&log).is_empty());
    assert_eq!(node.fake.count(Method::ReopenLog), 0);
}
