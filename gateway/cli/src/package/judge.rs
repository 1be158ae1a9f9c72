//! The decisions of an installation: which parts have to work after it, whether they do, and what its texts say. Pure.

use std::collections::BTreeSet;

use serde::Deserialize;
use switchyard_doctor::LoadedUnit;
use switchyard_operator_api::PartView;
use switchyard_operator_api::programs::ProgramView;

/// The part that stands for the daemon itself.
const DAEMON: &str = "daemon";

/// The packages with the programs of a part.
const PACKAGES_OF: [(&str, &[&str]); 6] = [
    ("containerd", &["containerd", "containerd.io"]),
    ("runtime", &["containerd", "containerd.io", "runc", "crun"]),
    ("snapshotters", &["containerd", "containerd.io"]),
    ("recovery", &["containerd", "containerd.io", "runc", "crun"]),
    ("network", &["containernetworking-plugins"]),
    ("kubelet devices", &["kubelet"]),
];

/// The answer of a daemon of any version about itself.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct RunningDaemon {
    /// Its version.
    version: String,
    /// Its process.
    #[serde(default)]
    pid: Option<u32>,
    parts: Vec<PartView>,
    #[serde(default)]
    programs: Vec<ProgramView>,
}

/// A part that has to work and does not, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DownPart {
    name: String,
    why: String,
}

/// The state of a node after the daemon was started.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// All parts work that worked before.
    Works,
    /// Nobody wants the daemon to run: its unit is masked, or disabled and stopped.
    NotStarted,
    /// These parts do not work.
    Fails(Vec<DownPart>),
}

// === impl RunningDaemon ===

impl RunningDaemon {
    /// The parts that work.
    pub(super) fn up_parts(&self) -> impl Iterator<Item = &str> {
        self.parts
            .iter()
            .filter(|part| part.up)
            .map(|part| part.name.as_str())
    }

    /// Returns whether it runs a former program: it was not restarted.
    pub(super) fn has_former_program(&self) -> bool {
        self.programs
            .iter()
            .any(|program| program.part == DAEMON && program.replaced)
    }

    /// Its version and process, for people.
    fn shown(&self) -> String {
        match self.pid {
            Some(pid) => format!("version {}, process {pid}", self.version),
            None => format!("version {}", self.version),
        }
    }
}

// === impl DownPart ===

impl DownPart {
    /// The daemon, which does not answer.
    pub(super) fn daemon(why: impl Into<String>) -> Self {
        Self {
            name: DAEMON.to_owned(),
            why: why.into(),
        }
    }

    /// Returns whether it is the daemon itself.
    pub(super) fn is_daemon(&self) -> bool {
        self.name == DAEMON
    }
}

/// Returns whether the package neither starts nor restarts the daemon of this unit: it is masked, or disabled and stopped.
pub(super) fn is_left_alone(unit: &LoadedUnit) -> bool {
    let is_stopped = unit.is_inactive() || unit.active_state == "failed";
    let is_absent = !unit.is_loaded() && !unit.is_broken();
    is_absent || (is_stopped && !unit.is_enabled())
}

/// Judges the node by the state of the daemon's unit, by what the daemon answers, and by the parts that worked before. A
/// part that the daemon does not list is one that the configuration does not have any more.
pub(super) fn judge(
    unit: &LoadedUnit,
    answer: Result<&RunningDaemon, &str>,
    expected: &BTreeSet<String>,
) -> Verdict {
    if is_left_alone(unit) {
        return Verdict::NotStarted;
    }
    let down: Vec<DownPart> = match answer {
        Ok(daemon) => daemon
            .parts
            .iter()
            .filter(|part| !part.up && expected.contains(&part.name))
            .map(|part| DownPart {
                name: part.name.clone(),
                why: part.detail.clone(),
            })
            .collect(),
        // Such as a condition of a drop-in.
        Err(_) if unit.is_inactive() && expected.is_empty() => return Verdict::NotStarted,
        Err(why) => vec![DownPart::daemon(why)],
    };
    if down.is_empty() {
        Verdict::Works
    } else {
        Verdict::Fails(down)
    }
}

