//! Runs one program of tests. What it prints goes to a file, which is read along: a pipe would stay open for as long as any process
//! that a test has left behind.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::artifacts::TestProgram;
use crate::output::Report;

/// Interval at which the file is read.
const POLL: Duration = Duration::from_millis(50);

/// Maximum time for which a program may print nothing. The longest test takes two minutes, and each end of
/// one is a line.
const SILENCE: Duration = Duration::from_secs(20 * 60);

/// The parameters for running a program.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    /// The program.
    pub(crate) program: &'a TestProgram,
    /// Its arguments, beside those for the report of times.
    pub(crate) arguments: Vec<String>,
    /// Variables of its environment.
    pub(crate) variables: Vec<(&'static str, String)>,
    /// Maximum number of its tests that run concurrently.
    pub(crate) threads: usize,
    /// The file for what it prints.
    pub(crate) log: PathBuf,
}

/// The end of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// True if all passed.
    pub(crate) passed: bool,
    /// The printed results of the tests.
    pub(crate) report: Report,
    /// The end of the program, unless all passed.
    pub(crate) end: String,
    /// The file with what it printed.
    pub(crate) log: PathBuf,
}

impl Outcome {
    /// Returns the tests that failed, or else how the program ended.
    pub(crate) fn failure(&self) -> String {
        if self.report.failed.is_empty() {
            self.end.clone()
        } else {
            self.report.failed.join(", ")
        }
    }
}

impl Run<'_> {
    /// Runs it, and hands each line that it prints to `on_line`.
    ///
    /// # Errors
    /// The program or its log cannot be opened.
    pub(crate) fn run(&self, mut on_line: impl FnMut(&str)) -> std::io::Result<Outcome> {
        let log = File::create(&self.log)?;
        let mut child = Command::new(&self.program.path)
            .args(&self.arguments)
            // libtest reports the duration of each test only with unstable options.
            .args(["-Z", "unstable-options", "--report-time"])
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUST_TEST_THREADS", self.threads.to_string())
            .env("CARGO_MANIFEST_DIR", &self.program.dir)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.program.dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let mut report = Report::default();
        let end = follow(&mut child, &self.log, |line| {
            report.read(line);
            on_line(line);
        })?;
        let passed = end.is_some_and(|status| status.success());
        let end = end.map_or_else(
            || {
                format!(
                    "it printed nothing for {} minutes and was killed",
                    SILENCE.as_secs() / 60
                )
            },
            |status| status.to_string(),
        );
        Ok(Outcome {
            passed,
            report,
            end,
            log: self.log.clone(),
        })
    }
}

/// Hands the lines of the file on until the process has ended; `None` if it was killed because it printed nothing for too long.
fn follow(
    child: &mut Child,
    log: &Path,
    mut on_line: impl FnMut(&str),
) -> std::io::Result<Option<ExitStatus>> {
    let mut file = File::open(log)?;
    let mut pending = Vec::new();
    let mut last = Instant::now();
    loop {
        // Looked at first: what it printed before its end is then in the file.
        let ended = child.try_wait()?;
        let before = pending.len();
        file.read_to_end(&mut pending)?;
        if pending.len() > before {
            last = Instant::now();
        }
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            on_line(String::from_utf8_lossy(&line).trim_end());
        }
        if let Some(status) = ended {
            return Ok(Some(status));
        }
        if last.elapsed() > SILENCE {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
}
