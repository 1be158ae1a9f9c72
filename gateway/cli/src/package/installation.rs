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
use switchyard_doctor::{LoadedUnit, LocalNode, NodeView as _, UNIT};
use switchyard_linux::files::{self, Durable, if_present};
use switchyard_linux::report;

use super::judge::{self, DownPart, RunningDaemon, Verdict};
use crate::config_check::NextStart;
use crate::error::CliError;
use crate::output::print_error;
use crate::{admin_socket, config_files, exit_status};

#[cfg(test)]
mod tests;

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

/// Operations that an installation needs from its node.
trait InstalledNode {
    /// The daemon's unit; `None` if systemd does not answer.
    fn unit(&self) -> Option<LoadedUnit>;

    /// The daemon's answer about itself, or why there is none.
    fn ask(&self, next: Option<&NextStart>) -> Result<RunningDaemon, String>;

    /// The packages that dpkg has unpacked and not configured yet; none if it cannot be asked.
    fn unconfigured(&self) -> BTreeSet<String>;

    /// The last error that a start of the daemon has written.
    fn last_error(&self, invocation: &str) -> Option<String>;

    /// The time since a moment that stays the same.
    fn clock(&self) -> Duration;

    /// Waits. Blocks.
    fn wait(&self, time: Duration);
}

/// An installation of the package.
struct Installation<N> {
    node: N,
    /// The file with the note.
    note: PathBuf,
    /// Time for the node to work again.
    limit: Duration,
}

/// Checks all that the next daemon reads, and notes the parts that work. Its exit status says whether the installation
/// may continue.
pub(super) fn before() -> Result<ExitCode, CliError> {
    Installation::of_this_node().before()
}

/// Judges the node after the daemon was started or restarted. Its exit status says whether the installation succeeds.
pub(super) fn after(is_upgrade: bool) -> Result<ExitCode, CliError> {
    Installation::of_this_node().after(is_upgrade)
}

// === impl Installation ===

impl Installation<ThisNode> {
    fn of_this_node() -> Self {
        Self {
            node: ThisNode {
                local: LocalNode::default(),
                begin: Instant::now(),
            },
            note: note_file(),
            limit: LIMIT,
        }
    }
}

impl<N: InstalledNode> Installation<N> {
    /// The daemon's unit. A busy systemd is asked again.
    ///
    /// # Errors
    /// It does not answer: nothing may be started that was not checked.
    fn unit(&self) -> Result<LoadedUnit, CliError> {
        let deadline = self.node.clock() + self.limit;
        loop {
            if let Some(unit) = self.node.unit() {
                return Ok(unit);
            }
            if self.node.clock() >= deadline {
                return Err(CliError::Unit(UNIT.to_owned()));
            }
            self.node.wait(INTERVAL);
        }
    }

    fn before(&self) -> Result<ExitCode, CliError> {
        let unit = self.unit()?;
        match NextStart::check(&unit) {
            // Nothing is restarted, so nothing is compared.
            Ok(_) if judge::is_left_alone(&unit) => Ok(ExitCode::SUCCESS),
            Ok(next) => {
                next.warn()?;
                config_files::warn(&next.loaded)?;
                self.note_parts(&unit, &next)?;
                Ok(ExitCode::SUCCESS)
            }
            Err(error) => self.refuse(&unit, &error),
        }
    }

    fn refuse(&self, unit: &LoadedUnit, error: &CliError) -> Result<ExitCode, CliError> {
        print_error(format!("switchyard: {}\n", report(error)))?;
        if judge::is_left_alone(unit) {
            print_error(
                "switchyard: the daemon is not started here, and does not start before this is corrected\n",
            )?;
            return Ok(ExitCode::SUCCESS);
        }
        print_error(judge::refused_text(self.node.ask(None).ok().as_ref()))?;
        Ok(ExitCode::from(exit_status::of(error)))
    }

    /// Adds the parts that work to the note.
    fn note_parts(&self, unit: &LoadedUnit, next: &NextStart) -> Result<(), CliError> {
        let Ok(running) = self.node.ask(Some(next)) else {
            if unit.main_pid.is_some() {
                print_error(
                    "switchyard: the daemon that runs does not answer, so that only its successor itself is waited for\n",
                )?;
            }
            return Ok(());
        };
        let mut note = Note::read(&self.note);
        note.parts.extend(running.up_parts().map(str::to_owned));
        if let Err(error) = note.write(&self.note) {
            print_error(format!(
                "switchyard: cannot note which parts work, so that only the daemon itself is waited for: {}: {error}\n",
                self.note.display()
            ))?;
        }
        Ok(())
    }

