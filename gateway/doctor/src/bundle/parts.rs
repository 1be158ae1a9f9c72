//! The parts of a bundle, and how each is gathered.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use switchyard_config as config;
use switchyard_config::{AuditTarget, Config, ContainerdMode, Sources};
use switchyard_linux::mounts::{MountTable, OWN_MOUNTS};
use switchyard_linux::report;
use switchyard_operator_api::{EventPage, HistoryPage, StatusReport};
use switchyard_operator_api::{REVISION, VERSION};
use toml::{Table, Value};

use super::logs::{journal, keep_end, of_file, of_process, of_unit, warnings};
use super::{BundleRequest, PART_MAX};
use crate::facts::{self, FoundDaemon};
use crate::outside::{self, ProcessLook};
use crate::{self as doctor, DoctorRequest, LocalNode, NodeView, PROGRAM_DIRS, UNIT};

/// The largest file of the kernel that is read, in bytes.
const FILE_MAX: usize = 16 << 20;

/// Maximum number of pages of events that are requested.
const PAGES_MAX: usize = 100;

/// Hours of the history that are requested.
const HISTORY_HOURS: i64 = 24;

/// Time for requests for it.
const HISTORY_LIMIT: Duration = Duration::from_secs(60);

/// The name under which the journal has lines of the audit log.
const OF_AUDIT: &str = "--identifier=switchyard-audit";

/// The names under which it has those of the daemon, and of systemd about its unit.
const OF_DAEMON: [&str; 2] = ["--identifier=switchyard", "--identifier=systemd"];

/// Selects the warnings and errors of a week.
const WARNINGS: [&str; 2] = ["--priority=warning", "--since=-7days"];

/// Replacement of the value of a task's variable.
const WITHHELD: &str = "[redacted]";

