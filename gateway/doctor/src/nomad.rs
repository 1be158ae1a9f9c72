//! Checks of a Nomad agent on the node.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use switchyard_config::{PathsConfig, nomad_socket};

use super::codes::orchestrators::{
    AGENT_WITHOUT_SESSION, BROKEN_LAUNCHER, DOCKER_BESIDE, NO_DEVICE_PLUGIN, NO_LAUNCHER,
    NO_PLUGIN_BLOCK, NOMAD_DISABLED, OTHER_NOMAD_SOCKET,
};
use super::facts::{Facts, seen_by};
use super::finding::Finding;
use super::hcl::{Item, items};
use super::text::listed;
use super::view::{FILE_MAX, FileKind, NodeView, ProcessFacts};

/// Directory in which packages put the configuration of an agent.
const CONFIG_DIR: &str = "/etc/nomad.d";

/// Maximum number of files of an agent that are read.
const FILES_MAX: usize = 64;

/// The plugins: the names of their files, and of their blocks.
const DRIVER: &str = "switchyard";
const DEVICES: &str = "switchyard-device";

/// The socket of Docker.
pub(super) const DOCKER_SOCKET: &str = "/run/docker.sock";

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let Some(agent) = agent(facts) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    found.extend(agent.plugin_block(facts));
    if agent.has_block(DRIVER) {
        let before = found.len();
        found.extend(agent.other_socket(facts));
        found.extend(agent.launchers(facts));
        if found.len() == before {
            found.extend(without_session(facts));
        }
        if !facts.config.nomad.enabled {
            let text = format!(
                "{} name plugin {DRIVER:?}, and nomad.enabled is false",
                listed(&agent.files)
            );
            found.push(Finding::new(&NOMAD_DISABLED, text));
        }
    }
    found.extend(agent.docker(facts));
    found
}

/// An agent that runs while none of its plugins has a session, for no reason that its files show.
fn without_session(facts: &Facts) -> Option<Finding> {
    let launchers = facts.status.as_ref().ok()?.nomad_launchers;
    let runs = facts.processes.iter().any(is_agent);
    (launchers == Some(0) && runs).then(|| {
        let found = "an agent runs, and no driver plugin of an agent is connected to the daemon";
        Finding::new(&AGENT_WITHOUT_SESSION, found).command("nomad node status -self -verbose")
    })
}

/// A Nomad agent, by its configuration.
pub(super) struct Agent {
    files: Vec<PathBuf>,
    items: Vec<Item>,
    /// Parts of its configuration that cannot be read, each with the reason.
    unread: Vec<String>,
}

/// The directories in which Nomad agents look for plugins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PluginDirs {
    /// Those that are known.
    pub dirs: BTreeSet<PathBuf>,
    /// Reasons why there may be others.
    pub unknown: BTreeSet<String>,
}

/// The agent of this node; `None` if there is none.
pub(super) fn agent(facts: &Facts) -> Option<Agent> {
    let process = facts.processes.iter().find(|process| is_agent(process));
    let agent = Agent::read(&*facts.view, process);
    // A server has no drivers.
    let is_client = agent
        .value(&["client", "enabled"])
        .is_some_and(|value| value == "true")
        || agent.has_block(DRIVER);
    (is_client || (process.is_some() && agent.files.is_empty())).then_some(agent)
}

/// The directories in which agents look for plugins: those that run, by their arguments and files, and one with the
/// configuration of packages.
pub(super) fn plugin_dirs(view: &dyn NodeView) -> PluginDirs {
    let processes = view.processes();
    let running = processes.iter().filter(|process| is_agent(process));
    let mut found = PluginDirs::default();
    for process in running.map(Some).chain([None]) {
        let agent = Agent::read(view, process);
        found.dirs.extend(agent.plugin_dir());
        found.unknown.extend(agent.unread);
        if let Some(process) = process {
            let dirs = process.values("plugin-dir").into_iter();
            found.dirs.extend(dirs.map(PathBuf::from));
            let data = process.values("data-dir").into_iter().map(Path::new);
            found.dirs.extend(data.map(|dir| dir.join("plugins")));
        }
    }
    // An agent refuses relative ones.
    found.dirs.retain(|dir| dir.is_absolute());
    found
}

fn is_agent(process: &ProcessFacts) -> bool {
    process.name() == "nomad" && process.args.iter().any(|arg| arg == "agent")
}

fn is_config(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "hcl" || extension == "json")
}

impl Agent {
    /// Reads the files that an agent was started with, else those of packages.
    fn read(view: &dyn NodeView, process: Option<&ProcessFacts>) -> Self {
        let mut agent = Self {
            files: Vec::new(),
            items: Vec::new(),
            unread: Vec::new(),
        };
        let named = process.map_or_else(Vec::new, |process| process.values("config"));
        match process.filter(|_| !named.is_empty()) {
            Some(process) => {
                for place in named.into_iter().map(Path::new) {
                    match seen_by(view, process, place) {
                        Ok(place) => agent.find_files(view, &place, false),
                        Err(error) => agent.note_unread(place, error),
                    }
                }
            }
            None => agent.find_files(view, Path::new(CONFIG_DIR), true),
        }
        let rest = agent.files.split_off(agent.files.len().min(FILES_MAX));
        if let Some(file) = rest.first() {
            agent.note_unread(file, format!("it has more than {FILES_MAX} files"));
        }
        for file in agent.files.clone() {
            match view.read(&file, FILE_MAX) {
                Ok(text) => agent.items.extend(items(&String::from_utf8_lossy(&text))),
                Err(error) => agent.note_unread(&file, error),
            }
        }
        agent
    }

