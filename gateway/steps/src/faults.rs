//! Faults that tests inject.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use nix::sys::signal::{Signal, kill};
use nix::unistd::getpid;
use parking_lot::Mutex;

use crate::{Failure, Step};

/// The environment variable with the path of the file that names the step to die at.
pub const KILL_FILE: &str = "SWITCHYARD_KILL_FILE";

/// The failures that are pending for the sequences of one owner. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    waiting: Arc<Mutex<HashSet<Step>>>,
}

impl Faults {
    /// Makes the sequence that reaches `step` next fail, once.
    ///
    /// # Panics
    /// If no sequence can fail there.
    pub fn fail(&self, step: Step) {
        assert!(step.can_fail(), "no sequence can fail at {step:?}");
        self.waiting.lock().insert(step);
    }

    /// Whether a failure is pending: its step has not been reached.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        !self.waiting.lock().is_empty()
    }

    /// Reports that a step is reached.
    ///
    /// # Errors
    /// If a test has requested a failure at this step.
    ///
    /// # Panics
    /// If the list of steps has it as one at which no sequence can fail, so that no test would try it.
    pub fn reach(&self, step: Step) -> Result<(), Failure> {
        assert!(step.can_fail(), "{step:?} is to be listed as a step at which its sequence can fail");
        reach(step);
        let waited = self.waiting.lock().remove(&step);
        if waited { Err(Failure(step)) } else { Ok(()) }
    }
}

/// Reports that a step is reached; does not return if the process is to be killed here.
pub fn reach(step: Step) {
    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    // Serializes the count of steps, which are reached on any thread.
    static TURN: Mutex<()> = Mutex::new(());
    let Some(file) = FILE.get_or_init(|| std::env::var_os(KILL_FILE).map(PathBuf::from)) else { return };
    let _turn = TURN.lock();
    if is_last(file, step) {
        // Killing the own process cannot fail.
        let _ = kill(getpid(), Signal::SIGKILL);
    }
}

/// Whether the file names this step as the one to die at; if so, its first line is removed. A count above one
/// is decremented.
fn is_last(file: &Path, step: Step) -> bool {
    let Ok(text) = fs::read_to_string(file) else { return false };
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    let (name, times) = first.split_once(':').unwrap_or((first, "1"));
    if name != format!("{step:?}") {
        return false;
    }
    let times: u32 = times.parse().expect("a test writes a number after the colon");
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