/// A part: its name in the archive, and how it is gathered.
type PartGatherer = (&'static str, fn(&Context) -> Result<Vec<u8>, String>);

/// All parts, the most useful first: what comes last is cut if there is too much.
pub(super) const PARTS: &[PartGatherer] = &[
    ("versions.txt", versions),
    ("doctor.json", doctor_report),
    ("status.json", |context| context.page("/statusz")),
    ("operations.json", operations),
    ("debug.json", |context| context.page("/v1/debug")),
    ("processes.json", processes),
    ("objects.json", |context| context.page("/v1/objects")),
    ("devices.json", |context| context.page("/v1/devices")),
    ("swarm.json", |context| context.page("/v1/swarm")),
    ("config-in-force.toml", config_in_force),
    ("config-files.toml", config_files),
    ("kernel.txt", kernel),
    ("mounts.txt", mounts),
    ("logs/warnings.log", daemon_warnings),
    ("events.jsonl", events),
    ("history.jsonl", history),
    ("metrics.txt", |context| context.page("/metrics")),
    ("logs/switchyard.log", daemon_log),
    ("logs/logkeeper.log", logkeeper_log),
    ("logs/containerd.log", containerd_log),
    ("logs/audit.log", audit_log),
    ("logs/kernel.log", kernel_log),
];

/// The common input of all parts.
pub(super) struct Context {
    request: BundleRequest,
    view: Arc<LocalNode>,
    config: Config,
    socket: PathBuf,
}

impl Context {
    pub(super) fn of(mut request: BundleRequest) -> Self {
        let read = |sources: &Sources| {
            let mut loaded = config::load_for_start(sources).ok()?;
            // It stays as it is on an error: the part that shows the files says what is wrong.
            let _ = loaded.effective.settle_here();
            Some(loaded.effective.config)
        };
        let view = Arc::new(LocalNode::with_start_check(request.start_check));
        let socket = request.socket.clone().unwrap_or_else(|| {
            read(&request.sources)
                .unwrap_or_default()
                .paths
                .admin_socket()
        });
        // The running daemon may have other sources than this command was given.
        request.sources = FoundDaemon::look(&*view, &request.sources, &socket).sources;
        let config = read(&request.sources)
            .or_else(|| facts::config_in_force(&*view, &socket))
            .unwrap_or_default();
        Self {
            request,
            view,
            config,
            socket,
        }
    }

    /// A page of the daemon.
    fn page(&self, page: &str) -> Result<Vec<u8>, String> {
        self.view.ask(&self.socket, page)
    }

    fn status(&self) -> Option<StatusReport> {
        serde_json::from_slice(&self.page("/statusz").ok()?).ok()
    }

    /// The process of the daemon, also of one that does not answer.
    fn pid(&self) -> Option<u32> {
        let answered = self.status().and_then(|status| status.pid);
        answered.or_else(|| outside::daemon_at(&*self.view, &self.socket))
    }

    fn has_systemd(&self) -> bool {
        self.view.stat(Path::new("/run/systemd/system")).is_ok()
    }

    /// The output of a program; nothing if it is missing or fails.
    fn output(&self, name: &str, args: &[&str]) -> Option<String> {
        let view: &dyn NodeView = &*self.view;
        let program = view.program(name, &PROGRAM_DIRS.map(PathBuf::from))?;
        let done = view.run(&program, args).ok()?;
        Some(String::from_utf8_lossy(&done.stdout).into_owned())
    }

    fn file(&self, path: &str) -> Option<String> {
        let bytes = self.view.read(Path::new(path), FILE_MAX).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn versions(context: &Context) -> Result<Vec<u8>, String> {
    let mut text = format!("switchyard {VERSION} ({REVISION})\n");
    let runtimes = context
        .config
        .containerd
        .runtimes
        .values()
        .map(|runtime| runtime.binary.as_str());
    let mut programs: Vec<&str> = runtimes.collect();
    programs.extend([
        context.config.containerd.binary.as_str(),
        "kubelet",
        "iptables",
        "systemctl",
        "criu",
    ]);
    programs.sort_unstable();
    programs.dedup();
    for program in programs {
        let printed = context.output(program, &["--version"]);
        text.push_str(&format!(
            "\n== {program} --version\n{}",
            printed.as_deref().unwrap_or("not there\n")
        ));
    }
    let nomad = context.output("nomad", &["version"]);
    text.push_str(&format!(
        "\n== nomad version\n{}",
        nomad.as_deref().unwrap_or("not there\n")
    ));
    Ok(text.into_bytes())
}

fn doctor_report(context: &Context) -> Result<Vec<u8>, String> {
    let BundleRequest {
        sources,
        socket,
        start_check: _,
    } = context.request.clone();
    let report = doctor::run(
        Arc::clone(&context.view) as Arc<dyn NodeView>,
        DoctorRequest { sources, socket },
    );
    serde_json::to_vec_pretty(&report).map_err(|error| error.to_string())
}

fn config_in_force(context: &Context) -> Result<Vec<u8>, String> {
    withhold(&String::from_utf8_lossy(&context.page("/v1/config")?))
}

fn config_files(context: &Context) -> Result<Vec<u8>, String> {
    let mut loaded =
        config::load_for_start(&context.request.sources).map_err(|error| report(&error))?;
    let files: String = loaded
        .files
        .iter()
        .map(|file| format!("# read: {}\n", file.display()))
        .collect();
    let mut text = files.into_bytes();
    // What is not set is as this node has it.
    if let Err(error) = loaded.effective.settle_here() {
        let why = report(&error).replace('\n', " ");
        text.extend(format!("# not as it is on this node: {why}\n").into_bytes());
    }
    text.extend(withhold(&loaded.effective.dump(false))?);
    Ok(text)
}

/// A configuration without the values of variables that tasks get.
fn withhold(text: &str) -> Result<Vec<u8>, String> {
    let table: Table = text
        .parse()
        .map_err(|error: toml::de::Error| error.message().to_owned())?;
    let mut value = Value::Table(table);
    withhold_environments(&mut value);
    let text = toml::to_string(&value).map_err(|error| error.to_string())?;
    Ok(text.into_bytes())
}

fn withhold_environments(value: &mut Value) {
    if let Value::Table(table) = value {
        if let Some(Value::Table(variables)) = table.get_mut("environment") {
            variables
                .iter_mut()
                .for_each(|(_, variable)| *variable = WITHHELD.into());
        }
        table
            .iter_mut()
            .for_each(|(_, value)| withhold_environments(value));
    } else if let Value::Array(values) = value {
        values.iter_mut().for_each(withhold_environments);
    }
}

fn events(context: &Context) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let mut path = "/v1/events?wait=0".to_owned();
    for _ in 0..PAGES_MAX {
        let body = context.page(&path)?;
        let page: EventPage = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        if page.events.is_empty() {
            break;
        }
        for event in &page.events {
            serde_json::to_writer(&mut text, event).map_err(|error| error.to_string())?;
            text.push(b'\n');
        }
        let run: String = url::form_urlencoded::byte_serialize(page.run.as_bytes()).collect();
        path = format!("/v1/events?wait=0&run={run}&after={}", page.next);
    }
    Ok(text)
}

/// The events on record of the last hours; of too many the latest.
fn history(context: &Context) -> Result<Vec<u8>, String> {
    let since = Timestamp::now()
        .checked_sub(SignedDuration::from_hours(HISTORY_HOURS))
        .map_err(|error| error.to_string())?;
    let first = format!("/v1/history?since={since}");
    let deadline = Instant::now() + HISTORY_LIMIT;
    let mut text = Vec::new();
    let mut path = first.clone();
    while Instant::now() < deadline {
        let body = context.page(&path)?;
        let page: HistoryPage = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        for event in &page.events {
            serde_json::to_writer(&mut text, event).map_err(|error| error.to_string())?;
            text.push(b'\n');
        }
        if text.len() > 2 * PART_MAX {
            keep_end(&mut text, PART_MAX);
        }
        let Some(next) = page.next else {
            break;
        };
        path = format!("{first}&from={next}");
    }
    keep_end(&mut text, PART_MAX);
    Ok(text)
}

/// The daemon and the processes that it needs, from outside: their threads and their memory.
fn processes(context: &Context) -> Result<Vec<u8>, String> {
    let view = Arc::clone(&context.view) as Arc<dyn NodeView>;
    let known: Vec<(String, u32)> = match context.status() {
        Some(status) => {
            let programs = status.programs.into_iter();
            programs
                .filter_map(|program| Some((program.part, u32::try_from(program.pid).ok()?)))
                .collect()
        }
        None => {
            let pid = outside::daemon_at(&*view, &context.socket);
            pid.map(|pid| ("daemon".to_owned(), pid))
                .into_iter()
                .collect()
        }
    };
    if known.is_empty() {
        return Err("the daemon does not answer, and no process of it is found".to_owned());
    }
    // No stacks: they would stop the processes.
    let looks: BTreeMap<String, ProcessLook> = known
        .into_iter()
        .map(|(part, pid)| (part, outside::look(&view, pid, false)))
        .collect();
    serde_json::to_vec_pretty(&looks).map_err(|error| error.to_string())
}

/// Facts of the kernel, file by file.
fn kernel(context: &Context) -> Result<Vec<u8>, String> {
    let files = [
        "/proc/version",
        "/etc/os-release",
        "/proc/uptime",
        "/proc/loadavg",
        "/proc/meminfo",
        "/proc/swaps",
        "/proc/cgroups",
        "/sys/fs/cgroup/cgroup.controllers",
        "/proc/pressure/cpu",
        "/proc/pressure/io",
        "/proc/pressure/memory",
        "/proc/filesystems",
        "/proc/net/route",
        "/proc/net/ipv6_route",
        "/proc/net/if_inet6",
        "/proc/net/dev",
        "/proc/sys/kernel/pid_max",
        "/proc/sys/kernel/threads-max",
        "/proc/sys/fs/file-nr",
        "/proc/sys/fs/inotify/max_user_instances",
        "/proc/sys/net/netfilter/nf_conntrack_count",
        "/proc/sys/net/netfilter/nf_conntrack_max",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/sys/net/ipv6/conf/all/forwarding",
        "/proc/sys/net/ipv6/conf/all/disable_ipv6",
        "/etc/resolv.conf",
    ];
    let shown = files.iter().map(|path| {
        let text = context
            .file(path)
            .unwrap_or_else(|| "not there\n".to_owned());
        format!("== {path}\n{text}\n")
    });
    Ok(shown.collect::<String>().into_bytes())
}

/// The mounts below the daemon's directories, and those that these are on.
fn mounts(context: &Context) -> Result<Vec<u8>, String> {
    let text = context
        .file(OWN_MOUNTS)
        .ok_or_else(|| format!("{OWN_MOUNTS} cannot be read"))?;
    let dirs = [&context.config.paths.state, &context.config.paths.run];
    let is_ours = |line: &&str| {
        let mount = MountTable::from_text(*line);
        mount.iter().any(|mount| {
            dirs.iter()
                .any(|dir| mount.point.starts_with(dir) || dir.starts_with(&mount.point))
        })
    };
    let lines: Vec<&str> = text.lines().filter(is_ours).collect();
    Ok((lines.join("\n") + "\n").into_bytes())
}

/// The operations in flight, with the processes that hold up those that take long if they are found in time.
fn operations(context: &Context) -> Result<Vec<u8>, String> {
    context
        .page("/v1/operations?blockers=true")
        .or_else(|_| context.page("/v1/operations"))
}

/// The daemon's log without the audit log, whose many lines would leave no room for others.
fn daemon_log(context: &Context) -> Result<Vec<u8>, String> {
    let of_unit = if context.has_systemd() {
        let own = of_unit(&*context.view, UNIT, &OF_DAEMON);
        // The unit may give it another name.
        own.or_else(|_| of_unit(&*context.view, UNIT, &[]))
    } else {
        Err("there is no journal".to_owned())
    };
    match (of_unit, context.pid()) {
        (Err(_), Some(pid)) => of_process(pid),
        (Err(why), None) => Err(format!("the daemon does not run, and {why}")),
        (text, _) => text,
    }
}

/// The warnings and errors of the daemon, which go further back than the end of its log.
fn daemon_warnings(context: &Context) -> Result<Vec<u8>, String> {
    let mut found = Vec::new();
    if context.has_systemd() {
        let selection = [&["--unit", UNIT][..], &WARNINGS[..]].concat();
        found = journal(&*context.view, &selection)?;
    }
    if found.is_empty() {
        // Elsewhere than in the journal a line has its level in its text alone.
        found = warnings(&daemon_log(context)?);
    }
    if found.is_empty() {
        found.extend(b"none\n");
    }
    Ok(found)
}

/// The end of the audit log.
fn audit_log(context: &Context) -> Result<Vec<u8>, String> {
    let audit = &context.config.audit;
    match audit.to {
        AuditTarget::File => of_file(&audit.file),
        AuditTarget::Journal if context.has_systemd() => of_unit(&*context.view, UNIT, &[OF_AUDIT]),
        AuditTarget::Journal => Ok(b"a part of the daemon's log: there is no journal\n".to_vec()),
        AuditTarget::Off => Ok(b"audit.to is \"off\"\n".to_vec()),
    }
}

/// The end of the kernel's log since the boot, if it may be read.
fn kernel_log(context: &Context) -> Result<Vec<u8>, String> {
    let of_journal = if context.has_systemd() {
        journal(&*context.view, &["--dmesg"]).ok()
    } else {
        None
    };
    let found = of_journal.filter(|text| !text.is_empty());
    let of_kernel = || context.output("dmesg", &[]).map(String::into_bytes);
    let found = found.or_else(of_kernel).filter(|text| !text.is_empty());
    Ok(found.unwrap_or_else(|| b"not there\n".to_vec()))
}

/// Its file if the daemon starts it, else its unit: which it is depends on the daemon's environment.
fn logkeeper_log(context: &Context) -> Result<Vec<u8>, String> {
    let of_file = of_file(&context.config.paths.state.join("logkeeper.log"));
    if of_file.is_ok() || !context.has_systemd() {
        return of_file;
    }
    of_unit(&*context.view, "switchyard-logkeeper.service", &[])
}

fn containerd_log(context: &Context) -> Result<Vec<u8>, String> {
    match context.config.containerd.mode {
        ContainerdMode::Managed => {
            of_file(&context.config.paths.state.join("containerd/containerd.log"))
        }
        ContainerdMode::External => of_unit(&*context.view, "containerd.service", &[]),
    }
}
