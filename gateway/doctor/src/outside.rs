//! Looks at a process from outside, for a daemon that does not answer: its memory and its threads as the kernel knows them, and
//! the stacks of its threads by a debugger, if one is installed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use switchyard_linux::process::{ProcessId, stat_fields};
use switchyard_linux::{memory, report};

pub use super::facts::daemon_at;
use super::view::NodeView;
use super::{PROGRAM_DIRS, run_command, search_path, within};

/// The most threads that are looked at.
const THREADS_MAX: usize = 4096;

/// Time for a look at the threads, and for one at the memory, which waits for the kernel's lock on it.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// Time for a debugger: it reads the symbols first.
const STACKS_LIMIT: Duration = Duration::from_secs(30);

/// The most that a debugger may print, in bytes.
const STACKS_MAX: usize = 4 << 20;

/// A process, as it is seen from outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLook {
    /// Its id.
    pub pid: u32,
    /// Its threads.
    pub threads: Vec<ThreadLook>,
    /// Its memory in bytes, by the names in `/proc/<pid>/smaps_rollup`.
    pub memory: BTreeMap<String, u64>,
    /// The stacks of its threads, as the debugger prints them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stacks: Option<String>,
    /// Reasons for what is missing.
    pub missing: Vec<String>,
}

/// A thread, as the kernel describes it (proc(5)).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadLook {
    /// Its id.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Its state: `R` runs, `S` waits, `D` waits and cannot be killed, `T` and `t` are stopped.
    pub state: String,
    /// The function of the kernel in which it waits; empty if it does not, or if that is hidden.
    pub waits_in: String,
    /// The number of its system call and the arguments, or `running`; empty if they are hidden.
    pub system_call: String,
}

/// Looks at a process. `with_stacks` lets a debugger stop it for a moment, if one is installed.
#[must_use]
pub fn look(view: &Arc<dyn NodeView>, pid: u32, with_stacks: bool) -> ProcessLook {
    let mut missing = Vec::new();
    let of_view = Arc::clone(view);
    let threads = within("the threads", LOOK_LIMIT, move || threads(&*of_view, pid));
    let threads = threads.unwrap_or_else(|finding| {
        missing.push(finding.found);
        Vec::new()
    });
    let of_view = Arc::clone(view);
    let rollup = format!("/proc/{pid}/smaps_rollup");
    let memory = within("the memory", LOOK_LIMIT, move || {
        of_view.text(&rollup).map(|text| memory::of_rollup(&text))
    });
    let memory = match memory {
        Ok(memory) => memory.unwrap_or_default(),
        Err(finding) => {
            missing.push(finding.found);
            BTreeMap::new()
        }
    };
    let is_stopped = threads
        .iter()
        .any(|thread| thread.state.eq_ignore_ascii_case("t"));
    let stacks = if with_stacks {
        stacks(&**view, pid, is_stopped)
            .map_err(|why| missing.push(format!("the stacks: {why}")))
            .ok()
    } else {
        None
    };
    ProcessLook {
        pid,
        threads,
        memory,
        stacks,
        missing,
    }
}

fn threads(view: &dyn NodeView, pid: u32) -> Vec<ThreadLook> {
    let dir = PathBuf::from(format!("/proc/{pid}/task"));
    let names = view.list(&dir).unwrap_or_default();
    let mut ids: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    ids.sort_unstable();
    ids.truncate(THREADS_MAX);
    ids.into_iter()
        .filter_map(|id| thread(view, &dir.join(id.to_string()), id))
        .collect()
}

/// A thread; `None` if it has ended.
fn thread(view: &dyn NodeView, dir: &Path, id: u32) -> Option<ThreadLook> {
    let text = |name: &str| {
        let text = view.text(dir.join(name)).unwrap_or_default();
        text.trim().to_owned()
    };
    let stat = view.text(dir.join("stat"))?;
    let state = stat_fields(&stat).first().copied()?.to_owned();
    let waits_in = match text("wchan") {
        // It waits nowhere, or this process may not know.
        none if none == "0" => String::new(),
        function => function,
    };
    Some(ThreadLook {
        id,
        name: text("comm"),
        state,
        waits_in,
        system_call: text("syscall"),
    })
}

/// The stacks of the threads of a process, by the debugger that is installed.
fn stacks(view: &dyn NodeView, pid: u32, is_stopped: bool) -> Result<String, String> {
    let dirs = PROGRAM_DIRS.map(PathBuf::from);
    let id = pid.to_string();
    let of_gdb = [
        "--nx",
        "--batch",
        "--init-eval-command=set auto-load off",
        "-p",
        id.as_str(),
        "-ex",
        "thread apply all backtrace",
    ];
    let of_eu_stack = ["-p", id.as_str()];
    let commands = [("eu-stack", &of_eu_stack[..]), ("gdb", &of_gdb[..])];
    let found = commands
        .into_iter()
        .find_map(|(name, args)| Some((view.program(name, &dirs)?, args)));
    let Some((program, args)) = found else {
        return Err("neither eu-stack (package elfutils) nor gdb is installed".to_owned());
    };
    let process = i32::try_from(pid).ok().and_then(ProcessId::of);
    let done = run_command(&program, args, &search_path(), STACKS_LIMIT, STACKS_MAX);
    let was_killed = match &done {
        Ok(done) => done.is_cut,
        Err(_) => true,
    };
    if was_killed && let Some(process) = process.filter(|_| !is_stopped) {
        // A debugger that is killed may leave a thread stopped.
        process
            .signal(Signal::SIGCONT)
            .map_err(|error| format!("the process may be stopped: kill -CONT {pid}: {error}"))?;
    }
    let done = done.map_err(|error| report(&error))?;
    let mut text = String::from_utf8_lossy(&done.stdout).into_owned();
    if text.trim().is_empty() {
        let why = String::from_utf8_lossy(&done.stderr);
        return Err(format!("{}: {}", program.display(), why.trim()));
    }
    if done.is_cut {
        text.push_str("\n… (cut)\n");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LocalNode;

    #[test]
    fn own_process_is_seen_thread_by_thread() {
        let view: Arc<dyn NodeView> = Arc::new(LocalNode::default());
        let pid = std::process::id();
        let name = "outside-test";
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let (begun, begins) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                drop(begun);
                // Waits until the test has ended.
                wait.recv()
            })
            .unwrap();
        // A thread gives itself its name before it does what it was started for.
        assert!(begins.recv().is_err());
        let found = look(&view, pid, false);
        assert!(found.memory["Rss"] > 0, "{found:?}");
        assert!(
            found.missing.is_empty() && found.stacks.is_none(),
            "{found:?}"
        );
        let known = found.threads.iter().find(|thread| thread.name == name);
        let known = known.expect("the thread runs");
        assert!(["S", "R"].contains(&known.state.as_str()), "{known:?}");
        drop(end);
        assert!(thread.join().unwrap().is_err());
    }

    #[test]
    fn process_that_has_ended_has_no_threads() {
        let view: Arc<dyn NodeView> = Arc::new(LocalNode::default());
        // The largest possible id is 4194304.
        let found = look(&view, 4_194_305, false);
        assert!(
            found.threads.is_empty() && found.memory.is_empty(),
            "{found:?}"
        );
    }
}
