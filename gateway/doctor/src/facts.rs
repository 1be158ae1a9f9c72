//! The common input of all checks: the configuration, the daemon's answers, and other software on the node.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use switchyard_config::{Config, DEFAULT_FILE, Flag, Sources};
use switchyard_linux::packages::{Needed, OS_RELEASE_FILES, OsRelease};
use switchyard_linux::report;
use switchyard_linux::services::NodeService;
use switchyard_operator_api::{DevicesView, Overridden, StatusReport, SwarmView};

use super::local::PROGRAM_DIRS;
use super::network_defaults::{UsedDefaults, load_settled};
use super::own_ipv6::add_own_ipv6;
use super::unit::{LoadedUnit, variable_of};
use super::view::{FILE_MAX, NodeView, ProcessFacts};

/// The unit of the daemon.
pub const UNIT: &str = "switchyard.service";

/// The beginning of variables that set keys.
const VARIABLES: &str = "SWITCHYARD_";

/// Directories in which distributions have the modules of kernels; the second one is that of NixOS.
const MODULES_DIRS: [&str; 2] = [
    "/lib/modules",
    "/run/booted-system/kernel-modules/lib/modules",
];

/// The most variables and arguments of the daemon that are looked at.
const VARIABLES_MAX: usize = 4096;

/// Maximum number of other daemons that are examined.
const DAEMONS_MAX: usize = 32;

/// The input of an examination of a node.
#[derive(Debug, Clone, Default)]
pub struct DoctorRequest {
    /// The sources of the configuration, as they are given to this command.
    pub sources: Sources,
    /// The daemon's admin socket, instead of the configured one.
    pub socket: Option<PathBuf>,
}

/// The facts that all checks share.
pub(super) struct Facts {
    /// The node.
    pub(super) view: Arc<dyn NodeView>,
    /// The configuration of the sources; if they are invalid, or those of the daemon are not known, the one in force, or the defaults.
    pub(super) config: Config,
    /// The one in force in the daemon, which says where it serves; while that is not known, [`Facts::config`].
    pub(super) served: Config,
    /// Reason why the sources are invalid.
    pub(super) config_error: Option<String>,
    /// Values that are probably not intended.
    pub(super) warnings: Vec<String>,
    /// Unknown keys and values, which a start ignores.
    pub(super) ignored: Vec<String>,
    /// Values of files that have no effect.
    pub(super) overridden: Vec<Overridden>,
    /// The defaults of the node's networks.
    pub(super) network_defaults: UsedDefaults,
    /// The daemon's admin socket.
    pub(super) admin_socket: PathBuf,
    /// The daemon's status, or why there is none.
    pub(super) status: Result<StatusReport, String>,
    /// The daemon's devices.
    pub(super) devices: Option<DevicesView>,
    /// The node's part in a swarm; `None` if it may have none.
    pub(super) swarm: Option<SwarmView>,
    /// The processes of the node.
    pub(super) processes: Vec<ProcessFacts>,
    /// The directories in which the daemon and what it starts find programs.
    pub(super) program_dirs: Vec<PathBuf>,
    /// The sources of the daemon's next start, with its whole environment; `None` if they are not known.
    pub(super) next: Option<Sources>,
}

impl Facts {
    /// Gathers the facts.
    pub(super) fn gather(view: Arc<dyn NodeView>, request: &DoctorRequest) -> Self {
        let first = view.load(&request.sources);
        let config = first.map_or_else(|_| Config::default(), |loaded| loaded.effective.config);
        let admin_socket = request
            .socket
            .clone()
            .unwrap_or_else(|| config.paths.admin_socket());
        let FoundDaemon {
            status,
            processes,
            environment,
            file,
            sources,
            next,
        } = FoundDaemon::look(&*view, &request.sources, &admin_socket);
        let pid = status.as_ref().ok().and_then(|status| status.pid);
        let in_force = status
            .is_ok()
            .then(|| config_in_force(&*view, &admin_socket))
            .flatten();
        // The files of a process that cannot be seen, as one in another PID namespace, are not known.
        let is_unseen = pid.is_some() && file.is_none() && request.sources.file.is_none();
        let mut facts = Self {
            program_dirs: program_dirs(&environment),
            next: (!is_unseen).then_some(next),
            devices: ask(&*view, &admin_socket, "/v1/devices").ok(),
            swarm: ask(&*view, &admin_socket, "/v1/swarm").ok(),
            view,
            served: Config::default(),
            config,
            config_error: None,
            warnings: Vec::new(),
            ignored: Vec::new(),
            overridden: Vec::new(),
            network_defaults: UsedDefaults::None,
            admin_socket,
            status,
            processes,
        };
        match in_force.as_ref().filter(|_| is_unseen) {
            Some(config) => facts.config = config.clone(),
            None => facts.load(&sources, in_force.as_ref()),
        }
        facts.served = in_force.unwrap_or_else(|| facts.config.clone());
        add_own_ipv6(&*facts.view, &mut facts.config);
        facts
    }

