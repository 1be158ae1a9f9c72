//! Faults that tests inject.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use nix::sys::signal::{Signal, kill};
use nix::unistd::getpid;
use parking_lot::Mutex;

use crate::crash_point::CrashPoint;
use crate::failure::Failure;

/// The environment variable with the path of the file that names the crash point to die at.
pub const KILL_FILE: &str = "SWITCHYARD_KILL_FILE";

/// The failures that are pending for the sequences of one owner. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    waiting: Arc<Mutex<HashSet<CrashPoint>>>,
}

impl Faults {
    /// Makes the sequence that reaches `point` next fail, once.
    ///
    /// # Panics
    /// If no sequence can fail there.
    pub fn fail(&self, point: CrashPoint) {
        assert!(point.can_fail(), "no sequence can fail at {point:?}");
        self.waiting.lock().insert(point);
    }

    /// Returns whether a failure is pending: its crash point has not been reached.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        !self.waiting.lock().is_empty()
    }

    /// Reports that a crash point is reached.
    ///
    /// # Errors
    /// If a test has requested a failure at this crash point.
    ///
    /// # Panics
    /// If the list of crash points has it as one at which no sequence can fail, so that no test would try it.
    pub fn reach(&self, point: CrashPoint) -> Result<(), Failure> {
        assert!(
            point.can_fail(),
            "{point:?} is to be listed as a crash point at which its sequence can fail"
        );
        reach(point);
        let waited = self.waiting.lock().remove(&point);
        if waited { Err(Failure(point)) } else { Ok(()) }
    }
}

/// Reports that a crash point is reached; does not return if the process is to be killed here.
pub fn reach(point: CrashPoint) {
    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    // Serializes the count of crash points, which are reached on any thread.
    static TURN: Mutex<()> = Mutex::new(());
    let Some(file) = FILE.get_or_init(|| std::env::var_os(KILL_FILE).map(PathBuf::from)) else {
        return;
    };
    let _turn = TURN.lock();
    if is_last(file, point) {
        // Killing the own process cannot fail.
        let _ = kill(getpid(), Signal::SIGKILL);
    }
}

/// Returns whether the file names this crash point as the one to die at; if so, its first line is removed. A
/// count above one is decremented.
fn is_last(file: &Path, point: CrashPoint) -> bool {
    let Ok(text) = fs::read_to_string(file) else {
        return false;
    };
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    let (name, times) = first.split_once(':').unwrap_or((first, "1"));
    if name != format!("{point:?}") {
        return false;
    }
    let times: u32 = times
        .parse()
        .expect("a test writes a number after the colon");
    if times > 1 {
        replace(file, &format!("{name}:{}\n{rest}", times - 1));
        return false;
    }
    if rest.is_empty() {
        return fs::remove_file(file).is_ok();
    }
    replace(file, rest);
    true
}

/// Replaces the file atomically, because other processes may read it at any moment.
fn replace(file: &Path, text: &str) {
    let new = file.with_extension("replaced");
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, file))
        .expect("the directory of a test can be written");
}
