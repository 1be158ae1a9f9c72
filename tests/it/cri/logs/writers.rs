//! Containers that print without pause, and a check that their logs hold every line once, whole and in order.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use switchyard_proto::cri::v1::{ContainerConfig, Mount};
use switchyard_tests::daemon::binary;
use switchyard_tests::host::{eventually, random_bytes};
use switchyard_tests::node::{TestNode, TestPod};
use switchyard_tests::root::PrivateRoot;

/// Time for something to arrive.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// Every so many lines there is a long one.
const LONG_EVERY: u64 = 500;
/// Its length without its number: more than two chunks.
const LONG: usize = 40_000;

/// A container that prints numbered lines until it is stopped. Lines on standard error are written in two
/// pieces each.
pub(super) struct LineWriter<'n> {
    pod: &'n TestPod<'n>,
    name: &'static str,
    pub(super) id: String,
    dir: PathBuf,
    tty: bool,
}

/// A logkeeper that the test itself starts and kills.
pub(crate) struct TestLogkeeper {
    child: Option<Child>,
    socket: PathBuf,
    state: PathBuf,
}

// === impl LineWriter ===

impl<'n> LineWriter<'n> {
    /// Starts a container of this name.
    pub(super) fn start(
        node: &TestNode,
        pod: &'n TestPod<'n>,
        name: &'static str,
        tty: bool,
    ) -> Self {
        let dir = shared_dir(node, name);
        let errors = "printf '%s ' $n >&2; printf '%s\\n' \"$pad\" >&2;";
        let errors = if tty { "" } else { errors };
        let script = format!(
            "long=$(head -c {LONG} /dev/zero | tr '\\0' x); n=0; while [ ! -e /host/stop ]; do n=$((n+1)); pad=; \
             [ $((n % {LONG_EVERY})) = 0 ] && pad=$long; echo \"$n $pad\"; {errors} \
             [ $((n % 100)) = 0 ] && echo $n > /host/at; done; echo $n > /host/total"
        );
        let id = pod.start_shell_with(name, &script, |config| {
            config.tty = tty;
            share(config, &dir);
        });
        Self {
            pod,
            name,
            id,
            dir,
            tty,
        }
    }