    fn load(&mut self, sources: &Sources, in_force: Option<&Config>) {
        match load_settled(&*self.view, sources, in_force) {
            Ok((loaded, used)) => {
                self.network_defaults = used;
                self.config = loaded.effective.config;
                self.warnings = loaded.warnings;
                self.ignored = loaded.ignored;
                self.overridden = loaded.overridden;
            }
            Err(error) => {
                self.config_error = Some(report(&error));
                self.config = in_force.cloned().unwrap_or_default();
            }
        }
    }

    /// Returns whether the daemon answers.
    pub(super) const fn is_up(&self) -> bool {
        self.status.is_ok()
    }

    /// The other daemons of this node, by process, with their configurations.
    pub(super) fn other_daemons(&self) -> Vec<(i32, Config)> {
        let pid = self.status.as_ref().ok().and_then(|status| status.pid);
        let own = pid.and_then(|pid| i32::try_from(pid).ok());
        // While no daemon answers, a process with the same directories is the one that should.
        self.daemons(own)
            .filter(|(_, other)| own.is_some() || other.paths != self.config.paths)
            .collect()
    }

    /// The process of the daemon if it runs and does not answer.
    pub(super) fn silent_daemon(&self) -> Option<i32> {
        let mut daemons = self.daemons(None).filter(|_| !self.is_up());
        daemons.find_map(|(pid, daemon)| (daemon.paths == self.config.paths).then_some(pid))
    }

    /// The daemons of this node but for one process, with their configurations.
    fn daemons(&self, but: Option<i32>) -> impl Iterator<Item = (i32, Config)> {
        let all = self.processes.iter();
        let daemons = all.filter(move |process| is_daemon(process) && Some(process.pid) != but);
        daemons.take(DAEMONS_MAX).filter_map(move |process| {
            let sources = sources_of(&*self.view, process).ok()?;
            let (loaded, _) = load_settled(&*self.view, &sources, None).ok()?;
            Some((process.pid, loaded.effective.config))
        })
    }

    /// The file of a program, as the daemon finds it.
    pub(super) fn program(&self, name: &str) -> Option<PathBuf> {
        self.view.program(name, &self.program_dirs)
    }

    /// Standard output of a program that succeeds; `None` if it is missing, fails, or does not end in time.
    pub(super) fn output(&self, program: &str, args: &[&str]) -> Option<String> {
        let done = self.view.run(&self.program(program)?, args).ok()?;
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        (done.status == Some(0) && !done.is_cut).then_some(text)
    }

    /// The command that does this with a service of the node, if what supervises services here is known.
    pub(super) fn service_command(&self, verb: &str, service: &str) -> Option<String> {
        let service = NodeService::named(service, |path| self.view.exists(path))?;
        Some(service.command(verb).join(" "))
    }

    /// The directory of the running kernel's modules; one that does not exist if it has none here.
    pub(super) fn modules_dir(&self) -> PathBuf {
        let release = self.view.text("/proc/sys/kernel/osrelease");
        let release = release.unwrap_or_default();
        let of_kernel = |dir: &str| Path::new(dir).join(release.trim());
        let mut known = MODULES_DIRS.into_iter().map(of_kernel);
        let found = known.find(|dir| self.view.exists(dir));
        found.unwrap_or_else(|| of_kernel(MODULES_DIRS[0]))
    }

    /// The command that installs what this node lacks, if its distribution has one.
    pub(super) fn install_command(&self, needed: Needed) -> Option<String> {
        let text = OS_RELEASE_FILES
            .iter()
            .find_map(|file| self.view.text(file));
        OsRelease::parse(&text.unwrap_or_default()).install_command(needed)
    }

    /// The processes of programs with this name.
    pub(super) fn running<'f>(&'f self, name: &'f str) -> impl Iterator<Item = &'f ProcessFacts> {
        self.processes
            .iter()
            .filter(move |process| process.name() == name)
    }

    /// Returns whether a kubelet runs on this node, or is configured.
    pub(super) fn has_kubelet(&self) -> bool {
        self.running("kubelet").next().is_some() || self.view.exists("/var/lib/kubelet/config.yaml")
    }

    /// Returns whether the kernel has AppArmor, and it is on.
    pub(super) fn has_apparmor(&self) -> bool {
        let enabled = self.view.text("/sys/module/apparmor/parameters/enabled");
        enabled.is_some_and(|text| text.trim() == "Y")
    }