    /// Adds a file of the configuration, or those in a directory.
    fn find_files(&mut self, view: &dyn NodeView, place: &Path, may_be_missing: bool) {
        match view.stat(place).map(|file| file.kind) {
            Ok(FileKind::Directory) => match view.list(place) {
                Ok(names) => {
                    let paths = names.iter().map(|name| place.join(name));
                    self.files.extend(paths.filter(|path| is_config(path)));
                }
                Err(error) => self.note_unread(place, error),
            },
            Ok(FileKind::Regular) => self.files.push(place.to_owned()),
            Ok(FileKind::Socket | FileKind::Other) => {
                self.note_unread(place, "it is neither a file nor a directory");
            }
            Err(error) if may_be_missing && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => self.note_unread(place, error),
        }
    }

    fn note_unread(&mut self, path: &Path, why: impl Display) {
        let path = path.display();
        self.unread.push(format!(
            "cannot read {path}, which a Nomad agent uses: {why}"
        ));
    }

    fn values(&self, path: &[&str]) -> Option<&[String]> {
        let found = self
            .items
            .iter()
            .rev()
            .find(|item| item.values.is_some() && item.path == path);
        found.and_then(|item| item.values.as_deref())
    }

    fn value(&self, path: &[&str]) -> Option<&str> {
        self.values(path)?.first().map(String::as_str)
    }

    /// A port of the configuration.
    pub(super) fn number(&self, path: &[&str]) -> Option<u16> {
        self.value(path)?.parse().ok()
    }

    fn has_block(&self, name: &str) -> bool {
        self.items.iter().any(|item| item.path == ["plugin", name])
    }

    fn args(&self, name: &str) -> &[String] {
        self.values(&["plugin", name, "args"]).unwrap_or_default()
    }

    fn plugin_dir(&self) -> Option<PathBuf> {
        let set = self.value(&["plugin_dir"]).map(PathBuf::from);
        set.or_else(|| Some(Path::new(self.value(&["data_dir"])?).join("plugins")))
    }

    fn plugin_block(&self, facts: &Facts) -> Option<Finding> {
        let files = match self.files.as_slice() {
            [] => "a Nomad agent runs".to_owned(),
            files => listed(files),
        };
        if !self.has_block(DRIVER) {
            return facts.config.nomad.enabled.then(|| {
                Finding::new(
                    &NO_PLUGIN_BLOCK,
                    format!("{files}: no block plugin {DRIVER:?} {{}}"),
                )
            });
        }
        (!self.has_block(DEVICES) && !facts.config.devices.groups.is_empty()).then(|| {
            Finding::new(
                &NO_DEVICE_PLUGIN,
                format!("{files}: no block plugin {DEVICES:?} {{}}"),
            )
        })
    }

    /// Checks whether the daemon, or another one of the node, serves the socket of the plugin's arguments, or its default.
    fn other_socket(&self, facts: &Facts) -> Option<Finding> {
        let args = self.args(DRIVER);
        let named = args
            .iter()
            .position(|arg| arg == "--socket")
            .and_then(|at| args.get(at + 1));
        let joined = args.iter().find_map(|arg| arg.strip_prefix("--socket="));
        let named = named.map(String::as_str).or(joined).map(PathBuf::from);
        let theirs = named.unwrap_or_else(|| nomad_socket(&PathsConfig::default().run));
        let ours = facts.served.nomad_socket();
        let is_anothers = || {
            let others = facts.other_daemons();
            others
                .iter()
                .any(|(_, other)| other.nomad.enabled && other.nomad_socket() == theirs)
        };
        (theirs != ours && !is_anothers()).then(|| {
            let found = format!(
                "plugin {DRIVER:?} uses {}, the daemon serves {}",
                theirs.display(),
                ours.display()
            );
            Finding::new(&OTHER_NOMAD_SOCKET, found)
        })
    }

    fn launchers(&self, facts: &Facts) -> Vec<Finding> {
        let Some(dir) = self.plugin_dir() else {
            return Vec::new();
        };
        let mend = format!("switchyard nomad-plugin install {}", dir.display());
        let mut found = Vec::new();
        for name in [DRIVER, DEVICES]
            .into_iter()
            .filter(|name| self.has_block(name))
        {
            let path = dir.join(name);
            let target = facts.view.link(&path).ok();
            let text = match facts.view.stat(&path) {
                Ok(file) if file.kind == FileKind::Regular && file.mode & 0o111 != 0 => continue,
                Ok(_) => format!("{} is no program", path.display()),
                // What cannot be looked at is reported as such.
                Err(error) if error.kind() != io::ErrorKind::NotFound => continue,
                Err(_) => match target {
                    Some(target) => {
                        format!(
                            "{} leads to {}, which does not exist",
                            path.display(),
                            target.display()
                        )
                    }
                    None => {
                        let text = format!("{} does not exist", path.display());
                        found.push(Finding::new(&NO_LAUNCHER, text).command(&mend));
                        continue;
                    }
                },
            };
            found.push(Finding::new(&BROKEN_LAUNCHER, text).command(&mend));
        }
        found
    }

    /// Checks whether the docker driver can be used beside ours.
    fn docker(&self, facts: &Facts) -> Option<Finding> {
        let replaces = self
            .args(DRIVER)
            .windows(2)
            .any(|pair| pair == ["--name", "docker"])
            || self.args(DRIVER).iter().any(|arg| arg == "--name=docker");
        let denied = self.value(&["client", "options", "driver.denylist"]);
        let is_denied =
            denied.is_some_and(|list| list.split(',').any(|driver| driver.trim() == "docker"));
        if replaces || is_denied || facts.view.connect(Path::new(DOCKER_SOCKET)).is_err() {
            return None;
        }
        Some(Finding::new(
            &DOCKER_BESIDE,
            format!("Docker listens on {DOCKER_SOCKET}"),
        ))
    }
}