/// The packages of which dpkg has unpacked a version that it has not configured yet, in what `dpkg-query` prints: the
/// abbreviation of the state, and the name, one package a line.
pub(super) fn unconfigured(listed: &str) -> BTreeSet<String> {
    let package = |line: &str| {
        let mut words = line.split_whitespace();
        let state = words.next()?.chars().nth(1)?;
        // Unpacked, half-configured, half-installed.
        matches!(state, 'U' | 'F' | 'H').then(|| words.next().map(str::to_owned))?
    };
    listed.lines().filter_map(package).collect()
}

/// All packages whose programs parts need.
pub(super) fn packages() -> BTreeSet<&'static str> {
    PACKAGES_OF
        .iter()
        .flat_map(|(_, packages)| packages.iter().copied())
        .collect()
}

/// Returns whether the program of a part is being upgraded in the same run of dpkg, so that nobody can expect it to work yet.
pub(super) fn is_being_upgraded(part: &DownPart, unconfigured: &BTreeSet<String>) -> bool {
    PACKAGES_OF
        .iter()
        .filter(|(name, _)| *name == part.name)
        .flat_map(|(_, packages)| *packages)
        .any(|package| unconfigured.contains(*package))
}

/// The text after the reason why the next daemon would not start.
pub(super) fn refused_text(running: Option<&RunningDaemon>) -> String {
    let daemon = match running {
        Some(running) => format!(
            "the daemon that runs ({}) continues until it is stopped or ends, and does not start again before this is corrected",
            running.shown()
        ),
        None => "no daemon runs, and none starts before this is corrected".to_owned(),
    };
    format!(
        "switchyard: this version does not start on this node: {daemon}. Containers, their logs and containerd continue.\n\
         switchyard: correct it, then run 'dpkg --configure switchyard'\n"
    )
}

