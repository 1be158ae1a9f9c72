//! The steps of the package's installation that need a decision. The maintainer scripts call the new
//! program, where systemd manages the node and nothing forbids to start the daemon (ADR 73).
//!
//! `before` the daemon is restarted, all that the new one reads is checked, and the parts that work are noted. `after`
//! that, the node is judged. A kill between the two leaves the note, which the next attempt adds to; so does a failure,
//! because what worked before the first attempt has to work after the last one.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use switchyard_config::{PathsConfig, Sources};
use switchyard_doctor::{LoadedUnit, LocalNode, NodeView, UNIT};
use switchyard_linux::files::{self, Durable, if_present};
use switchyard_linux::report;

use super::judge::{self, DownPart, RunningDaemon, Verdict};
use crate::config_check::NextStart;
use crate::error::CliError;
use crate::output::print_error;
use crate::{admin_socket, config_files, exit_status};

/// Time for the parts to work again.
const LIMIT: Duration = Duration::from_secs(60);

/// Interval between two looks at them.
const INTERVAL: Duration = Duration::from_millis(500);

/// The name of the file with the parts that worked, in the runtime directory of the package's units.
const NOTE: &str = "parts-before-upgrade.json";

/// The number of lines of the daemon's log that are looked at, the last ones.
const LOG_LINES: &str = "50";

/// The parts that worked before the first attempt to install a version.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Note {
    parts: BTreeSet<String>,
}

/// Checks all that the next daemon reads, and notes the parts that work. Its exit status says whether the installation
/// may continue.
pub(super) fn before() -> Result<ExitCode, CliError> {
    let node = LocalNode::default();
    let unit = read_unit(&node)?;
    check_next_start(&node, &unit)
}

/// Judges the node after the daemon was started or restarted. Its exit status says whether the installation succeeds.
pub(super) fn after() -> Result<ExitCode, CliError> {
    let node = LocalNode::default();
    let unit = read_unit(&node)?;
    wait_for_parts(&node, unit)
}

/// The daemon's unit. A busy systemd is asked again.
///
/// # Errors
/// It does not answer: nothing may be started that was not checked.
fn read_unit(node: &LocalNode) -> Result<LoadedUnit, CliError> {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(unit) = LoadedUnit::read(node, UNIT) {
            return Ok(unit);
        }
        if Instant::now() >= deadline {
            return Err(CliError::Unit(UNIT.to_owned()));
        }
        sleep(INTERVAL);
    }
}

// === before ===