    /// Returns whether cgroup v2 is the only hierarchy.
    pub(super) fn is_unified(&self) -> bool {
        self.view.exists("/sys/fs/cgroup/cgroup.controllers")
    }
}

/// A page of the daemon, parsed.
pub(super) fn ask<T: DeserializeOwned>(
    view: &dyn NodeView,
    socket: &Path,
    page: &str,
) -> Result<T, String> {
    let body = view.ask(socket, page)?;
    serde_json::from_slice(&body)
        .map_err(|error| format!("its answer to {page} cannot be parsed: {error}"))
}

/// The configuration in force in the daemon; `None` if it does not answer.
pub(crate) fn config_in_force(view: &dyn NodeView, admin_socket: &Path) -> Option<Config> {
    let text = view.ask(admin_socket, "/v1/config").ok()?;
    toml::from_str(&String::from_utf8_lossy(&text)).ok()
}

/// The variables of a process; none if this process may not see them.
fn environment(view: &dyn NodeView, pid: u32) -> Vec<(String, String)> {
    let path = format!("/proc/{pid}/environ");
    let bytes = view.read(Path::new(&path), FILE_MAX).unwrap_or_default();
    let variables = bytes.split(|byte| *byte == 0).take(VARIABLES_MAX);
    variables
        .filter_map(|variable| variable_of(&String::from_utf8_lossy(variable)))
        .collect()
}

/// A daemon, as it is found by its admin socket, and where it has its configuration from.
pub(crate) struct FoundDaemon {
    /// Its status, or why there is none.
    status: Result<StatusReport, String>,
    /// The processes of the node.
    processes: Vec<ProcessFacts>,
    /// Its environment; while it does not answer, that of its unit.
    environment: Vec<(String, String)>,
    /// The configuration file that it was started with, if its process is found.
    file: Option<PathBuf>,
    /// Its environment counts, and the file and the keys that it was started with, unless others are given. While it does
    /// not answer, those of its unit count.
    pub(crate) sources: Sources,
    /// Those of its next start, with its whole environment: of its unit, if that is what starts it.
    next: Sources,
}

impl FoundDaemon {
    /// Asks at the admin socket, and looks at the process that answers.
    pub(crate) fn look(view: &dyn NodeView, given: &Sources, admin_socket: &Path) -> Self {
        let status: Result<StatusReport, String> = ask(view, admin_socket, "/statusz");
        let pid = status.as_ref().ok().and_then(|status| status.pid);
        let processes = view.processes();
        // The manager gives a unit that it does not have its own environment. Something else may have started the daemon.
        let unit = LoadedUnit::read(view, UNIT)
            .filter(LoadedUnit::is_loaded)
            .filter(|unit| pid.is_none() || unit.main_pid == pid);
        let of_unit = unit.as_ref().map(sources_of_unit);
        let own = pid.and_then(|pid| i32::try_from(pid).ok());
        let process = processes.iter().find(|process| Some(process.pid) == own);
        // A file that cannot be found from here is as unknown as that of a process which cannot be seen.
        let named = process.and_then(|process| config_file(view, process).ok());
        let file = named
            .clone()
            .map(|named| named.unwrap_or_else(|| DEFAULT_FILE.into()));
        let of_daemon = match pid {
            Some(pid) => Sources {
                file: named.flatten(),
                env: environment(view, pid),
                flags: process.map(flags).unwrap_or_default(),
            },
            None => of_unit.clone().unwrap_or_default(),
        };
        let environment = of_daemon.env.clone();
        let next = of_unit.unwrap_or_else(|| of_daemon.clone());
        let mut sources = unless_given(given, of_daemon);
        sources.env.retain(|(name, _)| name.starts_with(VARIABLES));
        Self {
            status,
            processes,
            environment,
            file,
            sources,
            next: unless_given(given, next),
        }
    }

    /// Returns the configuration sources of the daemon that answers, or `given` while none does.
    ///
    /// # Errors
    /// `InvalidArgument` if it has another file than the given one: the rest would be of one daemon, and the file of another.
    pub(crate) fn sources_of_running(
        view: &dyn NodeView,
        given: &Sources,
        admin_socket: &Path,
    ) -> switchyard_core::Result<Sources> {
        let found = Self::look(view, given, admin_socket);
        if found.status.is_err() {
            return Ok(given.clone());
        }
        if let Some((given, own)) = given.file.as_ref().zip(found.file)
            && resolved(given).is_some_and(|given| resolved(&own).is_none_or(|own| given != own))
        {
            let why = format!(
                "{}, but the daemon at {} has {}: leave --config out, or name the socket of its daemon by --socket",
                given.display(),
                admin_socket.display(),
                own.display()
            );
            return Err(switchyard_core::Error::invalid("--config", why));
        }
        Ok(found.sources)
    }
}

