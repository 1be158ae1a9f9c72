//! Tests of the steps on a node in memory, with a clock of its own.

use std::cell::{Cell, RefCell};

use super::*;

#[test]
fn note_survives_attempts_and_a_torn_one_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(NOTE);
    assert!(Note::read(&file).parts.is_empty());
    let mut note = Note::default();
    note.parts.insert("runtime".into());
    note.write(&file).unwrap();
    assert_eq!(Note::read(&file).parts, note.parts);
    fs::write(&file, "{\"parts\": [").unwrap();
    assert!(Note::read(&file).parts.is_empty());
}

/// The daemon's parts, and whether each works; none if it does not answer.
type Parts = Vec<(&'static str, bool)>;

/// A node in memory.
#[derive(Debug, Default)]
struct TestNode {
    unit: LoadedUnit,
    /// The time from which systemd answers.
    systemd_from: Duration,
    parts: Parts,
    /// The parts from a time on, instead of those.
    later: Option<(Duration, Parts)>,
    unconfigured: BTreeSet<String>,
    time: Cell<Duration>,
    /// The starts whose error was asked for.
    asked: RefCell<Vec<String>>,
}

impl InstalledNode for TestNode {
    fn unit(&self) -> Option<LoadedUnit> {
        (self.clock() >= self.systemd_from).then(|| self.unit.clone())
    }

    fn ask(&self, _: Option<&NextStart>) -> Result<RunningDaemon, String> {
        let later = self.later.as_ref();
        let later = later.filter(|(from, _)| self.clock() >= *from);
        let parts = later.map_or(&self.parts, |(_, parts)| parts);
        if parts.is_empty() {
            return Err("connection refused".to_owned());
        }
        let part = |(name, up): &(&str, bool)| serde_json::json!({ "name": name, "up": up, "needed": true, "detail": "" });
        let parts: Vec<_> = parts.iter().map(part).collect();
        let answer = serde_json::json!({ "version": "1", "parts": parts });
        Ok(serde_json::from_value(answer).unwrap())
    }

    fn unconfigured(&self) -> BTreeSet<String> {
        self.unconfigured.clone()
    }

    fn last_error(&self, invocation: &str) -> Option<String> {
        self.asked.borrow_mut().push(invocation.to_owned());
        None
    }

    fn clock(&self) -> Duration {
        self.time.get()
    }

    fn wait(&self, time: Duration) {
        self.time.set(self.clock() + time);
    }
}

/// An installation whose daemon has this text as its file.
struct Attempts {
    dir: tempfile::TempDir,
    installation: Installation<TestNode>,
}

impl Attempts {
    fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        fs::write(&file, text).unwrap();
        let words = ["switchyard", "serve", "--config", file.to_str().unwrap()];
        let unit = LoadedUnit {
            name: UNIT.into(),
            load_state: "loaded".into(),
            file_state: "enabled".into(),
            active_state: "active".into(),
            main_pid: Some(7),
            arguments: words.map(str::to_owned).to_vec(),
            ..LoadedUnit::default()
        };
        let installation = Installation {
            node: TestNode {
                unit,
                ..TestNode::default()
            },
            note: dir.path().join(NOTE),
            limit: Duration::ZERO,
        };
        Self { dir, installation }
    }

    #[track_caller]
    fn before(&mut self, parts: &[(&'static str, bool)]) {
        self.installation.node.parts = parts.to_vec();
        assert_status(self.installation.before(), ExitCode::SUCCESS);
    }

    #[track_caller]
    fn after(&mut self, parts: &[(&'static str, bool)], expected: ExitCode) {
        self.installation.node.parts = parts.to_vec();
        assert_status(self.installation.after(false), expected);
    }

    /// As `after`, with the time that the node has; returns how much of it passed.
    #[track_caller]
    fn after_in_time(&mut self, parts: &[(&'static str, bool)], expected: ExitCode) -> Duration {
        self.installation.limit = LIMIT;
        let begin = self.installation.node.clock();
        self.after(parts, expected);
        self.installation.node.clock() - begin
    }

    fn has_note(&self) -> bool {
        self.dir.path().join(NOTE).exists()
    }
}

#[track_caller]
fn assert_status(result: Result<ExitCode, CliError>, expected: ExitCode) {
    // An exit status cannot be compared otherwise.
    assert_eq!(format!("{:?}", result.unwrap()), format!("{expected:?}"));
}

const SET: &str = "version = 1\n[log]\nlevel = \"debug\"\n";

#[test]
fn part_that_worked_before_the_first_attempt_has_to_work_after_the_last_one() {
    let works = [("runtime", true), ("network", true), ("swarm", false)];
    let down = [("runtime", true), ("network", false), ("swarm", false)];
    let mut attempts = Attempts::new(SET);
    attempts.before(&works);
    attempts.after(&down, ExitCode::FAILURE);
    // The second attempt finds it down already.
    attempts.before(&down);
    attempts.after(&down, ExitCode::FAILURE);
    assert!(attempts.has_note());
    attempts.before(&down);
    attempts.after(&works, ExitCode::SUCCESS);
    assert!(!attempts.has_note());
    // After a success, nothing of before counts.
    attempts.before(&down);
    attempts.after(&down, ExitCode::SUCCESS);
    assert!(!attempts.has_note());
}

#[test]
fn each_success_removes_the_note_and_where_nothing_is_restarted_there_is_none() {
    let works = [("runtime", true)];
    let mut attempts = Attempts::new(SET);
    attempts.before(&works);
    assert!(attempts.has_note());
    attempts.installation.node.unit.load_state = "masked".into();
    attempts.after(&[], ExitCode::SUCCESS);
    assert!(!attempts.has_note(), "not started");
    // It runs, and is not restarted.
    attempts.before(&works);
    assert!(!attempts.has_note(), "left alone");

    let mut attempts = Attempts::new("version = 1\n");
    assert_status(attempts.installation.after(true), ExitCode::FAILURE);
    fs::write(&attempts.installation.note, "{\"parts\": []}").unwrap();
    attempts.after(&[], ExitCode::SUCCESS);
    assert!(!attempts.has_note(), "not configured yet");
}

#[test]
fn reason_is_that_of_the_start_that_has_ended_and_of_no_other() {
    let asked = |main_pid, exit_status| {
        let mut attempts = Attempts::new(SET);
        let node = &mut attempts.installation.node;
        node.unit.active_state = "activating".into();
        node.unit.main_pid = main_pid;
        node.unit.exit_status = exit_status;
        node.unit.invocation = "0a1b".into();
        attempts.after(&[], ExitCode::FAILURE);
        attempts.installation.node.asked.take()
    };
    assert_eq!(asked(None, 1), ["0a1b"]);
    assert_eq!(asked(Some(8), 0), [""; 0]);
}

#[test]
fn part_that_worked_has_a_minute_to_work_again() {
    let seconds = Duration::from_secs;
    let works = [("runtime", true), ("network", true)];
    let down = [("runtime", true), ("network", false)];
    for (from, expected, passed) in [
        (0, ExitCode::SUCCESS, 0),
        (59, ExitCode::SUCCESS, 59),
        (60, ExitCode::SUCCESS, 60),
        (61, ExitCode::FAILURE, 60),
    ] {
        let mut attempts = Attempts::new(SET);
        attempts.before(&works);
        attempts.installation.node.later = Some((seconds(from), works.to_vec()));
        let took = attempts.after_in_time(&down, expected);
        assert_eq!(took, seconds(passed), "it works from {from} s on");
        assert_eq!(attempts.has_note(), from > 60);
    }
}

#[test]
fn part_whose_program_dpkg_has_only_unpacked_is_not_waited_for_and_others_are() {
    let seconds = Duration::from_secs;
    let works = [("runtime", true), ("network", true)];
    let no_runtime = [("runtime", false), ("network", true)];
    let none = [("runtime", false), ("network", false)];
    let unpacking = || {
        let mut attempts = Attempts::new(SET);
        attempts.before(&works);
        attempts.installation.node.unconfigured = BTreeSet::from(["containerd".to_owned()]);
        attempts
    };
    let mut attempts = unpacking();
    let took = attempts.after_in_time(&no_runtime, ExitCode::SUCCESS);
    assert!(took.is_zero() && !attempts.has_note(), "{took:?}");

    let took = unpacking().after_in_time(&none, ExitCode::FAILURE);
    assert_eq!(took, seconds(60), "the network needs no containerd");

    let mut attempts = unpacking();
    attempts.installation.node.later = Some((seconds(5), no_runtime.to_vec()));
    assert_eq!(attempts.after_in_time(&none, ExitCode::SUCCESS), seconds(5));

    let took = unpacking().after_in_time(&[], ExitCode::FAILURE);
    assert_eq!(took, seconds(60), "the daemon itself has no excuse");
}

#[test]
fn daemon_that_ends_again_and_again_has_a_minute_unless_its_fault_is_permanent() {
    let seconds = Duration::from_secs;
    let after = |exit_status, later: Option<u64>, expected| {
        let mut attempts = Attempts::new(SET);
        let works = [("runtime", true)];
        attempts.before(&works);
        let node = &mut attempts.installation.node;
        node.unit.active_state = "activating".into();
        node.unit.main_pid = None;
        node.unit.exit_status = exit_status;
        node.later = later.map(|from| (seconds(from), works.to_vec()));
        attempts.after_in_time(&[], expected)
    };
    assert_eq!(after(78, Some(3), ExitCode::FAILURE), Duration::ZERO);
    assert_eq!(after(75, None, ExitCode::FAILURE), seconds(60));
    assert_eq!(after(75, Some(3), ExitCode::SUCCESS), seconds(3));
}

#[test]
fn systemd_that_is_busy_is_asked_again_for_a_minute() {
    let seconds = Duration::from_secs;
    for (from, answers) in [(60, true), (61, false)] {
        let mut attempts = Attempts::new(SET);
        attempts.installation.limit = LIMIT;
        attempts.installation.node.systemd_from = seconds(from);
        let before = attempts.installation.before();
        assert_eq!(before.is_ok(), answers, "it answers after {from} s");
        assert!(answers || matches!(before, Err(CliError::Unit(_))));
        assert_eq!(attempts.installation.node.clock(), seconds(60));
    }
}
