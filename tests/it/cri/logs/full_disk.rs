//! Logs on a disk that has no space or no inodes left: lines are lost, counted and reported, and no container
//! blocks.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use switchyard_tests::host::{SetOnDrop, eventually};
use switchyard_tests::node::{TestNode, log_content};

use super::writers::{LIMIT, share, shared_dir};

/// Number of lines that a container prints while the disk is full.
const LINES: u64 = 20_000;

/// A small disk, unmounted when it is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(node: &TestNode, options: &str) -> Self {
        let path = node.root().path().join("small");
        fs::create_dir(&path).expect("the root can be written");
        mount(
            Some("tmpfs"),
            &path,
            Some("tmpfs"),
            MsFlags::empty(),
            Some(options),
        )
        .expect("root may mount");
        Self(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // What is still mounted is a finding of the node's sweep.
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// Prints `LINES` lines once the file `go` exists, creates `done`, and prints another line once `end` exists.
fn script() -> String {
    format!(
        "echo begin; until [ -e /host/go ]; do sleep 0.02; done; n=0; \
         while [ $n -lt {LINES} ]; do n=$((n+1)); echo \"line $n of a container on a full disk\"; done; \
         echo > /host/done; until [ -e /host/end ]; do sleep 0.02; done; echo end"
    )
}

/// A metric without labels.
fn metric(node: &TestNode, name: &str) -> u64 {
    let (status, text) = node.daemon().get("/metrics");
    assert_eq!(status, 200, "{text}");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {text}"))
        .parse()
        .expect("a counter is a number")
}

/// Number of times that the logkeeper has logged that a log cannot be written.
fn write_failure_count(node: &TestNode) -> usize {
    let log = fs::read_to_string(node.root().state().join("logkeeper.log")).expect("it has a log");
    log.lines()
        .filter(|line| line.contains("cannot write the log"))
        .count()
}

/// Lines that are there, and how many the logs say are not.
fn written_and_lost(files: &[&Path]) -> (Vec<String>, u64) {
    let mut kept = Vec::new();
    let mut lost = 0;
    for file in files {
        let text = fs::read_to_string(file).expect("the log is there");
        assert!(
            text.is_empty() || text.ends_with('\n'),
            "{} ends within a line",
            file.display()
        );
        for line in text.lines() {
            match log_content(line).strip_prefix("[switchyard: ") {
                Some(notice) => {
                    assert!(
                        notice.contains(" lines lost: no space left on device"),
                        "{notice}"
                    );
                    lost += notice
                        .split(' ')
                        .next()
                        .and_then(|word| word.parse::<u64>().ok())
                        .expect("a number");
                }
                None => kept.push(log_content(line).to_owned()),
            }
        }
    }
    (kept, lost)
}

#[test]
fn full_log_disk_drops_counted_lines_without_blocking() {
    let node = TestNode::start();
    let disk = SmallDisk::mount(&node, "size=256k");
    let dir = shared_dir(&node, "full");
    let pod = node.pod_with("full", |config| {
        config.log_directory = disk.0.display().to_string()
    });
    let id = pod.start_shell_with("main", &script(), |config| share(config, &dir));
    pod.wait_log("main", |lines| lines.len() == 1);
    fs::write(dir.join("go"), "").expect("the root can be written");
    assert!(
        eventually(LIMIT, || dir.join("done").exists()),
        "the container waits for the disk"
    );
    let lines = || {
        let dropped = metric(&node, "switchyard_log_dropped_lines_total");
        (
            metric(&node, "switchyard_log_lines_total") + dropped,
            dropped,
        )
    };
    assert!(
        eventually(LIMIT, || lines().0 == LINES + 1),
        "{:?} of {}",
        lines(),
        LINES + 1
    );
    let (_, dropped) = lines();
    assert!(dropped > LINES / 2, "{dropped} lines are counted as lost");
    assert_eq!(write_failure_count(&node), 1, "once is enough");

    let old = pod.log_path("main").with_extension("log.1");
    fs::rename(pod.log_path("main"), &old).expect("a log can be renamed");
    let kept = dir.join("old");
    fs::copy(&old, &kept).expect("the root can be written");
    fs::remove_file(&old).expect("a log can be removed");
    node.cri().reopen_log(&id).expect("it can be reopened");
    fs::write(dir.join("end"), "").expect("the root can be written");
    assert_eq!(node.cri().wait_exit(&id).exit_code, 0);
    let (kept, lost) = written_and_lost(&[&kept, &pod.log_path("main")]);
    assert_eq!(kept.last().map(String::as_str), Some("end"));
    assert_eq!(kept.len() as u64 + lost, LINES + 2, "{lost} of them lost");
    assert_eq!(lost, dropped);
}

#[test]
fn log_disk_without_inodes_keeps_the_old_log_or_drops_counted_lines() {
    let node = TestNode::start();
    let disk = SmallDisk::mount(&node, "size=16m,nr_inodes=5");
    let dir = shared_dir(&node, "inodes");
    let pod = node.pod_with("inodes", |config| {
        config.log_directory = disk.0.display().to_string()
    });
    let script = "n=0; until [ -e /host/end ]; do n=$((n+1)); echo line $n; echo $n > /host/at; sleep 0.005; done";
    let id = pod.start_shell_with("main", script, |config| share(config, &dir));
    pod.wait_log("main", |lines| lines.len() > 5);
    let mut fillers = Vec::new();
    while let Ok(path) = fill(&disk.0, fillers.len()) {
        fillers.push(path);
    }
    let log = pod.log_path("main");
    let old = pod.log_path("main").with_extension("log.1");
    fs::rename(&log, &old).expect("a rename needs no inode");
    let status = node
        .cri()
        .reopen_log(&id)
        .expect_err("a new file needs an inode");
    assert!(
        status.message().to_lowercase().contains("no space left"),
        "{status}"
    );
    let len = || fs::metadata(&old).expect("it is there").len();
    let before = len();
    assert!(
        eventually(LIMIT, || len() > before),
        "the old log is not in use any more"
    );

    // A new logkeeper finds no file at the log's path and cannot create one.
    node.kill_managed("logkeeper");
    let dropped = || metric_or_zero(&node);
    assert!(
        eventually(LIMIT, || dropped() > 5),
        "no line is counted as lost\n{}",
        node.daemon().tail()
    );
    fs::remove_file(fillers.pop().expect("there was room for one")).expect("it can be removed");
    pod.wait_log("main", |lines| lines.len() > 5);
    fs::write(dir.join("end"), "").expect("the root can be written");
    assert_eq!(node.cri().wait_exit(&id).exit_code, 0);
    let printed: u64 = fs::read_to_string(dir.join("at"))
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .expect("a number");
    let (kept, lost) = written_and_lost(&[&old, &log]);
    assert!(lost > 0);
    assert_eq!(kept.len() as u64 + lost, printed, "{lost} of them lost");
}

/// Reads a log along as `kubectl logs -f` does, over rotations, until `over`; the lines. A line that is not
/// whole is read again.
fn follow(log: &Path, over: &AtomicBool) -> Vec<String> {
    let open = || File::open(log).map(BufReader::new);
    let mut lines = Vec::new();
    let mut reader = open().expect("it is there");
    loop {
        // Queried first: the log, which is read below, must hold everything that was written by then.
        let ends = over.load(Ordering::Acquire);
        let inode = |file: &File| file.metadata().expect("it is open").ino();
        let rotated = fs::metadata(log).is_ok_and(|now| now.ino() != inode(reader.get_ref()));
        loop {
            let mut line = String::new();
            let len = reader.read_line(&mut line).expect("a log is text");
            if !line.ends_with('\n') {
                reader
                    .seek_relative(-i64::try_from(len).expect("it is short"))
                    .expect("it can be read again");
                break;
            }
            lines.push(line.trim_end().to_owned());
        }
        if rotated {
            reader = open().expect("it has just been there");
        } else if ends {
            return lines;
        }
        // What is in the buffer may have been cut off since.
        let position = reader.stream_position().expect("it is a file");
        reader
            .seek(std::io::SeekFrom::Start(position))
            .expect("it is a file");
        thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn log_follower_on_a_full_disk_sees_whole_lines_and_log_resumes() {
    let node = TestNode::start();
    let disk = SmallDisk::mount(&node, "size=256k");
    let filler = disk.0.join("filler");
    fs::write(&filler, vec![0; 128 << 10]).expect("there is room for it");
    let dir = shared_dir(&node, "followed");
    let pod = node.pod_with("followed", |config| {
        config.log_directory = disk.0.display().to_string()
    });
    let script = "n=0; until [ -e /host/end ]; do n=$((n+1)); echo line $n of a container on a full disk; \
                  echo $n > /host/at; [ -e /host/slow ] && sleep 0.01; done; exit 0";
    let id = pod.start_shell_with("main", script, |config| share(config, &dir));
    pod.wait_log("main", |lines| !lines.is_empty());
    let log = pod.log_path("main");
    let old = pod.log_path("main").with_extension("log.1");
    let at = || {
        fs::read_to_string(dir.join("at"))
            .ok()
            .and_then(|text| text.trim().parse::<u64>().ok())
    };
    let goes_on = |lines: u64| {
        let goal = metric(&node, "switchyard_log_dropped_lines_total") + lines;
        assert!(eventually(LIMIT, || at().is_some()), "it prints nothing");
        let printed = at().unwrap_or(0) + lines;
        let on = eventually(LIMIT, || at().is_some_and(|at| at >= printed));
        assert!(on, "the container waits for the disk");
        let counted = eventually(LIMIT, || {
            metric(&node, "switchyard_log_dropped_lines_total") >= goal
        });
        assert!(counted, "nothing is counted as lost");
    };
    let over = AtomicBool::new(false);
    let followed = thread::scope(|scope| {
        let end = SetOnDrop(&over);
        let follower = scope.spawn(|| follow(&log, &over));
        goes_on(1000);
        node.cri().reopen_log(&id).expect("the file is there");
        goes_on(1000);
        fs::rename(&log, &old).expect("a log can be renamed");
        node.cri().reopen_log(&id).expect("an empty file has room");
        goes_on(1000);
        assert_eq!(write_failure_count(&node), 1, "once is enough");
        fs::write(dir.join("slow"), "").expect("the root can be written");
        fs::remove_file(&filler).expect("it is ours");
        pod.wait_log("main", |lines| lines.len() > 5);
        fs::write(dir.join("end"), "").expect("the root can be written");
        assert_eq!(node.cri().wait_exit(&id).exit_code, 0);
        drop(end);
        follower.join().expect("a log can be read")
    });
    let (kept, lost) = written_and_lost(&[&old, &log]);
    assert_eq!(Some(kept.len() as u64 + lost), at(), "{lost} of them lost");
    assert_eq!(lost, metric(&node, "switchyard_log_dropped_lines_total"));
    let text = |file| fs::read_to_string(file).expect("it is there");
    let whole = format!("{}{}", text(&old), text(&log));
    assert!(
        followed.iter().eq(whole.lines()),
        "{} lines were followed",
        followed.len()
    );
}

/// The counter of lost lines; 0 while no logkeeper answers.
fn metric_or_zero(node: &TestNode) -> u64 {
    let (_, text) = node.daemon().get("/metrics");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("switchyard_log_dropped_lines_total "));
    line.and_then(|count| count.parse().ok()).unwrap_or(0)
}

fn fill(disk: &Path, number: usize) -> std::io::Result<PathBuf> {
    let path = disk.join(format!("filler-{number}"));
    fs::write(&path, "").map(|()| path)
}
