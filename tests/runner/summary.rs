//! The summary of a run: the duration of each stage, the failures, and the items left to other shards.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use switchyard_tests::shards::{KILL_LISTS, KNOWN_FAILURES, Plan, SLOW, Suite, What};

use crate::program::Outcome;

/// From which time on a test belongs into the table of what is slow.
const SLOW_FROM: Duration = Duration::from_secs(15);

/// Number of the slowest tests that are named.
const SLOWEST: usize = 20;

/// The results so far.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    stages: Vec<(Option<Duration>, String)>,
    said: Vec<String>,
    passed: usize,
    /// The panic messages of the tests that failed.
    messages: Vec<String>,
    failures: Vec<String>,
}

/// A stage that has begun.
#[derive(Debug)]
pub(crate) struct Timer {
    begun: Instant,
    stage: usize,
}

impl Summary {
    /// A line for the end.
    pub(crate) fn say(&mut self, line: String) {
        println!("{line}");
        self.said.push(line);
    }

    /// Begins a stage.
    pub(crate) fn stage(&mut self, name: &str) -> Timer {
        println!("\n== {}", name.trim_start());
        self.stages.push((None, name.to_owned()));
        Timer {
            begun: Instant::now(),
            stage: self.stages.len() - 1,
        }
    }

    /// Ends it.
    pub(crate) fn end(&mut self, timer: Timer) {
        self.stages[timer.stage].0 = Some(timer.begun.elapsed());
    }

    /// Takes in how a program of tests ended, and prints what it wrote if it failed.
    pub(crate) fn program(&mut self, name: &str, outcome: &Outcome) {
        let failure = (!outcome.passed).then(|| outcome.failure());
        self.end_of_program(name, outcome, failure);
    }

    /// Takes in how a program of tests ended that ran in another suite of Debian, where some tests are known to fail.
    pub(crate) fn program_with_known(&mut self, name: &str, outcome: &Outcome, suite: Suite) {
        let known: Vec<_> = KNOWN_FAILURES
            .iter()
            .filter(|known| known.suite == suite)
            .collect();
        let is_known = |test: &String| known.iter().any(|known| known.test == test);
        let report = &outcome.report;
        let (expected, others): (Vec<_>, Vec<_>) =
            report.failed.iter().cloned().partition(is_known);
        let passed: Vec<_> = report
            .times
            .iter()
            .map(|(_, test)| test.clone())
            .filter(|test| is_known(test))
            .collect();
        if !expected.is_empty() {
            self.said.push(format!(
                "{name}: known to fail there: {}.",
                expected.join(", ")
            ));
        }
        if !passed.is_empty() {
            let passed = passed.join(", ");
            self.said.push(format!(
                "{name}: passed, and listed in KNOWN_FAILURES: {passed}."
            ));
        }
        let failure = if !others.is_empty() {
            Some(others.join(", "))
        } else if outcome.passed || (report.ended && !expected.is_empty()) {
            None
        } else {
            Some(outcome.failure())
        };
        self.end_of_program(name, outcome, failure);
    }

    fn end_of_program(&mut self, name: &str, outcome: &Outcome, failure: Option<String>) {
        self.passed += outcome.report.passed;
        match failure {
            None => println!("{name}: {} passed", outcome.report.passed),
            Some(failure) => {
                print_log(name, &outcome.log);
                self.messages
                    .extend(outcome.report.messages.iter().cloned());
                self.failures.push(format!("{name}: {failure}"));
            }
        }
    }

    /// Records a failure for each word that is part of none of these names of tests, as one with a typing error.
    pub(crate) fn require_tests(&mut self, words: &[String], names: &[String]) {
        for word in words {
            if !names.iter().any(|name| name.contains(word)) {
                self.failures
                    .push(format!("no test has {word:?} in its name"));
            }
        }
    }

    /// Takes in how a command ended, and prints what it wrote.
    pub(crate) fn command(&mut self, name: &str, passed: bool, log: &Path) {
        print_log(name, log);
        if !passed {
            self.failures.push(format!("{name}: see {}", log.display()));
        }
    }

    /// Takes in how long tests took: the slowest are named, and those that the table lacks.
    pub(crate) fn times(&mut self, times: &[(Duration, String)]) {
        let mut times: Vec<_> = times.iter().collect();
        times.sort_by(|one, other| other.cmp(one));
        let mut text = String::from("The slowest tests:");
        for (time, name) in times.iter().take(SLOWEST) {
            write!(text, "\n  {:6.1} s  {name}", time.as_secs_f32())
                .expect("memory can be written");
        }
        println!("{text}");
        let is_known = |name: &str| {
            SLOW.iter()
                .any(|slow| matches!(slow.what, What::Test(listed) if listed == name))
                || KILL_LISTS.iter().any(|(list, _)| *list == name)
        };
        let unknown = times
            .iter()
            .filter(|(time, name)| *time >= SLOW_FROM && !is_known(name));
        for (time, name) in unknown {
            let seconds = time.as_secs();
            self.said.push(format!(
                "{name} took {seconds} s and is not in tests/src/shards/table.rs."
            ));
        }
    }

    /// Says what was left to other shards.
    pub(crate) fn left_out(&mut self, plan: &Plan) {
        if plan.left_out.is_empty() {
            return;
        }
        if !plan.postponed.is_empty() {
            self.said.push(format!(
                "Changed lately, and left to other shards in part because this run would take too long: {}.",
                plan.postponed.join(", ")
            ));
        }
        let names: Vec<_> = plan.left_out.iter().map(ToString::to_string).collect();
        let lists: Vec<_> = plan.tests_in_part().collect();
        self.said.push(format!(
            "Left to other shards ({}): {}.",
            names.len(),
            names.join("; ")
        ));
        self.said.push(format!(
            "Of these lists of kills an eighth was run ({}): {}.",
            lists.len(),
            lists.join("; ")
        ));
    }

    /// Writes the summary, which `tests/run` prints, and says whether all passed.
    pub(crate) fn finish(self, logs: &Path) -> ExitCode {
        let mut text = String::new();
        for (time, name) in &self.stages {
            let time = time.map_or("     ?".to_owned(), |time| {
                format!("{:5} s", time.as_secs())
            });
            writeln!(text, "{time}  {name}").expect("memory can be written");
        }
        for line in &self.said {
            writeln!(text, "{line}").expect("memory can be written");
        }
        for line in &self.messages {
            writeln!(text, "{line}").expect("memory can be written");
        }
        writeln!(text, "{} tests passed.", self.passed).expect("memory can be written");
        for failure in &self.failures {
            writeln!(text, "FAILED: {failure}").expect("memory can be written");
        }
        fs::write(logs.join("summary"), text).expect("the directory of the logs can be written");
        if self.failures.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

fn print_log(name: &str, log: &Path) {
    let text = fs::read(log).unwrap_or_default();
    println!(
        "\n---- {name} ----\n{}",
        String::from_utf8_lossy(&text).trim_end()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_that_no_test_has_is_a_failure_beside_one_that_some_have() {
        let words = ["stop", "tpyo"].map(str::to_owned);
        let names = ["table::stop_is_idempotent", "table::start"].map(str::to_owned);
        let mut summary = Summary::default();
        summary.require_tests(&words, &names);
        assert_eq!(summary.failures, ["no test has \"tpyo\" in its name"]);
    }
}