/// The text about parts that do not work after the daemon was started.
pub(super) fn failed_text(down: &[DownPart], note: &str) -> String {
    let mut text = String::from("switchyard: this version does not work on this node:\n");
    for DownPart { name, why } in down {
        text.push_str(&format!("switchyard:   {name}: {why}\n"));
    }
    let until = if down.iter().any(DownPart::is_daemon) {
        "the orchestrators can start and stop none until a daemon runs, which the unit tries each second"
    } else {
        "what needs these parts fails until they work"
    };
    text.push_str(&format!(
        "switchyard: containers, their logs and containerd continue with the programs that they have; {until}.\n\
         switchyard: correct it, then run 'dpkg --configure switchyard', or install the former package. \
         If a part is not to work any more, remove {note} before that\n"
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon(parts: &[(&str, bool)]) -> RunningDaemon {
        let parts: Vec<_> = parts
            .iter()
            .map(|(name, up)| {
                serde_json::json!({ "name": name, "up": up, "needed": true, "detail": "it is away" })
            })
            .collect();
        let answer = serde_json::json!({ "version": "0.9", "later": 1, "parts": parts });
        serde_json::from_value(answer).unwrap()
    }

    fn unit(load: &str, file: &str, active: &str) -> LoadedUnit {
        LoadedUnit {
            load_state: load.into(),
            file_state: file.into(),
            active_state: active.into(),
            ..LoadedUnit::default()
        }
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn parts_that_worked_before_have_to_work_and_others_need_not() {
        let running = unit("loaded", "enabled", "active");
        let answer = daemon(&[("runtime", true), ("network", false), ("swarm", false)]);
        assert_eq!(answer.up_parts().collect::<Vec<_>>(), ["runtime"]);
        let enough: [&[&str]; 3] = [&[], &["runtime"], &["runtime", "removed"]];
        for before in enough {
            assert_eq!(judge(&running, Ok(&answer), &names(before)), Verdict::Works);
        }
        let failed = judge(&running, Ok(&answer), &names(&["network", "runtime"]));
        let part = DownPart {
            name: "network".into(),
            why: "it is away".into(),
        };
        assert_eq!(failed, Verdict::Fails(vec![part]));
    }

    #[test]
    fn daemon_has_to_answer_unless_nobody_wants_it_to_run() {
        let silent = Err("connection refused");
        let none = names(&[]);
        let some = names(&["runtime"]);
        let fails = Verdict::Fails(vec![DownPart::daemon("connection refused")]);
        for (unit, before, expected) in [
            (
                unit("masked", "masked", "inactive"),
                &some,
                Verdict::NotStarted,
            ),
            (
                unit("not-found", "", "inactive"),
                &some,
                Verdict::NotStarted,
            ),
            (
                unit("loaded", "disabled", "inactive"),
                &some,
                Verdict::NotStarted,
            ),
            (
                unit("loaded", "enabled", "inactive"),
                &none,
                Verdict::NotStarted,
            ),
        ] {
            assert_eq!(judge(&unit, silent, before), expected, "{unit:?}");
        }
        for (unit, before) in [
            (unit("loaded", "enabled", "inactive"), &some),
            (unit("loaded", "enabled", "activating"), &none),
            (unit("loaded", "disabled", "activating"), &none),
            (unit("loaded", "enabled", "failed"), &none),
        ] {
            assert_eq!(judge(&unit, silent, before), fails, "{unit:?}");
        }
        // A masked unit may still run, and is not restarted.
        let down = daemon(&[("runtime", false)]);
        let masked = unit("masked", "masked", "active");
        assert_eq!(judge(&masked, Ok(&down), &some), Verdict::NotStarted);
    }

    #[test]
    fn unit_that_is_masked_or_disabled_and_stopped_is_left_alone() {
        for alone in [
            unit("masked", "masked", "active"),
            unit("not-found", "", "inactive"),
            unit("loaded", "disabled", "inactive"),
            unit("loaded", "disabled", "failed"),
        ] {
            assert!(is_left_alone(&alone), "{alone:?}");
        }
        for started in [
            unit("loaded", "enabled", "inactive"),
            unit("loaded", "enabled-runtime", "failed"),
            unit("loaded", "disabled", "active"),
            unit("bad-setting", "enabled", "active"),
        ] {
            assert!(!is_left_alone(&started), "{started:?}");
        }
    }

    #[test]
    fn program_that_dpkg_has_not_configured_yet_excuses_its_part() {
        let listed = "ii  runc\niU  containerd\niF  kubelet\nrc  crun\nun  containerd.io\niHR x\nit  docker\n\n";
        let found = unconfigured(listed);
        assert_eq!(found, names(&["containerd", "kubelet", "x"]));
        let part = |name: &str| DownPart {
            name: name.into(),
            why: String::new(),
        };
        assert!(is_being_upgraded(&part("runtime"), &found));
        assert!(is_being_upgraded(&part("kubelet devices"), &found));
        assert!(!is_being_upgraded(&part("network"), &found));
        assert!(!is_being_upgraded(&part("logkeeper"), &found));
        assert!(!is_being_upgraded(&DownPart::daemon("x"), &found));
        assert!(packages().contains("crun"));
    }

    #[test]
    fn texts_say_what_continues_and_until_when() {
        let mut running = daemon(&[]);
        running.pid = Some(7);
        let text = refused_text(Some(&running));
        assert!(
            text.contains("(version 0.9, process 7) continues until"),
            "{text}"
        );
        assert!(refused_text(None).contains("no daemon runs"));
        let text = failed_text(&[DownPart::daemon("it ended")], "/run/note");
        assert!(text.contains("  daemon: it ended\n") && text.contains("until a daemon runs"));
        assert!(text.contains("remove /run/note"), "{text}");
    }

    #[test]
    fn former_program_is_known_by_the_daemons_own_list() {
        let mut running = daemon(&[]);
        assert!(!running.has_former_program());
        running.programs.push(ProgramView {
            part: "daemon".into(),
            pid: 7,
            path: "/usr/bin/switchyard".into(),
            replaced: true,
            version: None,
            configuration_current: None,
        });
        assert!(running.has_former_program());
    }
}
