//! The keeper is killed again and again while containers write: no line is lost, torn or duplicated.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use switchyard_logkeeper::{Config, FifoHold};

use crate::support::{PATIENCE, Site, log, parse};

/// The environment variable with the keeper's directory; set only for the child process.
const SITE: &str = "SWITCHYARD_TEST_KEEPER_SITE";

/// Number of kills of the keeper.
const KILLS: u64 = 60;

/// A keeper in a process of its own, which is killed when this is dropped.
pub(crate) struct Victim(Child);

impl Victim {
    pub(crate) fn start(site: &Site) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::body_of_the_keeper_process", "--nocapture"])
            .env(SITE, site.dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // It may be dead already. A process that a file system blocks ends only after the file system is
        // unmounted, which a failed test drops later.
        drop(self.0.kill());
        let deadline = std::time::Instant::now() + Duration::from_secs(5);
        while !self.has_ended() && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Not a test, but the body of the process that [`Victim`] starts. Without the variable it does nothing.
#[test]
fn body_of_the_keeper_process() {
    if let Some(dir) = std::env::var_os(SITE).map(PathBuf::from) {
        switchyard_logkeeper::run(
            Config::new(dir.join("keeper.sock"), dir.join("state")),
            || {},
        )
        .unwrap();
    }
}

/// Writes numbered lines until it is stopped; returns their number. Each line is written in two parts.
fn write_lines(mut fifo: fs::File, progress: &AtomicU64, stop: &AtomicBool) -> u64 {
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        // Many lines differ only in the last digits of their number, and every hundredth is split into
        // chunks.
        let pad = if number.is_multiple_of(100) {
            40_000
        } else {
            number % 90
        };
        let pad = "x".repeat(usize::try_from(pad).unwrap());
        fifo.write_all(format!("{number:08} ").as_bytes()).unwrap();
        fifo.write_all(format!("{pad}\n").as_bytes()).unwrap();
        number += 1;
        progress.store(number, Ordering::Relaxed);
    }
    number
}

/// A small random generator for the moments of the kills; a failed run prints the seed.
fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// The count of what the logs of a container have.
struct Found {
    /// The whole lines of each stream.
    whole: [u64; 2],
    lines: u64,
    bytes: u64,
}

/// Reads logs in their order. Fails at the first line that is torn, absent, or there twice.
fn read_logs(logs: &[PathBuf]) -> Found {
    let mut next = [0_u64, 0];
    let mut partial = [Vec::new(), Vec::new()];
    let mut lines = 0;
    let mut bytes = 0;
    for log in logs {
        for line in parse(log) {
            lines += 1;
            bytes += line.content.len() as u64;
            let stream = usize::from(line.stream == "stderr");
            partial[stream].extend_from_slice(&line.content);
            if line.tag == "F" {
                let text = String::from_utf8(std::mem::take(&mut partial[stream])).unwrap();
                let (number, pad) = text.split_once(' ').unwrap();
                let expected = next[stream];
                assert_eq!(
                    number,
                    format!("{expected:08}"),
                    "in {} of {}",
                    line.stream,
                    log.display()
                );
                let len = if expected.is_multiple_of(100) {
                    40_000
                } else {
                    expected % 90
                };
                assert_eq!(pad.len() as u64, len);
                next[stream] += 1;
            }
        }
    }
    Found {
        whole: next,
        lines,
        bytes,
    }
}

pub(crate) async fn await_hello(site: &Site) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while let Err(error) = site.client.hello().await {
        assert!(tokio::time::Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn kills_lose_tear_or_duplicate_no_line() {
    let site = Site::new();
    let mut victim = Victim::start(&site);
    await_hello(&site).await;
    let spec = site.spec("c1");
    let output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    // The writers may end, and close their ends, while the keeper is dead.
    let _hold = FifoHold::open(&spec).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let progress: [Arc<AtomicU64>; 2] = Default::default();
    let mut fifos = [output.stdout, output.stderr].into_iter();
    let writers = progress.clone().map(|progress| {
        let fifo = fifos.next().unwrap();
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || write_lines(fifo, &progress, &stop))
    });
    let mut random = u64::from(std::process::id()) << 20 | 1;
    println!("seed {random}");
    let mut logs = Vec::new();
    for kill in 0..KILLS {
        await_hello(&site).await;
        await_moment(&progress[0], &mut random);
        // The kubelet renames and reopens; a kill happens before, between and after.
        let rename = |logs: &mut Vec<PathBuf>| {
            let old = log(&spec).with_extension(format!("log.{kill:03}"));
            fs::rename(log(&spec), &old).unwrap();
            logs.push(old);
        };
        match kill % 4 {
            1 => {
                rename(&mut logs);
                site.client.reopen("c1").await.unwrap();
            }
            2 => rename(&mut logs),
            _ => {}
        }
        victim.kill();
        victim = Victim::start(&site);
    }
    stop.store(true, Ordering::Relaxed);
    await_hello(&site).await;
    let written = writers.map(|writer| writer.join().unwrap());
    let finished = site.client.finish("c1", PATIENCE).await.unwrap();
    assert_eq!((finished.dropped_lines, finished.dropped_bytes), (0, 0));
    logs.push(log(&spec).to_path_buf());
    let found = read_logs(&logs);
    assert_eq!(found.whole, written, "all lines are there");
    assert_eq!(
        (found.lines, found.bytes),
        (finished.lines, finished.bytes),
        "the counters survive too"
    );
    println!("{written:?} lines over {KILLS} kills");
}

/// Waits for the moment of a kill. It is chosen by the writer's progress, and then by spinning for part of the time
/// of a batch.
fn await_moment(progress: &AtomicU64, random: &mut u64) {
    let goal = progress.load(Ordering::Relaxed) + next_random(random) % 4000;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while progress.load(Ordering::Relaxed) < goal {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the writer is blocked for good"
        );
        std::thread::yield_now();
    }
    for _ in 0..next_random(random) % 20_000 {
        std::hint::spin_loop();
    }
}