fn check_next_start(node: &LocalNode, unit: &LoadedUnit) -> Result<ExitCode, CliError> {
    let checked = NextStart::check(unit);
    let running = ask(node, checked.as_ref().ok());
    if let Err(error) = &checked {
        print_error(format!("switchyard: {}\n", report(error)))?;
        if judge::is_left_alone(unit) {
            print_error(
                "switchyard: the daemon is not started here, and does not start before this is corrected\n",
            )?;
            return Ok(ExitCode::SUCCESS);
        }
        print_error(judge::refused_text(running.as_ref().ok()))?;
        return Ok(ExitCode::from(exit_status::of(error)));
    }
    if let Ok(next) = &checked
        && !judge::is_left_alone(unit)
    {
        next.warn()?;
        config_files::warn(&next.loaded)?;
    }
    if running.is_err() && unit.main_pid.is_some() {
        print_error(
            "switchyard: the daemon that runs does not answer, so that only its successor itself is waited for\n",
        )?;
    }
    if let Ok(running) = &running {
        let mut note = Note::read(&note_file());
        note.parts.extend(running.up_parts().map(str::to_owned));
        if let Err(error) = note.write(&note_file()) {
            print_error(format!(
                "switchyard: cannot note which parts work, so that only the daemon itself is waited for: {}: {error}\n",
                note_file().display()
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

// === after ===

fn wait_for_parts(node: &LocalNode, first: LoadedUnit) -> Result<ExitCode, CliError> {
    let deadline = Instant::now() + LIMIT;
    let expected = Note::read(&note_file()).parts;
    let next = NextStart::check(&first).ok();
    let mut unit = first;
    loop {
        let answer = ask(node, next.as_ref());
        let down = match judge::judge(&unit, answer.as_ref().map_err(String::as_str), &expected) {
            Verdict::Works => return works(answer.as_ref().ok()),
            Verdict::NotStarted => {
                print_error("switchyard: the daemon was not started, as its unit demands\n")?;
                return Ok(ExitCode::SUCCESS);
            }
            Verdict::Fails(down) => down,
        };
        let unconfigured = unconfigured(node);
        let down: Vec<DownPart> = down
            .into_iter()
            .filter(|part| !judge::is_being_upgraded(part, &unconfigured))
            .collect();
        if down.is_empty() {
            print_error(
                "switchyard: what does not work yet is being upgraded in the same run: see 'switchyard status' at its end\n",
            )?;
            return works(answer.as_ref().ok());
        }
        let is_final = answer.is_err() && exit_status::is_permanent(unit.exit_status);
        if is_final || Instant::now() >= deadline {
            return fails(node, &unit, down, &expected, next.as_ref());
        }
        sleep(INTERVAL);
        // A state that cannot be read now is read again.
        unit = LoadedUnit::read(node, UNIT).unwrap_or(unit);
    }
}

fn works(daemon: Option<&RunningDaemon>) -> Result<ExitCode, CliError> {
    if daemon.is_some_and(RunningDaemon::has_former_program) {
        print_error(
            "switchyard: the daemon still runs the former program: 'systemctl restart switchyard' replaces it while containers run\n",
        )?;
    }
    if let Err(error) = if_present(fs::remove_file(note_file())) {
        // The next upgrade waits for the same parts again.
        print_error(format!(
            "switchyard: cannot remove {}: {error}\n",
            note_file().display()
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn fails(
    node: &LocalNode,
    unit: &LoadedUnit,
    down: Vec<DownPart>,
    expected: &BTreeSet<String>,
    next: Option<&NextStart>,
) -> Result<ExitCode, CliError> {
    // Nothing worked before, and nobody has said yet what is to work.
    let is_new = expected.is_empty() && next.is_some_and(NextStart::is_as_shipped);
    // One that runs and does not answer has not ended with an error.
    let has_ended = unit.active_state != "active";
    let down: Vec<DownPart> = down
        .into_iter()
        .map(|part| {
            let error = (part.is_daemon() && has_ended).then(|| last_error(node));
            error.flatten().map_or(part, DownPart::daemon)
        })
        .collect();
    print_error(judge::failed_text(
        &down,
        &note_file().display().to_string(),
    ))?;
    if is_new {
        print_error("switchyard: it is not configured yet, so that the installation succeeds\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}

// === the node ===

/// The daemon's answer about itself, or why there is none. Without a configuration, it is found by what it has written down.
fn ask(node: &LocalNode, next: Option<&NextStart>) -> Result<RunningDaemon, String> {
    let sources = next.map_or_else(Sources::default, |next| next.loaded.sources.clone());
    let socket = admin_socket::find(&sources);
    let body = node.ask(&socket, "/statusz")?;
    serde_json::from_slice(&body).map_err(|error| format!("its answer cannot be parsed: {error}"))
}

/// The packages that dpkg has unpacked and not configured yet; none if it cannot be asked.
fn unconfigured(node: &LocalNode) -> BTreeSet<String> {
    let mut args = vec!["--show", "--showformat=${db:Status-Abbrev} ${Package}\\n"];
    args.extend(judge::packages());
    // It fails if it does not know one of them, and lists the others.
    let done = node.run(Path::new("/usr/bin/dpkg-query"), &args);
    done.map_or_else(
        |_| BTreeSet::new(),
        |done| judge::unconfigured(&String::from_utf8_lossy(&done.stdout)),
    )
}

/// The last error with which the daemon has ended, from the journal.
fn last_error(node: &LocalNode) -> Option<String> {
    let args = [
        "--unit",
        UNIT,
        "--lines",
        LOG_LINES,
        "--output",
        "cat",
        "--no-pager",
    ];
    let done = node.run(Path::new("/usr/bin/journalctl"), &args).ok()?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let last = text
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("switchyard: "));
    last.map(str::to_owned)
}

/// The file with the note. It is of this boot: after the next one, all parts start from nothing.
fn note_file() -> PathBuf {
    PathsConfig::default().run.join(NOTE)
}

// === impl Note ===

impl Note {
    /// The note in a file; an empty one if it is missing or unreadable. Blocks.
    fn read(file: &Path) -> Self {
        fs::read(file)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default()
    }

    /// Replaces the note in a file. Not durable: it is of this boot. Blocks.
    fn write(&self, file: &Path) -> io::Result<()> {
        let text = serde_json::to_vec(self)?;
        files::replace(file, &text, 0o600, Durable::No, || {})?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
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
}
