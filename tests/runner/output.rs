//! The output of a program of tests, in libtest's format.

use std::time::Duration;

/// The summary at the end of a program of tests, and the duration of each test.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Report {
    /// Number of tests that passed.
    pub(crate) passed: usize,
    /// The tests that failed.
    pub(crate) failed: Vec<String>,
    /// Duration of each test that passed.
    pub(crate) times: Vec<(Duration, String)>,
    /// True if the program came to its end: otherwise nothing is known of tests whose end it did not print.
    pub(crate) ended: bool,
}

impl Report {
    /// Takes in a line: `test NAME ... ok <1.234s>`, `test NAME ... FAILED`, or `test result: ...`; others say nothing.
    pub(crate) fn read(&mut self, line: &str) {
        if line.starts_with("test result: ") {
            self.ended = true;
            return;
        }
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
}
