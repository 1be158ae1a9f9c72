//! The output of a program of tests, in libtest's format.

use std::time::Duration;

/// Maximum number of lines kept of the panic messages of one test.
const MESSAGE_LINES: usize = 24;

/// Maximum length of such a line, in characters.
const MESSAGE_WIDTH: usize = 400;

/// The summary at the end of a program of tests, and the duration of each test.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Report {
    /// Number of tests that passed.
    pub(crate) passed: usize,
    /// The tests that failed.
    pub(crate) failed: Vec<String>,
    /// Duration of each test that passed.
    pub(crate) times: Vec<(Duration, String)>,
    /// The panic messages of the tests that failed: the beginning of each, behind a line with the name of its test.
    pub(crate) messages: Vec<String>,
    /// True if the program came to its end: otherwise nothing is known of tests whose end it did not print.
    pub(crate) ended: bool,
    message: MessageState,
}

/// The position in the captured output of the tests that failed.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum MessageState {
    /// Before or behind it.
    #[default]
    Outside,
    /// In the output of a test, of which so many lines are still wanted, and outside of a panic message.
    InOutput(usize),
    /// In a panic message in it.
    InPanic(usize),
}

impl Report {
    /// Takes in a line: `test NAME ... ok <1.234s>`, `test NAME ... FAILED`, or `test result: ...`; others say nothing.
    pub(crate) fn read(&mut self, line: &str) {
        if line.starts_with("test result: ") {
            self.ended = true;
            return;
        }
        self.read_message(line);
        let Some((name, verdict)) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once(" ... "))
        else {
            return;
        };
        // A test that is to panic has that behind its name.
        let name = name.split(" - ").next().unwrap_or(name);
        let (verdict, time) = verdict.split_once(" <").unwrap_or((verdict, ""));
        match verdict {
            "ok" => {
                self.passed += 1;
                let seconds = time
                    .trim_end_matches("s>")
                    .parse()
                    .ok()
                    .filter(|seconds: &f64| *seconds >= 0.0);
                self.times.extend(
                    seconds.map(|seconds| (Duration::from_secs_f64(seconds), name.to_owned())),
                );
            }
            "FAILED" => self.failed.push(name.to_owned()),
            _ => {}
        }
    }

    /// Takes in a line of the captured output: `---- NAME stdout ----`, then what the test wrote, with a panic message from
    /// `thread 'NAME' panicked at` up to the note on backtraces.
    fn read_message(&mut self, line: &str) {
        let header = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(name) = header {
            self.messages.push(format!("{name}:"));
            self.message = MessageState::InOutput(MESSAGE_LINES);
            return;
        }
        if line == "failures:" {
            self.message = MessageState::Outside;
            return;
        }
        let begins = line.starts_with("thread '") && line.contains(" panicked at ");
        let wanted = match self.message {
            MessageState::Outside => return,
            MessageState::InOutput(_) if !begins => return,
            MessageState::InOutput(wanted) | MessageState::InPanic(wanted) => wanted,
        };
        if line.starts_with("note: run with `RUST_BACKTRACE") {
            self.message = MessageState::InOutput(wanted);
        } else if let Some(left) = wanted.checked_sub(1) {
            let shown: String = line.chars().take(MESSAGE_WIDTH).collect();
            self.messages.push(format!("  {shown}"));
            self.message = MessageState::InPanic(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_times_and_the_end_are_read() {
        let mut report = Report::default();
        for line in [
            "running 4 tests",
            "test a::first ... ok <1.500s>",
            "test a::second has been running for over 60 seconds",
            "test a::third ... FAILED <0.100s>",
            "test a::fourth - should panic ... ok <0.020s>",
            "test a::fifth ... ignored",
            "test of something that a daemon prints",
        ] {
            report.read(line);
        }
        assert_eq!((report.passed, report.ended), (2, false));
        assert_eq!(report.failed, ["a::third"]);
        let first = (Duration::from_millis(1_500), "a::first".to_owned());
        assert_eq!(
            report.times,
            [first, (Duration::from_millis(20), "a::fourth".to_owned())]
        );
        report.read("test result: FAILED. 2 passed; 1 failed");
        assert!(report.ended);
    }

    #[test]
    fn panic_messages_are_kept_without_the_rest_of_the_output() {
        let mut report = Report::default();
        let long = "x".repeat(MESSAGE_WIDTH + 1);
        for line in [
            "thread 'a' panicked at nobody's output",
            "failures:",
            "",
            "---- a stdout ----",
            "a line of a daemon",
            "thread 'a' (17) panicked at tests/a.rs:1:2:",
            "assertion failed: one",
            long.as_str(),
            "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace",
            "another line of a daemon",
            "---- b stdout ----",
            "thread 'b' panicked at tests/b.rs:3:4:",
            "two",
            "",
            "failures:",
            "    a",
            "    b",
        ] {
            report.read(line);
        }
        let kept = "x".repeat(MESSAGE_WIDTH);
        assert_eq!(
            report.messages,
            [
                "a:",
                "  thread 'a' (17) panicked at tests/a.rs:1:2:",
                "  assertion failed: one",
                &format!("  {kept}"),
                "b:",
                "  thread 'b' panicked at tests/b.rs:3:4:",
                "  two",
                "  ",
            ]
        );
        report.read("---- c stdout ----");
        report.read("thread 'c' panicked at tests/c.rs:5:6:");
        for _ in 0..2 * MESSAGE_LINES {
            report.read("a line of a long message");
        }
        assert_eq!(report.messages.len(), 8 + 1 + MESSAGE_LINES);
    }
}