    /// Number of lines it has printed, but for the last hundred.
    pub(super) fn lines_printed(&self) -> u64 {
        // The file may be empty for a moment.
        let read = || {
            fs::read_to_string(self.dir.join("at"))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        let mut at = None;
        eventually(LIMIT, || {
            at = read();
            at.is_some()
        });
        at.expect("the container prints, so it says how far it is")
    }

    /// Waits until it has printed so many more lines.
    pub(super) fn wait_more_lines(&self, lines: u64) {
        let goal = self.lines_printed() + lines;
        assert!(
            eventually(LIMIT, || self.lines_printed() >= goal),
            "{} is blocked at {}",
            self.name,
            self.lines_printed()
        );
    }

    /// Waits until its log has grown.
    pub(super) fn wait_log_growth(&self) {
        let len = || fs::metadata(self.log()).map_or(0, |meta| meta.len());
        let before = len();
        assert!(
            eventually(LIMIT, || len() > before),
            "the log of {} does not grow",
            self.name
        );
    }

    /// Its log.
    pub(super) fn log(&self) -> PathBuf {
        self.pod.log_path(self.name)
    }

    /// Stops the writer, and waits until it has printed its last line; the number of lines. Needs no answer
    /// of the daemon.
    pub(super) fn stop(&self) -> u64 {
        fs::write(self.dir.join("stop"), "").expect("the root can be written");
        let mut total = None;
        let stopped = eventually(LIMIT, || {
            total = fs::read_to_string(self.dir.join("total"))
                .ok()
                .and_then(|text| text.trim().parse().ok());
            total.is_some()
        });
        assert!(
            stopped,
            "{} is blocked at {}",
            self.name,
            self.lines_printed()
        );
        total.expect("it has just been there")
    }

    /// Fails unless these files, one after the other, hold each of its lines once, whole and in order.
    pub(super) fn check(&self, files: &[PathBuf], total: u64) {
        let mut streams = vec!["stdout"];
        streams.extend((!self.tty).then_some("stderr"));
        for stream in streams {
            let mut number = 0;
            let mut line = String::new();
            for file in files {
                for (tag, content) in parsed(file, stream) {
                    line.push_str(&content);
                    if tag == "F" {
                        number += 1;
                        let pad = if number % LONG_EVERY == 0 {
                            "x".repeat(LONG)
                        } else {
                            String::new()
                        };
                        let shown: String = line.chars().take(80).collect();
                        assert!(
                            line == format!("{number} {pad}"),
                            "{}: instead of line {number} of {stream} there is {shown:?} of {} bytes",
                            file.display(),
                            line.len()
                        );
                        line.clear();
                    }
                }
            }
            assert_eq!(
                (number, line.as_str()),
                (total, ""),
                "lines of {stream} in {files:?}"
            );
        }
    }
}

/// Tag and content of a stream's lines; panics if a line is not in the CRI log format.
fn parsed<'a>(file: &'a Path, stream: &'a str) -> impl Iterator<Item = (String, String)> + 'a {
    let lines = BufReader::new(File::open(file).expect("the log is there")).lines();
    lines.filter_map(move |line| {
        let line = line.expect("a log is text");
        let parts: Vec<&str> = line.splitn(4, ' ').collect();
        let [stamp, from, tag, content] = parts[..] else {
            panic!("{}: torn: {line:?}", file.display())
        };
        let sound = stamp.len() == 30
            && stamp.ends_with('Z')
            && ["stdout", "stderr"].contains(&from)
            && ["P", "F"].contains(&tag);
        assert!(sound, "{}: torn: {line:?}", file.display());
        (from == stream).then(|| (tag.to_owned(), content.to_owned()))
    })
}

/// A directory that a container has as `/host`.
pub(super) fn shared_dir(node: &TestNode, name: &str) -> PathBuf {
    let dir = node.root().path().join(format!("host-{name}"));
    fs::create_dir(&dir).expect("the root can be written");
    dir
}

/// Gives a container a directory as `/host`.
pub(super) fn share(config: &mut ContainerConfig, dir: &Path) {
    config.mounts.push(Mount {
        host_path: dir.to_str().expect("the path is ASCII").to_owned(),
        container_path: "/host".to_owned(),
        ..Default::default()
    });
}

/// Waits for a random time of up to `most` milliseconds.
pub(super) fn pause(most: u64) {
    let random = u64::from(u16::from_be_bytes(random_bytes()));
    std::thread::sleep(Duration::from_micros(random * most * 1000 / 65_536));
}

// === impl TestLogkeeper ===

impl TestLogkeeper {
    /// Starts a node whose logkeeper the test controls.
    pub(super) fn with_node() -> (Self, TestNode) {
        let mut keeper = None;
        let node = TestNode::start_with("[logkeeper]\nmode = \"external\"\n", |root| {
            keeper = Some(Self::start(root))
        });
        (keeper.expect("the node has prepared its root"), node)
    }

    pub(crate) fn start(root: &PrivateRoot) -> Self {
        let dir = root.run().join("logkeeper");
        fs::create_dir_all(&dir).expect("the root can be written");
        let mut keeper = Self {
            child: None,
            socket: dir.join("logkeeper.sock"),
            state: dir.join("state"),
        };
        keeper.restart();
        keeper
    }

    /// Kills it as a crash does.
    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have exited already, which is as intended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it, after a kill if it runs, and waits until it answers.
    pub(super) fn restart(&mut self) {
        self.kill();
        let mut command = Command::new(binary());
        command
            .arg("logkeeper")
            .arg("--socket")
            .arg(&self.socket)
            .arg("--state-dir")
            .arg(&self.state);
        let child = command
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        self.child = Some(child.expect("the binary exists, so it starts"));
        assert!(
            eventually(LIMIT, || std::os::unix::net::UnixStream::connect(
                &self.socket
            )
            .is_ok()),
            "the logkeeper does not answer"
        );
    }
}

impl Drop for TestLogkeeper {
    fn drop(&mut self) {
        self.kill();
    }
}