    fn after(&self, is_upgrade: bool) -> Result<ExitCode, CliError> {
        let mut unit = self.unit()?;
        let deadline = self.node.clock() + self.limit;
        let expected = Note::read(&self.note).parts;
        let next = NextStart::check(&unit).ok();
        // The last start that was seen to end with an error in this step.
        let mut ended = None;
        loop {
            let answer = self.node.ask(next.as_ref());
            let answered = answer.as_ref().map_err(String::as_str);
            let down = match judge::judge(&unit, answered, &expected) {
                Verdict::Works => return self.works(answer.as_ref().ok()),
                Verdict::NotStarted => {
                    print_error("switchyard: the daemon was not started, as its unit demands\n")?;
                    return self.succeed();
                }
                Verdict::Fails(down) => down,
            };
            let unconfigured = self.node.unconfigured();
            let down: Vec<DownPart> = down
                .into_iter()
                .filter(|part| !judge::is_being_upgraded(part, &unconfigured))
                .collect();
            if down.is_empty() {
                print_error(
                    "switchyard: what does not work yet is being upgraded in the same run: see 'switchyard status' at its end\n",
                )?;
                return self.works(answer.as_ref().ok());
            }
            if unit.has_ended() {
                ended = Some(unit.invocation.clone());
            }
            let is_final = answer.is_err() && exit_status::is_permanent(unit.exit_status);
            if is_final || self.node.clock() >= deadline {
                // Nothing worked before, and nobody has said yet what is to work. An upgrade has no note after a power cut.
                let is_new = !is_upgrade
                    && expected.is_empty()
                    && next.as_ref().is_some_and(NextStart::is_as_shipped);
                // One that runs and does not answer has not ended with an error.
                let ended = ended.filter(|_| unit.active_state != "active");
                return self.fails(down, ended.as_deref(), is_new);
            }
            self.node.wait(INTERVAL);
            // A state that cannot be read now is read again.
            unit = self.node.unit().unwrap_or(unit);
        }
    }

    fn works(&self, daemon: Option<&RunningDaemon>) -> Result<ExitCode, CliError> {
        if daemon.is_some_and(RunningDaemon::has_former_program) {
            print_error(
                "switchyard: the daemon still runs the former program: 'systemctl restart switchyard' replaces it while containers run\n",
            )?;
        }
        self.succeed()
    }

    /// Removes the note: no later installation has to bring these parts back.
    fn succeed(&self) -> Result<ExitCode, CliError> {
        if let Err(error) = if_present(fs::remove_file(&self.note)) {
            // The next upgrade waits for the same parts again.
            print_error(format!(
                "switchyard: cannot remove {}: {error}\n",
                self.note.display()
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Reports parts that do not work, by the error of the start that has `ended`.
    fn fails(
        &self,
        down: Vec<DownPart>,
        ended: Option<&str>,
        is_new: bool,
    ) -> Result<ExitCode, CliError> {
        let down: Vec<DownPart> = down
            .into_iter()
            .map(|part| {
                let ended = ended.filter(|_| part.is_daemon());
                let error = ended.and_then(|invocation| self.node.last_error(invocation));
                error.map_or(part, DownPart::daemon)
            })
            .collect();
        print_error(judge::failed_text(&down, &self.note.display().to_string()))?;
        if is_new {
            print_error(
                "switchyard: it is not configured yet, so that the installation succeeds\n",
            )?;
            return self.succeed();
        }
        Ok(ExitCode::FAILURE)
    }
}

// === the node ===

/// The node that this process runs on.
struct ThisNode {
    local: LocalNode,
    /// The moment from which its clock counts.
    begin: Instant,
}

impl InstalledNode for ThisNode {
    fn unit(&self) -> Option<LoadedUnit> {
        LoadedUnit::read(&self.local, UNIT)
    }

    /// Without a configuration, the daemon is found by what it has written down.
    fn ask(&self, next: Option<&NextStart>) -> Result<RunningDaemon, String> {
        let sources = next.map_or_else(Sources::default, |next| next.loaded.sources.clone());
        let socket = admin_socket::find(&sources);
        let body = self.local.ask(&socket, "/statusz")?;
        serde_json::from_slice(&body)
            .map_err(|error| format!("its answer cannot be parsed: {error}"))
    }

    fn unconfigured(&self) -> BTreeSet<String> {
        let mut args = vec!["--show", "--showformat=${db:Status-Abbrev} ${Package}\\n"];
        args.extend(judge::packages());
        // It fails if it does not know one of them, and lists the others.
        let done = self.local.run(Path::new("/usr/bin/dpkg-query"), &args);
        done.map_or_else(
            |_| BTreeSet::new(),
            |done| judge::unconfigured(&String::from_utf8_lossy(&done.stdout)),
        )
    }

    fn last_error(&self, invocation: &str) -> Option<String> {
        // The journal has errors of earlier starts too.
        let start = format!("_SYSTEMD_INVOCATION_ID={invocation}");
        let args = [
            "--lines",
            LOG_LINES,
            "--output",
            "cat",
            "--no-pager",
            start.as_str(),
        ];
        let done = self
            .local
            .run(Path::new("/usr/bin/journalctl"), &args)
            .ok()?;
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        let last = text
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix("switchyard: "));
        last.map(str::to_owned)
    }

    fn clock(&self) -> Duration {
        self.begin.elapsed()
    }

    fn wait(&self, time: Duration) {
        sleep(time);
    }
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
