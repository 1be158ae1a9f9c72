//! Reports of a node's orchestrators to their users: the events of a pod, the log of an agent.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tonic::Status;

/// The lines that orchestrators have reported. A file has them too, each with the time of day (UTC).
#[derive(Debug, Clone)]
pub struct OrchestratorReport(Arc<ReportedLines>);

#[derive(Debug)]
struct ReportedLines {
    file: PathBuf,
    lines: Mutex<Vec<String>>,
}

impl OrchestratorReport {
    /// A report without lines.
    pub(super) fn new(file: &Path) -> Self {
        Self(Arc::new(ReportedLines {
            file: file.to_owned(),
            lines: Mutex::default(),
        }))
    }

    /// The file that has the lines.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.0.file
    }

    /// The lines so far, without their times.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.0.lines.lock().clone()
    }

    /// Reports a line about an object.
    pub(super) fn say(&self, object: &str, text: &str) {
        let line = format!("{object}: {text}");
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let time = time_of_day(since.map_or(0, |since| since.as_secs()));
        let file = File::options().create(true).append(true).open(&self.0.file);
        // The last reports of a load may follow the end of its root.
        let _ = file.and_then(|mut file| writeln!(file, "{time} {line}"));
        self.0.lines.lock().push(line);
    }

    /// Reports a call that failed, as a kubelet words it.
    pub(super) fn say_failure(&self, object: &str, what: &str, status: &Status) {
        let text = format!(
            "{what}: rpc error: code = {:?} desc = {}",
            status.code(),
            status.message()
        );
        self.say(object, &text);
    }
}

/// The time of day of a number of seconds since 1970.
#[must_use]
pub fn time_of_day(seconds: u64) -> String {
    let day = seconds % 86_400;
    format!("{:02}:{:02}:{:02}", day / 3600, day / 60 % 60, day % 60)
}