/// The path of a file without links and `..`; one that does not exist from here as it is.
fn resolved(file: &Path) -> Option<PathBuf> {
    fs::canonicalize(file)
        .or_else(|_| std::path::absolute(file))
        .ok()
}

/// The sources of a daemon, except for a file and keys that are given instead. Given variables count if it has none. Pure.
fn unless_given(given: &Sources, own: Sources) -> Sources {
    let env = if own.env.is_empty() {
        given.env.clone()
    } else {
        own.env
    };
    let flags = if given.flags.is_empty() {
        own.flags
    } else {
        given.flags.clone()
    };
    Sources {
        file: given.file.clone().or(own.file),
        env,
        flags,
    }
}

/// The sources of the next process of a unit. Pure.
fn sources_of_unit(unit: &LoadedUnit) -> Sources {
    let next = ProcessFacts {
        pid: 0,
        args: unit.arguments.clone(),
    };
    Sources {
        // systemd starts it in the root directory.
        file: named_file(&next).map(|file| Path::new("/").join(file)),
        env: unit.environment.clone(),
        flags: flags(&next),
    }
}

fn named_file(process: &ProcessFacts) -> Option<&str> {
    let values = process.values("config").into_iter();
    values.chain(process.values("c")).last()
}

/// The configuration file that a process was started with; `None` if it was started without one.
///
/// # Errors
/// It was started with a relative path, and its working directory is not known.
fn config_file(view: &dyn NodeView, process: &ProcessFacts) -> io::Result<Option<PathBuf>> {
    named_file(process)
        .map(|file| seen_by(view, process, Path::new(file)))
        .transpose()
}

/// A path as a process finds it: a relative one from its working directory.
///
/// # Errors
/// That directory is not known.
pub(super) fn seen_by(
    view: &dyn NodeView,
    process: &ProcessFacts,
    path: &Path,
) -> io::Result<PathBuf> {
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    let dir = view.link(Path::new(&format!("/proc/{}/cwd", process.pid)))?;
    Ok(dir.join(path))
}

/// The keys that a daemon was started with.
fn flags(process: &ProcessFacts) -> Vec<Flag> {
    let set = process
        .values("set")
        .into_iter()
        .filter_map(|text| text.split_once('='));
    set.map(|(key, value)| Flag {
        flag: format!("--set {key}"),
        key: key.to_owned(),
        value: value.to_owned(),
    })
    .collect()
}

/// The sources of another daemon.
///
/// # Errors
/// Its configuration file is not known.
fn sources_of(view: &dyn NodeView, process: &ProcessFacts) -> io::Result<Sources> {
    let pid = u32::try_from(process.pid).unwrap_or_default();
    let env = environment(view, pid)
        .into_iter()
        .filter(|(name, _)| name.starts_with(VARIABLES))
        .collect();
    Ok(Sources {
        file: config_file(view, process)?,
        env,
        flags: flags(process),
    })
}

fn program_dirs(environment: &[(String, String)]) -> Vec<PathBuf> {
    let path = environment
        .iter()
        .find(|(name, _)| name == "PATH")
        .map(|(_, value)| value.as_str());
    let mut dirs: Vec<PathBuf> = path
        .into_iter()
        .flat_map(|path| path.split(':'))
        .filter(|dir| dir.starts_with('/'))
        .map(PathBuf::from)
        .collect();
    for dir in PROGRAM_DIRS.map(PathBuf::from) {
        if !dirs.contains(&dir) {
            dirs.push(dir);
        }
    }
    dirs
}

/// The process of the daemon that serves this admin socket by its configuration; if that is not known of any, the only daemon of the node.
#[must_use]
pub fn daemon_at(view: &dyn NodeView, admin_socket: &Path) -> Option<u32> {
    let processes = view.processes();
    let daemons: Vec<&ProcessFacts> = processes
        .iter()
        .filter(|process| is_daemon(process))
        .take(DAEMONS_MAX)
        .collect();
    let serves = |process: &ProcessFacts| {
        let loaded = sources_of(view, process).map(|sources| view.load(&sources));
        matches!(loaded, Ok(Ok(loaded)) if loaded.effective.config.paths.admin_socket() == admin_socket)
    };
    let found = daemons.iter().find(|process| serves(process));
    let only = || match daemons.as_slice() {
        [only] => Some(only),
        _ => None,
    };
    let process = found.or_else(only)?;
    u32::try_from(process.pid).ok()
}

/// Returns whether the arguments of a process are those of a daemon.
fn is_daemon(process: &ProcessFacts) -> bool {
    let command = process.args.get(1);
    process.name() == "switchyard" && command.is_some_and(|command| command == "serve")
}
